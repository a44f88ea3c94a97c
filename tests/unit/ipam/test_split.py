"""ipam.split: the arithmetic and the parts (datamodel §6.8)."""

from __future__ import annotations

import pytest

from ipam import split
from ipam.split import SplitRefused, Stamp
from libcalico.model.ippool import IPPool, IPPoolSpec, IPPoolStatus
from libcalico.model.meta import Condition, ObjectMeta


@pytest.mark.parametrize(
    ("cidr", "parts", "expected"),
    [
        ("10.0.0.0/24", 2, ["10.0.0.0/25", "10.0.0.128/25"]),
        ("10.0.0.0/30", 4, ["10.0.0.0/32", "10.0.0.1/32", "10.0.0.2/32", "10.0.0.3/32"]),
        ("fd00::/120", 2, ["fd00::/121", "fd00::80/121"]),
        ("0.0.0.0/0", 2, ["0.0.0.0/1", "128.0.0.0/1"]),
    ],
)
def test_6_8_a_range_in_equal_parts(cidr: str, parts: int, expected: list[str]):
    assert list(split.cidrs(cidr, parts)) == expected


@pytest.mark.parametrize("parts", [-2, 0, 1, 3, 6, 4095])
def test_6_8_only_powers_of_two(parts: int):
    with pytest.raises(SplitRefused) as caught:
        split.cidrs("10.0.0.0/8", parts)
    assert str(caught.value) == (
        f"error splitting the CIDR 10.0.0.0/8 into {parts} CIDRs: "
        f"number to split CIDR into is not a valid power of 2: {parts}"
    )


@pytest.mark.parametrize(
    ("cidr", "parts", "reason"),
    [
        ("10.0.0.0/31", 4, "the CIDR 10.0.0.0/31 is not large enough to be split into 4 parts"),
        ("rubbish", 2, "error reading CIDR rubbish before attempting to split it"),
        ("fd00::/8", 8192, "4096 parts is the most at once"),
    ],
)
def test_6_8_what_cannot_be_split_is_refused(cidr: str, parts: int, reason: str):
    with pytest.raises(SplitRefused) as caught:
        split.cidrs(cidr, parts)
    assert str(caught.value) == f"error splitting the CIDR {cidr} into {parts} CIDRs: {reason}"


def test_6_8_the_parts_are_the_pool_but_for_name_range_and_identity():
    pool = IPPool(
        metadata=ObjectMeta(name="p", uid="u", resource_version="7", creation_timestamp="then",
                            labels={"a": "b"}, annotations={"c": "d"}),
        spec=IPPoolSpec(cidr="10.0.0.0/24", block_size=28, disabled=True, nat_outgoing=True),
        status=IPPoolStatus(conditions=(Condition(type="Allocatable", status="False"),)),
    )  # fmt: skip
    first, second = split.children(pool, 2, [Stamp("u1", "now"), Stamp("u2", "now")])
    assert first == IPPool(
        metadata=ObjectMeta(name="split-p-0", uid="u1", creation_timestamp="now",
                            labels={"a": "b"}, annotations={"c": "d"}),
        spec=IPPoolSpec(cidr="10.0.0.0/25", block_size=28, disabled=True, nat_outgoing=True),
    )  # fmt: skip
    assert (second.metadata.name, second.spec.cidr) == ("split-p-1", "10.0.0.128/25")


def test_6_8_a_long_name_is_cut_so_that_every_part_has_one():
    names = split.names("x" * 253, 16)
    assert names[0] == f"split-{'x' * 245}-0"
    assert {len(name) for name in names} == {253}
    assert len(set(names)) == 16
    assert split.names("short", 2) == ("split-short-0", "split-short-1")
