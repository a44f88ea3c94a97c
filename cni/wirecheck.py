"""CHECK's eyes: is a wire in the kernel as it was made? Looks, changes nothing.

Layer: edge (netlink and /proc/sys; blocking). Used by cni.check and cni.add. Every function gives
sentences; none means that all is right. What a later plugin of the list may change by its very
purpose (the pod's MAC and MTU by `tuning`, its sysctls, its other interfaces) is compared with what
the *last* plugin answered, or not at all.
Source: CNI SPEC 1.1.0 "CHECK"; reference/cni.md 2 for what a wire consists of.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from dataclasses import dataclass

from cni.results import Interface, Result
from cni.veth import (
    GATEWAY_V6,
    HOST_MAC,
    PROC_SYS_NET,
    PodWire,
    host_cidr,
    pod_routes,
)
from libcalico.errors import ProgrammingFailed
from libcalico.netlink import (
    AF_INET,
    AF_INET6,
    Link,
    NetlinkSocket,
    Route,
    get_link,
    list_addresses,
    list_routes,
    resolve_route,
    run_in_namespace,
)

# What felix sets on the host's end; without one of them no packet of that family comes through.
_SETTINGS_V4 = (("ipv4/conf/{}/proxy_arp", "1"), ("ipv4/conf/{}/forwarding", "1"))
_SETTINGS_V6 = (
    ("ipv6/conf/{}/disable_ipv6", "0"),
    ("ipv6/conf/{}/proxy_ndp", "1"),
    ("ipv6/conf/{}/forwarding", "1"),
)


@dataclass(frozen=True, slots=True)
class Seen:
    """`pod_end` and `host_end` None: not there."""

    problems: tuple[str, ...]
    host_end: Link | None = None
    pod_end: Link | None = None


def wire(wanted: PodWire) -> Seen:
    """Both ends, that they belong together, the pod's addresses and routes; not felix's part."""
    with NetlinkSocket() as host:
        host_end = _link(host, wanted.host_name)
        problems = _host_end_problems(host, host_end, wanted)
    try:
        pod_end, found = run_in_namespace(wanted.netns, lambda: _pod_problems(wanted))
    except ProgrammingFailed as err:
        return Seen((*problems, f"netns {wanted.netns}: {err}"), host_end)
    problems += found
    if host_end is not None and pod_end is not None and host_end.peer_ifindex != pod_end.ifindex:
        problems.append(
            f"{wanted.host_name} is not the other end of {wanted.pod_name} of {wanted.netns}"
        )
    return Seen(tuple(problems), host_end, pod_end)


def forwarding(wanted: PodWire) -> list[str]:
    """What felix adds on the host: the route to each address, and the interface's settings."""
    problems = []
    with NetlinkSocket() as host:
        host_end = _link(host, wanted.host_name)
        for address in wanted.addresses if host_end is not None else ():
            assert host_end is not None
            problems += _route_problems(host, address, host_end)
    settings = [*(_SETTINGS_V4 if wanted.has_ipv4 else ())]
    settings += _SETTINGS_V6 if wanted.has_ipv6 else ()
    for pattern, value in settings if host_end is not None else ():
        name = pattern.format(wanted.host_name)
        try:
            found = (PROC_SYS_NET / name).read_text().strip()
        except OSError as err:
            found = err.strerror or str(err)
        if found != value:
            problems.append(f"net/{name} is {found}, not {value}")
    return problems


def result(answered: Result, netns: str, ifname: str) -> list[str]:
    """What the list's last answer says there is: interfaces with their MACs, the addresses on them,
    the routes of the pod."""
    with NetlinkSocket() as host:
        here = [entry for entry in answered.interfaces if not entry.sandbox]
        problems = [problem for entry in here for problem in _interface_problems(host, entry)]

    def look() -> list[str]:
        with NetlinkSocket() as pod:
            there = [entry for entry in answered.interfaces if entry.sandbox == netns]
            found = [problem for entry in there for problem in _interface_problems(pod, entry)]
            return found + _address_problems(pod, answered, netns, ifname) + _lost(pod, answered)

    try:
        return problems + run_in_namespace(netns, look)
    except ProgrammingFailed as err:
        return [*problems, f"netns {netns}: {err}"]


