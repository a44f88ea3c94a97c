"""The kernel side of the speaker: learns workloads and ways out, programs what was selected.

Layer: kernel side, edge (netlink). Made by bgp.daemon; `work` is called once per turn.

    events ─► host view ─┬─► next hops ──► rib.set_reachable, specs of selected routes again
                         └─► workloads ──► rib.set_local
    rib changes ─► decision ─► writer ─► kernel

Repair: a route of ours that somebody removed or overwrote is noticed by its event and written again
in the next turn (within 100 ms). Lost events, links and addresses that change otherwise than pods
make them (see host), and links of our routes that go down lead to a new listing (at most one per
LISTING_PAUSE_S), and there is one every RESYNC_S in any case.
"""

from __future__ import annotations

from collections.abc import Iterable

from bgp.eventloop import EventLoop
from bgp.kernel.decision import TUNNEL, Decision
from bgp.kernel.host import HostView, Listing
from bgp.kernel.writer import RouteWriter
from bgp.rib.nlri import FAMILIES
from bgp.rib.path import Path
from bgp.rib.rib import Rib
from bgp.rib.table import Change
from libcalico.errors import DumpInterrupted, ProgrammingFailed
from libcalico.model.speaker import SpeakerConfig
from libcalico.netlink import (
    AF_INET,
    AF_INET6,
    EventStream,
    Group,
    NetlinkSocket,
    NextHop,
    Overrun,
    Route,
    RouteEvent,
    RouteFilter,
    RouteInterest,
    list_addresses,
    list_links,
    list_routes,
)
from libcalico.runtime import log

LOG = log.get(__name__)

RESYNC_S = 90.0
LISTING_PAUSE_S = 0.1
GROUPS = (
    Group.LINK,
    Group.IPV4_ADDRESS,
    Group.IPV4_ROUTE,
    Group.IPV6_ADDRESS,
    Group.IPV6_ROUTE,
)


