"""Whether policy of host endpoints denies a connection of the node itself, whichever way it came.

Layer: felix.dataplane, pure. Used by policy_sweep.py.

An entry of the connection table does not say by which interface a connection came or left, and so
not whose policy it was. What can be said for certain is said:

  HS1  a connection is denied when policy denies it at every interface of the host that is up: at
       the one of a node with one uplink, at all where `*` governs the rest. While one interface
       would let it pass, or has no endpoint, it stays;
  HS2  judged are connections of the node's own addresses with others, in the direction they began,
       by normal policy. What policy is never asked about stays: failsafe ports, a workload of this
       node, the node with itself. So does what an untracked or preDNAT policy may have allowed
       before, and what is only forwarded.

Source: felix/rules/host.py HR2 to HR5.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_network
from itertools import chain

from felix.dataplane.intent_book import IntentBook, Owner, owners_of
from felix.dataplane.manager import InterfaceState
from felix.host_interfaces import assign_host_endpoints
from felix.intent import HostEndpointRemove, HostEndpointUpdate, Intent
from felix.rules import verdict
from felix.rules.settings import Failsafe, RuleSettings
from libcalico import net
from libcalico.model.keys import ResourceKey
from libcalico.policy.evaluate import Outcome
from libcalico.policy.packet import Direction, Packet

_LOOPBACK = "lo"


class HostConnections:
    """`take` every intent and `on_interface` every change, in order; each says whether it changes
    who governs what."""

    def __init__(self, book: IntentBook, settings: RuleSettings) -> None:
        self._book, self._settings = book, settings
        self._endpoints: dict[ResourceKey, HostEndpointUpdate] = {}
        self._interfaces: dict[str, InterfaceState] = {}
        # What follows from these, worked out when they change.
        self._owners: frozenset[Owner] = frozenset()
        self._addresses: frozenset[str] = frozenset()
        self._governing: tuple[HostEndpointUpdate | None, ...] = ()

    def take(self, intent: Intent) -> bool:
        if isinstance(intent, HostEndpointUpdate):
            if self._endpoints.get(intent.key) == intent:
                return False
            self._endpoints[intent.key] = intent
        elif not isinstance(intent, HostEndpointRemove) or not self._endpoints.pop(
            intent.key, None
        ):
            return False
        self._settle()
        return True

    def on_interface(self, name: str, state: InterfaceState | None) -> bool:
        if name == _LOOPBACK or name.startswith(self._settings.interface_prefixes):
            return False
        before = self._interfaces.pop(name, None)
        if state is not None:
            self._interfaces[name] = state
        self._settle()
        return before != state and bool(self._endpoints)

    def _settle(self) -> None:
        addresses = {name: state.addresses for name, state in self._interfaces.items()}
        governable = {
            name: found
            for name, found in addresses.items()
            if self._settings.is_host_interface(name)
        }
        assignment = assign_host_endpoints(self._endpoints.values(), governable)
        self._governing = tuple(
            assignment.governing(name) if name in governable else None
            for name, state in self._interfaces.items()
            if state.is_up
        )
        self._addresses = frozenset(chain(*addresses.values())) if self._endpoints else frozenset()
        self._owners = frozenset(chain(*map(owners_of, self._endpoints.values())))

    def are_governed_by(self, owners: Iterable[Owner]) -> bool:
        return not self._owners.isdisjoint(owners)

    @property
    def addresses(self) -> frozenset[str]:
        """Those whose connections are to be looked at; none without a host endpoint."""
        return self._addresses

    def denies(self, packet: Packet) -> bool:
        """HS1, HS2. `packet`: the first of the connection."""
        is_source = str(packet.source) in self._addresses
        if is_source == (str(packet.destination) in self._addresses):
            return False
        direction = Direction.EGRESS if is_source else Direction.INGRESS
        peer = packet.destination if is_source else packet.source
        if self._book.at(peer) is not None or self._is_failsafe(packet, direction, peer):
            return False
        return bool(self._governing) and all(
            self._denies_at(endpoint, packet, direction) for endpoint in self._governing
        )

    def _denies_at(
        self, endpoint: HostEndpointUpdate | None, packet: Packet, direction: Direction
    ) -> bool:
        if endpoint is None or endpoint.untracked_tiers or endpoint.pre_dnat_tiers:
            return False
        return verdict.outcome(self._book, endpoint, direction, packet) is Outcome.DENY

    def _is_failsafe(self, packet: Packet, direction: Direction, peer: net.Address) -> bool:
        settings = self._settings
        is_in = direction is Direction.INGRESS
        ports = settings.inbound_failsafes if is_in else settings.outbound_failsafes
        return any(_fits(port, packet, peer) for port in ports)


def _fits(port: Failsafe, packet: Packet, peer: net.Address) -> bool:
    if (port.protocol, port.port) != (packet.protocol, packet.destination_port):
        return False
    return not port.net or peer in ip_network(port.net, strict=False)
