"""Driver for our routes in the main table, one instance per family.

Layer: felix.dataplane. Fed by endpoint_mgr (routes to workloads) and, later, the overlay managers;
reconciles through RoutePort. Told of links by the loop (InterfaceListener), of route notifications
by the daemon, both before the next apply.

Why this is more than a DeltaTracker (each of these has bitten somebody):
  - several sources may want one destination: the lowest (RouteClass, interface name) whose
    interface is up wins, so the outcome depends on state, not on order;
  - a route exists only while its interface is up: the kernel drops it at "down", IPv4 without a
    word, and refuses it before "up"; so an interface that is down takes its routes out of the
    wanted state, and one that comes up puts them in;
  - `replace` overwrites whatever has the same (dst, metric): a foreign route in our place is
    reported and left alone, and ours written as soon as it goes;
  - Calico's CNI plugin writes the route of a new pod before anybody tells us of the pod: an
    unexpected route on an interface younger than `grace_s` waits before it is removed.

Invariants:
  R1  updates are written before deletions: a destination that changes its metric is never without
      a route;
  R2  a route that is right is never written again, whatever resyncs and notifications say;
  R3  only what `RouteOwnership` calls ours is deleted;
  R4  a refused write stays dirty, the others go on.
Recognised by a fresh process: see `ownership`.
Source: Calico felix/routetable/route_table.go (the list of complications in its doc comment).
"""

from __future__ import annotations

import enum
import errno
import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from felix.dataplane.manager import NOTHING_DONE, ApplyResult, InterfaceState
from felix.dataplane.ownership import (
    FOREIGN_ROUTE_GRACE_S,
    ROUTING_DAEMON_PROTOCOLS,
    RouteOwnership,
)
from felix.dataplane.ports import RoutePort, RouteWrite
from felix.deltatracker import DeltaTracker
from libcalico.errors import ProgrammingFailed, SuiteError
from libcalico.netlink import (
    AF_INET6,
    PROTO_BOOT,
    SCOPE_LINK,
    SCOPE_UNIVERSE,
    TABLE_MAIN,
    NextHop,
    Route,
    RouteEvent,
    RouteType,
)
from libcalico.runtime import log
from libcalico.runtime.clock import Clock

LOG = log.get(__name__)

# An interface that went away between our decision and the write: its link event is on the way.
_EXPECTED_ERRNOS = frozenset({errno.ENODEV, errno.ENETDOWN, errno.ENETUNREACH})
NO_INTERFACE = ""


class RouteClass(enum.IntEnum):
    """Sources of routes; for one destination the lowest wins."""

    LOCAL_WORKLOAD = 0
    SAME_SUBNET = 1
    TUNNEL = 2
    NO_ENCAP = 3
    BLOCK_DROP = 4


@dataclass(frozen=True, slots=True)
class RouteTarget:
    """A route as its source wants it, before the interface's number is known."""

    dst: str
    metric: int = 0
    protocol: int = PROTO_BOOT
    gateway: str = ""
    is_onlink: bool = False
    type: RouteType = RouteType.UNICAST
    source: str = ""

    def route(self, ifindex: int) -> Route:
        hops = _nexthops(ifindex, self.gateway, self.is_onlink) if ifindex else ()
        scope = SCOPE_UNIVERSE if self.gateway or not ifindex else SCOPE_LINK
        return Route(
            self.dst,
            hops,
            self.type,
            self.protocol,
            scope,
            self.metric,
            source=self.source,
        ).canonical()


@functools.lru_cache(maxsize=4096)
def _nexthops(ifindex: int, gateway: str, is_onlink: bool) -> tuple[NextHop, ...]:
    """One object for all routes that go the same way (which the encoder makes use of)."""
    return (NextHop(ifindex, gateway, is_onlink),)


class RouteKey(NamedTuple):
    """What the kernel takes for the same route when it replaces."""

    dst: str
    metric: int
    tos: int


