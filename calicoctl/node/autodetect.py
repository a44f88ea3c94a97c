"""Which of a host's addresses is the node's: Calico's autodetection methods, as a pure function.

Layer: pure. Used by calicoctl.node.settings and .main. Source: datamodel 6.10; Calico
node/pkg/lifecycle/startup/autodetection.

    first-found                 the first interface that is not virtual
    interface=RE[,RE…]          the first interface whose name matches one of the expressions
    skip-interface=RE[,RE…]     first-found without these
    can-reach=HOST              the address the kernel would send from
    cidr=NET[,NET…]             the first address inside one of the networks

"First" counts from the *youngest* interface, the last in the kernel's list: so does Calico, and a
host with several must not change its address when it changes to Brindle.

Never chosen: loopback and link-local addresses, interfaces that are down, workload interfaces,
bridges (unless `interface=` or `cidr=` asks for them), the virtual interfaces of other systems, and
virtual service addresses: a /32 or /128 beside a real address on the same interface.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from libcalico.errors import ConfigError
from libcalico.net import AddressError, Interface, Network, parse_cidr

FIRST_FOUND = "first-found"
CAN_REACH = "can-reach"
INTERFACE = "interface"
SKIP_INTERFACE = "skip-interface"
CIDR = "cidr"

# Interfaces of container systems and tunnels: their addresses are not how others reach the host.
_VIRTUAL = re.compile(
    r"^(docker.*|cbr.*|br-.*|dummy.*|virbr.*|lxcbr.*|lxdbr.*|veth.*|lo|cali.*|tunl.*|flannel.*"
    r"|kube-ipvs.*|cni.*|vxlan.*|vxlan-v6\.calico|wireguard\.cali|wg-v6\.cali|nodelocaldns"
    r"|podman.*|ovs-.*|geneve.*)$"
)
# Not macvlan and ipvlan: the only interface of a host that is itself a container is often one.
_VIRTUAL_KINDS = frozenset({"bridge", "dummy", "tun", "vxlan", "wireguard"})


@dataclass(frozen=True, slots=True)
class HostInterface:
    """One interface as the kernel has it; addresses in the kernel's order, with prefix length."""

    name: str
    addresses: tuple[Interface, ...]
    is_up: bool = True
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Method:
    """A parsed method. `patterns` for the interface ones, `target` for can-reach."""

    name: str = FIRST_FOUND
    patterns: tuple[re.Pattern[str], ...] = ()
    networks: tuple[Network, ...] = ()
    target: str = ""

    def __str__(self) -> str:
        given = [p.pattern for p in self.patterns] or [str(n) for n in self.networks]
        value = ",".join(given) or self.target
        return f"{self.name}={value}" if value else self.name


# can-reach asks the kernel: destination host -> source address, None when there is no route.
SourceFor = Callable[[str, int], str | None]


def parse_method(raw: str, version: int) -> Method:
    """Errors: ValueError with the reason."""
    if not raw or raw == FIRST_FOUND:
        return Method()
    name, equals, value = raw.partition("=")
    if not equals or not value:
        raise ValueError(
            "must be first-found, can-reach=, interface=, skip-interface= or cidr= with a value"
        )
    if name == CAN_REACH:
        return Method(CAN_REACH, target=value)
    if name in (INTERFACE, SKIP_INTERFACE):
        try:
            return Method(name, patterns=tuple(re.compile(part) for part in value.split(",")))
        except re.error as err:
            raise ValueError(f"is not a regular expression: {err}") from err
    if name == CIDR:
        try:
            networks = tuple(parse_cidr(part.strip()) for part in value.split(","))
        except AddressError as err:
            raise ValueError(str(err)) from err
        if any(network.version != version for network in networks):
            raise ValueError(f"must hold IPv{version} networks")
        return Method(CIDR, networks=networks)
    raise ValueError(f"unknown method {name!r}")


def detect(
    interfaces: Sequence[HostInterface], method: Method, version: int, source_for: SourceFor
) -> tuple[Interface, str] | None:
    """The address with its prefix length and the interface it is on; None when none qualifies."""
    if method.name == CAN_REACH:
        return _by_route(interfaces, method, version, source_for)
    candidates = _candidates(interfaces, method, version)
    if method.name == CIDR:
        candidates = (
            (address, name)
            for address, name in candidates
            if any(address.ip in network for network in method.networks)
        )
    return next(iter(candidates), None)


def _by_route(
    interfaces: Sequence[HostInterface], method: Method, version: int, source_for: SourceFor
) -> tuple[Interface, str] | None:
    source = source_for(method.target, version)
    if source is None:
        return None
    wanted = ipaddress.ip_address(source)
    for interface in interfaces:
        for address in interface.addresses:
            if address.ip == wanted:
                return address, interface.name
    return None


def _candidates(
    interfaces: Sequence[HostInterface], method: Method, version: int
) -> Iterator[tuple[Interface, str]]:
    for interface in reversed(interfaces):
        if not interface.is_up or not _is_eligible(interface, method):
            continue
        usable = [
            address
            for address in interface.addresses
            if address.version == version and _is_node_address(address)
        ]
        real = [a for a in usable if a.network.prefixlen < a.max_prefixlen]
        for address in real or usable:
            yield address, interface.name


def _is_eligible(interface: HostInterface, method: Method) -> bool:
    if method.name == INTERFACE:
        # The operator named it: then it may be a bridge or a bond of any name.
        return any(pattern.search(interface.name) for pattern in method.patterns)
    if _VIRTUAL.match(interface.name):
        return False
    if interface.kind in _VIRTUAL_KINDS and method.name != CIDR:
        return False  # a bridge may carry the node's address, if the operator asks for that network
    if method.name == SKIP_INTERFACE:
        return not any(pattern.search(interface.name) for pattern in method.patterns)
    return True


def _is_node_address(address: Interface) -> bool:
    ip = address.ip
    return not (ip.is_loopback or ip.is_link_local or ip.is_multicast or ip.is_unspecified)


def with_length(fixed: Interface, interfaces: Iterable[HostInterface]) -> Interface:
    """A configured address without length takes its interface's; one the host does not have stays
    a single address (it may be added later)."""
    for interface in interfaces:
        for address in interface.addresses:
            if address.ip == fixed.ip:
                return address
    return fixed


def none_found(method: Method, version: int) -> ConfigError:
    variable = "IP" if version == 4 else "IP6"
    return ConfigError(
        "environment",
        f"{variable}_AUTODETECTION_METHOD",
        f"no IPv{version} address of this host qualifies; set {variable} or another method",
        str(method),
    )
