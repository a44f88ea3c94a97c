"""libcalico.compute.interest: only selectors that a change may concern are looked at."""

from __future__ import annotations

from libcalico.compute.interest import Entry, Interest
from libcalico.selector import parse


def build(*texts: str) -> tuple[Interest[str], dict[str, Entry[str]]]:
    interest: Interest[str] = Interest()
    entries = {text: Entry(parse(text)) for text in texts}
    for entry in entries.values():
        interest.add(entry)
    return interest, entries


def names(entries) -> set[str]:
    return {entry.selector.canonical for entry in entries}


def test_a_change_among_ten_thousand_namespaces_concerns_one_selector():
    interest, _ = build(*(f"ns == '{n}' && app == 'web'" for n in range(10_000)))
    found = interest.concerned({"ns": "7", "app": "db"}, {"ns": "7", "app": "web"})
    assert names(found) == {'(ns == "7" && app == "web")'}
    assert names(interest.concerned(None, {"ns": "8", "app": "web"})) == {
        '(ns == "8" && app == "web")'
    }


def test_a_change_of_a_label_that_no_selector_compares_so_concerns_none():
    interest, _ = build(*(f"a != '{n}'" for n in range(10_000)))
    assert not interest.concerned({"a": "x", "b": "1"}, {"a": "x", "b": "2"})
    assert not interest.concerned({"a": "x"}, {"a": "y"})
    assert names(interest.concerned({"a": "x"}, {"a": "5"})) == {'a != "5"'}
    assert len(interest.concerned(None, {})) == 10_000


def test_presence_counts_when_a_label_comes_or_goes():
    interest, _ = build("has(a)", "!has(a)")
    assert len(interest.concerned({}, {"a": ""})) == 2
    assert not interest.concerned({"a": ""}, {"a": "x"})


def test_a_substring_counts_with_every_change_of_value():
    interest, _ = build("a contains 'x'")
    assert len(interest.concerned({"a": "1"}, {"a": "2"})) == 1


def test_a_selector_that_can_never_match_is_not_reachable():
    interest, _ = build("a in {}", "!all()")
    assert not interest.reachable({"a": "x"})


def test_everything_is_forgotten():
    interest, entries = build("a == '1' || has(b)", "all()", "c contains 'x' && a != '2'")
    interest.check(entries.values())
    unnamed = [label for entry in entries.values() for label in interest.remove(entry)]
    assert sorted(unnamed) == ["a", "b", "c"]
    interest.check([])
    assert interest.named == {}
