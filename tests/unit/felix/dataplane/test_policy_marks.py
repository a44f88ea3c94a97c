"""felix.dataplane.policy_marks: marks move on in order, each kind for itself (PM1, PM2)."""

from __future__ import annotations

from felix.dataplane.policy_marks import PolicyMarks


def test_a_mark_passes_all_stations():
    marks = PolicyMarks()
    marks.arrive("A", 3)
    marks.begin()
    marks.finish()
    assert marks.done == {}, "it was not published"
    marks.publish()
    marks.finish()
    assert marks.done == {}, "no cycle took it in"
    marks.begin()
    marks.finish()
    assert marks.done == {"A": 3}


def test_kinds_do_not_speak_for_each_other_and_marks_never_go_back():
    marks = PolicyMarks()
    for kind, revision in (("A", 3), ("B", 9), ("A", 2)):
        marks.arrive(kind, revision)
        marks.publish()
        marks.skip()
    assert marks.done == {"A": 3, "B": 9}


def test_nothing_is_skipped_behind_a_cycle_that_is_not_acknowledged():
    marks = PolicyMarks()
    marks.arrive("A", 3)
    marks.publish()
    marks.begin()
    marks.arrive("A", 4)
    marks.publish()
    marks.skip()
    assert marks.done == {}
    marks.finish()
    assert marks.done == {"A": 3}
    marks.skip()
    assert marks.done == {"A": 4}
