"""Stored objects into the span engine, and what each node is to have of them.

Layer: typha, pure. Used by `spans_fanout`, which keeps who has been sent what.

    path, bytes, revision ─► pending ─digest─► SpanIndex, stored bytes, endpoints by node
                                      ─flush─► which paths and groups changed, for which nodes

What a node is to have:
  to all        every object of the stream that is named nowhere below (tiers, pools, nodes …)
  endpoints     workload and host endpoints of spec.node
  policies      on their span; of an invalid one nobody knows whom it selects: every node has it,
                so that each can report it, as each does without spans
  profiles      where an endpoint that counts lists them
  groups        those that the policies and profiles of the node name
Network sets and the endpoints of other nodes are in the groups and travel as their members only.

  SF1  what a node is to have depends on the present state alone;
  SF2  an object that felix refuses counts as absent (libcalico.syncer.validation_filter); source
       prefixes that a workload may spoof count as allowed: whether they are is each node's setting;
  SF3  questions are answered while the feed `is_settled`: nothing was digested since a flush.

Source: felix/calc/graph.py, whose handlers these mirror.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple

from libcalico.compute import contributions, policies
from libcalico.compute.contributions import Contribution
from libcalico.compute.rule_compiler import SetDefinition, SetsById, compile_rules
from libcalico.errors import DecodeError, InvalidInput
from libcalico.model import (
    GlobalNetworkPolicy,
    GlobalNetworkSet,
    HostEndpoint,
    NetworkPolicy,
    NetworkSet,
    Profile,
    Resource,
    Rule,
    StagedGlobalNetworkPolicy,
    StagedKubernetesNetworkPolicy,
    StagedNetworkPolicy,
    WorkloadEndpoint,
    codec,
)
from libcalico.model.keys import ResourceKey, parse, path_of
from libcalico.selector import Selector, ast
from libcalico.syncer.api import Update
from libcalico.syncer.validation_filter import ValidationFilter, Validator
from typha.spans import Group, GroupId, MemberDelta, Node, Place, SpanIndex

POLICY_KINDS = frozenset(
    kind.kind
    for kind in (
        NetworkPolicy,
        GlobalNetworkPolicy,
        StagedNetworkPolicy,
        StagedGlobalNetworkPolicy,
        StagedKubernetesNetworkPolicy,
    )
)
_SETS = frozenset((NetworkSet.kind, GlobalNetworkSet.kind))
_NO_NODES: frozenset[Node] = frozenset()
# No label is called so: a NUL is refused wherever labels are validated.
_LISTS = "\0lists-profile"
_USE = "\0ProfileUse"


class Stored(NamedTuple):
    value: bytes
    revision: int


@dataclass(slots=True)
class FeedChanges:
    """What a flush found, by whom it concerns; net, as far as it is cheap to know: a path may be
    named though nothing came of it. None for nodes: all of them."""

    paths: dict[str, AbstractSet[Node] | None] = field(default_factory=dict)
    #: Groups that came to or went from nodes.
    groups: list[tuple[GroupId, AbstractSet[Node]]] = field(default_factory=list)
    #: Members that came and went, for the nodes that have the group.
    members: list[tuple[GroupId, MemberDelta, AbstractSet[Node]]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.paths or self.groups or self.members)


class _Endpoint(NamedTuple):
    key: ResourceKey
    node: Node
    #: Of one that counts; of an invalid one none.
    profiles: tuple[str, ...]


class SpansFeed:
    """See the module. `on_change`, then `digest` until nothing is left, then `flush`."""

    def __init__(
        self, validate: Validator | None, on_problem: Callable[[ResourceKey, str], None]
    ) -> None:
        self._filter = ValidationFilter(validate, allow_source_spoofing=True)
        self._on_problem = on_problem
        self._index = SpanIndex()
        self._pending: dict[str, Stored | None] = {}
        self.is_settled = True
        self._stored: dict[str, Stored] = {}
        self._common: dict[str, None] = {}
        self._invalid_policies: set[str] = set()
        self._endpoints: dict[str, _Endpoint] = {}
        self._endpoints_by_node: dict[Node, dict[str, ResourceKey]] = {}
        self._users: dict[str, dict[Node, int]] = {}  # profile: how many endpoints list it, by node
        self._profile_groups: dict[str, dict[GroupId, Group]] = {}
        # Of this flush: paths with the nodes that must look at them again (None: all).
        self._dirty: dict[str, set[Node] | None] = {}
        self._dirty_policies: set[ResourceKey] = set()
        self._dirty_profiles: set[str] = set()

    # -- state in ---------------------------------------------------------------------------

    def on_change(self, path: str, value: bytes | None, revision: int) -> None:
        """`value` None: does not exist."""
        self._pending[path] = None if value is None else Stored(value, revision)

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def digest(self, limit: int) -> bool:
        """Take over at most `limit` of what has come in; whether that was all."""
        if len(self._pending) <= limit:
            batch, self._pending = self._pending, {}
        else:
            batch = {path: self._pending[path] for path in _first(self._pending, limit)}
            for path in batch:
                del self._pending[path]
        self.is_settled = self.is_settled and not batch
        for path, stored in batch.items():
            self._take(path, stored)
        return not self._pending

    def flush(self) -> FeedChanges:
        """What changed since the flush before, of what was digested."""
        found = self._index.flush()
        self.is_settled = True
        changes = FeedChanges(paths=dict(self._dirty))
        for key, shift in found.policies.items():
            if key.kind in POLICY_KINDS:
                _add(changes.paths, path_of(key), shift.started | shift.stopped)
        for key in self._dirty_policies:
            _add(changes.paths, path_of(key), self._index.span(key))
        for name in self._dirty_profiles:
            path = path_of(ResourceKey(Profile.kind, name))
            _add(changes.paths, path, self._users.get(name, {}).keys())
        changes.groups = [(i, shift.started | shift.stopped) for i, shift in found.groups.items()]
        changes.members = [
            (i, delta, self._index.group_span(i)) for i, delta in found.members.items()
        ]
        self._dirty, self._dirty_policies, self._dirty_profiles = {}, set(), set()
        return changes

    # -- questions (SF3) --------------------------------------------------------------------

    def paths_on(self, node: Node) -> list[str]:
        """Everything a node is to have, groups apart; each once."""
        endpoints = self._endpoints_by_node.get(node, {})
        found = dict.fromkeys(self._common)
        found.update(dict.fromkeys(self._invalid_policies))
        found.update((path_of(key), None) for key in self._policies_on(node))
        found.update((path_of(ResourceKey(Profile.kind, n)), None) for n in self._profiles_on(node))
        # Last, behind what governs them.
        found.update(dict.fromkeys(endpoints))
        return [path for path in found if path in self._stored]

    def groups_on(self, node: Node) -> list[GroupId]:
        found: dict[GroupId, None] = {}
        for key in self._policies_on(node):
            found.update(dict.fromkeys(self._index.groups_of(key)))
        for name in self._profiles_on(node):
            found.update(dict.fromkeys(self._profile_groups.get(name, ())))
        return list(found)

    def on_node(self, path: str, node: Node) -> Stored | None:
        """What a node is to have of a path; None when it is to have nothing there."""
        stored = self._stored.get(path)
        if stored is None or path in self._common or path in self._invalid_policies:
            return stored
        endpoint = self._endpoints.get(path)
        if endpoint is not None:
            return stored if endpoint.node == node else None
        key = parse(path)
        assert isinstance(key, ResourceKey)
        if key.kind == Profile.kind:
            return stored if node in self._users.get(key.name, ()) else None
        return stored if node in self._index.span(key) else None

    def is_on(self, group_id: GroupId, node: Node) -> bool:
        return node in self._index.group_span(group_id)

    def members(self, group_id: GroupId) -> frozenset[str]:
        return self._index.members(group_id)

    def size_of(self, node: Node) -> dict[str, int]:
        """How much concerns a node: for people."""
        return {
            "endpoints": len(self._endpoints_by_node.get(node, ())),
            "policies": len(self._policies_on(node)),
            "groups": len(self.groups_on(node)),
        }

    def dump(self) -> dict[str, object]:
        return {
            "pending": len(self._pending),
            "stored": len(self._stored),
            "nodes": len(self._endpoints_by_node),
            "index": self._index.dump(),
            "invalid": self._filter.dump(),
        }

    def _policies_on(self, node: Node) -> dict[ResourceKey, None]:
        """By the same items as the spans, those that stand for profiles too."""
        items = [*self._endpoints_by_node.get(node, {}).values()]
        items += [_use_of(n, node) for n in self._profiles_on(node) if n in self._profile_groups]
        return {
            policy: None
            for item in items
            for policy in self._index.policies_of(item)
            if policy.kind in POLICY_KINDS
        }

    def _profiles_on(self, node: Node) -> dict[str, None]:
        found: dict[str, None] = {}
        for path in self._endpoints_by_node.get(node, ()):
            found.update(dict.fromkeys(self._endpoints[path].profiles))
        return found

    # -- one object -------------------------------------------------------------------------

    def _take(self, path: str, stored: Stored | None) -> None:
        key = parse(path)
        if not isinstance(key, ResourceKey) or not self._is_of_policy(key):
            self._keep(path, stored)
            self._share(path, is_shared=stored is not None)
            return
        if key.kind not in _SETS:
            self._keep(path, stored)
        decoded = self._decoded(key, stored)
        believed = self._filter.valid_value(decoded)
        is_refused = believed is None and stored is not None
        try:
            self._apply(path, key, believed, decoded.value)
        except InvalidInput as err:
            is_refused = True
            self._filter.refuse(key, err)
            self._apply(path, key, None, decoded.value)
        if is_refused:
            self._on_problem(key, self._filter.problems.get(key, "invalid"))
        if key.kind in POLICY_KINDS:
            self._mind(path, is_invalid=is_refused)

    @staticmethod
    def _is_of_policy(key: ResourceKey) -> bool:
        return key.kind in POLICY_KINDS or key.kind in _HANDLED

    def _keep(self, path: str, stored: Stored | None) -> None:
        if stored is None:
            self._stored.pop(path, None)
        else:
            self._stored[path] = stored

    def _share(self, path: str, *, is_shared: bool) -> None:
        if is_shared:
            self._common[path] = None
        else:
            self._common.pop(path, None)
        self._dirty[path] = None

    @staticmethod
    def _decoded(key: ResourceKey, stored: Stored | None) -> Update:
        if stored is None:
            return Update(key, None, 0)
        try:
            return Update(key, codec.decode(key, stored.value, stored.revision), stored.revision)
        except DecodeError as err:
            return Update(key, None, stored.revision, err)

    def _apply(self, path: str, key: ResourceKey, value: object | None, raw: object | None) -> None:
        """`raw` is what is stored, also when it does not count."""
        match key.kind:
            case WorkloadEndpoint.kind | HostEndpoint.kind:
                self._apply_endpoint(path, key, value, raw)
            case NetworkSet.kind | GlobalNetworkSet.kind:
                self._apply_networks(key, value)
            case Profile.kind:
                assert value is None or isinstance(value, Profile)
                self._apply_profile(key.name, value)
            case _:
                assert value is None or isinstance(value, Resource)
                self._apply_policy(key, value)

    def _apply_endpoint(
        self, path: str, key: ResourceKey, value: object | None, raw: object | None
    ) -> None:
        item: Contribution | None = None
        if isinstance(value, WorkloadEndpoint):
            item = contributions.of_workload(key.namespace, value)
        elif isinstance(value, HostEndpoint):
            item = contributions.of_host_endpoint(value)
        node = ""
        if isinstance(raw, WorkloadEndpoint | HostEndpoint):
            node = raw.spec.node or ""
        self._put(key, item, node)
        profiles = contributions.unique(item.parents) if item is not None and node else ()
        before = self._endpoints.pop(path, None)
        if before is not None:
            self._leave_node(path, before)
        if path in self._stored:
            self._join_node(path, _Endpoint(key, node, profiles))

    def _leave_node(self, path: str, endpoint: _Endpoint) -> None:
        _add(self._dirty, path, {endpoint.node})
        endpoints = self._endpoints_by_node[endpoint.node]
        del endpoints[path]
        if not endpoints:
            del self._endpoints_by_node[endpoint.node]
        for name in endpoint.profiles:
            users = self._users[name]
            users[endpoint.node] -= 1
            if not users[endpoint.node]:
                del users[endpoint.node]
                self._use(name, endpoint.node, is_used=False)
            if not users:
                del self._users[name]

    def _join_node(self, path: str, endpoint: _Endpoint) -> None:
        self._endpoints[path] = endpoint
        _add(self._dirty, path, {endpoint.node})
        self._endpoints_by_node.setdefault(endpoint.node, {})[path] = endpoint.key
        for name in endpoint.profiles:
            users = self._users.setdefault(name, {})
            users[endpoint.node] = users.get(endpoint.node, 0) + 1
            if users[endpoint.node] == 1:
                self._use(name, endpoint.node, is_used=True)

    def _use(self, name: str, node: Node, *, is_used: bool) -> None:
        """A profile began or ceased to be listed on a node."""
        _add(self._dirty, path_of(ResourceKey(Profile.kind, name)), {node})
        if name in self._profile_groups:
            self._stand_for(name, node, is_used=is_used)

    def _stand_for(self, name: str, node: Node, *, is_used: bool) -> None:
        """The engine knows spans of selectors. A profile whose rules name groups is a policy to it,
        which selects one item on each node where the profile is listed. The item has no address; it
        may make a node get a policy that selects nothing there, which costs bytes and no more."""
        key = _use_of(name, node)
        if is_used:
            self._index.update_item(key, {_LISTS: name}, (), Place(node))
        else:
            self._index.delete_item(key)

    def _apply_networks(self, key: ResourceKey, value: object | None) -> None:
        item: Contribution | None = None
        if isinstance(value, NetworkSet):
            item = contributions.of_network_set(value, key.namespace)
        elif isinstance(value, GlobalNetworkSet):
            item = contributions.of_global_network_set(value)
        self._put(key, item, "")

    def _put(self, key: ResourceKey, item: Contribution | None, node: Node) -> None:
        if item is None:
            self._index.delete_item(key)
        else:
            place = Place(node, item.addresses, item.ports)
            self._index.update_item(key, item.labels, item.parents, place)

    def _apply_profile(self, name: str, profile: Profile | None) -> None:
        groups = {} if profile is None else _groups(_profile_rules(profile), "")
        self._index.update_parent(name, None if profile is None else profile.spec.labels_to_apply)
        before = self._profile_groups.pop(name, {})
        key, nodes = ResourceKey(Profile.kind, name), self._users.get(name, {})
        if groups:
            self._profile_groups[name] = groups
            self._index.update_policy(key, Selector(ast.Equal(_LISTS, name)), groups)
        elif before:
            self._index.delete_policy(key)
        if bool(groups) != bool(before):
            for node in nodes:
                self._stand_for(name, node, is_used=bool(groups))
        self._dirty_profiles.add(name)

    def _apply_policy(self, key: ResourceKey, value: Resource | None) -> None:
        policy = None if value is None else policies.of_resource(key, value, 0)
        if policy is None:
            self._index.delete_policy(key)
        else:
            ingress = policy.ingress if policy.governs_ingress else ()
            egress = policy.egress if policy.governs_egress else ()
            groups = _groups((ingress, egress), policy.namespace)
            self._index.update_policy(key, policy.selector, groups)
        self._dirty_policies.add(key)

    def _mind(self, path: str, *, is_invalid: bool) -> None:
        was_invalid = path in self._invalid_policies
        if is_invalid:
            self._invalid_policies.add(path)
        else:
            self._invalid_policies.discard(path)
        if is_invalid or was_invalid:
            self._dirty[path] = None


_HANDLED = frozenset((WorkloadEndpoint.kind, HostEndpoint.kind, Profile.kind, *_SETS))


def _use_of(profile: str, node: Node) -> ResourceKey:
    return ResourceKey(_USE, f"{profile}\0{node}")


def _profile_rules(profile: Profile) -> tuple[tuple[Rule, ...], ...]:
    return profile.spec.ingress, profile.spec.egress


def _groups(directions: Iterable[tuple[Rule, ...]], namespace: str) -> dict[GroupId, Group]:
    """The groups that rules name, by the id that felix gives them. Errors: InvalidInput."""
    sets: SetsById = {}
    for rules in directions:
        compile_rules(rules, namespace, sets)
    return {
        set_id: Group(found.selector, found.port)
        for set_id, found in sets.items()
        if isinstance(found, SetDefinition)
    }


def _first(items: Mapping[str, object], count: int) -> Iterator[str]:
    return (path for path, _ in zip(items, range(count), strict=False))


def _add(
    found: dict[str, AbstractSet[Node] | None] | dict[str, set[Node] | None],
    path: str,
    nodes: AbstractSet[Node],
) -> None:
    """Nodes that must look at a path again; all of them stays all of them."""
    before = found.get(path, _NO_NODES)
    if before is not None:
        found[path] = {*before, *nodes}
