"""Datamodel §2 on a real etcd, with records as other components and older versions leave them.

Everything is put as bytes and looked at as bytes. docs/ipam-interop.md says which rule is tested
where; the last test holds that page to the tests there are.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ipam.client import IpamClient
from ipam.errors import BlockNotFound
from ipam.requests import AssignIP, Release
from libcalico.datastore.etcd import EtcdDatastore
from libcalico.datastore.etcd_link import EtcdConfig
from libcalico.errors import BadSequenceNumber, BlockLimitReached
from libcalico.model.ipam import IpamConfig
from libcalico.net import parse_ip
from libcalico.testing.etcd import EtcdCluster
from tests.support.ipam import ask, audited, client, consistent, held, pool, source

pytestmark = pytest.mark.etcd
IPAM = "/calico/ipam/v2"
BLOCK = f"{IPAM}/assignment/ipv4/block/10.0.0.0-30"
AFFINITY = f"{IPAM}/host/n1/ipv4/block/10.0.0.0-30"
ONE_BLOCK = source(pool("a", "10.0.0.0/30", 30))
ROOT = Path(__file__).parents[2]


@pytest.fixture
async def store(etcd: EtcdCluster) -> AsyncIterator[EtcdDatastore]:
    """Whatever a test does: no address was held twice at any revision, and the records agree."""
    found = EtcdDatastore(EtcdConfig(etcd.endpoints))
    start = (await found.list("/calico/")).revision
    yield found
    assert await audited(found, start + 1) == []
    await consistent(found)
    await found.close()


def block(**members: Any) -> dict[str, Any]:
    """An empty 10.0.0.0/30 of n1, as Calico makes it."""
    return {
        "cidr": "10.0.0.0/30",
        "affinity": "host:n1",
        "allocations": [None] * 4,
        "unallocated": [0, 1, 2, 3],
        "attributes": [],
        "sequenceNumber": 7,
        "sequenceNumberForAllocation": {},
        "deleted": False,
        **members,
    }


async def put(store: EtcdDatastore, key: str, value: Any) -> None:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    await store.put(key, raw)


async def shown(store: EtcdDatastore, key: str = BLOCK) -> Any:
    kv = await store.get(key)
    return None if kv is None else json.loads(kv.value)


async def seed(store: EtcdDatastore, stored: dict[str, Any], **counts: int) -> None:
    """The block, its confirmed affinity, and handles `net.<name>` that count its addresses."""
    await put(store, BLOCK, stored)
    if stored["affinity"] is not None:
        await put(store, AFFINITY, {"state": "confirmed", "deleted": False})
    for name, count in counts.items():
        await put(store, f"{IPAM}/handle/net.{name}", {"block": {"10.0.0.0/30": count}})


# ---- 2.1: the block ------------------------------------------------------------------------------

HELD = {"handle_id": "net.old", "secondary": {"node": "n1", "pod": "old"}}


@pytest.mark.parametrize("numbers", [{}, {"sequenceNumberForAllocation": None}])
@pytest.mark.parametrize("attributes", [None, []])
async def test_2_1_an_old_block_without_sequence_numbers_is_upgraded_by_use(
    store, numbers, attributes
):
    """datamodel 2.1: attributes null or [], sequenceNumberForAllocation {} or null; before sequence
    numbers there was neither member."""
    old = block(attributes=attributes, **numbers)
    del old["sequenceNumber"]
    if not numbers:
        del old["sequenceNumberForAllocation"]
    await seed(store, old)
    ipam = client(store, ONE_BLOCK)
    await ipam.auto_assign(ask("a"))
    assert await shown(store) == block(
        allocations=[0, None, None, None],
        unallocated=[1, 2, 3],
        attributes=[{"handle_id": "net.a", "secondary": {"node": "n1", "pod": "a"}}],
        sequenceNumber=1,
        sequenceNumberForAllocation={"0": 0},
    )
    await ipam.release_by_handle("net.a")
    assert (await shown(store))["sequenceNumber"] == 2


async def test_2_1_an_old_assignment_has_number_zero(store):
    """datamodel 2.6: a stored number that is absent is 0; a given one that differs refuses."""
    old = block(allocations=[0, None, None, None], unallocated=[1, 2, 3], attributes=[HELD])
    old["sequenceNumberForAllocation"] = None
    await seed(store, old, old=1)
    ipam, address = client(store, ONE_BLOCK), parse_ip("10.0.0.0")
    outcome = await ipam.release_ips([Release(address=address, sequence_number=7)])
    assert isinstance(outcome.failed[0].error, BadSequenceNumber)
    assert str(outcome.failed[0].error) == "update conflict: 10.0.0.0"
    outcome = await ipam.release_ips([Release(address=address, sequence_number=0)])
    assert len(outcome.released) == 1


@pytest.mark.parametrize("number", [1787476801123456793, 2**63 + 11, 2**64 - 9])
async def test_2_1_sequence_numbers_are_64_bit_exact(store, number):
    """datamodel 2.1: sequenceNumber is a uint64, +1 on every update, exact in JSON."""
    await seed(store, block(sequenceNumber=number))
    await client(store, ONE_BLOCK).auto_assign(ask("a"))
    kv = await store.get(BLOCK)
    assert f'"sequenceNumber":{number + 1}'.encode() in kv.value
    assert f'"sequenceNumberForAllocation":{{"0":{number}}}'.encode() in kv.value


async def test_2_1_affinity_is_always_there_and_goes_with_its_claim_time(store):
    """datamodel 2.1: affinity null is serialised; the claim time goes with it; hostAffinity is
    ignored and omitted."""
    claimed = "2026-08-22T09:20:01Z"
    await seed(store, block(affinity_claim_time=claimed, hostAffinity="n9"))
    ipam = client(store, ONE_BLOCK)
    await ipam.auto_assign(ask("a"))
    assert (await shown(store))["affinity_claim_time"] == claimed
    await ipam.affinities.remove_host("n1")
    after = await shown(store)
    assert after["affinity"] is None
    assert not {"affinity_claim_time", "hostAffinity"} & after.keys()
    assert await shown(store, AFFINITY) is None


async def test_2_1_both_parties_of_a_live_migration_stay_as_they_are(store):
    """datamodel 2.1, 2.8: alternateOwnerAttrs are the other party's; what others do to the block
    changes nothing of the entry."""
    shared = {**HELD, "alternateOwnerAttrs": {"node": "n2", "pod": "new", "vmi-name": "vm"}}
    stored = block(allocations=[0, None, None, None], unallocated=[1, 2, 3], attributes=[shared],
                   sequenceNumberForAllocation={"0": 3})  # fmt: skip
    await seed(store, stored, old=1)
    ipam = client(store, ONE_BLOCK)
    await ipam.auto_assign(ask("a", v4=2))
    await ipam.release_by_handle("net.a")
    after = await shown(store)
    assert (after["attributes"], after["allocations"][0]) == ([shared], 0)
    assert after["sequenceNumberForAllocation"] == {"0": 3}


WINDOWS = {
    "handle_id": "windows-reserved-ipam-handle",
    "secondary": {"note": "windows host rsvd"},
}


async def test_2_4_what_a_windows_host_reserves_is_untouched_and_the_block_is_empty(store):
    """datamodel 2.4: reserved ordinals do not prevent a block being empty; a Linux host that
    borrows from it and gives back leaves them alone."""
    stored = block(
        cidr="10.0.0.0/29", affinity="host:win", allocations=[0, 0, 0, *[None] * 4, 0],
        unallocated=[3, 4, 5, 6], attributes=[WINDOWS],
    )  # fmt: skip
    path = f"{IPAM}/assignment/ipv4/block/10.0.0.0-29"
    affinity = f"{IPAM}/host/win/ipv4/block/10.0.0.0-29"
    await put(store, path, stored)
    await put(store, affinity, {"state": "confirmed", "deleted": False})
    known = source(pool("a", "10.0.0.0/29", 29), nodes=("win", "n1"))
    ipam = client(store, known)
    await ipam.assign_ip(AssignIP(address=parse_ip("10.0.0.4"), host="n1", handle_id="net.a"))
    got = await ipam.auto_assign(ask("b", v4=8))
    assert sorted(str(a.ip) for a in got.addresses) == ["10.0.0.3", "10.0.0.5", "10.0.0.6"]
    during = await shown(store, path)
    assert during["attributes"][0] == WINDOWS
    assert [during["allocations"][i] for i in (0, 1, 2, 7)] == [0, 0, 0, 0]
    await ipam.release_by_handle("net.a")
    await ipam.release_by_handle("net.b")
    after = await shown(store, path)
    assert (after["attributes"], after["allocations"]) == ([WINDOWS], stored["allocations"])
    await ipam.affinities.remove_host("win")
    assert await shown(store, path) is None
    assert await shown(store, affinity) is None


# ---- 2.2: affinities, handles, settings ----------------------------------------------------------


CONFIRMED = (b"", b"{}", b'{"state":""}', b'{"state":"confirmed"}')
UNFINISHED = (b'{"state":"pending"}', b'{"state":"pendingDeletion","deleted":false}')


@pytest.mark.parametrize(
    ("raw", "has_block"),
    [*((raw, True) for raw in CONFIRMED + UNFINISHED), *((raw, False) for raw in UNFINISHED)],
)
async def test_2_2_an_affinity_in_any_state_ends_confirmed_with_its_block(store, raw, has_block):
    """datamodel 2.2: pending, confirmed, pendingDeletion; "" and empty bytes are an old confirmed.
    2.4: a missing block is made, an unconfirmed affinity finished."""
    if has_block:
        await put(store, BLOCK, block())
    await put(store, AFFINITY, raw)
    got = await client(store, ONE_BLOCK).auto_assign(ask("a", v4=4))
    assert len(got.addresses) == 4
    assert (await shown(store))["affinity"] == "host:n1"
    kv = await store.get(AFFINITY)
    finished = b'{"state":"confirmed","deleted":false}'
    assert kv.value == (raw if raw in CONFIRMED else finished)


async def test_2_2_an_affinity_of_a_block_that_is_anothers_is_deleted(store):
    """datamodel 2.4 findOrClaim: block.affinity is not ours: compare-and-delete the stale key."""
    await seed(store, block())
    stale = f"{IPAM}/host/n2/ipv4/block/10.0.0.0-30"
    await put(store, stale, {"state": "pending", "deleted": False})
    strict = IpamConfig(strict_affinity=True, auto_allocate_blocks=True)
    known = source(pool("a", "10.0.0.0/29", 30), config=strict)
    got = await client(store, known).auto_assign(ask("x", "n2"))
    assert [str(a.network) for a in got.addresses] == ["10.0.0.4/30"]
    assert await shown(store, stale) is None
    assert (await shown(store))["affinity"] == "host:n1"


@pytest.mark.parametrize("stored_id", ["net.old", "net.old\r\n", "net.old\rtail"])
@pytest.mark.parametrize("given_id", ["net.old", "net.old\r"])
async def test_2_2_handles_are_cut_at_the_first_carriage_return(store, stored_id, given_id):
    """datamodel 2.2: Windows hosts have written such ids."""
    held_by = {**HELD, "handle_id": stored_id}
    stored = block(allocations=[0, None, None, None], unallocated=[1, 2, 3], attributes=[held_by])
    await seed(store, stored, old=1)
    released = await client(store, ONE_BLOCK).release_by_handle(given_id)
    assert [str(address) for address in released] == ["10.0.0.0"]
    assert await shown(store, f"{IPAM}/handle/net.old") is None


@pytest.mark.parametrize(("raw", "is_automatic"), [(None, True), (b"{}", False)])
async def test_2_2_absent_settings_make_blocks_and_written_ones_do_as_they_say(
    store, raw, is_automatic
):
    """datamodel 2.2: key absent: auto_allocate_blocks true, in memory only; a member that is not in
    a stored value is false."""
    path = f"{IPAM}/config"
    if raw is not None:
        await put(store, path, raw)
    config = await IpamClient(store).settings.get()
    known = source(pool("a", "10.0.0.0/30", 30), config=config)
    if is_automatic:
        await client(store, known).auto_assign(ask("a"))
    else:
        with pytest.raises(BlockNotFound, match="failed to find or claim a block"):
            await client(store, known).auto_assign(ask("a"))
    kv = await store.get(path)
    assert (None if kv is None else kv.value) == raw


# ---- 2.4: block sizes, limits, many hosts --------------------------------------------------------


@pytest.mark.parametrize(
    ("cidr", "size", "count"),
    [
        *(("10.0.0.0/19", 20, 4096), ("10.0.0.0/28", 30, 4), ("10.0.0.0/28", 31, 2)),
        *(("10.0.0.0/28", 32, 1), ("fd00::/115", 116, 4096), ("fd00::/120", 126, 4)),
        *(("fd00::/120", 127, 2), ("fd00::/120", 128, 1)),
    ],
)
async def test_2_4_blocks_of_the_largest_and_smallest_sizes_are_used_to_both_ends(
    store, cidr, size, count
):
    """datamodel 2.4: blockSize 20-32 and 116-128; every address of a block is one, the first and
    the last too."""
    ipam = client(store, source(pool("a", cidr, size)))
    is_v6 = ":" in cidr
    got = await ipam.auto_assign(ask("a", v4=0 if is_v6 else count, v6=count if is_v6 else 0))
    (network,) = {a.network for a in got.addresses}
    assert network.prefixlen == size
    assert network.num_addresses == count
    assert sorted(a.ip for a in got.addresses) == list(network)
    await ipam.release_by_handle("net.a")
    assert await held(store) == {}


async def test_2_4_a_host_has_twenty_blocks_unless_somebody_says_otherwise(store):
    """datamodel 2.4: limit 0 means 20; the error names limit and pools, what there was is kept."""
    ipam = client(store, source(pool("a", "10.0.0.0/26", 32)))
    for i in range(20):
        await ipam.auto_assign(ask(f"p{i}"))
    with pytest.raises(BlockLimitReached) as refused:
        await ipam.auto_assign(ask("over"))
    assert "per host block limit: 20 in pools: [10.0.0.0/26]" in str(refused.value)
    assert len(await held(store)) == 20


async def test_2_4_a_hundred_hosts_that_start_at_once_hardly_collide(store):
    """datamodel 2.4: the walk begins where the host's name says, so that hosts look in different
    places."""
    hosts = [f"node-{i}" for i in range(100)]
    known = source(pool("a", "10.0.0.0/16"), pool("b", "fd00::/108"), nodes=hosts)
    clients = {host: client(store, known) for host in hosts}
    await asyncio.gather(*(c.auto_assign(ask(h, h, v6=1)) for h, c in clients.items()))
    assert len(await held(store)) == 200
    assert sum(c.records.conflicts for c in clients.values()) < 50


# ---- the page ------------------------------------------------------------------------------------


def test_the_page_of_rules_names_tests_there_are():
    page = (ROOT / "docs/ipam-interop.md").read_text()
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", page)
    assert len(named) > 60
    texts = {path: (ROOT / "tests" / path).read_text() for path, _ in named}
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not re.search(rf"def (test_)?{name}\(", texts[path])
    ]
    assert missing == []
