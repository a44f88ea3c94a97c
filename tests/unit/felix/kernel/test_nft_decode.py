"""felix.kernel.nft_decode: what a fresh process makes of what it finds."""

from __future__ import annotations

import pytest

from felix.dataplane.nft_port import ChainImage
from felix.kernel.nft_codec import be32, elements, map_entry, rule_userdata, set_attrs, udata
from felix.kernel.nft_decode import (
    ElementCollector,
    RuleMarks,
    chain_images,
    parse_chain,
    parse_rule,
    parse_set,
)
from felix.rules.chain import (
    DROP,
    IFNAME,
    INET_PROTO,
    INET_SERVICE,
    IPV4_ADDR,
    IPV6_ADDR,
    BaseHook,
    Hook,
    goto,
)
from felix.rules.sets import MapValue, SetSpec, ip_port_set, net_element, net_set
from libcalico.netlink.messages import attr, attr_text, nested

HEADER = bytes(4)


def body(*attrs: bytes) -> memoryview:
    return memoryview(HEADER + b"".join(attrs))


def mark(index: int, count: int, digest: bytes = b"d" * 16) -> bytes:
    return rule_userdata("", digest, index, count)[2:]


# ------------------------------------------------------------------------------------ chains


def test_a_base_chain_and_a_plain_one():
    hook = nested(4, be32(1, 2), be32(2, -2))
    found = parse_chain(
        body(attr_text(1, "calico"), attr_text(3, "c"), hook, be32(5, 1), attr_text(7, "filter"))
    )
    assert found == ("c", BaseHook(Hook.FORWARD, -2))
    assert parse_chain(body(attr_text(1, "calico"), attr_text(3, "c"))) == ("c", None)


def test_chains_of_other_tables_are_not_ours():
    assert parse_chain(body(attr_text(1, "filter"), attr_text(3, "c"))) is None


@pytest.mark.parametrize(("policy", "hook"), [(0, 2), (1, 5)])
def test_a_base_chain_we_would_not_make_equals_none_of_ours(policy: int, hook: int):
    attrs = (nested(4, be32(1, hook), be32(2, 0)), be32(5, policy), attr_text(7, "filter"))
    found = parse_chain(body(attr_text(1, "calico"), attr_text(3, "c"), *attrs))
    assert found is not None
    assert found[1] is not None
    assert found[1].type == "filter?"


@pytest.mark.parametrize(
    ("marks", "digest"),
    [
        ([], b""),
        ([mark(0, 1)], b"d" * 16),
        ([mark(0, 2), mark(1, 2)], b"d" * 16),
        ([mark(1, 2), mark(0, 2)], None),  # moved
        ([mark(0, 2)], None),  # one gone
        ([mark(0, 1), None], None),  # one more
        ([mark(0, 2), mark(1, 2, b"x" * 16)], None),  # one of another time
        ([mark(0, 1)[:-1]], None),
        ([b"\x02" + mark(0, 1)[1:]], None),  # a later format
    ],
)
def test_only_a_whole_row_of_marks_is_a_digest(marks: list[bytes | None], digest: bytes | None):
    assert RuleMarks(marks).digest() == digest


def test_rules_are_gathered_by_chain():
    marks = [("a", mark(0, 1)), ("b", mark(0, 2)), ("b", mark(1, 2)), ("c", None)]
    chains = [("a", None), ("b", BaseHook(Hook.INPUT, 0)), ("c", None), ("d", None)]
    assert chain_images(chains, marks) == {
        "a": ChainImage(None, b"d" * 16),
        "b": ChainImage(BaseHook(Hook.INPUT, 0), b"d" * 16),
        "c": ChainImage(None, None),
        "d": ChainImage(None, b""),
    }


def test_the_mark_is_found_behind_the_comment():
    userdata = rule_userdata("a comment", b"d" * 16, 0, 1)
    found = parse_rule(body(attr_text(1, "calico"), attr_text(2, "c"), attr(7, userdata)))
    assert found == ("c", mark(0, 1))


@pytest.mark.parametrize("userdata", [b"", b"\0\4abc\0", b"\x64\xff", b"\x07"])
def test_strange_user_data_is_no_mark(userdata: bytes):
    _chain, found = parse_rule(body(attr_text(1, "calico"), attr_text(2, "c"), attr(7, userdata)))
    assert found is None or RuleMarks([found]).digest() is None


# -------------------------------------------------------------------------------------- sets

