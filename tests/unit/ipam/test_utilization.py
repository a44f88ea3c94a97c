"""ipam.utilization: the numbers of `ipam show` (datamodel §2.7, §6.8)."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

from msgspec.structs import replace

from ipam import blocks
from ipam.blocks import BlockDraft, Holder
from ipam.pools import Pool
from ipam.requests import Release
from ipam.reservations import NONE_RESERVED, Reservations
from ipam.utilization import ORPHANS, utilization
from libcalico.model.ipam import Block

POOLS = [
    Pool(name="a", cidr=ip_network("10.10.0.0/16"), block_size=26),
    Pool(name="b", cidr=ip_network("fd00::/120"), block_size=122),
]


def block(cidr: str, used: int) -> Block:
    draft = BlockDraft(blocks.new_block(cidr, 1))
    draft.assign(used, Holder("h", {}))
    return replace(draft.finish(), affinity="host:n1")


def test_a_pool_adds_up_its_blocks_and_the_space_outside():
    stored = [block("10.10.3.64/26", 3), block("fd00::40/122", 64), block("10.10.0.0/26", 0)]
    a, b, orphans = utilization(POOLS, stored, NONE_RESERVED)
    assert (a.capacity, a.in_use, a.reserved, a.available) == (65536, 3, 0, 65533)
    assert [str(use.cidr) for use in a.blocks] == ["10.10.0.0/26", "10.10.3.64/26"]
    assert (b.capacity, b.in_use, b.available) == (256, 64, 192)
    assert (orphans.name, orphans.blocks, orphans.capacity) == (ORPHANS, (), 0)


def test_reserved_addresses_count_in_and_outside_blocks_but_not_twice():
    reserved = Reservations.of(["10.10.3.64/30", "10.10.9.0/24"])
    (a,) = utilization(POOLS, [block("10.10.3.64/26", 2)], reserved, ["a"])
    # 2 of the 4 reserved addresses of the block were assigned before they were reserved.
    assert (a.in_use, a.reserved) == (2, 4 + 256)
    assert a.blocks[0].available == 60
    assert a.available == 65536 - 64 - 256 + 60


def test_cooling_addresses_count_as_in_use():
    stored = block("10.10.3.64/26", 1)
    draft = BlockDraft(stored)
    draft.release([Release(address=ip_address("10.10.3.64"))], 1_787_476_801, 3600)
    (a,) = utilization(POOLS, [draft.finish()], NONE_RESERVED, ["10.10.0.0/16"])
    assert a.in_use == 1


def test_blocks_without_a_pool_are_orphans_of_either_family():
    stored = [block("10.99.0.0/26", 1), block("fd99::/122", 2)]
    *_, orphans = utilization(POOLS, stored, NONE_RESERVED)
    assert [(str(use.cidr), use.in_use) for use in orphans.blocks] == [
        ("10.99.0.0/26", 1), ("fd99::/122", 2),
    ]  # fmt: skip


def test_asked_for_one_pool_the_others_and_the_orphans_are_left_out():
    stored = [block("10.99.0.0/26", 1), block("10.10.0.0/26", 1)]
    assert [use.name for use in utilization(POOLS, stored, NONE_RESERVED, ["b"])] == ["b"]
