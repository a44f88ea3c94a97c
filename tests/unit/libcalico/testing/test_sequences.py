"""libcalico.testing.sequences: the harness finds what it is there to find."""

from __future__ import annotations

import pytest

from libcalico.testing.sequences import Named, Repeat, cases, deltas, drive, expand

A, AB, B = Named("A", {"a": 1}), Named("AB", {"a": 1, "b": 2}), Named("B", {"b": 3})


class Mirror:
    """A subject that is right: what it holds is what it was told."""

    def __init__(self) -> None:
        self.told: dict[str, object] = {}
        self.shown: dict[str, object] = {}

    def change(self, key: str, value: object | None) -> None:
        self.told.pop(key, None) if value is None else self.told.update({key: value})

    def settle(self) -> None:
        self.shown = dict(self.told)

    def verify(self, state: dict[str, object], name: str) -> None:
        assert self.shown == state, name


class ForgetsDeletes(Mirror):
    def change(self, key: str, value: object | None) -> None:
        if value is not None:
            super().change(key, value)


class Counts(Mirror):
    """Counts calls instead of looking at values: wrong when something is said twice."""

    def change(self, key: str, value: object | None) -> None:
        step = 1 if value is not None else -1
        self.told[key] = int(str(self.told.get(key, 0))) + step

    def verify(self, state: dict[str, object], name: str) -> None:
        present = {key for key, count in self.shown.items() if count}
        assert present == state.keys(), name
        assert all(count == 1 for count in self.shown.values() if count), name


class NeedsOrder(Mirror):
    """Insists that b is said after a."""

    def change(self, key: str, value: object | None) -> None:
        if key == "b" and value is not None and "a" not in self.told:
            return
        super().change(key, value)


def failures(subject: type[Mirror], *states: Named[str]) -> list[str]:
    found = []
    for case in cases("s", states):
        try:
            drive(subject(), case)
        except AssertionError:
            found.append(case.name)
    return found


def test_expanders():
    shapes = {how: [item.name for item in sequence] for how, sequence in expand([A, AB])}
    assert shapes == {
        "as written": ["A", "AB"],
        "reversed": ["AB", "A"],
        "with gaps": ["A", "nothing", "AB", "nothing"],
        "alone 0": ["A"],
        "alone 1": ["AB"],
        "squashed": ["nothing", "AB"],
    }


def test_every_case_has_its_own_name():
    names = [case.name for case in cases("s", [A, AB, B])]
    assert len(names) == len(set(names)) == 7 * 2 * len(Repeat)


def test_deltas_say_deletes_updates_and_nothing_else():
    assert deltas(AB.state, B.state) == [("a", None), ("b", 3)]
    assert deltas(A.state, A.state) == []


def test_a_right_subject_passes_every_case():
    assert failures(Mirror, A, AB, B) == []


@pytest.mark.parametrize("subject", [ForgetsDeletes, Counts, NeedsOrder])
def test_a_wrong_subject_is_found(subject):
    assert failures(subject, A, AB)


def test_the_teardown_at_the_end_is_verified_too():
    """A single state that never goes away."""
    assert failures(ForgetsDeletes, A)
