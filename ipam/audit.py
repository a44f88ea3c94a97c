"""Proof over a history: at no revision did two hold one address, or two own one block.

Layer: ipam, pure. Used by `calicoctl ipam audit` (which feeds it a range of revisions or a watch)
and by the stress tests, against Calico's writers as well as ours.

What is checked after each revision:
  V1  handover: an assigned address changes its holder only by way of a revision in which it is free
      (or cooling down); our own writes keep to that (`ipam.batch` W1), and so do Calico's;
  V2  overlap: no address is assigned in two blocks;
  V3  owners: of each block at most one affinity is confirmed, and it is the block's own;
  V4  block: its record does not contradict itself (`blocks.problems_of`);
  V5  sequence: every write of a block raises its sequence number;
  V6  endpoints: no two workload endpoints have the same address.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby

from ipam import blocks
from ipam.affinity import HOST, VIRTUAL
from ipam.blocks import network_of_block
from libcalico.datastore.api import EventType, KeyValue, WatchEvent
from libcalico.errors import DecodeError
from libcalico.model import codec
from libcalico.model.endpoints import WorkloadEndpoint
from libcalico.model.ipam import AFFINITY_CONFIRMED, AllocationAttribute, Block, BlockAffinity
from libcalico.model.keys import BlockAffinityKey, BlockKey, Key, ResourceKey, parse
from libcalico.net import Address, AddressError, address_of, parse_cidr_or_ip

#: Keys an audit needs to see; whatever else is handed in is ignored.
PREFIXES = ("/calico/ipam/v2/", "/calico/resources/v3/projectcalico.org/workloadendpoints/")


@dataclass(frozen=True, slots=True)
class Event:
    """One key as of one revision; `value` None: deleted."""

    revision: int
    key: str
    value: bytes | None


def event_of(event: WatchEvent) -> Event:
    deleted = event.type is EventType.DELETE
    return Event(event.kv.mod_revision, event.kv.key, None if deleted else event.kv.value)


@dataclass(frozen=True, slots=True)
class Violation:
    """`kind` is one of handover, overlap, owners, block, sequence, endpoints, unreadable."""

    revision: int
    kind: str
    subject: str
    detail: str

    def __str__(self) -> str:
        return f"revision {self.revision}: {self.kind}: {self.subject}: {self.detail}"


# Who holds an address: a handle, or without one the attributes.
Holder = str


@dataclass(slots=True)
class _BlockState:
    block: Block
    holders: dict[Address, Holder]


@dataclass(slots=True)
class Auditor:
    """Replays revisions in order. Start from nothing, or from `load`ed state."""

    _blocks: dict[str, _BlockState] = field(default_factory=dict)
    _affinities: dict[str, dict[str, str]] = field(default_factory=dict)
    _endpoints: dict[ResourceKey, frozenset[Address]] = field(default_factory=dict)
    _touched: set[str] = field(default_factory=set)
    _holders: dict[Address, dict[str, Holder]] = field(default_factory=dict)
    _named: dict[Address, set[ResourceKey]] = field(default_factory=dict)
    revisions: int = 0

    def load(self, snapshot: Iterable[KeyValue]) -> list[Violation]:
        """A consistent snapshot to start from: it is checked like one revision."""
        events = [Event(0, kv.key, kv.value) for kv in snapshot]
        return self._revision(0, events)

    def apply(self, events: Iterable[Event]) -> list[Violation]:
        """Events in order of revision; those of one revision (a transaction) belong together and
        must come in one call."""
        found: list[Violation] = []
        for revision, group in groupby(events, key=lambda event: event.revision):
            self.revisions += 1
            found += self._revision(revision, group)
        return found

    def _revision(self, revision: int, events: Iterable[Event]) -> list[Violation]:
        self._touched = set()
        found: list[Violation] = []
        for event in events:
            key = parse(event.key)
            try:
                found += self._event(revision, key, event)
            except (DecodeError, AddressError) as err:
                found.append(Violation(revision, "unreadable", event.key, str(err)))
        for cidr in sorted(self._touched):
            found += self._check_block(revision, cidr)
        return found

    def _event(self, revision: int, key: Key | None, event: Event) -> Iterator[Violation]:
        match key:
            case BlockKey(cidr):
                after = None
                if event.value is not None:
                    after = codec.decode_as(Block, key, event.value, revision)
                yield from self._block(revision, cidr, after)
            case BlockAffinityKey():
                self._affinity(key, event.value, revision)
            case ResourceKey(kind="WorkloadEndpoint"):
                endpoint = None
                if event.value is not None:
                    endpoint = codec.decode_as(WorkloadEndpoint, key, event.value, revision)
                yield from self._endpoint(revision, key, endpoint)
            case _:
                return

    # ---- blocks --------------------------------------------------------------------------------

    def _block(self, revision: int, cidr: str, after: Block | None) -> Iterator[Violation]:
        self._touched.add(cidr)
        before = self._blocks.pop(cidr, None)
        holders = {} if after is None else _holders(after)
        for address, holder in before.holders.items() if before else ():
            self._holders[address].pop(cidr, None)
            now = holders.get(address)
            if now is not None and now != holder:
                detail = f"from {holder} to {now} in one write"
                yield Violation(revision, "handover", str(address), detail)
        if after is None:
            return
        if before is not None and after.sequence_number <= before.block.sequence_number:
            detail = f"{before.block.sequence_number} then {after.sequence_number}"
            yield Violation(revision, "sequence", cidr, detail)
        for problem in blocks.problems_of(after):
            yield Violation(revision, "block", cidr, problem)
        self._blocks[cidr] = _BlockState(after, holders)
        for address, holder in holders.items():
            self._holders.setdefault(address, {})[cidr] = holder

    def _check_block(self, revision: int, cidr: str) -> Iterator[Violation]:
        """V2 and V3, once the whole transaction is in."""
        state = self._blocks.get(cidr)
        for address in state.holders if state else ():
            others = self._holders[address]
            if len(others) > 1:
                detail = ", ".join(f"{holder} in {block}" for block, holder in others.items())
                yield Violation(revision, "overlap", str(address), detail)
        confirmed = [
            owner
            for owner, text in self._affinities.get(cidr, {}).items()
            if text == AFFINITY_CONFIRMED
        ]
        if len(confirmed) > 1:
            yield Violation(revision, "owners", cidr, "confirmed for " + ", ".join(confirmed))
        recorded = state.block.affinity if state else None
        for owner in confirmed:
            if owner != recorded:
                detail = f"confirmed for {owner}, the block says {recorded}"
                yield Violation(revision, "owners", cidr, detail)

    def _affinity(self, key: BlockAffinityKey, value: bytes | None, revision: int) -> None:
        self._touched.add(key.cidr)
        owners = self._affinities.setdefault(key.cidr, {})
        owner = f"{VIRTUAL if key.affinity_type == VIRTUAL else HOST}:{key.host}"
        if value is None:
            owners.pop(owner, None)
            return
        owners[owner] = codec.decode_as(BlockAffinity, key, value, revision).effective_state

    # ---- endpoints -----------------------------------------------------------------------------

    def _endpoint(
        self, revision: int, key: ResourceKey, endpoint: WorkloadEndpoint | None
    ) -> Iterator[Violation]:
        for address in self._endpoints.pop(key, frozenset()):
            self._named[address].discard(key)
        if endpoint is None:
            return
        addresses = frozenset(
            parse_cidr_or_ip(text).network_address for text in endpoint.spec.ip_networks
        )
        self._endpoints[key] = addresses
        for address in sorted(addresses, key=int):
            names = self._named.setdefault(address, set())
            names.add(key)
            if len(names) > 1:
                detail = ", ".join(sorted(f"{name.namespace}/{name.name}" for name in names))
                yield Violation(revision, "endpoints", str(address), detail)


def audit(events: Iterable[Event]) -> list[Violation]:
    """Everything wrong in a history that starts from nothing."""
    return Auditor().apply(events)


def _holders(block: Block) -> dict[Address, Holder]:
    network = network_of_block(block.cidr)
    base = int(network.network_address)
    found: dict[Address, Holder] = {}
    for ordinal in range(len(block.allocations)):
        attribute = block.attribute_of(ordinal)
        if attribute is not None and attribute.released_at is None:
            found[address_of(network.version, base + ordinal)] = _name(attribute)
    return found


def _name(attribute: AllocationAttribute) -> Holder:
    return attribute.handle_id or f"{sorted(attribute.secondary.items())}"
