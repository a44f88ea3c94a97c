"""Builders and checks for tests of IPAM on any datastore.

`consistent` is the end-of-test check: what blocks, handles and affinities say must agree. `audited`
replays the whole history of a store through `ipam.audit`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from ipaddress import ip_network

from ipam import blocks, leaks
from ipam.affinity import owner_of
from ipam.audit import PREFIXES, Auditor, Violation, event_of
from ipam.client import Facts, FixedSource, IpamClient, Source
from ipam.client.records import Records
from ipam.pools import Pool
from ipam.requests import WORKLOAD, AutoAssign
from ipam.reservations import Reservations
from libcalico.datastore.api import Datastore
from libcalico.model.ipam import MISSING_IPAM_CONFIG, Block, Handle, IpamConfig
from libcalico.model.keys import (
    HOST_AFFINITIES_PREFIX,
    VIRTUAL_AFFINITIES_PREFIX,
)
from libcalico.net import Address
from libcalico.runtime.clock import Clock, SystemClock


def pool(name: str, cidr: str, block_size: int | None = None, **more: object) -> Pool:
    network = ip_network(cidr)
    size = block_size or (26 if network.version == 4 else 122)
    return Pool(name=name, cidr=network, block_size=size, **more)  # type: ignore[arg-type]


def source(
    *pools: Pool,
    nodes: Iterable[str] | Mapping[str, Mapping[str, str]] = ("n1", "n2"),
    reserved: Iterable[str] = (),
    config: IpamConfig = MISSING_IPAM_CONFIG,
) -> FixedSource:
    labels = dict(nodes) if isinstance(nodes, Mapping) else {name: {} for name in nodes}
    facts = Facts(pools=pools, reservations=Reservations.of(reserved), config=config)
    return FixedSource(facts, labels)


class ImpatientClock(SystemClock):
    """Tells the time and does not wait: pauses after conflicts and failures take no time."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


def client(datastore: Datastore, from_source: Source, clock: Clock | None = None) -> IpamClient:
    """A fresh process: nothing remembered."""
    return IpamClient(datastore, from_source, clock=clock or ImpatientClock())


def ask(name: str | None, host: str = "n1", v4: int = 1, v6: int = 0, **more: object) -> AutoAssign:
    terms: dict[str, object] = {"use": WORKLOAD, **more}
    return AutoAssign(
        host=host, handle_id=None if name is None else f"net.{name}",
        attributes={"node": host, "pod": str(name)}, num_v4=v4, num_v6=v6, **terms,  # type: ignore[arg-type]
    )  # fmt: skip


async def all_blocks(datastore: Datastore) -> dict[str, Block]:
    records, found = Records(datastore), {}
    for version in (4, 6):
        for cidr, record in (await records.blocks(version)).items():
            assert record.value is not None
            found[cidr] = record.value
    return found


async def all_handles(datastore: Datastore) -> dict[str, Handle]:
    listed = await Records(datastore).handles()
    return {name: record.value for name, record in listed.items() if record.value is not None}


async def held(datastore: Datastore) -> dict[Address, str | None]:
    """Who holds which address, cooling ones left out."""
    stored = (await all_blocks(datastore)).values()
    standing = leaks.classify(stored, {})
    return {a.address: a.handle_id for a in standing if a.standing is not leaks.Standing.COOLING}


async def consistent(datastore: Datastore, *, exact_handles: bool = True) -> None:
    """Blocks are well formed; handles count exactly what blocks hold (with Calico writing as well
    they may over-count, never under-count); confirmed affinities and blocks name each other."""
    stored = await all_blocks(datastore)
    for block in stored.values():
        assert blocks.problems_of(block) == ()
    counts: dict[str, dict[str, int]] = {}
    for allocation in leaks.classify(stored.values(), {}):
        if allocation.handle_id is not None and allocation.standing is not leaks.Standing.RESERVED:
            by_block = counts.setdefault(allocation.handle_id, {})
            by_block[allocation.block] = by_block.get(allocation.block, 0) + 1
    recorded = {name: handle.block for name, handle in (await all_handles(datastore)).items()}
    if exact_handles:
        assert recorded == counts
    for name, by_block in counts.items():
        for cidr, count in by_block.items():
            assert recorded.get(name, {}).get(cidr, 0) >= count, (name, cidr)
    records = Records(datastore)
    for prefix in (HOST_AFFINITIES_PREFIX, VIRTUAL_AFFINITIES_PREFIX):
        for key, affinity in await records.affinities_under(prefix):
            assert affinity.value is not None
            if affinity.value.effective_state == "confirmed":
                owner = owner_of(stored[key.cidr])
                assert owner is not None
                assert (owner.host, owner.type) == (key.host, key.affinity_type)


async def audited(datastore: Datastore, since: int = 1) -> list[Violation]:
    """Everything that happened in the store since a revision (nothing compacted), audited."""
    end = await datastore.put("/calico/end-of-audit", b"{}")
    auditor, found = Auditor(), []
    async with contextlib.aclosing(datastore.watch("/calico/", since)) as batches:
        async for batch in batches:
            relevant = [event for event in batch.events if event.kv.key.startswith(PREFIXES)]
            found += auditor.apply(event_of(event) for event in relevant)
            if batch.revision >= end:
                break
    return found
