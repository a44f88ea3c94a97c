"""felix.kernel.nft_codec: messages, user data, element lists."""

from __future__ import annotations

import pytest

from felix.dataplane.nft_port import (
    AddChain,
    AddElements,
    AddEntries,
    AddSet,
    AddTable,
    ClearChain,
    DeleteChain,
    DeleteElements,
    DeleteSet,
    Op,
    WriteRules,
)
from felix.kernel.nft_codec import (
    BatchEncoder,
    comment_bytes,
    elements,
    key_type_id,
    rule_userdata,
)
from felix.rules.chain import (
    ACCEPT,
    DROP,
    IFNAME,
    IPV4_ADDR,
    BaseHook,
    Chain,
    Field,
    Hook,
    Literal,
    Lookup,
    Rule,
    port_bytes,
)
from felix.rules.sets import MapValue, SetSpec, ip_port_set, net_element, net_set
from libcalico.netlink.messages import iter_attrs, parse_attrs, read_text

CREATE, EXCL, APPEND = 0x400, 0x200, 0x800


def encoded(op: Op) -> list[tuple[int, int, dict[int, bytes]]]:
    return [
        (m.type, m.flags, {k: bytes(v) for k, v in parse_attrs(memoryview(m.payload), 0).items()})
        for m in BatchEncoder().messages(op)
    ]


def be(value: int) -> bytes:
    return (value & 0xFFFFFFFF).to_bytes(4, "big")


def test_every_message_names_our_table():
    ops: list[Op] = [
        AddTable(),
        AddChain("c"),
        ClearChain("c"),
        DeleteChain("c"),
        WriteRules(Chain("c", (Rule((), (DROP,)),)), bytes(16)),
        AddSet(net_set("s", 4)),
        DeleteSet("s"),
        AddElements(net_set("s", 4), [bytes(8)]),
        DeleteElements(net_set("s", 4), [bytes(8)]),
        AddEntries(SetSpec("m", (IFNAME,), verdicts=True), [(bytes(16), MapValue(DROP))]),
    ]
    for op in ops:
        for _type, _flags, attrs in encoded(op):
            assert attrs[1] == b"calico\0"


def test_a_base_chain_says_where_it_hangs_and_accepts():
    ((kind, flags, attrs),) = encoded(AddChain("c", BaseHook(Hook.FORWARD, -2), "hi"))
    assert (kind, flags) == (3, CREATE | EXCL)
    hook = parse_attrs(memoryview(attrs[4]), 0)
    assert (bytes(hook[1]), bytes(hook[2])) == (be(2), be(-2))
    assert (attrs[5], attrs[7]) == (be(1), b"filter\0")
    assert attrs[12] == b"\0\3hi\0"


def test_a_plain_chain_has_no_hook_and_no_policy():
    ((_kind, _flags, attrs),) = encoded(AddChain("c"))
    assert attrs.keys() == {1, 3}


def test_rules_are_appended_in_order_with_their_marks():
    chain = Chain("c", (Rule((), (ACCEPT,), "one"), Rule((), (DROP,))))
    first, second = encoded(WriteRules(chain, b"d" * 16))
    assert first[:2] == (6, CREATE | APPEND)
    assert first[2][7] == b"\0\4one\0" + b"\x64\x15\1\0\0\0\2" + b"d" * 16
    assert second[2][7] == b"\x64\x15\1\0\1\0\2" + b"d" * 16


def test_user_data_fits_whatever_the_comment():
    assert len(rule_userdata("é" * 200, bytes(16), 65535, 65535)) <= 256
    assert comment_bytes("é" * 200) == ("é" * 63).encode() + b"\0"


def test_an_anonymous_set_is_made_and_filled_before_its_rule():
    literal = Literal((port_bytes(1), port_bytes(2)))
    chain = Chain("c", (Rule((Lookup((Field.TH_DPORT,), literal),), (ACCEPT,)),))
    made, filled, rule = encoded(WriteRules(chain, bytes(16)))
    assert [made[0], filled[0], rule[0]] == [9, 12, 6]
    assert made[2][3] == be(0x3), "anonymous and constant"
    assert made[2][10] == filled[2][4], "found by its id"


def test_set_ids_are_unique_in_a_batch():
    encoder = BatchEncoder()
    ops = [AddSet(net_set("a", 4)), AddSet(net_set("b", 4))]
    ids = [
        parse_attrs(memoryview(m.payload), 0)[10].hex() for op in ops for m in encoder.messages(op)
    ]
    assert len(set(ids)) == 2


