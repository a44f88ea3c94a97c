"""Spans: which nodes need a policy, which need an address group, and who is in the group.

Layer: typha, pure, above libcalico.compute.labelindex. Users: calicoctl typha query; the spans
stream is to stand on it (typha/DESIGN.md says what is not made yet).

    endpoints, network sets ─┐                        ┌─ policy: nodes it applies on   (AppliedTo)
    profiles' labels ────────┼─► LabelIndex ─flush──► ┤
    policies: selector,  ────┘   one entry a selector └─ group:  nodes of the policies that use it,
              groups                                             members that came and went

A policy spans the nodes that host an endpoint it selects; a group (the addresses, or address and
port triples, behind a selector in a rule) spans the nodes of all policies that name it. Policies
with one selector share one span, and links go from selectors to groups: 10,000 policies that
select all and allow all are one selector, one group and one link.

Members are not kept. An address knows the items that carry it, so a flush can tell whether a
member that an item took away is still there by another one.

Invariants:
  N1  a policy's span is exactly the nodes of the endpoints its selector matches; a group's is the
      union of the spans of its policies; both depend on the state only, not on how it came to be;
  N2  changes are net and true: what started was not there, what stopped was; a policy that is
      deleted stops on every node, one that keeps its nodes under a new selector tells nothing;
  N3  members(group) is what compute.members.MemberIndex says for the same selector and port;
  N4  no count is zero, no selector is kept without a policy or a group.

Source: Antrea docs/design/architecture.md (AppliedTo groups, address groups, span); issue 6.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple

from libcalico.compute import ordinals as ordinal_sets
from libcalico.compute.labelindex import LabelIndex, MatchDelta, Matches
from libcalico.compute.members import EndpointPort, PortMatch, port_member
from libcalico.model.keys import ResourceKey
from libcalico.selector import Selector, ast

Node = str
GroupId = str


class Place(NamedTuple):
    """Where an item is and what it offers. `node` "": nowhere (network sets)."""

    node: Node
    addresses: tuple[str, ...] = ()
    ports: tuple[EndpointPort, ...] = ()


class Group(NamedTuple):
    """What an address group wants: addresses, or one named port, of what the selector matches."""

    selector: Selector
    port: PortMatch | None = None


class Shift(NamedTuple):
    """The nodes on which something began to be needed, and those on which it no longer is."""

    started: AbstractSet[Node]
    stopped: AbstractSet[Node]


class MemberDelta(NamedTuple):
    """What changed in a group that existed before; of a new one, ask members()."""

    added: AbstractSet[str]
    removed: AbstractSet[str]


@dataclass(slots=True)
class SpanChanges:
    """What one flush found. A group that is new or gone has no entry in `members`."""

    policies: dict[ResourceKey, Shift] = field(default_factory=dict)
    groups: dict[GroupId, Shift] = field(default_factory=dict)
    members: dict[GroupId, MemberDelta] = field(default_factory=dict)


_NOWHERE = Place("")
_NO_NODES: frozenset[Node] = frozenset()


class _Span:
    """Nodes with how often each is wanted, and how that differs from the flush before."""

    __slots__ = ("count_by_node", "started", "stopped")

    def __init__(self) -> None:
        self.count_by_node: dict[Node, int] = {}
        self.started: set[Node] | None = None
        self.stopped: set[Node] | None = None

    def add(self, node: Node) -> None:
        count = self.count_by_node.get(node, 0)
        self.count_by_node[node] = count + 1
        if not count:
            self.started, self.stopped = _moved(node, self.started, self.stopped)

    def remove(self, node: Node) -> None:
        count = self.count_by_node[node] - 1
        if count:
            self.count_by_node[node] = count
        else:
            del self.count_by_node[node]
            self.stopped, self.started = _moved(node, self.stopped, self.started)

    def shift_by(self, started: Iterable[Node], stopped: Iterable[Node]) -> None:
        for node in started:
            self.add(node)
        for node in stopped:
            self.remove(node)

    def before(self) -> AbstractSet[Node]:
        """The nodes as of the flush before."""
        return (self.count_by_node.keys() - (self.started or ())) | (self.stopped or _NO_NODES)

    def shift(self) -> Shift:
        return Shift(self.started or _NO_NODES, self.stopped or _NO_NODES)

    def settle(self) -> None:
        self.started = self.stopped = None


def _moved(
    node: Node, into: set[Node] | None, out_of: set[Node] | None
) -> tuple[set[Node] | None, set[Node] | None]:
    """Note a node; one that went and came again is no change."""
    if out_of and node in out_of:
        out_of.discard(node)
        return into, out_of
    if into is None:
        return {node}, out_of
    into.add(node)
    return into, out_of


class _Selected(_Span):
    """One selector: the span of the policies that have it, and the groups made of it."""

    __slots__ = ("groups", "links", "policies")

    def __init__(self) -> None:
        super().__init__()
        self.policies: dict[ResourceKey, None] = {}
        # The groups whose members this selector decides.
        self.groups: dict[GroupId, None] = {}
        # The groups that policies with this selector use, and how many of them do.
        self.links: dict[GroupId, int] = {}

    def is_wanted(self) -> bool:
        return bool(self.policies or self.groups)


class _GroupSpan(_Span):
    __slots__ = ("is_new", "port", "selector", "users")

    def __init__(self, selector: str, port: PortMatch | None) -> None:
        super().__init__()
        self.selector = selector
        self.port = port
        self.users = 0
        self.is_new = True


class _Policy(NamedTuple):
    selector: str
    groups: tuple[GroupId, ...]


class _Affected:
    """The items that began or ceased to match a selector, or offer something else now."""

    __slots__ = ("gained", "lost")

    def __init__(self) -> None:
        self.gained: dict[int, Place] = {}
        self.lost: dict[int, Place] = {}


class SpanIndex:
    """See the module. Policies count at once, items and selectors with the next flush."""

    def __init__(self) -> None:
        self._index: LabelIndex[ResourceKey, str] = LabelIndex()
        self._places: list[Place] = []  # by ordinal, as of the last flush
        self._owners_by_address: dict[str, int | set[int]] = {}
        self._pending_places: dict[ResourceKey, Place | None] = {}
        self._selected: dict[str, _Selected] = {}
        self._group_by_id: dict[GroupId, _GroupSpan] = {}
        self._policy_by_key: dict[ResourceKey, _Policy] = {}
        # As of the last flush, of what was touched since.
        self._policies_before: dict[ResourceKey, _Policy | None] = {}
        self._links_before: dict[tuple[str, GroupId], int] = {}
        self._unused: set[str] = set()

    # -- state in ---------------------------------------------------------------------------

    def update_item(
        self, key: ResourceKey, labels: Mapping[str, str], parents: Sequence[str], place: Place
    ) -> None:
        """An endpoint or network set. `labels` is kept, not copied; addresses each once."""
        self._index.update_item(key, labels, parents)
        self._pending_places[key] = place

    def delete_item(self, key: ResourceKey) -> None:
        self._index.delete_item(key)
        self._pending_places[key] = None

    def update_parent(self, name: str, labels: Mapping[str, str] | None) -> None:
        """A profile's labels; None when it does not exist."""
        if labels is None:
            self._index.delete_parent(name)
        else:
            self._index.update_parent(name, labels)

    def update_policy(
        self, key: ResourceKey, applied_to: Selector, groups: Mapping[GroupId, Group]
    ) -> None:
        """A policy: whom it selects and the groups its rules name. An id means one group ever."""
        before = self._policy_by_key.get(key)
        applied_to = _ordered(applied_to)
        after = _Policy(applied_to.canonical, tuple(groups))
        if before == after:
            return
        self._policies_before.setdefault(key, before)
        selected = self._select(applied_to)
        selected.policies[key] = None
        self._policy_by_key[key] = after
        for group_id, group in groups.items():
            self._link(selected, after.selector, group_id, group)
        if before is not None:
            self._leave(key, before, moved=before.selector != after.selector)

    def delete_policy(self, key: ResourceKey) -> None:
        before = self._policy_by_key.pop(key, None)
        if before is not None:
            self._policies_before.setdefault(key, before)
            self._leave(key, before, moved=True)

    # -- questions, as of the last flush ----------------------------------------------------

    def span(self, key: ResourceKey) -> AbstractSet[Node]:
        """The nodes a policy applies on."""
        policy = self._policy_by_key.get(key)
        return self._selected[policy.selector].count_by_node.keys() if policy else _NO_NODES

    def group_span(self, group_id: GroupId) -> AbstractSet[Node]:
        group = self._group_by_id.get(group_id)
        return group.count_by_node.keys() if group else _NO_NODES

    def groups_of(self, key: ResourceKey) -> tuple[GroupId, ...]:
        """The groups a policy names."""
        policy = self._policy_by_key.get(key)
        return policy.groups if policy else ()

    def members(self, group_id: GroupId) -> frozenset[str]:
        group = self._group_by_id.get(group_id)
        if group is None:
            return frozenset()
        places = self._index.members(group.selector).pick(self._places)
        return frozenset(_members(places, group.port))

    def policies_of(self, item: ResourceKey) -> list[ResourceKey]:
        """The policies that select an endpoint, in no promised order."""
        found: list[ResourceKey] = []
        for selector in self._index.selectors_of(item):
            found.extend(self._selected[selector].policies)
        return found

    def policies_by_node(self) -> dict[Node, list[ResourceKey]]:
        """Every node's policies. Nodes without any are not there."""
        found: dict[Node, list[ResourceKey]] = {}
        for selected in self._selected.values():
            if selected.policies:
                for node in selected.count_by_node:
                    found.setdefault(node, []).extend(selected.policies)
        return found

    def groups_by_node(self) -> dict[Node, list[GroupId]]:
        found: dict[Node, list[GroupId]] = {}
        for group_id, group in self._group_by_id.items():
            for node in group.count_by_node:
                found.setdefault(node, []).append(group_id)
        return found

    # -- deltas out -------------------------------------------------------------------------

    def flush(self) -> SpanChanges:
        """Take over everything since the last flush; the net changes."""
        ended = self._end()
        before = self._places_before()
        deltas = {delta.selector_id: delta for delta in self._index.flush()}
        moved = self._take_over_places(before)
        affected: dict[str, _Affected] = {}
        for selector, delta in deltas.items():
            self._shift(selector, delta, before, affected)
        for key, ordinal in moved.items():
            for selector in self._index.selectors_of(key):
                told = deltas.get(selector)
                if told is None or key not in told.started:
                    self._move(selector, ordinal, before[ordinal], affected)
        shifted = deltas.keys() | affected.keys()
        groups = self._shift_groups(shifted)
        changes = SpanChanges(
            policies=self._policy_shifts(shifted),
            groups={i: g.shift() for i, g in groups.items() if g.started or g.stopped},
            members=self._member_deltas(affected),
        )
        self._settle(shifted, groups.values(), ended)
        return changes

    # -- items ------------------------------------------------------------------------------

    def _places_before(self) -> dict[int, Place]:
        ordinals = map(self._index.ordinal, self._pending_places)
        return {o: self._places[o] for o in ordinals if o is not None}

    def _take_over_places(self, before: Mapping[int, Place]) -> dict[ResourceKey, int]:
        """Change the column; the items that lived before, live now, and are or offer another."""
        growth = self._index.universe() - len(self._places)
        self._places.extend(itertools.repeat(_NOWHERE, growth))
        pending, self._pending_places = self._pending_places, {}
        for ordinal, place in before.items():
            self._disown(ordinal, place)
            self._places[ordinal] = _NOWHERE
        moved: dict[ResourceKey, int] = {}
        for key, found in pending.items():
            here = self._index.ordinal(key)
            if here is None or found is None:
                continue
            self._places[here] = found
            self._own(here, found)
            if here in before and before[here] != found:
                moved[key] = here
        return moved

    def _own(self, ordinal: int, place: Place) -> None:
        for address in map(_bare, place.addresses):
            owners = self._owners_by_address.setdefault(address, ordinal)
            if isinstance(owners, set):
                owners.add(ordinal)
            elif owners != ordinal:
                self._owners_by_address[address] = {owners, ordinal}

    def _disown(self, ordinal: int, place: Place) -> None:
        for address in set(map(_bare, place.addresses)):
            owners = self._owners_by_address[address]
            if isinstance(owners, int):
                del self._owners_by_address[address]
                continue
            owners.discard(ordinal)
            if len(owners) == 1:
                self._owners_by_address[address] = owners.pop()

    # -- policies and links -----------------------------------------------------------------

    def _select(self, selector: Selector) -> _Selected:
        canonical = selector.canonical
        selected = self._selected.get(canonical)
        if selected is None:
            selected = self._selected[canonical] = _Selected()
            self._index.update_selector(canonical, selector)
        return selected

    def _link(self, selected: _Selected, selector: str, group_id: GroupId, group: Group) -> None:
        held = self._group_by_id.get(group_id)
        if held is None:
            wanted = _ordered(group.selector)
            held = self._group_by_id[group_id] = _GroupSpan(wanted.canonical, group.port)
            self._select(wanted).groups[group_id] = None
        held.users += 1
        count = selected.links.get(group_id, 0)
        self._links_before.setdefault((selector, group_id), count)
        selected.links[group_id] = count + 1

    def _leave(self, key: ResourceKey, policy: _Policy, *, moved: bool) -> None:
        selected = self._selected[policy.selector]
        if moved:
            del selected.policies[key]
        for group_id in policy.groups:
            count = selected.links[group_id]
            self._links_before.setdefault((policy.selector, group_id), count)
            # Not dropped before the flush: a group that is used again stays the same one.
            selected.links[group_id] = count - 1
            self._group_by_id[group_id].users -= 1
        self._unused.add(policy.selector)

    # -- spans ------------------------------------------------------------------------------

    def _shift(
        self,
        selector: str,
        delta: MatchDelta[str, ResourceKey],
        before: Mapping[int, Place],
        affected: dict[str, _Affected],
    ) -> None:
        selected = self._selected[selector]
        for node in (place.node for place in delta.started.pick(self._places)):
            if node:
                selected.add(node)
        stopped = {o: before.get(o, self._places[o]) for o in _ordinals(delta.stopped)}
        for place in stopped.values():
            if place.node:
                selected.remove(place.node)
        if any(not self._group_by_id[group_id].is_new for group_id in selected.groups):
            found = affected.setdefault(selector, _Affected())
            found.lost.update(stopped)
            found.gained.update((o, self._places[o]) for o in _ordinals(delta.started))

    def _move(
        self, selector: str, ordinal: int, old: Place, affected: dict[str, _Affected]
    ) -> None:
        selected, new = self._selected[selector], self._places[ordinal]
        if new.node:
            selected.add(new.node)
        if old.node:
            selected.remove(old.node)
        found = affected.setdefault(selector, _Affected())
        found.lost[ordinal], found.gained[ordinal] = old, new

    def _shift_groups(self, shifted: AbstractSet[str]) -> dict[GroupId, _GroupSpan]:
        """Bring the spans of groups up to date: links that came, went, or whose nodes changed.

        Shape: the groups that were looked at."""
        touched: dict[GroupId, _GroupSpan] = {}
        for (selector, group_id), count in self._links_before.items():
            selected, group = self._selected[selector], self._group_by_id[group_id]
            touched[group_id] = group
            if selected.links[group_id] and not count:
                group.shift_by(selected.count_by_node, ())
            elif count and not selected.links[group_id]:
                group.shift_by((), selected.before())
        for selector in shifted:
            selected = self._selected[selector]
            if not (selected.started or selected.stopped):
                continue
            for group_id, users in selected.links.items():
                if users and self._links_before.get((selector, group_id), 1):
                    group = touched[group_id] = self._group_by_id[group_id]
                    group.shift_by(selected.started or (), selected.stopped or ())
        return touched

    def _policy_shifts(self, shifted: AbstractSet[str]) -> dict[ResourceKey, Shift]:
        shifts: dict[ResourceKey, Shift] = {}
        for selector in shifted:
            selected = self._selected[selector]
            if selected.policies and (selected.started or selected.stopped):
                shifts.update(dict.fromkeys(selected.policies, selected.shift()))
        # Policies share their shifts, as they share spans.
        shift_by_move: dict[tuple[str, str], Shift] = {}
        for key, policy in self._policies_before.items():
            shifts.pop(key, None)
            left = policy.selector if policy else ""
            taken = self._policy_by_key[key].selector if key in self._policy_by_key else ""
            shift = shift_by_move.get((left, taken))
            if shift is None:
                was = self._selected[left].before() if left else _NO_NODES
                now = self._selected[taken].count_by_node.keys() if taken else _NO_NODES
                shift = shift_by_move[left, taken] = Shift(now - was, was - now)
            if shift.started or shift.stopped:
                shifts[key] = shift
        return shifts

    # -- members ----------------------------------------------------------------------------

    def _member_deltas(self, affected: Mapping[str, _Affected]) -> dict[GroupId, MemberDelta]:
        deltas: dict[GroupId, MemberDelta] = {}
        for selector, found in affected.items():
            for group_id in self._selected[selector].groups:
                group = self._group_by_id[group_id]
                if group.is_new or not group.users:
                    continue
                lost = _members(found.lost.values(), group.port)
                gained = _members(found.gained.values(), group.port)
                others = found.lost.keys() | found.gained.keys()
                delta = MemberDelta(
                    {m for m in gained - lost if not self._has_other(m, group, others)},
                    {m for m in lost - gained if not self._has_other(m, group, others)},
                )
                if delta.added or delta.removed:
                    deltas[group_id] = delta
        return deltas

    def _has_other(self, member: str, group: _GroupSpan, affected: AbstractSet[int]) -> bool:
        """Whether an item that this flush did not touch has a member in the group: then it was
        there before and is there now."""
        owners = self._owners_by_address.get(_bare(member.partition(",")[0]), ())
        matches = self._index.members(group.selector).ordinals()
        return any(
            ordinal_sets.contains(matches, ordinal)
            and member in _members((self._places[ordinal],), group.port)
            for ordinal in ((owners,) if isinstance(owners, int) else owners)
            if ordinal not in affected
        )

    # -- ends -------------------------------------------------------------------------------

    def _end(self) -> list[GroupId]:
        """Before the index is asked: groups without users, and selectors that nothing has."""
        ended = [i for i in {i for _, i in self._links_before} if not self._group_by_id[i].users]
        for group_id in ended:
            selector = self._group_by_id[group_id].selector
            del self._selected[selector].groups[group_id]
            self._unused.add(selector)
        self._unused = {s for s in self._unused if not self._selected[s].is_wanted()}
        for selector in self._unused:
            self._index.delete_selector(selector)
        return ended

    def _settle(
        self, shifted: Iterable[str], groups: Iterable[_GroupSpan], ended: Iterable[GroupId]
    ) -> None:
        for selector in shifted:
            self._selected[selector].settle()
        for group in groups:
            group.settle()
            group.is_new = False
        for selector, group_id in self._links_before:
            if not self._selected[selector].links[group_id]:
                del self._selected[selector].links[group_id]
        for group_id in ended:
            del self._group_by_id[group_id]
        for selector in self._unused:
            del self._selected[selector]
        self._policies_before, self._links_before, self._unused = {}, {}, set()

    def check(self) -> None:
        """N4 and the bookkeeping, slowly: for tests, after a flush."""
        self._index.check()
        policies: dict[str, dict[ResourceKey, None]] = {}
        links: dict[str, dict[GroupId, int]] = {}
        for key, policy in self._policy_by_key.items():
            policies.setdefault(policy.selector, {})[key] = None
            for group_id in policy.groups:
                counts = links.setdefault(policy.selector, {})
                counts[group_id] = counts.get(group_id, 0) + 1
        used = {group_id for counts in links.values() for group_id in counts}
        assert used == self._group_by_id.keys()
        assert self._selected.keys() == policies.keys() | {
            group.selector for group in self._group_by_id.values()
        }
        for selector, selected in self._selected.items():
            assert selected.policies == policies.get(selector, {})
            assert selected.links == links.get(selector, {})
            assert 0 not in selected.count_by_node.values(), "N4"
        owners: dict[str, set[int]] = {}
        for ordinal, place in enumerate(self._places):
            for address in place.addresses:
                owners.setdefault(_bare(address), set()).add(ordinal)
        assert owners == {
            address: {held} if isinstance(held, int) else held
            for address, held in self._owners_by_address.items()
        }

    def dump(self) -> dict[str, object]:
        """State for the debug endpoint: counts."""
        return {
            "policies": len(self._policy_by_key),
            "groups": len(self._group_by_id),
            "selectors": len(self._selected),
        }


