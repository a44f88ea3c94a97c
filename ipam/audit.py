"""Proof over a history: at no revision did two hold one address, or two own one block.

Layer: ipam, pure. Used by `calicoctl ipam audit` (which feeds it a range of revisions or a watch)
and by the stress tests, against Calico's writers as well as ours.

What is checked after each revision:
  V1  handover: an assigned address changes its holder only by way of a revision in which it is free
      (or cooling down); our own writes keep to that (`ipam.batch` W1), and so do Calico's. An
      address out of a node's offline reserve may go to a handle of that node and of no other: the
      holder is the node, before and after (`ipam.reserve` O2);
  V2  overlap: no address is assigned in two blocks;
  V3  owners: of each block at most one affinity is confirmed, and it is the block's own;
  V4  block: its record does not contradict itself (`blocks.problems_of`);
  V5  sequence: every write of a block raises its sequence number;
  V6  endpoints: no two workload endpoints have the same address.

What stays wrong is said once, at the revision that made it so, and again only after it was right in
between. What is kept is the present state and the set of addresses seen, never the history; a write
of a block costs what it changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby, zip_longest

from ipam import blocks, reserve
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
class Looked:
    """How much an audit has seen: revisions that changed something of its, and what stood there."""

    revisions: int
    blocks: int
    addresses: int


@dataclass(frozen=True, slots=True)
class Violation:
    """`kind` is one of handover, overlap, owners, block, sequence, endpoints, unreadable."""

    revision: int
    kind: str
    subject: str
    detail: str

    def __str__(self) -> str:
        return f"revision {self.revision}: {self.kind}: {self.subject}: {self.detail}"


# The same few keys are written again and again.
_key_of = lru_cache(maxsize=16_384)(parse)

# Who holds an address: a handle, or without one the attributes.
Holder = str
# An address as (family, integer): what is wrong with one is rare, and only then it gets a text.
_Place = tuple[int, int]
# What is wrong with one block, but for the revision: kind, subject, detail.
_Wrong = tuple[str, str, str]


@dataclass(slots=True)
class _BlockState:
    """`holders` by ordinal; a problem of the record is a problem until it is written again."""

    block: Block
    version: int
    base: int
    holders: tuple[Holder | None, ...]
    problems: tuple[str, ...]


@dataclass(slots=True)
class Auditor:
    """Replays revisions in order. Start from nothing, or from a snapshot (`load`, page by page)."""

    _blocks: dict[str, _BlockState] = field(default_factory=dict)
    _affinities: dict[str, dict[str, str]] = field(default_factory=dict)
    _endpoints: dict[ResourceKey, frozenset[Address]] = field(default_factory=dict)
    _touched: set[str] = field(default_factory=set)
    _holders: dict[_Place, dict[str, Holder]] = field(default_factory=dict)
    _shared: set[_Place] = field(default_factory=set)
    _wrong: dict[str, frozenset[_Wrong]] = field(default_factory=dict)
    _named: dict[Address, set[ResourceKey]] = field(default_factory=dict)
    _seen: set[_Place] = field(default_factory=set)
    _seen_blocks: set[str] = field(default_factory=set)
    revisions: int = 0

    def load(self, page: Iterable[KeyValue], revision: int) -> list[Violation]:
        """Part of a consistent snapshot to start from. `settle` when all of it is in."""
        return self._events(revision, (Event(revision, kv.key, kv.value) for kv in page))

    def settle(self, revision: int) -> list[Violation]:
        """The snapshot is complete: check it like one revision."""
        return self._check_touched(revision)

    def apply(self, events: Iterable[Event]) -> list[Violation]:
        """Events in order of revision; those of one revision (a transaction) belong together and
        must come in one call."""
        found: list[Violation] = []
        for revision, group in groupby(events, key=lambda event: event.revision):
            self.revisions += 1
            found += self._events(revision, group)
            found += self._check_touched(revision)
        return found

    def looked(self) -> Looked:
        return Looked(self.revisions, len(self._seen_blocks), len(self._seen))

    def _events(self, revision: int, events: Iterable[Event]) -> list[Violation]:
        found: list[Violation] = []
        for event in events:
            key = _key_of(event.key)
            try:
                found += self._event(revision, key, event)
            except (DecodeError, AddressError) as err:
                found.append(
                    Violation(revision, "unreadable", event.key, " ".join(str(err).split()))
                )
        return found

    def _check_touched(self, revision: int) -> list[Violation]:
        """V2-V4, once the whole transaction is in."""
        found: list[Violation] = []
        for cidr in sorted(self._touched):
            wrong = frozenset(self._wrong_with(cidr))
            known = self._wrong.pop(cidr, frozenset())
            if wrong:
                self._wrong[cidr] = wrong
            found += [Violation(revision, *what) for what in sorted(wrong - known)]
        self._touched.clear()
        return found

    def _event(self, revision: int, key: Key | None, event: Event) -> Iterator[Violation]:
        match key:
            case BlockKey(cidr):
                after = None
                if event.value is not None:
                    after = codec.decode_as(Block, key, event.value, revision)
                    if after.cidr != cidr:
                        raise DecodeError(event.key, event.value, f"cidr is {after.cidr!r}")
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
        self._seen_blocks.add(cidr)
        before = self._blocks.pop(cidr, None)
        state = None if after is None else _state_of(after)
        for ordinal, held, holder in _differences(before, state):
            is_change = held is not None and holder is not None
            if is_change and not _is_own_reserve(before, state, ordinal):
                subject = _text(_place(before, state, ordinal))
                detail = f"from {held} to {holder} in one write"
                yield Violation(revision, "handover", subject, detail)
            self._hold(_place(before, state, ordinal), cidr, holder)
        if state is None:
            return
        number = state.block.sequence_number
        if before is not None and number <= before.block.sequence_number:
            detail = f"{before.block.sequence_number} then {number}"
            yield Violation(revision, "sequence", cidr, detail)
        self._blocks[cidr] = state

    def _hold(self, place: _Place, cidr: str, holder: Holder | None) -> None:
        """`holder` None: nobody holds the address in this block any more."""
        holders = self._holders.setdefault(place, {})
        if holder is None:
            holders.pop(cidr, None)
        else:
            holders[cidr] = holder
            self._seen.add(place)
        if not holders:
            del self._holders[place]
        if len(holders) > 1:
            self._shared.add(place)
        else:
            self._shared.discard(place)

    def _wrong_with(self, cidr: str) -> Iterator[_Wrong]:
        state = self._blocks.get(cidr)
        if state is not None:
            yield from (("block", cidr, problem) for problem in state.problems)
            yield from self._overlaps(cidr)
        owners = self._affinities.get(cidr, {})
        confirmed = [owner for owner, text in owners.items() if text == AFFINITY_CONFIRMED]
        if len(confirmed) > 1:
            yield "owners", cidr, "confirmed for " + ", ".join(confirmed)
        recorded = state.block.affinity if state else None
        for owner in confirmed:
            if owner != recorded:
                yield "owners", cidr, f"confirmed for {owner}, the block says {recorded}"

    def _overlaps(self, cidr: str) -> Iterator[_Wrong]:
        """V2. Said of the block that was written last, not of the other one again."""
        for place in self._shared:
            holders = self._holders[place]
            if cidr in holders and cidr == next(reversed(holders)):
                detail = ", ".join(f"{holder} in {block}" for block, holder in holders.items())
                yield "overlap", _text(place), detail

    def _affinity(self, key: BlockAffinityKey, value: bytes | None, revision: int) -> None:
        self._touched.add(key.cidr)
        owners = self._affinities.setdefault(key.cidr, {})
        owner = f"{VIRTUAL if key.affinity_type == VIRTUAL else HOST}:{key.host}"
        if value is None:
            owners.pop(owner, None)
            if not owners:
                del self._affinities[key.cidr]
            return
        owners[owner] = codec.decode_as(BlockAffinity, key, value, revision).effective_state

    # ---- endpoints -----------------------------------------------------------------------------

    def _endpoint(
        self, revision: int, key: ResourceKey, endpoint: WorkloadEndpoint | None
    ) -> Iterator[Violation]:
        texts = () if endpoint is None else endpoint.spec.ip_networks
        after = frozenset(parse_cidr_or_ip(text).network_address for text in texts)
        before = self._endpoints.pop(key, frozenset())
        if after:
            self._endpoints[key] = after
        for address in before - after:
            self._named[address].discard(key)
            if not self._named[address]:
                del self._named[address]
        for address in sorted(after - before, key=int):
            self._seen.add((address.version, int(address)))
            names = self._named.setdefault(address, set())
            names.add(key)
            if len(names) > 1:
                detail = ", ".join(sorted(f"{name.namespace}/{name.name}" for name in names))
                yield Violation(revision, "endpoints", str(address), detail)


def audit(events: Iterable[Event]) -> list[Violation]:
    """Everything wrong in a history that starts from nothing."""
    return Auditor().apply(events)


def _state_of(block: Block) -> _BlockState:
    network = network_of_block(block.cidr)
    names = [
        None if attribute.released_at is not None else _name(attribute)
        for attribute in block.attributes or ()
    ]
    count = len(names)
    holders = tuple(
        names[index] if index is not None and 0 <= index < count else None
        for index in block.allocations
    )
    base, problems = int(network.network_address), blocks.problems_of(block)
    return _BlockState(block, network.version, base, holders, problems)


def _differences(
    before: _BlockState | None, after: _BlockState | None
) -> Iterator[tuple[int, Holder | None, Holder | None]]:
    """(ordinal, who held it, who holds it) where the two are not the same."""
    old = before.holders if before else ()
    new = after.holders if after else ()
    for ordinal, (held, holder) in enumerate(zip_longest(old, new)):
        if held != holder:
            yield ordinal, held, holder


def _place(before: _BlockState | None, after: _BlockState | None, ordinal: int) -> _Place:
    state = after or before
    assert state is not None
    return state.version, state.base + ordinal


def _text(place: _Place) -> str:
    return str(address_of(*place))


def _is_own_reserve(before: _BlockState | None, after: _BlockState | None, ordinal: int) -> bool:
    """Whether an address came out of the reserve of the very node that holds it now."""
    if before is None or after is None:
        return False
    was, now = before.block.attribute_of(ordinal), after.block.attribute_of(ordinal)
    return was is not None and now is not None and reserve.is_handover(was, now)


def _name(attribute: AllocationAttribute) -> Holder:
    return attribute.handle_id or f"{sorted(attribute.secondary.items())}"