class _Candidate(NamedTuple):
    """Sorts by who wins."""

    route_class: RouteClass
    ifname: str


def key_of(route: Route) -> RouteKey:
    return RouteKey(route.dst, route.metric, route.tos)


class RouteTable:
    """See the module docstring. All methods but apply() are cheap and do no I/O."""

    def __init__(
        self,
        port: RoutePort,
        family: int,
        *,
        ownership: RouteOwnership,
        clock: Clock,
        grace_s: float = FOREIGN_ROUTE_GRACE_S,
    ) -> None:
        self._port, self.family = port, family
        self._ownership, self._clock, self._grace_s = ownership, clock, grace_s
        self._tracker: DeltaTracker[RouteKey, Route] = DeltaTracker()
        self._targets_by_source: dict[_Candidate, dict[str, RouteTarget]] = {}
        self._sources_by_dst: dict[str, set[_Candidate]] = {}
        self._key_by_dst: dict[str, RouteKey] = {}
        self._interface_by_name: dict[str, InterfaceState] = {}
        self._name_by_ifindex: dict[int, str] = {}
        self._appeared_at: dict[str, float] = {}
        self._foreign: dict[RouteKey, Route] = {}
        self._strangers: set[RouteKey] = set()
        self._extras: set[Route] = set()
        self._refusals: dict[RouteKey, str] = {}
        self._resync_reason = "start"
        self._has_listed = False

    @property
    def name(self) -> str:
        return "routes-v6" if self.family == AF_INET6 else "routes-v4"

    # ------------------------------------------------------------------------- wanted state

    def set_routes(
        self, route_class: RouteClass, ifname: str, targets: Iterable[RouteTarget]
    ) -> None:
        """Everything this source wants over this interface (NO_INTERFACE for blackholes)."""
        source = _Candidate(route_class, ifname)
        before = self._targets_by_source.get(source, {})
        after = {target.dst: target for target in targets}
        if after:
            self._targets_by_source[source] = after
        else:
            self._targets_by_source.pop(source, None)
        for dst in before.keys() - after.keys():
            self._drop_source(dst, source)
        for dst, target in after.items():
            if before.get(dst) != target:
                self._sources_by_dst.setdefault(dst, set()).add(source)
                self._recompute(dst)

    def on_interface(self, name: str, state: InterfaceState | None) -> None:
        """InterfaceListener: routes follow the state of their interface."""
        before = self._interface_by_name.get(name)
        if before == state:
            return
        if before is not None and state is None:
            self._name_by_ifindex.pop(before.ifindex, None)
            del self._interface_by_name[name]
            self._appeared_at.pop(name, None)
        elif state is not None:
            self._interface_by_name[name] = state
            self._name_by_ifindex[state.ifindex] = name
            if before is None and self._has_listed:
                self._appeared_at[name] = self._clock.monotonic()
        # One that was made anew was said to be gone first (LinkMonitor, L2).
        if before is not None and before.is_up and not (state is not None and state.is_up):
            self._forget_routes_over(before)
        for dst in self._destinations_over(name):
            self._recompute(dst)

    def _destinations_over(self, ifname: str) -> list[str]:
        sources = (_Candidate(route_class, ifname) for route_class in RouteClass)
        return [dst for source in sources for dst in self._targets_by_source.get(source, ())]

    def _drop_source(self, dst: str, source: _Candidate) -> None:
        sources = self._sources_by_dst[dst]
        sources.discard(source)
        if not sources:
            del self._sources_by_dst[dst]
        self._recompute(dst)

    def _recompute(self, dst: str) -> None:
        """Decide the one route for `dst` from all sources and their interfaces."""
        route = self._winning_route(dst)
        key = None if route is None else key_of(route)
        before = self._key_by_dst.get(dst)
        if before is not None and before != key:
            self._tracker.want(before, None)
            self._refusals.pop(before, None)
            del self._key_by_dst[dst]
        if route is not None and key is not None:
            self._tracker.want(key, route)
            self._key_by_dst[dst] = key
            self._strangers.discard(key)

    def _winning_route(self, dst: str) -> Route | None:
        sources = self._sources_by_dst.get(dst)
        if not sources:
            return None
        for source in sources if len(sources) == 1 else sorted(sources):
            target = self._targets_by_source[source][dst]
            if source.ifname == NO_INTERFACE:
                return target.route(0)
            interface = self._interface_by_name.get(source.ifname)
            if interface is not None and interface.is_up:
                return target.route(interface.ifindex)
        return None

    # ------------------------------------------------------------------------- what is there

    def queue_resync(self, reason: str) -> None:
        self._resync_reason = self._resync_reason or reason

    def on_route_event(self, event: RouteEvent) -> bool:
        """A change somebody else made. Our own writes are confirmed by their result.

        Returns whether there is something to do or, since it did what we had to do, to report."""
        route = event.route
        if route.family != self.family or route.table != TABLE_MAIN:
            return False
        was_settled = self._is_settled()
        self._on_change(event, route)
        return not (was_settled and self._is_settled())

    def _is_settled(self) -> bool:
        """apply() would find nothing to do."""
        return self._tracker.in_sync() and not self._extras and not self._resync_reason

    def _on_change(self, event: RouteEvent, route: Route) -> None:
        key = key_of(route)
        if event.is_removed:
            self._on_removed(key, route)
            return
        if event.is_replacement:
            # What was there got no notification of its own.
            self._tracker.confirm(key, None)
            self._foreign.pop(key, None)
        self._observe(key, route)

    def _on_removed(self, key: RouteKey, route: Route) -> None:
        programmed = self._tracker.programmed(key)
        if programmed == route:
            self._tracker.confirm(key, None)
            self._strangers.discard(key)
        elif self._foreign.get(key) == route:
            del self._foreign[key]
        elif route in self._extras:
            self._extras.discard(route)
        elif programmed is not None and route.protocol == programmed.protocol:
            # Part of a multipath route, or a route we believed different: look.
            self.queue_resync(f"{route.dst} was removed in another form than we knew")

    def _observe(self, key: RouteKey, route: Route) -> None:
        """Put a route that the kernel shows into the right view."""
        if route.protocol in ROUTING_DAEMON_PROTOCOLS:
            return  # never deleted, may be overwritten: of no interest
        if not self._ownership.is_ours(route, self._ifname(route)):
            self._foreign[key] = route
            return
        programmed = self._tracker.programmed(key)
        if programmed is None or programmed == route:
            self._confirm_observed(key, route)
        elif self._tracker.wanted(key) == route:
            self._extras.add(programmed)
            self._confirm_observed(key, route)
        else:
            self._extras.add(route)

    def _confirm_observed(self, key: RouteKey, route: Route) -> None:
        self._tracker.confirm(key, route)
        if self._tracker.wanted(key) is None:
            self._strangers.add(key)

    def _forget_routes_over(self, interface: InterfaceState) -> None:
        """The kernel flushed them when the interface went down.

        Looks at what is wanted over it and at what is dirty: a route that is neither dirty nor
        wanted over this interface cannot lead there."""
        ifindex = interface.ifindex
        suspects = self._tracker.pending_updates().keys() | self._tracker.pending_deletions()
        for dst in self._destinations_over(interface.name):
            if dst in self._key_by_dst:
                suspects.add(self._key_by_dst[dst])
        for key in suspects:
            route = self._tracker.programmed(key)
            if route and any(hop.ifindex == ifindex for hop in route.nexthops):
                self._tracker.confirm(key, None)
                self._strangers.discard(key)
        self._extras = {r for r in self._extras if all(h.ifindex != ifindex for h in r.nexthops)}
        self._foreign = {
            key: route
            for key, route in self._foreign.items()
            if all(hop.ifindex != ifindex for hop in route.nexthops)
        }

    def _ifname(self, route: Route) -> str:
        if not route.nexthops:
            return NO_INTERFACE
        return self._name_by_ifindex.get(route.nexthops[0].ifindex, NO_INTERFACE)

    async def _resync(self) -> None:
        """Read our routes back. Errors: what the port raises; the resync stays queued then."""
        LOG.debug("routes read back", table=self.name, reason=self._resync_reason)
        listed = await self._port.list_routes(self.family, ROUTING_DAEMON_PROTOCOLS)
        self._resync_reason = ""
        self._foreign.clear()
        self._extras.clear()
        observed: dict[RouteKey, Route] = {}
        for route in listed:
            key = key_of(route)
            if not self._ownership.is_ours(route, self._ifname(route)):
                self._foreign[key] = route
            elif key not in observed:
                observed[key] = route
            elif self._tracker.wanted(key) == route:
                self._extras.add(observed[key])
                observed[key] = route
            else:
                self._extras.add(route)
        self._tracker.resync(observed)
        self._strangers = {key for key in observed if self._tracker.wanted(key) is None}
        self._has_listed = True

    # --------------------------------------------------------------------------------- apply

    async def apply(self) -> ApplyResult:
        """Driver: bring the kernel to the wanted state, as far as it lets us."""
        if self._resync_reason:
            try:
                await self._resync()
            except SuiteError as err:
                LOG.warning("routes could not be listed", table=self.name, error=str(err))
                return ApplyResult(failed=1, error=str(err))
        if self._tracker.in_sync() and not self._extras:
            return NOTHING_DONE
        self._adopt_doubles()
        blocked, updates = self._plan_updates()
        young, deletions = self._plan_deletions()
        extras = tuple(self._extras)
        writes = [RouteWrite(route) for route in updates.values()]
        writes += [RouteWrite(route, is_delete=True) for route in deletions.values()]
        writes += [RouteWrite(route, is_delete=True) for route in extras]
        held = ApplyResult(deferred=blocked + young.deferred, retry_after_s=young.retry_after_s)
        if not writes:
            return held
        try:
            refused = await self._port.write_routes(writes)
        except SuiteError as err:
            self.queue_resync("a write failed as a whole")
            LOG.warning("routes could not be written", table=self.name, error=str(err))
            return held.merged(ApplyResult(failed=len(writes), error=str(err)))
        return held.merged(self._record(updates, deletions, extras, refused))

    def _adopt_doubles(self) -> None:
        """A double that is what we want by now stays; what stood for it becomes the double."""
        if not self._extras:
            return
        for key, route in self._tracker.pending_updates().items():
            if route in self._extras:
                self._give_up(key)
                self._extras.discard(route)
                self._tracker.confirm(key, route)
                self._refusals.pop(key, None)

    def _give_up(self, key: RouteKey) -> None:
        """Ours is out of date and cannot be replaced in place: it leads to the wrong interface,
        so it is deleted, by its exact form."""
        stale = self._tracker.programmed(key)
        if stale is not None:
            self._extras.add(stale)
            self._tracker.confirm(key, None)

    def _plan_updates(self) -> tuple[int, dict[RouteKey, Route]]:
        """How many are blocked by a foreign route in their place, and what to write."""
        pending = self._tracker.pending_updates()
        blocked = 0
        for key in [key for key in pending if key in self._foreign]:
            foreign = self._foreign[key]
            if self._ownership.may_overwrite(foreign, self._ifname(foreign)):
                continue
            self._refuse(key, f"a foreign route is in the way: {foreign}")
            del pending[key]
            self._give_up(key)
            blocked += 1
        return blocked, pending

    def _plan_deletions(self) -> tuple[ApplyResult, dict[RouteKey, Route]]:
        """What to delete now, and what must wait because its interface is young."""
        now = self._clock.monotonic()
        chosen: dict[RouteKey, Route] = {}
        waits: list[float] = []
        for key in self._tracker.pending_deletions():
            route = self._tracker.programmed(key)
            assert route is not None, "a pending deletion is programmed"
            wait_s = self._grace_left(key, route, now)
            if wait_s > 0:
                waits.append(wait_s)
            else:
                chosen[key] = route
        return ApplyResult(deferred=len(waits), retry_after_s=min(waits, default=None)), chosen

    def _grace_left(self, key: RouteKey, route: Route, now: float) -> float:
        if key not in self._strangers:
            return 0.0
        appeared_at = self._appeared_at.get(self._ifname(route))
        return 0.0 if appeared_at is None else appeared_at + self._grace_s - now

    def _record(
        self,
        updates: Mapping[RouteKey, Route],
        deletions: Mapping[RouteKey, Route],
        extras: tuple[Route, ...],
        refused: Mapping[int, ProgrammingFailed],
    ) -> ApplyResult:
        """Enter the outcome of one batch: updates, then deletions, then extras, in order."""
        for index, (key, route) in enumerate(updates.items()):
            if index in refused:
                self._refuse(key, str(refused[index]), refused[index].errno)
            else:
                self._tracker.confirm(key, route)
                self._refusals.pop(key, None)
                self._foreign.pop(key, None)
        for index, key in enumerate(deletions, start=len(updates)):
            if index in refused:
                self._refuse(key, str(refused[index]), refused[index].errno)
            else:
                self._tracker.confirm(key, None)
                self._refusals.pop(key, None)
                self._strangers.discard(key)
        first_extra = len(updates) + len(deletions)
        for index, route in enumerate(extras, start=first_extra):
            if index not in refused:
                self._extras.discard(route)
        failed_updates = sum(1 for index in refused if index < len(updates))
        return ApplyResult(
            written=len(updates) - failed_updates,
            deleted=len(deletions) + len(extras) - (len(refused) - failed_updates),
            failed=len(refused),
            error=str(refused[min(refused)]) if refused else "",
        )

    def _refuse(self, key: RouteKey, why: str, number: int = 0) -> None:
        """Say it once per reason; the retries go on quietly."""
        if self._refusals.get(key) != why:
            say = LOG.debug if number in _EXPECTED_ERRNOS else LOG.warning
            say("route not programmed", cidr=key.dst, reason=why)
        self._refusals[key] = why

    # ----------------------------------------------------------------------------- questions

    def problem(self, dst: str) -> str:
        """Why `dst` is not programmed as its sources want it; "" when it is."""
        key = self._key_by_dst.get(dst)
        if key is None:
            sources = sorted(self._sources_by_dst.get(dst, ()))
            if not sources:
                return "nobody wants a route"
            return "interface " + ", ".join(source.ifname for source in sources) + " is not up"
        if not self._tracker.is_dirty(key):
            return ""
        return self._refusals.get(key, "not written yet")

    def is_wanted(self, dst: str) -> bool:
        """Some source wants a route to `dst`, whether or not there can be one now."""
        return dst in self._sources_by_dst

    def is_absent(self, dst: str) -> bool:
        """True when the kernel holds no route of ours to `dst`."""
        unwanted = self._tracker.pending_deletions()
        return dst not in self._key_by_dst and all(key.dst != dst for key in unwanted)

    def check(self) -> None:
        """Invariants of our own bookkeeping, for tests."""
        self._tracker.check()
        wanted = {key for key, _ in self._tracker.wanted_items()}
        assert wanted == set(self._key_by_dst.values()), "each wanted key belongs to one dst"
        assert not self._strangers & wanted, "a stranger is nobody's wish"
        assert all(self._tracker.programmed(key) for key in self._strangers)

    def dump(self) -> dict[str, object]:
        return self._tracker.dump() | {
            "foreign_in_the_way": [str(key.dst) for key in self._refusals if key in self._foreign],
            "refusals": {key.dst: why for key, why in self._refusals.items()},
            "resync": self._resync_reason,
        }
