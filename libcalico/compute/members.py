"""MemberIndex: from selectors to the members of address sets, incrementally.

Layer: pure, above compute.labelindex. Users: felix.calc (kernel sets of rules), typha's spans.

Items (endpoints, network sets) contribute addresses and named ports; a set has a selector and
wants either the addresses of what matches, or the (address, protocol, port) triples of one named
port. Members are text, ready for the kernel encoders: "10.0.0.1/32", "fd00::/64" for address sets
and "10.0.0.1,tcp,8080" for port sets. The caller gives canonical CIDRs and lower-case protocols.

Two items may contribute the same member (two endpoints that share an address, a network set that
repeats an endpoint): it stays as long as one of them does.

Invariants:
  M1  after flush() a set's members are the union of what its matching items contribute;
  M2  deltas are net and true: added members were not there, removed members were;
  M3  `_extra[m]` counts the contributions of member m beyond the first, and holds no zeros.

Source: Calico felix/labelindex/named_port_index.go (the contract and the reference counts).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from libcalico.compute.labelindex import LabelIndex, MatchDelta, Matches
from libcalico.selector import Selector

I = TypeVar("I", bound=Hashable)  # noqa: E741
S = TypeVar("S", bound=Hashable)


class EndpointPort(NamedTuple):
    """A named port that an endpoint offers. Protocol in lower case: tcp, udp, sctp."""

    name: str
    protocol: str
    port: int


class PortMatch(NamedTuple):
    """What a named-port set looks for. A name that no endpoint offers matches nothing."""

    name: str
    protocol: str


@dataclass(frozen=True, slots=True)
class SetDelta(Generic[S]):
    """What changed in one set. `is_new`: the first of this set, `added` is all of it."""

    set_id: S
    is_new: bool
    added: frozenset[str]
    removed: frozenset[str]


class _Offer(NamedTuple):
    """What one item contributes."""

    addresses: tuple[str, ...]
    ports: tuple[EndpointPort, ...]


_NOTHING = _Offer((), ())


def port_member(address: str, protocol: str, port: int) -> str:
    """The text of a named-port member. `address` may be a host CIDR: its length is dropped."""
    return f"{address.partition('/')[0]},{protocol},{port}"


class _AddressSet:
    """The members of one set, and what changed since the last delta."""

    __slots__ = ("added", "extra", "is_new", "members", "port", "removed")

    def __init__(self, port: PortMatch | None) -> None:
        self.port = port
        self.members: set[str] = set()
        self.extra: dict[str, int] = {}
        self.is_new = True
        self.added: set[str] = set()
        self.removed: set[str] = set()

    def contribution(self, offer: _Offer) -> Collection[str]:
        """What one item contributes to this set, each member once."""
        if self.port is None:
            return offer.addresses
        return {
            port_member(address, offered.protocol, offered.port)
            for offered in offer.ports
            if offered.name == self.port.name and offered.protocol == self.port.protocol
            for address in offer.addresses
        }

    def add(self, contributions: Collection[str]) -> None:
        fresh = set(contributions)
        if len(fresh) < len(contributions) or not fresh.isdisjoint(self.members):
            fresh = self._count_up(contributions)
        self.members |= fresh
        if not self.is_new:
            self.added |= fresh - self.removed
            self.removed -= fresh

    def remove(self, contributions: Collection[str]) -> None:
        gone = self._count_down(contributions) if self.extra else set(contributions)
        self.members -= gone
        if not self.is_new:
            self.removed |= gone - self.added
            self.added -= gone

    def replace(self, contributions: Collection[str]) -> None:
        """Start again from nothing, as one change."""
        self.extra.clear()
        self.remove(self.members.copy())
        self.add(contributions)

    def take_delta(self, set_id: S) -> SetDelta[S]:
        if self.is_new:
            delta = SetDelta(set_id, True, frozenset(self.members), frozenset())
        else:
            delta = SetDelta(set_id, False, frozenset(self.added), frozenset(self.removed))
        self.is_new = False
        self.added, self.removed = set(), set()
        return delta

    def _count_up(self, contributions: Collection[str]) -> set[str]:
        """Count contributions that are members already; the others, once each."""
        fresh: set[str] = set()
        for member in contributions:
            if member in fresh or member in self.members:
                self.extra[member] = self.extra.get(member, 0) + 1
            else:
                fresh.add(member)
        return fresh

    def _count_down(self, contributions: Collection[str]) -> set[str]:
        """Take back contributions; the members that nothing contributes any more."""
        gone: set[str] = set()
        for member in contributions:
            left = self.extra.get(member, 0)
            if left > 1:
                self.extra[member] = left - 1
            elif left == 1:
                del self.extra[member]
            else:
                gone.add(member)
        return gone


class MemberIndex(Generic[I, S]):
    """See the module, and compute/__init__.py for the calls."""

    def __init__(self) -> None:
        self._index: LabelIndex[I, S] = LabelIndex()
        self._sets: dict[S, _AddressSet] = {}
        # Columns by ordinal, as of the last flush.
        self._addresses: list[tuple[str, ...]] = []
        self._ports: list[tuple[EndpointPort, ...]] = []
        # None: the item goes. Ports only of items that have some.
        self._pending_addresses: dict[I, tuple[str, ...] | None] = {}
        self._pending_ports: dict[I, tuple[EndpointPort, ...]] = {}
        self._pending_sets: dict[S, PortMatch | None] = {}
        self._pending_deletes: set[S] = set()
        # Sets that may have something to tell.
        self._dirty: set[S] = set()

    # -- state in ---------------------------------------------------------------------------

    def update_item(
        self,
        item_id: I,
        labels: Mapping[str, str],
        parents: Sequence[str] = (),
        *,
        addresses: Sequence[str] = (),
        ports: Sequence[EndpointPort] = (),
    ) -> None:
        """Set an item. `labels` is kept, not copied."""
        self._index.update_item(item_id, labels, parents)
        if len(set(addresses)) < len(addresses):
            addresses = tuple(dict.fromkeys(addresses))
        self._pending_addresses[item_id] = tuple(addresses)
        if ports:
            self._pending_ports[item_id] = tuple(ports)
        else:
            self._pending_ports.pop(item_id, None)

    def delete_item(self, item_id: I) -> None:
        self._index.delete_item(item_id)
        self._pending_addresses[item_id] = None

    def update_parent(self, name: str, labels: Mapping[str, str]) -> None:
        self._index.update_parent(name, labels)

    def delete_parent(self, name: str) -> None:
        self._index.delete_parent(name)

    def update_set(self, set_id: S, selector: Selector, *, port: PortMatch | None = None) -> None:
        """Set what a set wants. After delete_set() in the same flush this is an update: the
        consumer still has the set, and is told the difference only."""
        self._index.update_selector(set_id, selector)
        self._pending_sets[set_id] = port
        self._pending_deletes.discard(set_id)

    def delete_set(self, set_id: S) -> None:
        """The set goes at the next flush, without a delta."""
        self._index.delete_selector(set_id)
        self._pending_sets.pop(set_id, None)
        self._pending_deletes.add(set_id)

    # -- questions, as of the last flush ----------------------------------------------------

    def members(self, set_id: S) -> frozenset[str]:
        held = self._sets.get(set_id)
        return frozenset(held.members) if held else frozenset()

    def sets_of(self, item_id: I) -> list[S]:
        """The sets that an item contributes to, if it offers anything."""
        return self._index.selectors_of(item_id)

    # -- deltas out -------------------------------------------------------------------------

    def flush(self) -> list[SetDelta[S]]:
        """Take over everything since the last flush; the net changes, in no promised order."""
        ordinal_before = self._ordinals_before(self._pending_addresses)
        deltas = {delta.selector_id: delta for delta in self._index.flush()}
        replaced = self._take_over_sets()
        self._dirty.update(deltas)
        for set_id, delta in deltas.items():
            if delta.stopped and set_id in self._sets:
                self._sets[set_id].remove(self._contributions(set_id, delta.stopped))
        self._take_over_offers(ordinal_before, deltas)
        for set_id, delta in deltas.items():
            if delta.started and set_id in self._sets:
                self._sets[set_id].add(self._contributions(set_id, delta.started))
        for set_id, port in replaced.items():
            held = self._sets[set_id]
            held.port = port
            held.replace(self._contributions(set_id, self._index.members(set_id)))
        return self._deltas()

    def _ordinals_before(self, items: Iterable[I]) -> dict[I, int]:
        before = ((item_id, self._index.ordinal(item_id)) for item_id in items)
        return {item_id: ordinal for item_id, ordinal in before if ordinal is not None}

    def _take_over_sets(self) -> dict[S, PortMatch | None]:
        """Create and drop sets; the ones whose port changed must be built anew."""
        for set_id in self._pending_deletes:
            self._sets.pop(set_id, None)
        replaced = {}
        self._dirty.update(self._pending_sets)
        for set_id, port in self._pending_sets.items():
            held = self._sets.get(set_id)
            if held is None:
                self._sets[set_id] = _AddressSet(port)
            elif held.port != port:
                replaced[set_id] = port
        self._pending_deletes = set()
        self._pending_sets = {}
        return replaced

    def _take_over_offers(
        self, ordinal_before: Mapping[I, int], deltas: Mapping[S, MatchDelta[S, I]]
    ) -> None:
        """Change the columns, and the sets that an item with a new offer matched all along."""
        growth = self._index.universe() - len(self._addresses)
        self._addresses.extend(itertools.repeat((), growth))
        self._ports.extend(itertools.repeat((), growth))
        pending, self._pending_addresses = self._pending_addresses, {}
        pending_ports, self._pending_ports = self._pending_ports, {}
        for item_id, addresses in pending.items():
            ports = pending_ports.get(item_id, ())
            before = ordinal_before.get(item_id)
            if before is None:
                self._set_offer(self._index.ordinal(item_id), addresses or (), ports)
                continue
            old = _Offer(self._addresses[before], self._ports[before])
            new = _NOTHING if addresses is None else _Offer(addresses, ports)
            self._set_offer(before, *new)
            if addresses is not None and old != new:
                self._replace_offer(item_id, old, new, deltas)

    def _set_offer(
        self, ordinal: int | None, addresses: tuple[str, ...], ports: tuple[EndpointPort, ...]
    ) -> None:
        if ordinal is not None:
            self._addresses[ordinal], self._ports[ordinal] = addresses, ports

    def _replace_offer(
        self, item_id: I, old: _Offer, new: _Offer, deltas: Mapping[S, MatchDelta[S, I]]
    ) -> None:
        for set_id in self._index.selectors_of(item_id):
            delta = deltas.get(set_id)
            if delta is not None and item_id in delta.started:
                continue
            held = self._sets[set_id]
            self._dirty.add(set_id)
            held.remove(held.contribution(old))
            held.add(held.contribution(new))

    def _contributions(self, set_id: S, matches: Matches[I]) -> list[str]:
        """All members that these items contribute, with repetitions across items."""
        held = self._sets[set_id]
        addresses = matches.pick(self._addresses)
        if held.port is None:
            return list(itertools.chain.from_iterable(addresses))
        offers = map(_Offer, addresses, matches.pick(self._ports))
        return list(itertools.chain.from_iterable(map(held.contribution, offers)))

    def _deltas(self) -> list[SetDelta[S]]:
        dirty, self._dirty = self._dirty, set()
        deltas = []
        for set_id in dirty & self._sets.keys():
            held = self._sets[set_id]
            if held.is_new or held.added or held.removed:
                deltas.append(held.take_delta(set_id))
        return deltas

    def check(self) -> None:
        """The invariants, slowly: for tests."""
        self._index.check()
        for set_id, held in self._sets.items():
            counts: dict[str, int] = {}
            for member in self._contributions(set_id, self._index.members(set_id)):
                counts[member] = counts.get(member, 0) + 1
            assert counts.keys() == held.members, "M1"
            assert {m: n - 1 for m, n in counts.items() if n > 1} == held.extra, "M3"

    def dump(self) -> dict[str, object]:
        """State for the debug endpoint: counts."""
        members = sum(len(held.members) for held in self._sets.values())
        return {"sets": len(self._sets), "members": members} | self._index.dump()