def _link(sock: NetlinkSocket, name: str) -> Link | None:
    try:
        return sock.query_one(get_link(name))
    except ProgrammingFailed:
        return None


def _host_end_problems(host: NetlinkSocket, link: Link | None, wanted: PodWire) -> list[str]:
    name = wanted.host_name
    if link is None:
        return [f"host interface {name} does not exist"]
    problems = [] if link.is_up else [f"host interface {name} is down"]
    if link.kind != "veth":
        problems.append(f"host interface {name} is no veth but {link.kind or 'something else'}")
    if link.mac != HOST_MAC:
        problems.append(f"host interface {name} has MAC {link.mac}, not {HOST_MAC}")
    if wanted.has_ipv6 and link.is_up and GATEWAY_V6 not in _addresses(host, link.ifindex):
        problems.append(f"the pod's gateway {GATEWAY_V6} is missing on {name}")
    return problems


def _addresses(sock: NetlinkSocket, ifindex: int) -> set[str]:
    """None on an interface that has gone since it was found: its other end's namespace went."""
    try:
        return {entry.address for entry in sock.query(list_addresses(ifindex=ifindex))}
    except ProgrammingFailed as err:
        if err.errno == errno.ENODEV:
            return set()
        raise


def _pod_problems(wanted: PodWire) -> tuple[Link | None, list[str]]:
    with NetlinkSocket() as pod:
        link = _link(pod, wanted.pod_name)
        if link is None:
            return None, [f"interface {wanted.pod_name} does not exist in the pod"]
        problems = [] if link.is_up else [f"interface {wanted.pod_name} is down"]
        if link.kind != "veth":
            problems.append(f"interface {wanted.pod_name} is no veth")
        present = _addresses(pod, link.ifindex)
        problems += [
            f"address {address} is missing on {wanted.pod_name}"
            for address in wanted.addresses
            if address not in present
        ]
        routes = _routes(pod)
        problems += [
            f"route {route.dst} is missing in the pod"
            for route in pod_routes(wanted, link.ifindex)
            if not _has(routes, route)
        ]
        return link, problems


def _routes(sock: NetlinkSocket) -> list[Route]:
    return [route for family in (AF_INET, AF_INET6) for route in sock.query(list_routes(family))]


def _has(routes: Iterable[Route], wanted: Route) -> bool:
    """A second network of a pod finds the gateway and default of the first, on another interface:
    then that one serves."""
    ways = [route for route in routes if route.dst == wanted.dst]
    gateways = {hop.gateway for route in ways for hop in route.nexthops}
    return any(hop.gateway in gateways for hop in wanted.nexthops)


def _route_problems(host: NetlinkSocket, address: str, link: Link) -> list[str]:
    try:
        used = host.query_one(resolve_route(address))
    except ProgrammingFailed as err:
        return [f"no route to {address}: {err}"]
    if link.ifindex in {hop.ifindex for hop in used.nexthops}:
        return []
    return [f"packets to {address} do not go to {link.name} (route {host_cidr(address)})"]


def _interface_problems(sock: NetlinkSocket, wanted: Interface) -> list[str]:
    link = _link(sock, wanted.name)
    where = "of the pod" if wanted.sandbox else "of the host"
    if link is None:
        return [f"interface {wanted.name} {where}, which prevResult names, does not exist"]
    if wanted.mac and wanted.mac.lower() != link.mac:
        return [f"interface {wanted.name} {where} has MAC {link.mac}, not {wanted.mac}"]
    return []


def _address_problems(pod: NetlinkSocket, answered: Result, netns: str, ifname: str) -> list[str]:
    problems = []
    for ip in answered.ips:
        name = ifname
        if ip.interface is not None:
            entry = answered.interfaces[ip.interface]
            if entry.sandbox != netns:
                continue
            name = entry.name
        link = _link(pod, name)
        address = ip.address.partition("/")[0]
        if link is not None and address not in _addresses(pod, link.ifindex):
            problems.append(f"address {address} of prevResult is missing on {name}")
    return problems


def _lost(pod: NetlinkSocket, answered: Result) -> list[str]:
    present = {route.dst for route in _routes(pod)}
    return [
        f"route {route.dst} of prevResult is missing in the pod"
        for route in answered.routes
        if route.dst not in present
    ]
