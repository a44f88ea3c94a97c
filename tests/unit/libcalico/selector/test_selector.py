"""libcalico.selector.selector and .ast: evaluation (datamodel 3.3), id, prefixes, equality."""

from __future__ import annotations

import base64

import pytest

from libcalico.selector import parse

# selector, verdict without the label `k`, with k=v, with k="" .
ROWS = [
    ("k == 'v'", False, True, False),
    ("k == ''", False, False, True),
    ("k != 'v'", True, False, True),
    ("k != ''", True, True, False),
    ("k in {'v', 'w'}", False, True, False),
    ("k in {}", False, False, False),
    ("k in {''}", False, False, True),
    ("k not in {'v'}", True, False, True),
    ("k not in {}", True, True, True),
    ("k contains 'v'", False, True, False),
    ("k contains ''", False, True, True),
    ("k starts with 'v'", False, True, False),
    ("k starts with ''", False, True, True),
    ("k ends with 'v'", False, True, False),
    ("k ends with 'vv'", False, False, False),
    ("has(k)", False, True, True),
    ("!has(k)", True, False, False),
    ("all()", True, True, True),
    ("global()", True, True, True),
    ("", True, True, True),
    ("!all()", False, False, False),
    ("has(k) && k != 'v'", False, False, True),
    ("!has(k) || k == 'v'", True, True, False),
]


@pytest.mark.parametrize(("text", "absent", "present", "empty"), ROWS)
def test_evaluation(text, absent, present, empty):
    selector = parse(text)
    assert selector.evaluate({"other": "v"}) is absent
    assert selector.evaluate({"k": "v"}) is present
    assert selector.evaluate({"k": ""}) is empty


def test_substrings_look_at_the_right_end():
    labels = {"k": "prefix-mid-suffix"}
    assert parse("k starts with 'prefix'").evaluate(labels)
    assert not parse("k starts with 'mid'").evaluate(labels)
    assert parse("k contains 'mid'").evaluate(labels)
    assert parse("k ends with 'suffix'").evaluate(labels)
    assert not parse("k ends with 'prefix'").evaluate(labels)


# From `printf 's:<canonical>' | sha224sum`.
DIGESTS = [
    ("all()", "e72e48dd575165f0d4d353befb15c03f1db2c42410a8c7f433a216ba"),
    ("has(a)", "269446af167891d4ba83b5a817eb86fe0eea961da2a70db319804ca5"),
]


@pytest.mark.parametrize(("text", "digest"), DIGESTS)
def test_the_id_is_a_digest_of_the_canonical_text(text, digest):
    uid = parse(text).uid
    assert uid.startswith("s:")
    assert base64.urlsafe_b64decode(uid[2:] + "==").hex() == digest


def test_ids_differ_with_the_text_only():
    assert parse("a=='b'").uid == parse(' a  == "b"').uid
    assert parse("a == 'b'").uid != parse("a == 'c'").uid
    assert len(parse("a == 'b'").uid) == 40


def test_a_literal_with_a_lone_surrogate_has_an_id():
    assert parse("a == '\ud800'").uid.startswith("s:")


def test_selectors_are_values():
    one, two = parse("a=='b'"), parse("(a == 'b')")
    assert one == two
    assert len({one, two}) == 1
    assert one != "a == 'b'"
    assert repr(one) == """Selector('a == "b"')"""


def test_a_prefix_goes_before_every_label():
    selector = parse("a == 'a' && !(has(b) || c in {'c'}) && d contains 'd' && all() && e != ''")
    assert selector.prefixed("pcns.").canonical == (
        '(pcns.a == "a" && !(has(pcns.b) || pcns.c in {"c"}) && pcns.d contains "d" && all()'
        ' && pcns.e != "")'
    )
