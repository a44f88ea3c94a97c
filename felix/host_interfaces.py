"""Which host endpoint governs which interface of this host.

Layer: beside felix.intent, pure. For the dataplane, which alone knows the interfaces: calc hands
out every host endpoint of the node, this decides which of them stands where.

  HI1  an endpoint with an interface name stands on that interface only; one without a name on every
       interface that owns one of its expected addresses;
  HI2  of several candidates for one interface the one with the smallest name governs it; being
       named is no advantage over owning an address;
  HI3  an endpoint for `*` governs the interfaces that no other one does (again the smallest name);
  HI4  workload interfaces are nobody's: the caller leaves them, and excluded ones, out.

Source: reference/datamodel.md 5.4; Calico felix/dataplane/linux/endpoint_mgr.go
(resolveHostEndpoints).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from felix.intent import HostEndpointUpdate

ANY_INTERFACE = "*"


@dataclass(frozen=True, slots=True)
class HostAssignment:
    """`by_interface`: who governs each interface that a specific endpoint claims. `remaining`: the
    `*` endpoint, for all other host interfaces, also those that appear later; None for none."""

    by_interface: Mapping[str, HostEndpointUpdate]
    remaining: HostEndpointUpdate | None

    def governing(self, interface: str) -> HostEndpointUpdate | None:
        return self.by_interface.get(interface, self.remaining)


def assign_host_endpoints(
    endpoints: Iterable[HostEndpointUpdate],
    addresses_by_interface: Mapping[str, Collection[str]],
) -> HostAssignment:
    """`addresses_by_interface`: the host interfaces with their addresses as canonical text, without
    prefix length."""
    by_interface: dict[str, HostEndpointUpdate] = {}
    remaining: HostEndpointUpdate | None = None
    for endpoint in sorted(endpoints, key=lambda item: item.key.name):
        if endpoint.interface == ANY_INTERFACE:
            remaining = remaining or endpoint
            continue
        for interface, addresses in addresses_by_interface.items():
            if _stands_on(endpoint, interface, addresses):
                by_interface.setdefault(interface, endpoint)
    return HostAssignment(by_interface, remaining)


def _stands_on(endpoint: HostEndpointUpdate, interface: str, addresses: Collection[str]) -> bool:
    if endpoint.interface:
        return endpoint.interface == interface
    return any(address in addresses for address in endpoint.expected_ips)