@pytest.mark.parametrize(
    ("spec", "flags", "type_id", "length"),
    [
        (net_set("s", 4), 0x4, 7, 4),
        (net_set("s", 6), 0x4, 8, 16),
        (ip_port_set("s", 4), 0x0, (7 << 12) | (12 << 6) | 13, 12),
        (SetSpec("s", (IFNAME, IPV4_ADDR), interval=True), 0x84, (41 << 6) | 7, 20),
        (SetSpec("s", (IFNAME,), verdicts=True), 0x8, 41, 16),
        (SetSpec("s", (IPV4_ADDR,), data=IPV4_ADDR), 0x8, 7, 4),
    ],
)
def test_the_shape_of_a_set(spec: SetSpec, flags: int, type_id: int, length: int):
    ((_kind, _flags, attrs),) = encoded(AddSet(spec))
    assert (attrs[3], attrs[4], attrs[5]) == (be(flags), be(type_id), be(length))
    assert key_type_id(spec) == type_id
    assert (9 in attrs) == (flags == 0x84), "only concatenated intervals describe their fields"
    if spec.verdicts:
        assert attrs[6] == be(0xFFFFFF00)


def listed(spec: SetSpec, keys: list[bytes]) -> list[list[tuple[int, bytes]]]:
    joined = b"".join(elements(spec, keys))
    return [
        [(kind, bytes(value)) for kind, value in iter_attrs(element)]
        for _kind, element in iter_attrs(memoryview(joined))
    ]


def test_a_tree_interval_is_a_start_and_an_end_behind_it():
    start, end = listed(net_set("s", 4), [net_element(4, 0x0A000000, 24)])
    assert start == [(1, b"\x08\0\1\0" + bytes([10, 0, 0, 0]))]
    assert end == [(1, b"\x08\0\1\0" + bytes([10, 0, 1, 0])), (3, be(1))]


def test_an_interval_that_reaches_the_top_has_no_end():
    assert len(listed(net_set("s", 4), [net_element(4, 1 << 31, 1)])) == 1
    assert len(listed(net_set("s", 6), [net_element(6, (1 << 128) - 1, 128)])) == 1


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_an_open_interval_leaves_those_beside_it_whole(version: int, at: int):
    whole = 32 if version == 4 else 128
    keys = [net_element(version, number << 8, whole - 8) for number in (1, 3)]
    top = (1 << whole) - 1
    keys.insert(at, net_element(version, top, whole))
    expected: list[bytes] = []
    for key in keys:
        half = len(key) // 2
        expected.append(key[:half])
        if key[half:] != top.to_bytes(half, "big"):
            expected.append((int.from_bytes(key[half:], "big") + 1).to_bytes(half, "big"))
    found = listed(net_set("s", version), keys)
    assert [element[0][1][4:] for element in found] == expected
    assert sum(element[1:] == [(3, be(1))] for element in found) == 2, "ends, one each"


def test_a_concatenated_interval_is_one_element_with_both_ends():
    spec = SetSpec("s", (IFNAME, IPV4_ADDR), interval=True)
    ((first, last),) = listed(spec, [b"a" * 20 + b"b" * 20])
    assert first == (1, b"\x18\0\1\0" + b"a" * 20)
    assert last == (10, b"\x18\0\1\0" + b"b" * 20)


def test_short_keys_are_padded_outside_their_length():
    ((only,),) = listed(SetSpec("s", (Field.TH_DPORT.type,)), [b"\0\x50"])
    assert only == (1, b"\x06\0\1\0\0\x50\0\0")


@pytest.mark.parametrize("version", [4, 6])
def test_no_attribute_outgrows_its_length_field_and_no_interval_is_parted(version: int):
    spec = net_set("s", version)
    keys = [
        net_element(version, number * 2, 32 if version == 4 else 128) for number in range(20_000)
    ]
    messages = list(BatchEncoder().messages(AddElements(spec, keys)))
    assert len(messages) > 5
    total = 0
    for message in messages:
        body = parse_attrs(memoryview(message.payload), 0)[3]
        assert len(body) < 65_500
        ends = [3 in parse_attrs(element, 0) for _kind, element in iter_attrs(body)]
        assert ends == [False, True] * (len(ends) // 2)
        total += len(ends)
    assert total == 40_000


def test_nothing_to_add_is_no_message():
    assert encoded(AddElements(net_set("s", 4), [])) == []


def test_map_entries_refuse_to_be_kept_silently():
    spec = SetSpec("m", (IFNAME,), verdicts=True)
    ((kind, flags, attrs),) = encoded(AddEntries(spec, [(bytes(16), MapValue(DROP, comment="x"))]))
    assert (kind, flags) == (12, CREATE | EXCL)
    ((_k, element),) = iter_attrs(memoryview(attrs[3]))
    assert bytes(parse_attrs(element, 0)[6]) == b"\0\2x\0"


def test_names_are_text():
    assert read_text(memoryview(encoded(DeleteSet("s"))[0][2][2])) == "s"
