"""Deletes connections that policy no longer allows (PolicyConntrackSweep), and no others.

Layer: felix.dataplane, a manager, beside the cycle: a task of its own does the work through
ConntrackPort. Made only when the parameter is Enabled; otherwise, as in Calico, policy is asked
about the first packet of a connection and never again.

    intents ─► marked ─► cycle begins ─► writing ─► on_cycle: in the kernel ─► due ─► run():
      what could have become       list the connections of the suspect addresses,
      forbidden by them            evaluate each, delete the denied

  PS1  a connection is judged after the kernel has the rules it is judged by: otherwise the next
       packet would set it up again;
  PS2  it is deleted when the egress policy of the workload that began it, or the ingress policy of
       the one it goes to, denies its first packet now; what is related to a deleted connection goes
       with it, what is related to another one stays;
  PS3  what policy was never asked about stays: a connection from the host to its own workload, and
       a workload's DHCP with its host. Those of the node itself go where policy of host endpoints
       denies them for certain (host_sweep.py); what is forwarded is judged at workloads alone;
  PS4  looked at are the connections of workloads whose rules changed, and of single addresses that
       came to or left a set where that tightens; after a start, those of all workloads, since
       policy may have changed while felix was away. One reading of the table at a time, and after
       each a pause that is no shorter than the reading was;
  PS5  judging takes the loop for a millisecond at a time; what failed is tried again with backoff.

A TCP connection whose entry is gone must not come back by a packet out of its middle, which the
kernel would take for a new one, perhaps in the other direction, where policy allows it. So the
endpoint manager's settings set `nf_conntrack_tcp_loose` to 0 with this parameter: such packets are
INVALID, and dropped as all of those are.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from felix.dataplane.host_sweep import HostConnections
from felix.dataplane.intent_book import IntentBook, Owner, addresses_of
from felix.dataplane.loop import CycleReport
from felix.dataplane.manager import InterfaceState
from felix.dataplane.ports import ConntrackPort, TrackedConnection
from felix.intent import (
    Intent,
    PolicyUpdate,
    ProfileUpdate,
    SetDelta,
    SetUpdate,
    WorkloadEndpointUpdate,
)
from felix.rules import verdict
from felix.rules.settings import RuleSettings
from libcalico.errors import SuiteError
from libcalico.model.keys import ResourceKey
from libcalico.policy.evaluate import Outcome
from libcalico.policy.packet import UDP, Direction, Packet
from libcalico.runtime import log
from libcalico.runtime.backoff import Backoff
from libcalico.runtime.clock import Clock

LOG = log.get(__name__)
_RETRY_FIRST_S, _RETRY_LIMIT_S = 0.1, 10.0
# Reading the table costs ten milliseconds and more, whatever is in it (PS4).
_PAUSE_S = 0.2
_SLICE_S = 0.001
_DEFAULTS = RuleSettings()
_DHCP = frozenset({(68, 67), (546, 547)})
_HOST_LENGTHS = ("/32", "/128")


@dataclass(slots=True)
class _Suspects:
    """Whose connections are to be looked at. `everyone`: all workloads of this node; `host`: the
    node itself."""

    addresses: set[str] = field(default_factory=set)
    everyone: bool = False
    host: bool = False

    def add(self, other: _Suspects) -> None:
        self.addresses |= other.addresses
        self.everyone = self.everyone or other.everyone
        self.host = self.host or other.host

    def __bool__(self) -> bool:
        return self.everyone or self.host or bool(self.addresses)


class PolicySweep:
    """Manager and InterfaceListener. See the module docstring."""

    def __init__(
        self, port: ConntrackPort, settings: RuleSettings = _DEFAULTS, *, clock: Clock
    ) -> None:
        self._port, self._clock = port, clock
        self._book = IntentBook()
        self._host = HostConnections(self._book, settings)
        self._addresses_by_ifname: dict[str, tuple[str, ...]] = {}
        self._marked = _Suspects(everyone=True, host=True)
        self._writing, self._due = _Suspects(), _Suspects()
        self._is_loaded = False
        self._wake = asyncio.Event()
        self._deleted = 0

    # -- what could have become forbidden ------------------------------------------------------

    def on_intent(self, intent: Intent) -> None:
        if self._is_loaded:
            self._mark(intent)
        self._book.take(intent)
        self._marked.host |= self._host.take(intent)

    def on_interface(self, name: str, state: InterfaceState | None) -> None:
        if state is None:
            self._addresses_by_ifname.pop(name, None)
        else:
            self._addresses_by_ifname[name] = state.addresses
        self._marked.host |= self._host.on_interface(name, state)

    def _mark(self, intent: Intent) -> None:
        """Before the book takes it. (What goes leaves its users first, and they change with it.)"""
        book = self._book
        match intent:
            case WorkloadEndpointUpdate():
                before = book.workloads.get(intent.key)
                if before is not None and _governance(before) != _governance(intent):
                    self._marked.addresses.update(addresses_of(before), addresses_of(intent))
            case PolicyUpdate():
                policy = book.policies.get(intent.key)
                if policy is None or _rules(policy) != _rules(intent):
                    self._mark_users(intent.key)
            case ProfileUpdate():
                if book.profiles.get(intent.name) != intent:
                    self._mark_users(intent.name)
            case SetUpdate():
                known = book.members(intent.set_id)
                self._mark_members(intent.set_id, intent.members - known, grows=True)
                self._mark_members(intent.set_id, known - intent.members, grows=False)
            case SetDelta():
                self._mark_members(intent.set_id, intent.added, grows=True)
                self._mark_members(intent.set_id, intent.removed, grows=False)
            case _:
                pass

    def _mark_users(self, owner: Owner) -> None:
        self._marked.host |= self._host.are_governed_by((owner,))
        self._mark_workloads(self._book.governed_by((owner,)))

    def _mark_members(self, set_id: str, changed: frozenset[str], *, grows: bool) -> None:
        """The connections of single addresses, or else all of those whom the set governs."""
        owners = self._book.tightened_by(set_id, grows=grows)
        if not owners:
            return  # nobody; and the rules that look into a new set are new as well
        self._marked.host |= bool(changed) and self._host.are_governed_by(owners)
        for member in changed:
            address, _, rest = member.partition(",")
            if rest:
                self._marked.addresses.add(address)
            elif member.endswith(_HOST_LENGTHS):
                self._marked.addresses.add(member.partition("/")[0])
            else:
                self._mark_workloads(self._book.governed_by(owners))

    def _mark_workloads(self, keys: set[ResourceKey]) -> None:
        for key in keys:
            self._marked.addresses.update(addresses_of(self._book.workloads[key]))

    # -- when it is in the kernel (PS1) --------------------------------------------------------

    def complete_deferred_work(self) -> None:
        self._is_loaded = True
        self._writing.add(self._marked)
        self._marked = _Suspects()

    def on_cycle(self, report: CycleReport) -> None:
        if report.is_filtering and self._writing:
            self._due.add(self._writing)
            self._writing = _Suspects()
            self._wake.set()

    # -- the work ------------------------------------------------------------------------------

    async def run(self) -> None:
        backoff = Backoff(_RETRY_FIRST_S, _RETRY_LIMIT_S)
        while True:
            await self._wake.wait()
            self._wake.clear()
            suspects, self._due = self._due, _Suspects()
            began = self._clock.monotonic()
            try:
                count = await self._sweep(suspects)
            except SuiteError as err:
                LOG.warning("connections not compared with policy", error=str(err))
                self._due.add(suspects)
                self._wake.set()
                await self._clock.sleep(backoff.next_s())
                continue
            backoff.reset()
            self._deleted += count
            if count:
                LOG.info("connections deleted that policy denies now", count=count)
            await self._clock.sleep(max(_PAUSE_S, self._clock.monotonic() - began))

    async def _sweep(self, suspects: _Suspects) -> int:
        addresses = set(self._book.addresses()) if suspects.everyone else set()
        addresses |= suspects.addresses
        if suspects.host:
            addresses |= self._host.addresses
        if not addresses:
            return 0
        found = await self._port.list_connections(addresses)
        denied = await self._denied([c for c in found if not c.master])
        gone = {connection.original for connection in denied}
        denied += [c for c in found if c.master and c.master in gone]
        return await self._port.delete_connections(denied) if denied else 0

    async def _denied(self, connections: list[TrackedConnection]) -> list[TrackedConnection]:
        denied = []
        host = {a for addresses in self._addresses_by_ifname.values() for a in addresses}
        began = self._clock.monotonic()
        for connection in connections:
            packet = connection.packet
            if self._is_denied(packet, host) or self._host.denies(packet):
                denied.append(connection)
            if self._clock.monotonic() - began > _SLICE_S:
                await asyncio.sleep(0)
                began = self._clock.monotonic()
        return denied

    def _is_denied(self, packet: Packet, host: set[str]) -> bool:
        """PS2, PS3. `host`: the addresses of this node itself."""
        if _is_dhcp(packet) and str(packet.destination) in host:
            return False
        if self._denies(packet, Direction.EGRESS):
            return True
        return str(packet.source) not in host and self._denies(packet, Direction.INGRESS)

    def _denies(self, packet: Packet, direction: Direction) -> bool:
        address = packet.source if direction is Direction.EGRESS else packet.destination
        workload = self._book.at(address)
        if workload is None:
            return False
        return verdict.outcome(self._book, workload, direction, packet) is Outcome.DENY

    def dump(self) -> dict[str, object]:
        return {
            "host": self._writing.host or self._due.host,
            "writing": sorted(self._writing.addresses),
            "due": sorted(self._due.addresses),
            "deleted": self._deleted,
        }


def _is_dhcp(packet: Packet) -> bool:
    return packet.protocol == UDP and (packet.source_port, packet.destination_port) in _DHCP


def _governance(endpoint: WorkloadEndpointUpdate) -> tuple[object, ...]:
    return endpoint.tiers, endpoint.profiles, endpoint.nets


def _rules(policy: PolicyUpdate) -> tuple[object, ...]:
    return policy.ingress, policy.egress
