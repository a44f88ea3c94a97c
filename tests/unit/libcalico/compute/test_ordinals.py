"""libcalico.compute.ordinals: both forms of a set of small integers behave alike."""

from __future__ import annotations

import random

import pytest

from libcalico.compute import ordinals

UNIVERSE = 20_000


def sample(count: int) -> list[int]:
    return random.Random(count).sample(range(UNIVERSE), count)


@pytest.mark.parametrize("count", [0, 1, 33, 500, 5000, UNIVERSE])
def test_bits_and_back(count):
    members = sample(count)
    bits = ordinals.bits_of(members, UNIVERSE)
    assert bits.bit_count() == count
    assert list(ordinals.iterate(bits)) == sorted(members)
    assert ordinals.bits_of(iter(members), UNIVERSE) == bits
    form = ordinals.of_bits(bits, UNIVERSE)
    assert sorted(ordinals.iterate(form)) == sorted(members)
    assert ordinals.to_bits(form, UNIVERSE) == bits
    assert ordinals.size(form) == count


def test_few_are_a_set_and_many_a_bitmap():
    assert isinstance(ordinals.of_bits(ordinals.bits_of(sample(19), UNIVERSE), UNIVERSE), set)
    assert isinstance(ordinals.of_bits(ordinals.bits_of(sample(20), UNIVERSE), UNIVERSE), int)


def test_a_growing_set_becomes_a_bitmap_and_a_shrinking_bitmap_stays_one_until_empty():
    held: ordinals.Ordinals = set()
    for ordinal in range(100):
        held = ordinals.with_added(held, [ordinal], UNIVERSE)
    assert isinstance(held, int)
    held = ordinals.with_removed(held, list(range(99)), UNIVERSE)
    assert isinstance(held, int)
    assert list(ordinals.iterate(held)) == [99]
    assert ordinals.with_removed(held, [99], UNIVERSE) == set()


# A bitmap is too long a number to be a test's name.
FORMS = ["set", "bitmap"]


def forms(members: list[int]) -> list[ordinals.Ordinals]:
    return [set(members), ordinals.bits_of(members, UNIVERSE)]


@pytest.mark.parametrize("left", forms([1, 2, 3, 64, 19_999]), ids=FORMS)
@pytest.mark.parametrize("right", forms([2, 64, 65]), ids=FORMS)
def test_algebra_over_both_forms(left, right):
    difference = ordinals.difference(left, right, UNIVERSE)
    assert sorted(ordinals.iterate(difference)) == [1, 3, 19_999]
    union = ordinals.union(left, right, UNIVERSE)
    assert sorted(ordinals.iterate(union)) == [1, 2, 3, 64, 65, 19_999]
    assert ordinals.contains(left, 64)
    assert not ordinals.contains(left, 65)


@pytest.mark.parametrize("left", forms([1, 2]), ids=FORMS)
def test_results_are_new_sets(left):
    before = sorted(ordinals.iterate(left))
    for result in (
        ordinals.difference(left, set(), UNIVERSE),
        ordinals.union(left, set(), UNIVERSE),
    ):
        ordinals.with_added(result, [7], UNIVERSE)
    assert sorted(ordinals.iterate(left)) == before


@pytest.mark.parametrize("members", [[], [0], [5, 70], list(range(0, 4000, 2)), sample(5000)])
def test_pick_takes_the_cells_of_the_members(members):
    column = [f"cell {n}" for n in range(UNIVERSE)]
    wanted = sorted(column[n] for n in members)
    for form in forms(members):
        assert sorted(ordinals.pick(form, column)) == wanted
