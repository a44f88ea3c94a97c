"""bgp.generation: two files, taken together or not at all."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest

from bgp.generation import GenerationFiles, read_generation
from libcalico.errors import ConfigError
from libcalico.model.bgp_filter import BGPFilterRuleV4
from libcalico.model.speaker import Filter, SpeakerConfig
from tests.unit.bgp.builders import config, options

CONF = """neighbor 10.0.0.2 {
  router-id 10.0.0.1; local-address 10.0.0.1; local-as 64512; peer-as 64512;
  family { ipv4 unicast; }
}
"""


def pair(conf: str = CONF, **changes: object) -> tuple[bytes, bytes]:
    digest = hashlib.sha256(conf.encode()).hexdigest()
    made = config(options("10.0.0.2"), **{"exabgp_sha256": digest, **changes})
    return conf.encode(), msgspec.json.encode(made)


def put(directory: Path, conf: bytes | None, speaker: bytes | None) -> None:
    for name, content in (("exabgp.conf", conf), ("speaker.json", speaker)):
        if content is not None:
            scratch = directory / ".scratch"
            scratch.write_bytes(content)
            scratch.rename(directory / name)


def test_a_pair_that_fits():
    found = read_generation(*pair())
    assert found is not None
    assert found.neighbors.addresses() == {"10.0.0.2"}
    assert found.config.peers[0].address == "10.0.0.2"
    assert found.digest == hashlib.sha256(pair()[1]).hexdigest()


def test_a_pair_that_does_not_fit_is_not_looked_into():
    assert read_generation(b"nonsense {", pair()[1]) is None


REFUSED = {
    "not JSON": (CONF.encode(), b"{"),
    "not our schema": (CONF.encode(), b'{"exabgp_sha256": 1}'),
    "a broken neighbour": pair("neighbor {"),
    "not UTF-8": (
        b"# \xff\n",
        msgspec.json.encode(config(exabgp_sha256=hashlib.sha256(b"# \xff\n").hexdigest())),
    ),
    "a broken filter": pair(
        filters=(Filter(name="f", export_v4=(BGPFilterRuleV4(action="Perhaps"),)),)
    ),
    "a broken address": pair(ipv4_address="nonsense"),
    "a broken router id": pair(router_id="x"),
}


@pytest.mark.parametrize(("conf", "speaker"), REFUSED.values(), ids=REFUSED.keys())
def test_what_does_not_make_sense_is_refused_as_a_whole(conf: bytes, speaker: bytes):
    with pytest.raises(ConfigError):
        read_generation(conf, speaker)


def test_nothing_there_yet(tmp_path: Path):
    files = GenerationFiles(tmp_path)
    assert files.poll() is None
    put(tmp_path, pair()[0], None)
    assert files.poll() is None


def test_a_generation_is_taken_once(tmp_path: Path):
    files = GenerationFiles(tmp_path)
    put(tmp_path, *pair())
    assert files.poll() is not None
    assert files.poll() is None
    files.look_again()
    assert files.poll() is not None


def test_half_a_change_waits_for_the_other_half(tmp_path: Path):
    files = GenerationFiles(tmp_path)
    put(tmp_path, *pair())
    files.poll()
    conf, speaker = pair(CONF + "# changed\n")
    put(tmp_path, conf, None)
    assert files.poll() is None
    assert "one generation" in files.error
    put(tmp_path, None, speaker)
    assert files.poll() is not None
    assert files.error == ""


def test_a_refusal_is_said_once(tmp_path: Path):
    files = GenerationFiles(tmp_path)
    put(tmp_path, *pair("neighbor {"))
    with pytest.raises(ConfigError):
        files.poll()
    assert files.poll() is None
    assert "exabgp.conf" in files.error
    put(tmp_path, *pair())
    assert files.poll() is not None
    assert files.error == ""


def test_the_same_content_renamed_into_place_again_is_looked_at(tmp_path: Path):
    files = GenerationFiles(tmp_path)
    put(tmp_path, *pair())
    files.poll()
    put(tmp_path, *pair())
    assert files.poll() is not None


def test_an_unreadable_file_is_an_error_and_not_a_crash(tmp_path: Path):
    files = GenerationFiles(tmp_path)
    put(tmp_path, pair()[0], None)
    (tmp_path / "speaker.json").mkdir()
    with pytest.raises(ConfigError):
        files.poll()


def test_the_defaults_of_the_schema_are_enough():
    least = SpeakerConfig(
        exabgp_sha256=hashlib.sha256(b"# nobody\n").hexdigest(),
        node_name="n",
        router_id="10.0.0.1",
        local_as=64512,
    )
    found = read_generation(b"# nobody\n", msgspec.json.encode(least))
    assert found is not None
    assert found.neighbors.addresses() == set()
