"""libcalico.syncer.validation_filter: invalid becomes absent, and is reported within bounds."""

from __future__ import annotations

import pytest

from libcalico.errors import DecodeError, ValidationError
from libcalico.model.keys import ResourceKey
from libcalico.syncer.api import Update
from libcalico.syncer.validation_filter import ValidationFilter
from tests.support.calc import np, wep


def refuse(value: object) -> None:
    raise ValidationError.of("Spec", None, "no good")


def test_a_valid_value_passes_as_it_is():
    key, value = np("p")
    seen: list[object] = []
    found = ValidationFilter(seen.append)
    assert found.valid_value(Update(key, value, 1)) is value
    assert seen == [value]
    assert found.valid_value(Update(key, None, 2)) is None
    assert found.problems == {}


def test_a_refused_value_is_absent_until_a_good_one_or_a_delete_comes():
    """Y1."""
    key, value = np("p")
    verdicts = iter([refuse, refuse, lambda _: None])
    found = ValidationFilter(lambda item: next(verdicts)(item))
    assert found.valid_value(Update(key, value, 1)) is None
    assert "no good" in found.problems[key]
    assert found.valid_value(Update(key, None, 2)) is None
    assert found.problems == {}
    assert found.valid_value(Update(key, value, 3)) is None
    assert found.valid_value(Update(key, value, 4)) is value
    assert found.problems == {}


def test_what_did_not_decode_is_a_problem_too():
    key, _ = np("p")
    found = ValidationFilter(None)
    assert found.valid_value(Update(key, None, 1, DecodeError("/p", b"{", "eof"))) is None
    assert "eof" in found.problems[key]


def test_problems_are_bounded_and_the_rest_is_counted():
    """Y1."""
    found = ValidationFilter(refuse, limit=2)
    for number in range(5):
        key, value = np(f"p{number}")
        found.valid_value(Update(key, value, 1))
    assert (len(found.problems), found.unlisted) == (2, 3)
    listed = found.dump()["problems"]
    assert isinstance(listed, dict)
    assert all(path.startswith("/calico/resources/v3/") for path in listed)


@pytest.mark.parametrize(
    ("spec", "spoofing", "passes"),
    [
        ({}, False, True),
        ({"interface_name": ""}, False, False),
        ({"allow_spoofed_source_prefixes": ("10.0.0.0/8",)}, False, False),
        ({"allow_spoofed_source_prefixes": ("10.0.0.0/8",)}, True, True),
    ],
)
def test_workloads_that_felix_refuses(spec, spoofing, passes):
    """4, last paragraph."""
    key, value = wep("w", "10.0.0.1", **spec)
    found = ValidationFilter(None, allow_source_spoofing=spoofing)
    assert (found.valid_value(Update(key, value, 1)) is value) is passes


def test_a_later_node_can_refuse_too():
    found = ValidationFilter(None)
    found.refuse(ResourceKey("Tier", "t"), ValidationError.of("X", None, "late"))
    assert "late" in found.problems[ResourceKey("Tier", "t")]
