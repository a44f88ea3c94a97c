"""bgp.rib.attributes: AS paths, communities, encoding."""

from __future__ import annotations

from dataclasses import replace

from bgp.rib.attributes import (
    AS_SEQUENCE,
    AS_SET,
    CONFED_SEQUENCE,
    PathAttributes,
    Segment,
    as_list,
    as_path_length,
    encode,
    neighbour_as,
    occurrences,
    prepend,
    with_communities,
    without_confederation,
)

PATH = (
    Segment(CONFED_SEQUENCE, (65100,)),
    Segment(AS_SEQUENCE, (1, 2, 1)),
    Segment(AS_SET, (7, 8)),
)


def test_a_set_counts_one_and_a_confederation_nothing():
    assert as_path_length(PATH) == 4
    assert as_path_length(()) == 0


def test_the_neighbour_is_the_first_of_the_sequence():
    assert neighbour_as(PATH) == 1
    assert neighbour_as((Segment(AS_SET, (7,)),)) == 0
    assert neighbour_as(()) == 0


def test_occurrences_count_every_segment():
    assert occurrences(PATH, 1) == 2
    assert occurrences(PATH, 8) == 1
    assert as_list(PATH) == (65100, 1, 2, 1, 7, 8)


def test_prepending_joins_a_sequence_that_has_room():
    assert prepend((), (9,)) == (Segment(AS_SEQUENCE, (9,)),)
    assert prepend((Segment(AS_SEQUENCE, (1,)),), (9, 8)) == (Segment(AS_SEQUENCE, (9, 8, 1)),)
    full = (Segment(AS_SEQUENCE, tuple(range(255))),)
    assert prepend(full, (9,)) == (Segment(AS_SEQUENCE, (9,)), *full)
    sets = (Segment(AS_SET, (1,)),)
    assert prepend(sets, (9,)) == (Segment(AS_SEQUENCE, (9,)), *sets)
    assert prepend(sets, ()) is sets


def test_confederation_segments_stay_at_home():
    assert without_confederation(PATH) == PATH[1:]
    assert without_confederation(PATH[1:]) == PATH[1:]


def test_communities_are_added_once():
    start = PathAttributes(communities=(1,), large_communities=((1, 2, 3),))
    assert with_communities(start, (1,), ((1, 2, 3),)) is start
    more = with_communities(start, (2, 1, 2), ((4, 5, 6),))
    assert more.communities == (1, 2)
    assert more.large_communities == ((1, 2, 3), (4, 5, 6))


def test_an_old_speaker_gets_as_trans_and_the_truth_beside_it():
    route = PathAttributes(
        as_path=(Segment(AS_SEQUENCE, (4200000001, 1)),), aggregator=(4200000001, b"\1\1\1\1")
    )
    old = encode(route, asn4=False, with_next_hop=False).hex()
    assert "400206" + "0202" + "5ba0" + "0001" in old
    assert "c00706" + "5ba0" + "01010101" in old
    assert "c0110a" + "0202" + "fa56ea01" + "00000001" in old
    assert "c01208" + "fa56ea01" + "01010101" in old
    new = encode(route, asn4=True, with_next_hop=False).hex()
    assert "c011" not in new
    assert "c012" not in new


def test_an_old_speaker_is_told_no_as4_path_when_every_number_fits():
    route = PathAttributes(as_path=(Segment(AS_SEQUENCE, (1, 2)),))
    assert encode(route, asn4=False, with_next_hop=False).hex() == "40010100" + "400206020200010002"


def test_long_lists_use_extended_lengths():
    route = replace(PathAttributes(), communities=tuple(range(100)))
    assert bytes([0xD0, 8, 1, 144]) in encode(route, asn4=True, with_next_hop=False)


def test_segments_longer_than_255_are_cut():
    route = PathAttributes(as_path=(Segment(AS_SEQUENCE, tuple(range(300))),))
    encoded = encode(route, asn4=True, with_next_hop=False)
    assert bytes([2, 255]) in encoded
    assert bytes([2, 45]) in encoded
