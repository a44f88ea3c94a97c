"""libcalico.runtime.parse: what each parser takes and what it refuses."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from libcalico.runtime import parse
from libcalico.runtime.parse import PortRange, ProtoPort


@pytest.mark.parametrize(
    ("raw", "expected"),
    [("90", 90.0), ("1.5", 1.5), ("90s", 90.0), ("1m30s", 90.0), ("500ms", 0.5), ("2h", 7200.0),
     ("-1s", -1.0), ("0", 0.0), ("1.5h", 5400.0), (" 5 ", 5.0), ("1e3", 1000.0)],
)  # fmt: skip
def test_seconds(raw: str, expected: float):
    assert parse.seconds(raw) == pytest.approx(expected)


def test_a_bare_number_of_millis_becomes_seconds():
    assert parse.millis("50") == pytest.approx(0.05)
    assert parse.millis("50ms") == pytest.approx(0.05)
    assert parse.millis("1s") == pytest.approx(1.0)


@pytest.mark.parametrize("raw", ["", "soon", "5 s", "1s2", "s", "1d", "nan", "inf", "--1s"])
def test_durations_refused(raw: str):
    with pytest.raises(ValueError, match="duration"):
        parse.seconds(raw)


@pytest.mark.parametrize("raw", ["true", "TRUE", "1", "yes", "y", "t"])
def test_true(raw: str):
    assert parse.boolean(raw) is True


@pytest.mark.parametrize("raw", ["false", "False", "0", "no", "n", "f"])
def test_false(raw: str):
    assert parse.boolean(raw) is False


@pytest.mark.parametrize("raw", ["", "maybe", "2", "enabled"])
def test_other_booleans_refused(raw: str):
    with pytest.raises(ValueError, match="true or false"):
        parse.boolean(raw)


@pytest.mark.parametrize(("raw", "expected"), [("5", 5), ("0x10", 16), ("-3", -3), ("007", 7)])
def test_integer(raw: str, expected: int):
    assert parse.integer()(raw) == expected


@pytest.mark.parametrize("raw", ["", "1.0", "ten", "1_0x", "0b"])
def test_integers_refused(raw: str):
    with pytest.raises(ValueError, match="whole number"):
        parse.integer()(raw)


def test_integer_bounds_are_inclusive():
    bounded = parse.integer(1, 3)
    assert [bounded("1"), bounded("3")] == [1, 3]
    for raw in ("0", "4"):
        with pytest.raises(ValueError, match="must be at"):
            bounded(raw)


def test_an_enum_is_returned_in_its_documented_spelling():
    backend = parse.one_of("Legacy", "NFT", "Auto")
    assert backend("nft") == "NFT"
    with pytest.raises(ValueError, match="Legacy, NFT, Auto"):
        backend("bpf")


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("tcp:22", ProtoPort("tcp", 22)),
        ("22", ProtoPort("tcp", 22)),
        ("UDP:53", ProtoPort("udp", 53)),
        ("sctp:99", ProtoPort("sctp", 99)),
        ("tcp:10.0.0.0/8:443", ProtoPort("tcp", 443, ip_network("10.0.0.0/8"))),
        ("tcp:[fd00::]/8:443", ProtoPort("tcp", 443, ip_network("fd00::/8"))),
        ("tcp:[fd00::/8]:443", ProtoPort("tcp", 443, ip_network("fd00::/8"))),
        ("udp:[fd00::1]:53", ProtoPort("udp", 53, ip_network("fd00::1/128"))),
    ],
)
def test_failsafe_ports(raw: str, expected: ProtoPort):
    assert parse.proto_port(raw) == expected


@pytest.mark.parametrize("raw", ["icmp:1", "tcp:", "tcp:99999", "tcp:x:22", "tcp:0", "tcp:-1", ":"])
def test_failsafe_ports_refused(raw: str):
    with pytest.raises(ValueError, match=r"."):
        parse.proto_port(raw)


def test_lists_drop_blanks_and_empty_items():
    assert parse.words(" a, ,b,") == ("a", "b")
    assert parse.cidrs("10.0.0.1/8, fd00::1") == (ip_network("10.0.0.0/8"), ip_network("fd00::1"))
    assert len(parse.proto_ports("tcp:22,udp:68")) == 2


def test_port_ranges():
    assert parse.port_ranges("30000:32767,80") == (PortRange(30000, 32767), PortRange(80, 80))
    with pytest.raises(ValueError, match="greater than maximum"):
        parse.port_range("10:5")


def test_key_values():
    assert parse.key_values("a=1, b=x=y") == (("a", "1"), ("b", "x=y"))
    for raw in ("a", "=1", "a=1,a=2"):
        with pytest.raises(ValueError, match="key"):
            parse.key_values(raw)


def test_interface_lists_take_plain_names_and_regular_expressions():
    patterns = parse.name_patterns("kube-ipvs0,/^veth/")
    names = ["kube-ipvs0", "kube-ipvs01", "veth12", "myveth"]
    assert [n for n in names if any(p.search(n) for p in patterns)] == ["kube-ipvs0", "veth12"]
    for raw in ("/(/", "has space", "much-too-long-a-name"):
        with pytest.raises(ValueError, match="invalid"):
            parse.name_patterns(raw)


def test_marks_need_a_bit():
    assert parse.mark_mask("0xffff0000") == 0xFFFF0000
    for raw in ("0", "0x1ffffffff"):
        with pytest.raises(ValueError, match="m"):
            parse.mark_mask(raw)


def test_pattern_text_must_match_as_a_whole():
    host = parse.matching(r"[a-z]+", what="host")
    assert host(" abc ") == "abc"
    with pytest.raises(ValueError, match="invalid host"):
        host("abc1")
