"""The bytes of BGP: whatever arrives is answered with a value or a WireError; what we write we can
read; a queue never breaks a message."""

from __future__ import annotations

import contextlib
import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bgp.rib.attributes import AS_SEQUENCE, AS_SET, PathAttributes, Segment, encode
from bgp.rib.nlri import FAMILIES, IPV4, Family, parse, split, text
from bgp.rib.prefix_match import Classifier, PrefixMatch
from bgp.rib.update import HEADER_BYTES, message, pack_announce, pack_withdraw
from bgp.rib.update import parse as parse_update
from bgp.speaker.decode import decode_attributes
from bgp.speaker.wire import Outbox, split_stream
from libcalico.errors import WireError
from tests.unit.bgp.builders import Wire, bodies, options, route, speaker

ADDRESSES = st.binary(min_size=4, max_size=4)
ASNS = st.integers(1, 2**32 - 1)
SEGMENTS = st.builds(
    Segment,
    st.sampled_from([AS_SEQUENCE, AS_SET]),
    st.lists(ASNS, min_size=1, max_size=5).map(tuple),
)


def attribute_sets(asn4: bool) -> st.SearchStrategy[PathAttributes]:
    # An old speaker's path is put together from two again: only a plain sequence stays the same.
    path = st.lists(SEGMENTS, max_size=3).map(tuple)
    if not asn4:
        sequences = st.builds(Segment, st.just(AS_SEQUENCE), st.lists(ASNS, min_size=1).map(tuple))
        path = st.one_of(st.just(()), sequences.map(lambda s: (s,)))
    words = st.integers(0, 2**32 - 1)
    return st.builds(
        PathAttributes,
        origin=st.integers(0, 2),
        as_path=path,
        next_hop=ADDRESSES,
        med=st.none() | words,
        local_pref=st.none() | words,
        atomic_aggregate=st.booleans(),
        aggregator=st.none() | st.tuples(ASNS, ADDRESSES),
        communities=st.lists(words, max_size=80, unique=True).map(tuple),
        originator_id=st.none() | ADDRESSES,
        cluster_list=st.lists(ADDRESSES, max_size=4).map(tuple),
        large_communities=st.lists(st.tuples(words, words, words), max_size=25, unique=True).map(
            tuple
        ),
    )


@pytest.mark.parametrize("asn4", [True, False])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_exabgp_reads_what_we_encode(asn4: bool, data: st.DataObject) -> None:
    wanted = data.draw(attribute_sets(asn4))
    assert decode_attributes(encode(wanted, asn4=asn4, with_next_hop=True), asn4=asn4) == wanted


@st.composite
def prefixes(draw: st.DrawFn, family: Family) -> bytes:
    length = draw(st.integers(0, family.bits))
    address = draw(st.integers(0, 2**family.bits - 1)) >> (family.bits - length)
    size = (length + 7) // 8
    return bytes([length]) + (address << (size * 8 - length)).to_bytes(size, "big")


MUTILATED = max(250, int(os.environ.get("BRINDLE_FUZZ_CASES", "0")) // 20)  # of each example


@settings(deadline=None)
@given(family=st.sampled_from(FAMILIES), data=st.data())
def test_prefixes_survive_text_and_packing(family: Family, data: st.DataObject) -> None:
    wanted = data.draw(st.lists(prefixes(family), max_size=30))
    field = b"".join(wanted)
    assert split(family, field, 0, len(field)) == wanted
    assert [parse(text(family, nlri))[1] for nlri in wanted] == wanted
    hop = b"" if family is IPV4 else bytes(15) + b"\x02"
    section = encode(PathAttributes(next_hop=bytes(4)), asn4=True, with_next_hop=not hop)
    announced = [
        nlri
        for packed, _ in pack_announce(family, section, hop, wanted)
        for _, part, _ in parse_update(packed[HEADER_BYTES:]).announced
        for nlri in part
    ]
    withdrawn = [
        nlri
        for packed, _ in pack_withdraw(family, wanted)
        for _, part in parse_update(packed[HEADER_BYTES:]).withdrawn
        for nlri in part
    ]
    assert announced == withdrawn == wanted


@settings(deadline=None, max_examples=300)
@given(body=st.binary(max_size=200))
def test_random_bytes_are_refused_or_read(body: bytes) -> None:
    with contextlib.suppress(WireError):
        parse_update(body)


@settings(deadline=None, max_examples=300)
@given(section=st.binary(max_size=120), asn4=st.booleans())
def test_random_attributes_never_raise(section: bytes, asn4: bool) -> None:
    decode_attributes(section, asn4=asn4)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32))