class KernelSide:
    """See the module. `start` before the first turn."""

    def __init__(self, rib: Rib, events: EventLoop) -> None:
        """Errors: ProgrammingFailed, no netlink."""
        config = rib.config
        self._rib = rib
        self._loop = events
        self._socket = NetlinkSocket()
        self._stream = EventStream(
            *GROUPS,
            interest=RouteInterest(
                config.kernel.table, own_ports=frozenset({self._socket.port_id})
            ),
        )
        self._host = HostView(
            table=config.kernel.table,
            own_protocol=config.kernel.protocol,
            workload_prefixes=config.workload_interface_prefixes,
        )
        self.writer = RouteWriter(
            self._socket, table=config.kernel.table, protocol=config.kernel.protocol
        )
        self._hops: dict[bytes, tuple[NextHop, ...]] = {}
        self._decision = self._decide(config)
        self._list_at = 0.0
        self._needs_listing = True

    def start(self, now: float) -> None:
        """Subscribe first, list then: nothing is missed in between."""
        self._loop.on_readable(self._stream, self._read_events)
        self._list(now, "start")

    def close(self) -> None:
        """The routes stay: another process of ours, or this one again, finds them."""
        self._loop.forget(self._stream)
        self._stream.close()
        self._socket.close()

    def reconfigure(self, config: SpeakerConfig) -> None:
        """After the RIB took it over. Table and protocol cannot change in a running process."""
        self._host.use_workload_prefixes(config.workload_interface_prefixes)
        self._decision = self._decide(config)
        self._learn_workloads()
        self._decide_again()

    def before_flush(self, now: float) -> None:
        """What the RIB must know before it selects: ways out, workloads."""
        if self._needs_listing and now >= self._list_at:
            self._list(now, "changed")
        elif now >= self._list_at + RESYNC_S:
            self._list(now, "periodic")
        for packed in self._rib.next_hops.take_fresh():
            self._learn_hop(packed)  # no selected path can use it yet

    def after_flush(self, changes: list[Change], now: float) -> None:
        """Program what was selected, a bounded part per turn."""
        for family, nlri, paths in changes:
            self.writer.want((family, nlri), self._decision.spec(family, nlri, paths))
        self.writer.hold_deletes = self._rib.deferral.holds_kernel
        if not self.writer.dirty:
            return
        try:
            applied = self.writer.apply(now)
        except ProgrammingFailed as err:
            LOG.warning("kernel routes unknown, listing again", reason=err)
            self._want_listing(now)
            return
        if applied.written or applied.deleted:
            LOG.info(
                "kernel routes",
                written=applied.written,
                deleted=applied.deleted,
                failed=applied.failed,
            )
        if applied.remaining:
            self._loop.wake()

    # -- listings and events

    def _list(self, now: float, reason: str) -> None:
        self._needs_listing = False
        self._list_at = now + LISTING_PAUSE_S
        try:
            links = tuple(self._socket.query(list_links()))
            addresses = tuple(self._socket.query(list_addresses()))
            routes = tuple(self._routes())
        except (ProgrammingFailed, DumpInterrupted) as err:
            LOG.warning("listing failed, trying again", reason=err)
            self._needs_listing = True
            return
        self._host.load(Listing(links, addresses, routes))
        self.writer.observe(routes)
        self.writer.retry_all()
        self._learn_hops(self._host.affected(self._rib.next_hops.known))
        self._learn_workloads()
        LOG.debug("listed", reason=reason, routes=len(routes), links=len(links))

    def _routes(self) -> list[Route]:
        wanted = RouteFilter(table=self._host.table)
        found: list[Route] = []
        for family in (AF_INET, AF_INET6):
            found += self._socket.query(list_routes(family, wanted))
        return found

    def _want_listing(self, now: float) -> None:
        self._needs_listing = True
        self._list_at = max(self._list_at, now + LISTING_PAUSE_S)

    def _read_events(self) -> None:
        for event in self._stream.read():
            if isinstance(event, Overrun):
                self._needs_listing = True
                continue
            if isinstance(event, RouteEvent):
                self.writer.notice(event)
            self._host.apply(event)
        took_ours = any(map(self.writer.led_over, self._host.take_fallen_links()))
        self._needs_listing = self._needs_listing or self._host.needs_listing or took_ours
        self._learn_hops(self._host.affected(self._rib.next_hops.known))
        self._learn_workloads()

    # -- learning

    def _learn_hops(self, next_hops: Iterable[bytes]) -> None:
        changed = {packed for packed in next_hops if self._learn_hop(packed)}
        if changed:
            self.writer.retry_all()
            self._decide_again(changed)
        if len(self._hops) > 2 * len(self._rib.next_hops.known) + 1000:
            known = self._rib.next_hops.known
            self._hops = {hop: hops for hop, hops in self._hops.items() if hop in known}

    def _learn_hop(self, packed: bytes) -> bool:
        """Returns whether that is news."""
        hops = self._host.resolve(packed)
        if self._hops.get(packed) == hops:
            return False
        self._hops[packed] = hops
        self._rib.set_reachable(packed, reachable=bool(hops))
        return True

    def _learn_workloads(self) -> None:
        for key in self._host.take_workload_changes():
            self._rib.set_local(*key, self._host.workloads.get(key))

    def _decide(self, config: SpeakerConfig) -> Decision:
        return Decision(
            config,
            resolve=lambda packed: self._hops.get(packed, ()),
            tunnel=lambda: self._host.ifindex_of(TUNNEL),
        )

    def _decide_again(self, next_hops: set[bytes] | None = None) -> None:
        """Selected routes whose way out changed (all of them for None)."""
        self._decision.forget()
        for family in FAMILIES:
            for nlri, paths in self._rib.tables[family].selected.items():
                if next_hops is None or _uses(paths, next_hops):
                    self.writer.want((family, nlri), self._decision.spec(family, nlri, paths))

    def dump(self) -> dict[str, object]:
        return {"host": self._host.dump(), "writer": self.writer.dump()}


def _uses(paths: tuple[Path, ...], next_hops: set[bytes]) -> bool:
    return any(path.attributes.next_hop in next_hops for path in paths)
