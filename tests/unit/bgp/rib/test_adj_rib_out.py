"""bgp.rib.adj_rib_out: one log, a cursor per peer, and what happens to those who cannot follow."""

from __future__ import annotations

import pytest

from bgp.rib import adj_rib_out
from bgp.rib.adj_rib_out import Group, Stream
from bgp.rib.attributes import PathAttributes, encode
from bgp.rib.export import GroupKey, Out
from bgp.rib.nlri import IPV4, parse, text
from bgp.rib.path import Source
from bgp.rib.update import HEADER_BYTES, MAX_MESSAGE
from bgp.rib.update import parse as parse_update
from tests.unit.bgp.builders import packed

KEY = GroupKey(IPV4, True, True, 64512, True, packed("10.0.0.1"))


def source(last: int) -> Source:
    return Source(f"p{last}", bytes([10, 0, 0, last]), local_as=1, remote_as=1)


def out(of: Source, med: int = 0) -> Out:
    attributes = PathAttributes(next_hop=packed("10.0.0.9"), med=med)
    return Out(attributes, encode(attributes, asn4=True, with_next_hop=True), b"", of)


def prefix(number: int) -> bytes:
    return parse(f"10.{number >> 8}.{number & 255}.0/24")[1]


class Reader:
    """One stream and what its peer believes: prefix -> MED."""

    def __init__(self, group: Group, last: int) -> None:
        self.source = source(last)
        self.stream = Stream(group, self.source)
        self.holds: dict[bytes, int] = {}
        self.messages = 0
        self.ends = 0

    def read(self, limit: int = 1 << 20, turns: int = 10_000) -> None:
        for _ in range(turns):
            found = self.stream.take(limit) + self.stream.take_end_of_rib()
            if not found and not self.stream.has_output():
                return
            for message in found:
                self._apply(message)

    def _apply(self, message: bytes) -> None:
        self.messages += 1
        fields = parse_update(message[HEADER_BYTES:])
        self.ends += fields.end_of_rib is not None
        for _, nlris in fields.withdrawn:
            for nlri in nlris:
                self.holds.pop(nlri, None)
        for _, nlris, _ in fields.announced:
            med = fields.plain[fields.plain.index(b"\x80\x04\x04") + 6]
            for nlri in nlris:
                self.holds[nlri] = med


@pytest.fixture
def group() -> Group:
    return Group(KEY)


@pytest.fixture
def far() -> Source:
    return source(99)


def test_everybody_gets_the_same_messages(group, far):
    readers = [Reader(group, n) for n in (1, 2)]
    for reader in readers:
        reader.read()
    one = out(far)
    for number in range(1500):
        group.stage(prefix(number), one)
    assert group.commit()
    assert len(group.records) == 2
    for reader in readers:
        reader.read()
        assert len(reader.holds) == 1500
        assert reader.messages == 1 + 2  # the End-of-RIB came before
    assert not group.commit()
    group.check()


def test_nobody_hears_his_own_routes(group):
    one, two = Reader(group, 1), Reader(group, 2)
    one.read()
    two.read()
    group.stage(prefix(1), out(one.source))
    group.commit()
    one.read()
    two.read()
    assert (one.holds, two.holds) == ({}, {prefix(1): 0})
    late = Reader(group, 3)
    again = Stream(group, one.source)
    assert again.pending == {}
    late.read()
    assert late.holds == {prefix(1): 0}


def test_a_peer_whose_route_wins_forgets_the_copy_it_was_told(group):
    one, two, three = (Reader(group, n) for n in (1, 2, 3))
    for reader in (one, two, three):
        reader.read()
    group.stage(prefix(1), out(one.source, 1))
    group.commit()
    # Not read yet: the addressed withdrawal must not overtake the announcement.
    group.stage(prefix(1), out(two.source, 2))
    group.commit()
    for reader in (one, two, three):
        reader.read()
    assert one.holds == {prefix(1): 2}
    assert two.holds == {}
    assert three.holds == {prefix(1): 2}


def test_a_withdrawal_reaches_all_who_had_it(group):
    one, two = Reader(group, 1), Reader(group, 2)
    one.read()
    two.read()
    group.stage(prefix(1), out(one.source))
    group.commit()
    two.read()
    group.stage(prefix(1), None)
    group.commit()
    one.read()
    two.read()
    assert two.holds == {}
    assert group.sent == {}
    # The one it came from never had it, and is not told: only its End-of-RIB.
    assert one.messages == 1