def test_mutilated_updates_never_break_the_rib(seed: int) -> None:
    """Real messages with a few bytes changed: the RIB stays consistent, whatever they became.

    5,000 of them; as many as BRINDLE_FUZZ_CASES says with `make fuzz`."""
    rng = random.Random(seed)
    rib, (one, two) = speaker(
        options("10.0.0.2", rr_client=True), options("10.0.0.3", rr_client=True)
    )
    full = route(med=5, communities=(1, 2), cluster_list=(b"\1\1\1\1",), originator_id=b"\2\2\2\2")
    originals = [
        *bodies(["10.65.1.0/26", "10.65.2.0/26"], full),
        *bodies(["fd65::/122", "fd65::40/122"], route("fd00::2", large_communities=((1, 2, 3),))),
    ]
    for _ in range(MUTILATED):
        body = bytearray(rng.choice(originals))
        for _ in range(rng.randint(1, 3)):
            body[rng.randrange(len(body))] = rng.choice([0, 1, 4, 255, rng.randrange(256)])
        body = body[: rng.choice([len(body), len(body), rng.randrange(len(body))])]
        _receive(one, bytes(body))
    rib.flush()
    two.listen()
    rib.check()


def _receive(wire: Wire, body: bytes) -> None:
    try:
        wire.rib.receive(wire.peer, body)
    except WireError:
        wire.rib.session_down(wire.peer, may_restart=False, now=0)
        wire.up()


@settings(deadline=None)
@given(family=st.sampled_from(FAMILIES), data=st.data())
def test_the_classifier_means_what_its_conditions_mean(family: Family, data: st.DataObject) -> None:
    # Few bits, so that prefixes often contain each other.
    short = st.integers(0, 6).flatmap(
        lambda length: st.integers(0, (1 << length) - 1).map(
            lambda bits: bytes([length, bits << (8 - length)]) if length else b"\0"
        )
    )
    matches = data.draw(
        st.lists(
            st.builds(
                PrefixMatch,
                st.just(family),
                short,
                st.sampled_from(["Equal", "NotEqual", "In", "NotIn"]),
                st.integers(0, 6),
                st.integers(0, 6),
            ),
            max_size=8,
        )
    )
    classifier = Classifier(family)
    bits = [classifier.add(match) for match in matches]
    for nlri in data.draw(st.lists(short, min_size=1, max_size=10)):
        mask = classifier.classify(nlri)
        assert [bool(mask & bit) for bit in bits] == [match.matches(nlri) for match in matches]


class Pipe:
    """A socket that takes as many bytes as it is told, then blocks."""

    def __init__(self) -> None:
        self.room = 0
        self.got = b""

    def send(self, data: bytes) -> int:
        taken = min(self.room, len(data))
        if not taken:
            raise BlockingIOError
        self.room -= taken
        self.got += bytes(data[:taken])
        return taken


@settings(deadline=None)
@given(data=st.data())
def test_messages_leave_whole_and_urgent_ones_overtake(data: st.DataObject) -> None:
    outbox, pipe = Outbox(), Pipe()
    expected: list[bytes] = []
    for number in range(data.draw(st.integers(1, 12))):
        if outbox.is_empty and data.draw(st.booleans()):
            queue = [
                message(2, bytes([number]) * size)
                for size in data.draw(st.lists(st.integers(4, 60), min_size=1, max_size=4))
            ]
            outbox.fill(queue)
            expected += queue
        elif data.draw(st.booleans()):
            urgent = message(4, b"")
            outbox.splice(urgent)
            expected.append(urgent)
        pipe.room = data.draw(st.integers(0, 200))
        outbox.send(pipe)  # type: ignore[arg-type]
    pipe.room = 1 << 20
    assert outbox.send(pipe)  # type: ignore[arg-type]
    found, at = [], 0
    while at < len(pipe.got):
        length = int.from_bytes(pipe.got[at + 16 : at + 18], "big")
        found.append(pipe.got[at : at + length])
        at += length
    assert sorted(found) == sorted(expected)
    assert [m for m in found if m[18] == 2] == [m for m in expected if m[18] == 2]


@settings(deadline=None)
@given(data=st.data())
def test_a_stream_cut_anywhere_is_the_same_stream(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(-1, 60), max_size=10))
    messages = [message(4, b"") if s < 0 else message(2, bytes(max(4, s))) for s in sizes]
    stream = b"".join(messages)
    unread, updates, keepalives = b"", [], 0
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        unread, stream = unread + stream[:cut], stream[cut:]
        batch = split_stream(unread, 4096)
        assert not batch.needs_stock
        unread = batch.rest
        updates += batch.updates
        keepalives += batch.keepalives
    assert unread == b""
    assert updates == [m[HEADER_BYTES:] for m in messages if m[18] == 2]
    assert keepalives == sizes.count(-1)


STOCK = {
    "notification": message(3, b"\6\2"),
    "bad marker": b"\0" * 19,
    "too long": message(2, b"\0\0\0\0")[:16] + b"\xff\xff\x02" + bytes(40),
    "too short": message(2, b"\0\0\0\0")[:16] + b"\x00\x05\x02",
    "short update": message(2, b"\0"),
    "long keepalive": message(4, b"x"),
    "refresh": message(5, b"\0\1\0\1"),
}


@pytest.mark.parametrize("bad", STOCK.values(), ids=STOCK.keys())
def test_what_is_not_ours_is_left_to_exabgp_after_what_was_before_it(bad: bytes) -> None:
    good = message(2, b"\0\0\0\0")
    batch = split_stream(good + bad, 4096)
    assert batch.updates == [b"\0\0\0\0"]
    assert batch.needs_stock
    assert batch.rest == bad
