"""bgp.rib.prefix_match: conditions as bits."""

from __future__ import annotations

import pytest

from bgp.rib.nlri import IPV4, parse
from bgp.rib.prefix_match import Classifier, PrefixMatch

CASES = [
    ("10.0.0.0/8", "In", None, None, {"10.0.0.0/8", "10.1.0.0/16", "10.1.2.3/32"}),
    ("10.0.0.0/8", "Equal", None, None, {"10.0.0.0/8"}),
    (
        "10.0.0.0/8",
        "NotEqual",
        None,
        None,
        {"10.1.0.0/16", "10.1.2.3/32", "11.0.0.0/8", "0.0.0.0/0"},
    ),
    ("10.0.0.0/8", "NotIn", None, None, {"11.0.0.0/8", "0.0.0.0/0"}),
    ("10.0.0.0/8", "In", 16, None, {"10.1.0.0/16", "10.1.2.3/32"}),
    ("10.0.0.0/8", "In", None, 16, {"10.0.0.0/8", "10.1.0.0/16"}),
    ("10.0.0.0/8", "In", 0, 99, {"10.0.0.0/8", "10.1.0.0/16", "10.1.2.3/32"}),
    ("10.0.0.0/8", "NotIn", 16, 16, {"10.0.0.0/8", "10.1.2.3/32", "11.0.0.0/8", "0.0.0.0/0"}),
    ("0.0.0.0/0", "In", None, 8, {"0.0.0.0/0", "10.0.0.0/8", "11.0.0.0/8"}),
]
ALL = ["0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.3/32", "11.0.0.0/8"]


@pytest.mark.parametrize(("cidr", "operator", "low", "high", "expected"), CASES)
def test_operators_and_lengths(cidr, operator, low, high, expected):
    match = PrefixMatch.of(cidr, operator, min_length=low, max_length=high)
    classifier = Classifier(IPV4)
    bit = classifier.add(match)
    assert {c for c in ALL if classifier.classify(parse(c)[1]) & bit} == expected
    assert {c for c in ALL if match.matches(parse(c)[1])} == expected


def test_equal_conditions_share_a_bit_and_others_do_not():
    classifier = Classifier(IPV4)
    first = classifier.add(PrefixMatch.of("10.0.0.0/8"))
    assert classifier.add(PrefixMatch.of("10.0.0.0/8")) == first
    assert classifier.add(PrefixMatch.of("10.0.0.0/8", "NotIn")) != first
    assert classifier.classify(parse("10.0.0.0/9")[1]) == first


def test_a_condition_added_later_is_not_forgotten():
    classifier = Classifier(IPV4)
    prefix = parse("10.0.0.0/9")[1]
    assert classifier.classify(prefix) == 0
    bit = classifier.add(PrefixMatch.of("10.0.0.0/8"))
    assert classifier.classify(prefix) == bit


@pytest.mark.parametrize("bad", [("10.0.0.0/33", "In"), ("nonsense", "In"), ("10.0.0.0/8", "Near")])
def test_nonsense_is_refused(bad):
    with pytest.raises(ValueError):  # noqa: PT011  # the caller names the rule
        PrefixMatch.of(*bad)