SPECS = [
    net_set("s", 4),
    net_set("s", 6),
    ip_port_set("s", 4),
    SetSpec("s", (IFNAME, IPV6_ADDR), interval=True),
    SetSpec("s", (IFNAME,), verdicts=True),
    SetSpec("s", (IPV4_ADDR,), data=IPV4_ADDR),
]


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_a_shape_survives_the_kernel(spec: SetSpec):
    encoded = memoryview(HEADER + set_attrs(spec, "s", 1, flags=0, size=0))
    assert parse_set(encoded) == ("s", spec)


def test_anonymous_sets_belong_to_their_rules():
    encoded = memoryview(HEADER + set_attrs(net_set("s", 4), "__set1", 1, flags=3, size=1))
    assert parse_set(encoded) is None


@pytest.mark.parametrize(
    "attrs",
    [
        be32(3, 0x10) + be32(4, 7) + be32(5, 4),  # with timeouts
        be32(3, 0) + be32(4, 7) + be32(5, 16),  # a length that is not the type's
        be32(3, 0) + be32(4, 19) + be32(5, 4),  # marks: no type of ours
        be32(3, 0) + be32(4, 0) + be32(5, 4),
        be32(3, 8) + be32(4, 7) + be32(5, 4) + be32(6, 19) + be32(7, 4),
        be32(3, 8) + be32(4, 7) + be32(5, 4),
    ],
)
def test_a_set_of_another_make_is_known_by_name_only(attrs: bytes):
    assert parse_set(body(attr_text(1, "calico"), attr_text(2, "s"), attrs)) == ("s", None)


# ---------------------------------------------------------------------------------- elements


def collect(spec: SetSpec, encoded: list[bytes], cut: int | None = None) -> ElementCollector:
    collector = ElementCollector(spec)
    for part in (encoded[:cut], encoded[cut:] if cut is not None else []):
        collector.add(memoryview(b"".join(part)))
    return collector


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("cut", [None, 1, 2])
def test_tree_elements_come_back_as_intervals(version: int, cut: int | None):
    bits = 32 if version == 4 else 128
    keys = {
        net_element(version, 16, bits),
        net_element(version, 17, bits),  # right behind the one before
        net_element(version, 256, bits - 8),
        net_element(version, 1 << (bits - 1), 1),  # up to the top
    }
    found = collect(net_set("s", version), elements(net_set("s", version), sorted(keys)), cut)
    assert found.elements() == keys


def test_the_order_of_a_dump_does_not_matter():
    spec = net_set("s", 4)
    keys = [net_element(4, number, 32) for number in (1, 2, 3, 9)]
    assert collect(spec, elements(spec, keys)[::-1]).elements() == set(keys)


def test_exact_and_boxed_elements_come_back():
    key = bytes(range(12))
    spec = SetSpec("s", (IPV4_ADDR, INET_PROTO, INET_SERVICE))
    assert collect(spec, elements(spec, [key])).elements() == {key}
    boxed = SetSpec("s", (IFNAME, IPV4_ADDR), interval=True)
    assert collect(boxed, elements(boxed, [b"a" * 20 + b"b" * 20])).elements() == {
        b"a" * 20 + b"b" * 20
    }


def test_a_box_without_an_end_is_a_point():
    spec = SetSpec("s", (IFNAME, IPV4_ADDR), interval=True)
    plain = SetSpec("s", (IFNAME, IPV4_ADDR))
    assert collect(spec, elements(plain, [b"a" * 20])).elements() == {b"a" * 40}


def test_map_entries_come_back_with_their_comment():
    spec = SetSpec("m", (IFNAME,), verdicts=True)
    wanted = {
        b"a" * 16: MapValue(goto("c"), comment="default/pod"),
        b"b" * 16: MapValue(DROP),
    }
    encoded = [map_entry(spec, key, value) for key, value in wanted.items()]
    assert collect(spec, encoded).entries == wanted
    data = SetSpec("d", (IPV4_ADDR,), data=IPV4_ADDR)
    value = MapValue(data=b"\1\2\3\4")
    assert collect(data, [map_entry(data, b"\0" * 4, value)]).entries == {b"\0" * 4: value}


def test_comments_that_are_no_text_do_not_stop_the_reading():
    spec = SetSpec("m", (IFNAME,), verdicts=True)
    odd = nested(1, nested(1, attr(1, b"a" * 16)), attr(6, udata(0, b"\xff\xfe\0")))
    assert list(collect(spec, [odd]).entries) == [b"a" * 16]
