"""confd.resources and confd.publish: template files, and putting a text into force."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from confd.publish import CheckFailed, Publisher
from confd.resources import TemplateResource, load, parse
from libcalico.errors import ConfigError

PLACES = {"run_dir": "/r", "lib_dir": "/l", "bin_dir": "/b"}
SHIPPED = Path(__file__).resolve().parents[3] / "confd/conf.d"


def write(folder: Path, body: str) -> Path:
    path = folder / "x.toml"
    path.write_text("[template]\n" + body)
    return path


def test_the_shipped_resources_parse_and_keep_their_order():
    exabgp, speaker = load(SHIPPED, PLACES)
    assert exabgp.dest == Path("/r/bgp/exabgp.conf")
    assert exabgp.check_cmd == ("/b/exabgp", "validate", "{stage}")
    assert (exabgp.mode, speaker.mode) == (0o600, 0o600)
    assert speaker.reload_signal == signal.SIGHUP
    assert speaker.reload_pid_file == Path("/r/bgp/calico-bgp.pid")


def test_commands_may_be_strings_split_as_a_shell_would(tmp_path):
    body = 'src = "a"\ndest = "/d"\ncheck_cmd = "bird -p -c \'{{.src}}\'"\n'
    assert parse(write(tmp_path, body), PLACES).check_cmd == ("bird", "-p", "-c", "{stage}")


@pytest.mark.parametrize(
    ("body", "member"),
    [
        ('dest = "/d"', "src"),
        ('src = "a"', "dest"),
        ('src = "a"\ndest = "/d"\nmode = "rw"', "mode"),
        ('src = "a"\ndest = "/d"\nmode = "7777"', "mode"),
        ('src = "a"\ndest = "{nowhere}/d"', "dest"),
        ('src = "a"\ndest = "/d"\ncheck = "x"', "check"),
        ('src = "a"\ndest = "/d"\ncheck_cmd = 7', "check_cmd"),
        ('src = "a"\ndest = "/d"\ncheck_cmd = "\'"', "check_cmd"),
        ('src = "a"\ndest = "/d"\nreload_signal = "HUP"', "reload_pid_file"),
        ('src = "a"\ndest = "/d"\nreload_signal = "NO"\nreload_pid_file = "/p"', "reload_signal"),
        ("src = ", "template"),
    ],
)
def test_a_bad_resource_names_file_and_member(tmp_path, body, member):
    with pytest.raises(ConfigError) as caught:
        parse(write(tmp_path, body), PLACES)
    assert caught.value.name == member
    assert caught.value.source.endswith("x.toml")


def resource(tmp_path: Path, **changes) -> TemplateResource:
    return TemplateResource(name="x", src="x.j2", dest=tmp_path / "sub/x.conf", **changes)


def test_an_equal_text_is_not_written_again(tmp_path):
    target = resource(tmp_path, mode=0o600)
    publisher = Publisher({})
    assert publisher.publish(target, "one")
    before = target.dest.stat()
    assert not publisher.publish(target, "one")
    assert target.dest.stat().st_mtime_ns == before.st_mtime_ns
    assert target.dest.stat().st_ino == before.st_ino
    assert before.st_mode & 0o777 == 0o600


def test_a_mode_that_somebody_changed_is_put_back(tmp_path):
    target = resource(tmp_path, mode=0o600)
    publisher = Publisher({})
    publisher.publish(target, "one")
    target.dest.chmod(0o644)
    assert not publisher.publish(target, "one")
    assert target.dest.stat().st_mode & 0o777 == 0o600


def test_a_text_that_its_check_refuses_leaves_the_last_good_one(tmp_path):
    check = (sys.executable, "-c", "import sys; sys.exit('bad' in open(sys.argv[1]).read())")
    target = resource(tmp_path, check_cmd=(*check, "{stage}"))
    publisher = Publisher({})
    assert publisher.publish(target, "good")
    with pytest.raises(CheckFailed, match="refused the new text"):
        publisher.publish(target, "bad")
    assert target.dest.read_text() == "good"
    assert [path.name for path in target.dest.parent.iterdir()] == ["x.conf"]


def test_a_check_that_cannot_be_run_refuses(tmp_path):
    target = resource(tmp_path, check_cmd=("/no/such/program",))
    with pytest.raises(CheckFailed, match="/no/such/program"):
        Publisher({}).publish(target, "x")
    assert not target.dest.exists()


def test_noop_only_says_what_would_change(tmp_path):
    target = resource(tmp_path)
    assert Publisher({}, noop=True).publish(target, "x")
    assert not target.dest.exists()


def test_reload_with_nobody_to_reload_is_fine(tmp_path):
    target = resource(
        tmp_path, reload_signal=signal.SIGHUP, reload_pid_file=tmp_path / "absent.pid"
    )
    Publisher({}).reload(target)
