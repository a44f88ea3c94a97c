"""calico-bgp decode, encode: messages as text, both ways; whatever is given, one line at most."""

from __future__ import annotations

import json
import os
import random

import pytest

from bgp.codec import run
from bgp.daemon import main
from bgp.rib.update import HEADER_BYTES, message
from libcalico.errors import InvalidInput, SuiteError
from tests.unit.bgp.builders import bodies, route, sequence

FULL = route(
    med=5,
    as_path=sequence(65001, 4200000001),
    communities=(0xFFFF0000,),
    large_communities=((1, 2, 3),),
    originator_id=b"\2\2\2\2",
    cluster_list=(b"\1\1\1\1",),
    aggregator=(65001, b"\4\4\4\4"),
    ext_communities=(bytes(8),),
)
MESSAGES = [
    message(2, bodies(["10.65.1.0/26", "10.65.2.0/26"], FULL)[0]),
    message(2, bodies(["fd65::/122"], route("fd00::2"))[0]),
    message(2, bodies(["10.65.1.0/26"], route("fd00::2"))[0]),
    message(2, bytes.fromhex("0004180a41020000")),
    message(2, bytes(4)),
    message(2, bytes.fromhex("00000006800f03000201")),
    message(1, bytes.fromhex("04fc00005a0a00000100")),
    message(1, bytes.fromhex("04fc00005a0a00000108020641040000fc00")),
    message(3, b"\6\2bye"),
    message(4, b""),
    message(5, b"\0\1\0\1"),
]
LONG = json.dumps({"type": "NOTIFICATION", "code": 1, "subcode": 1, "data": "00" * 5000})


def test_a_message_is_shown_as_people_write_it():
    shown = json.loads(run("decode", MESSAGES[0].hex().encode(), asn4=True))
    assert shown["announced"] == ["10.65.1.0/26", "10.65.2.0/26"]
    assert shown["next_hops"] == {"ipv4": "10.0.0.2"}
    assert shown["attributes"] == {
        "origin": "IGP",
        "as_path": [{"asns": [65001, 4200000001]}],
        "med": 5,
        "local_pref": 100,
        "aggregator": {"asn": 65001, "address": "4.4.4.4"},
        "communities": ["65535:0"],
        "originator_id": "2.2.2.2",
        "cluster_list": ["1.1.1.1"],
        "ext_communities": ["0000000000000000"],
        "large_communities": ["1:2:3"],
    }


@pytest.mark.parametrize("asn4", [True, False])
def test_what_is_decoded_and_encoded_says_the_same(asn4: bool):
    stream = b"".join(m for m in MESSAGES if m[18] != 2 or asn4)
    shown = run("decode", stream.hex().encode(), asn4=asn4)
    again = run("encode", shown.encode(), asn4=asn4)
    assert run("decode", b"".join(again.encode().split()), asn4=asn4) == shown
    if asn4:
        assert bytes.fromhex("".join(again.split())) == stream


def test_what_a_speaker_would_treat_as_a_withdrawal_is_said_and_not_written_again():
    broken = MESSAGES[0].hex().replace("40010100", "40010107")
    shown = run("decode", broken.encode(), asn4=True)
    assert "ORIGIN" in json.loads(shown)["malformed"]
    with pytest.raises(InvalidInput, match="malformed"):
        run("encode", shown.encode(), asn4=True)


@pytest.mark.parametrize(
    ("command", "given", "said"),
    [
        ("decode", "xyz", "not hexadecimal"),
        ("decode", "ff" * 18, "not a BGP header"),
        ("decode", message(2, b"\0\0\xff\xff").hex(), "too long"),
        ("encode", "{}", "type"),
        ("encode", '{"type"', "truncated"),
        ("encode", '{"type":"UPDATE","announced":["10.0.0.0/99"]}', "10.0.0.0/99"),
        ("encode", '{"type":"UPDATE","announced":["10.0.0.0/8"]}', "no next hop for ipv4"),
        ("encode", '{"type":"OPEN","asn":70000,"hold_time_s":1,"router_id":"1.1.1.1"}', "$.asn"),
        ("encode", '{"type":"NOTIFICATION","code":1,"subcode":1,"data":"zz"}', "NOTIFICATION"),
        ("encode", LONG, "4096"),
    ],
)
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], command, given, said):
    assert main([command, given]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert said in err


def test_anything_at_all_is_answered_or_refused():
    """BRINDLE_FUZZ_CASES of each kind; the seed is fixed."""
    rng = random.Random(4271)
    texts = [run("decode", m.hex().encode(), asn4=True) for m in MESSAGES]
    refused = 0
    for _ in range(int(os.environ.get("BRINDLE_FUZZ_CASES", "2000"))):
        data = bytearray(rng.choice(MESSAGES))
        first = 0 if rng.random() < 0.1 else min(HEADER_BYTES, len(data) - 1)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(first, len(data))] = rng.choice([0, 1, 4, 255, rng.randrange(256)])
        said = bytearray(rng.choice(texts).encode())
        said[rng.randrange(len(said))] = rng.randrange(256)
        for command, given in (("decode", data.hex().encode()), ("encode", bytes(said))):
            try:
                shown = run(command, given, asn4=rng.random() < 0.5)
                if command == "encode":
                    run("decode", "".join(shown.split()).encode(), asn4=True)
            except SuiteError:
                refused += 1
    assert refused