def test_many_changes_of_one_prefix_are_one_message(group, far):
    reader = Reader(group, 1)
    reader.read()
    for med in range(10):
        group.stage(prefix(1), out(far, med))
        group.commit()
    assert len(group.records) == 10
    # ... for somebody who follows; a stage that ends where it began is none at all.
    unchanged = group.sent[prefix(1)]
    group.stage(prefix(1), unchanged)
    assert not group.commit()
    reader.stream.fall_behind()
    before = reader.messages
    reader.read()
    assert reader.messages == before + 1
    assert reader.holds == {prefix(1): 9}


def test_a_peer_that_does_not_read_costs_one_set_of_prefixes(group, far, monkeypatch):
    monkeypatch.setattr(adj_rib_out, "MAX_LOG_BYTES", 10_000)
    slow, quick = Reader(group, 1), Reader(group, 2)
    slow.read()
    quick.read()
    for med in range(200):
        one = out(far, med)
        for number in range(100):
            group.stage(prefix(number), one)
        group.commit()
        quick.read()
        group.check()
    assert group.log_bytes <= 10_000
    assert slow.stream.cursor is None
    assert len(slow.stream.pending) == 100
    slow.read()
    assert slow.holds == quick.holds == {prefix(n): 199 for n in range(100)}
    assert slow.messages < 5


def test_a_reader_of_single_bytes_sees_whole_messages_in_order(group, far):
    reader = Reader(group, 1)
    reader.read()
    for number in range(3000):
        group.stage(prefix(number), out(far, number % 7))
        if number % 100 == 0:
            group.commit()
            reader.read(limit=1, turns=1)
    group.commit()
    reader.read(limit=1)
    assert len(reader.holds) == 3000


def test_the_log_is_trimmed_behind_the_slowest(group, far):
    slow, quick = Reader(group, 1), Reader(group, 2)
    slow.read()
    quick.read()
    for number in range(600):
        group.stage(prefix(number), out(far))
        group.commit()
        quick.read()
    assert len(group.records) == 600
    slow.stream.close()
    assert group.records == []
    assert group.base == 600


def test_end_of_rib_comes_once_after_the_dump(group, far):
    for number in range(10_000):
        group.stage(prefix(number), out(far))
    group.commit()
    reader = Reader(group, 1)
    reader.read(turns=1)
    assert len(reader.holds) == 4096
    assert reader.ends == 0
    reader.read()
    assert len(reader.holds) == 10_000
    assert reader.ends == 1
    group.stage(prefix(1), None)
    group.commit()
    reader.read()
    assert reader.ends == 1


def test_end_of_rib_can_be_held_back(group, far):
    reader = Reader(group, 1)
    reader.stream.eor_is_held = True
    reader.read()
    assert reader.ends == 0
    assert not reader.stream.owes_end_of_rib()
    reader.stream.eor_is_held = False
    reader.stream.take(1)
    assert reader.stream.take_end_of_rib() != []
    assert reader.stream.take_end_of_rib() == []


def test_an_enhanced_refresh_stands_between_markers(group, far):
    group.stage(prefix(1), out(far))
    group.commit()
    reader = Reader(group, 1)
    reader.read()
    reader.stream.refresh(enhanced=True)
    begin, route, end = reader.stream.take(1 << 20)
    assert (begin[18], begin[21]) == (5, 1)
    assert route[18] == 2
    assert (end[18], end[21]) == (5, 2)
    reader.stream.refresh(enhanced=False)
    assert len(reader.stream.take(1 << 20)) == 1


def test_moving_to_another_group_tells_the_difference(group, far):
    other = Group(KEY)
    group.stage(prefix(1), out(far, 1))
    group.stage(prefix(2), out(far, 1))
    group.commit()
    other.stage(prefix(2), out(far, 2))
    other.stage(prefix(3), out(far, 2))
    other.commit()
    reader = Reader(group, 1)
    reader.read()
    reader.stream.move(other)
    reader.read()
    assert reader.holds == {prefix(2): 2, prefix(3): 2}
    assert reader.ends == 1
    assert group.streams == []


def test_no_message_is_too_long(group, far):
    reader = Reader(group, 1)
    for number in range(20_000):
        group.stage(prefix(number), out(far))
    group.commit()
    while found := reader.stream.take(1 << 20):
        assert all(len(message) <= MAX_MESSAGE for message in found)
    assert text(IPV4, prefix(1)) == "10.0.1.0/24"
