"""Rewriting a stored JSON value until it decodes strictly."""

from __future__ import annotations

from typing import Any

import pytest

from libcalico.model import (
    BGPFilterSpec,
    BlockAffinitySpec,
    EntityRule,
    HostEndpointSpec,
    NetworkPolicy,
    ProfileSpec,
    ipam,
)
from libcalico.model.schema import record_of
from libcalico.model.tolerant import MAX_DEPTH, is_deeper_than, parse_json, tolerate


def _nested(depth: int) -> Any:
    value: Any = 5
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


@pytest.mark.parametrize(
    ("depth", "limit", "deeper"), [(0, 0, False), (1, 0, True), (3, 3, False), (4, 3, True)]
)
def test_depth_counts_lists_and_objects(depth: int, limit: int, deeper: bool) -> None:
    assert is_deeper_than(_nested(depth), limit) is deeper


def test_json_is_read_up_to_the_limit() -> None:
    def text(depth: int) -> bytes:
        return b"[" * depth + b"1" + b"]" * depth

    assert parse_json(text(MAX_DEPTH)) is not None
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json(text(MAX_DEPTH + 1))


@pytest.mark.parametrize("raw", [b"", b"{", b"NaN", b'"\\ud800"', b'"\xff"', b"[1,]", b"{'a':1}"])
def test_only_strict_json_is_read(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(raw)


@pytest.mark.parametrize(
    ("struct", "value", "expected"),
    [
        (EntityRule, {"nets": "10.0.0.0/8"}, {"nets": "10.0.0.0/8"}),
        (EntityRule, {"nets": {"a": 1}, "selector": 5}, {"nets": {"a": 1}, "selector": 5}),
        (EntityRule, {"ports": [None, "80", True, 1.5]}, {"ports": ["", 80, True, 1.5]}),
        (EntityRule, {"services": "x"}, {"services": "x"}),
        (HostEndpointSpec, {"ports": [None, "x"]}, {"ports": [{}, "x"]}),
        (
            HostEndpointSpec,
            {"ports": [{"PORT": None, "Protocol": "17"}]},
            {"ports": [{"protocol": 17}]},
        ),
        (ProfileSpec, {"labelsToApply": [1]}, {"labelsToApply": [1]}),
        (BlockAffinitySpec, {"deleted": False}, {"deleted": "false"}),
        (BlockAffinitySpec, {"deleted": 5}, {"deleted": 5}),
        (
            BGPFilterSpec,
            {"exportV4": [{"asPathPrefix": ["1.0", 5, None, "x", False]}]},
            {"exportV4": [{"asPathPrefix": [65536, 5, 0, "x", False]}]},
        ),
        (
            ipam.Block,
            {
                "allocations": [None, 1],
                "unallocated": [None],
                "SequenceNumberForAllocation": {"0": None},
            },
            {"allocations": [None, 1], "unallocated": [0], "sequenceNumberForAllocation": {"0": 0}},
        ),
    ],
)
def test_what_can_be_put_right_is_and_the_rest_is_left_to_be_named(
    struct: Any, value: Any, expected: Any
) -> None:
    known, unknown = tolerate(record_of(struct), value)
    assert known == expected
    assert not unknown


def test_what_is_no_object_is_left_as_it_is() -> None:
    assert tolerate(record_of(EntityRule), [1])[0] == [1]


def test_a_later_spelling_also_replaces_what_was_unknown_in_the_earlier_one() -> None:
    value = {
        "spec": {"ingress": [{"x": 1}], "EGRESS": [{"y": 1}], "egress": None, "Ingress": []},
        "SPEC": {"z": 1},
    }
    known, unknown = tolerate(record_of(NetworkPolicy), value)
    assert known == {"spec": {}}
    assert unknown.paths() == ["spec.z"]
    known, unknown = tolerate(record_of(NetworkPolicy), {"spec": value["spec"]})
    assert known == {"spec": {"ingress": []}}
    assert unknown.paths() == []


def test_the_kind_is_the_callers_business() -> None:
    known, unknown = tolerate(record_of(NetworkPolicy), {"KIND": "x", "apiVersion": "y"})
    assert known == {"apiVersion": "y"}
    assert not unknown
    _, unknown = tolerate(record_of(EntityRule), {"kind": "x"})
    assert unknown.paths() == ["kind"]