def _ordered(selector: Selector) -> Selector:
    """The same verdicts with the terms of a conjunction in one order: what a policy selects and
    what its rules name often differ in nothing else."""
    if not isinstance(selector.root, ast.And):
        return selector
    by_text = {node.text(): node for node in _terms(selector.root)}
    terms = tuple(by_text[text] for text in sorted(by_text))
    if len(terms) > 1:
        return selector if terms == selector.root.operands else Selector(ast.And(terms))
    return Selector(terms[0] if terms else ast.All())


def _terms(node: ast.Node) -> Iterator[ast.Node]:
    if isinstance(node, ast.And):
        for operand in node.operands:
            yield from _terms(operand)
    elif not isinstance(node, ast.All):
        yield node


def _bare(address: str) -> str:
    return address.partition("/")[0]


def _ordinals(matches: Matches[ResourceKey]) -> Iterator[int]:
    return ordinal_sets.iterate(matches.ordinals())


def _members(places: Iterable[Place], port: PortMatch | None) -> set[str]:
    """What these places contribute to a group."""
    if port is None:
        return set(itertools.chain.from_iterable(place.addresses for place in places))
    return {
        port_member(address, offered.protocol, offered.port)
        for place in places
        for offered in place.ports
        if offered.name == port.name and offered.protocol == port.protocol
        for address in place.addresses
    }
