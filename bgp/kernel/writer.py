"""Our routes in one kernel table: what we want, what is there, and the writes in between.

Layer: kernel side, driver. Used by bgp.kernel.side. Ours is what carries our protocol number, in
our table, in any metric: a fresh process recognises it by that (house rule 10.5-4).

Invariants (check()):
  I1  a destination is dirty exactly when wanted and installed differ, or strays are left;
  I2  nobody else's route is overwritten: a new route is added with EXCL, and only a route seen as
      ours is replaced. A destination and metric taken by another stays dirty (a conflict) and is
      tried again when that route goes, or after RETRY_S;
  I3  a route that is right is not written;
  I4  additions and changes go before deletions; while `hold_deletes` is set, what a former process
      left and nobody has asked for since is not deleted (but blackholes are: what we own is known).

A refused write stays dirty and the others go on.
Source: linux/rtnetlink.h, net/ipv4/fib_trie.c; bgp reference 5 (templates, batches).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from bgp.kernel.decision import Spec
from bgp.kernel.foreign import Key, key_of
from bgp.rib.nlri import Family, packed, text
from libcalico.netlink import (
    NextHop,
    Refusal,
    Request,
    Route,
    RouteEvent,
    RouteTemplate,
    RouteType,
    add_route,
    delete_route,
    replace_route,
)
from libcalico.runtime import log

LOG = log.get(__name__)

RETRY_S = 1.0
_AT_ONCE = 4000  # writes per apply: about 20 ms, so that sessions get their turn
_TEMPLATES = 4096
Build = Callable[[Route], Request]


class RouteSocket(Protocol):
    """NetlinkSocket, or a fake of it."""

    def transact_messages(self, messages: Sequence[bytes]) -> dict[int, Refusal]: ...


@dataclass(slots=True)
class Applied:
    """What one apply did. `remaining`: there is more to do now."""

    written: int = 0
    deleted: int = 0
    failed: int = 0
    remaining: bool = False


@dataclass(frozen=True, slots=True)
class _Write:
    key: Key
    build: Build
    spec: Spec


class RouteWriter:
    """See the module."""

    def __init__(self, sock: RouteSocket, *, table: int, protocol: int) -> None:
        self._socket = sock
        self._table = table
        self._protocol = protocol
        self.wanted: dict[Key, Spec] = {}
        self.installed: dict[Key, Spec] = {}
        self.strays: dict[Key, set[Spec]] = {}
        self.dirty: dict[Key, None] = {}
        self.conflicts: set[Key] = set()
        self._links: set[int] = set()
        self.hold_deletes = True
        self._unconfirmed: set[Key] | None = None  # of a former process; None before any listing
        self._retry: dict[Key, float] = {}
        self._templates: dict[tuple[Build, Family, Spec, int], RouteTemplate] = {}

    # -- wishes

    def want(self, key: Key, spec: Spec | None) -> None:
        """Repeating changes nothing."""
        if spec is None:
            self.wanted.pop(key, None)
        else:
            self.wanted[key] = spec
            if self._unconfirmed:
                self._unconfirmed.discard(key)
        self._note(key)

    # -- observations

    def observe(self, routes: Iterable[Route]) -> None:
        """A full listing: it replaces what we believed."""
        self.installed.clear()
        self.strays.clear()
        self._links.clear()
        for route in routes:
            if self.is_ours(route):
                self._see(route)
        if self._unconfirmed is None:
            self._unconfirmed = self.installed.keys() - self.wanted.keys()
        for key in {**self.wanted, **self.installed, **self.strays, **self.dirty}:
            self._note(key)

    def notice(self, event: RouteEvent) -> None:
        """A route event that somebody else caused."""
        route = event.route
        if route.table != self._table:
            return
        key = key_of(route.dst)
        if self.is_ours(route):
            if event.is_removed:
                self._unsee(key, _spec_of(route))
            else:
                self._see(route)
        elif event.is_replacement:
            spec = self.installed.get(key)
            if spec is not None and spec.metric == route.metric:
                self._unsee(key, spec)  # ours was overwritten
        if event.is_removed and key in self.conflicts:
            self._retry.pop(key, None)
        self._note(key)

    def led_over(self, ifindex: int) -> bool:
        """Whether a route of ours may lead over this link: one did since the last listing."""
        return ifindex in self._links

    def is_ours(self, route: Route) -> bool:
        return route.table == self._table and route.protocol == self._protocol and route.tos == 0

    def _see(self, route: Route) -> None:
        key, spec = key_of(route.dst), _spec_of(route)
        self._links.update(hop.ifindex for hop in spec.nexthops)
        present = self.installed.get(key)
        wanted = self.wanted.get(key)
        if present is None or present.metric == spec.metric:
            self.installed[key] = spec
        elif wanted is not None and wanted.metric == spec.metric:
            self.installed[key] = spec
            self.strays.setdefault(key, set()).add(present)
        else:
            self.strays.setdefault(key, set()).add(spec)

    def _unsee(self, key: Key, spec: Spec) -> None:
        present = self.installed.get(key)
        if present is not None and present.metric == spec.metric:
            del self.installed[key]
        strays = self.strays.get(key)
        if strays is not None:
            self.strays[key] = {stray for stray in strays if stray.metric != spec.metric}
            if not self.strays[key]:
                del self.strays[key]

    def _note(self, key: Key) -> None:
        if self.wanted.get(key) == self.installed.get(key) and key not in self.strays:
            self.dirty.pop(key, None)
            self._retry.pop(key, None)
            self.conflicts.discard(key)
        else:
            self.dirty[key] = None

    # -- writes

    def retry_all(self) -> None:
        """What was refused may go now (the ways out of this host have changed)."""
        self._retry.clear()

    def apply(self, now: float) -> Applied:
        """Write a bounded part of what is dirty. Errors: ProgrammingFailed, the socket failed: what
        was applied is unknown and the caller lists again."""
        writes, deletions, remaining = self._plan(now)
        result = Applied(remaining=remaining)
        self._write(writes, now, result)
        # A change of metric leaves the old route until the new one is there.
        deletions += self._superseded(writes)
        self._delete(deletions, now, result)
        return result

    def _plan(self, now: float) -> tuple[list[_Write], list[_Write], bool]:
        writes: list[_Write] = []
        deletions: list[_Write] = []
        for key in self.dirty:
            if self._retry.get(key, 0.0) > now:
                continue
            if len(writes) + len(deletions) >= _AT_ONCE:
                return writes, deletions, True
            wanted, installed = self.wanted.get(key), self.installed.get(key)
            if wanted is not None and wanted != installed:
                is_change = installed is not None and installed.metric == wanted.metric
                writes.append(_Write(key, replace_route if is_change else add_route, wanted))
            elif wanted is not None or self._may_delete(key, installed):
                deletions += [
                    _Write(key, delete_route, stray) for stray in self.strays.get(key, ())
                ]
                if wanted is None and installed is not None:
                    deletions.append(_Write(key, delete_route, installed))
        return writes, deletions, False

    def _may_delete(self, key: Key, installed: Spec | None) -> bool:
        if not self.hold_deletes or not self._unconfirmed or key not in self._unconfirmed:
            return True
        return installed is not None and installed.type == RouteType.BLACKHOLE

    def _superseded(self, writes: list[_Write]) -> list[_Write]:
        found = []
        for write in writes:
            installed = self.installed.get(write.key)
            if installed == write.spec:
                found += [
                    _Write(write.key, delete_route, stray)
                    for stray in self.strays.get(write.key, ())
                ]
        return found

    def _write(self, writes: list[_Write], now: float, result: Applied) -> None:
        refusals = self._transact(writes)
        for index, write in enumerate(writes):
            refusal = refusals.get(index)
            if refusal is not None:
                self._refused(write, refusal, now, result)
                continue
            before = self.installed.get(write.key)
            if before is not None and before.metric != write.spec.metric:
                self.strays.setdefault(write.key, set()).add(before)
            self.installed[write.key] = write.spec
            self._links.update(hop.ifindex for hop in write.spec.nexthops)
            result.written += 1
            self._note(write.key)

    def _delete(self, deletions: list[_Write], now: float, result: Applied) -> None:
        refusals = self._transact(deletions)
        for index, write in enumerate(deletions):
            refusal = refusals.get(index)
            if refusal is not None and refusal.errno != errno.ESRCH:
                self._refused(write, refusal, now, result)
                continue
            self._unsee(write.key, write.spec)
            result.deleted += 1
            self._note(write.key)

    def _refused(self, write: _Write, refusal: Refusal, now: float, result: Applied) -> None:
        result.failed += 1
        is_first = write.key not in self._retry
        self._retry[write.key] = now + RETRY_S
        cidr = text(*write.key)
        if refusal.errno == errno.EEXIST and write.build is add_route:
            if write.key not in self.conflicts:
                LOG.warning("somebody else has a route here", cidr=cidr, metric=write.spec.metric)
            self.conflicts.add(write.key)
        elif is_first:
            reason = refusal.failure(write.build.__name__, cidr)
            LOG.warning("route refused", cidr=cidr, reason=reason)

    def _transact(self, writes: Sequence[_Write]) -> dict[int, Refusal]:
        if not writes:
            return {}
        return self._socket.transact_messages([self._encode(write) for write in writes])

    def _encode(self, write: _Write) -> bytes:
        family, nlri = write.key
        spec = write.spec
        key = (write.build, family, spec, nlri[0])
        template = self._templates.get(key)
        if template is None:
            if len(self._templates) >= _TEMPLATES:
                self._templates.clear()
            # A deletion names no next hops: (destination, metric, protocol) is ours alone.
            hops = () if write.build is delete_route else spec.nexthops
            sample = Route(
                text(family, nlri),
                hops,
                spec.type,
                protocol=self._protocol,
                metric=spec.metric,
                table=self._table,
            )
            template = self._templates[key] = RouteTemplate(write.build, sample)
        return template.encode(packed(family, nlri))

    def check(self) -> None:
        for key in {**self.wanted, **self.installed, **self.strays}:
            differs = self.wanted.get(key) != self.installed.get(key) or key in self.strays
            assert differs is (key in self.dirty), f"I1 broken for {text(*key)}"

    def dump(self) -> dict[str, object]:
        return {
            "wanted": len(self.wanted),
            "installed": len(self.installed),
            "dirty": sorted(text(*key) for key in self.dirty)[:1000],
            "conflicts": sorted(text(*key) for key in self.conflicts),
            "holds_deletes": self.hold_deletes,
        }


def _spec_of(route: Route) -> Spec:
    hops = tuple(sorted(map(_bare, route.nexthops), key=lambda hop: (hop.gateway, hop.ifindex)))
    return Spec(route.metric, hops, route.type)


def _bare(hop: NextHop) -> NextHop:
    return NextHop(hop.ifindex, hop.gateway, hop.is_onlink, hop.weight)
