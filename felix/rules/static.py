"""The base chains and what they share: where packets enter, in which order they are judged.

Layer: pure. Used by felix.dataplane.static_mgr.

    hook         priority  chain             what
    prerouting   -300      antispoof         a workload's packet must come from its own address
    forward        -2      egress-forward    egress policy of the sending workload
    forward        -1      ingress-forward   ingress policy of the receiving workload
    input          -2      egress-input      egress policy of a workload talking to this host
    input          -1      to-host           then defaultEndpointToHostAction
    postrouting   100      nat-outgoing      see nat.py

Two base chains per direction instead of mark bits: `accept` ends one base chain, so a packet
between two local workloads is judged by the sender's egress policy and then by the receiver's
ingress policy, and the second does not need to know how the first decided. Traffic of the host to
its own workloads is not policed (7.12), so nothing hangs on output.

  T1  packets that neither come from nor go to a workload interface meet two comparisons of an
      interface name and nothing else: the rest of the host is not ours;
  T2  a workload interface without an endpoint is closed in both directions, twice: no address is
      its own (antispoof) and no map has its name;
  T3  established and related packets are accepted before any policy (5.1.7), but after antispoof:
      a packet with a stolen source would match the connection of its rightful owner;
  T4  no mark, no other tables: nothing of the packet is changed outside NAT, but the DSCP of
      workloads that ask for it (qos.py). (Host endpoints use two bits of the mark: host.py.)

Source: datamodel 5.1 (7, 8), 5.4 (last line), 7.11, 7.12; RFC 4861 (ND), RFC 4890 4.4.
"""

from __future__ import annotations

from collections.abc import Iterable

from felix.rules.chain import (
    ACCEPT,
    DROP,
    BaseHook,
    Chain,
    Compare,
    CtState,
    Dispatch,
    Field,
    Hook,
    InState,
    Literal,
    Lookup,
    Match,
    Rule,
    goto,
    of_family,
    of_protocol,
    port_bytes,
)
from felix.rules.dispatch import EGRESS_MAP, INGRESS_MAP, SOURCE_NET_SETS, SOURCE_SETS
from felix.rules.match import ICMP_PROTOCOL, one_net
from felix.rules.policy import deny
from felix.rules.qos import PACKET_RATE_MAPS
from felix.rules.settings import HostAction, RuleSettings

PRIORITY_RAW = -300
PRIORITY_SENDER, PRIORITY_RECEIVER = -2, -1

FROM_WORKLOAD_RAW = "workload-source"
FROM_WORKLOAD = "from-workload"
TO_WORKLOAD = "to-workload"
WORKLOAD_TO_HOST = "workload-to-host"
WORKLOAD_EGRESS_INPUT = "from-workload-to-host"

_UDP, _IPIP = 17, 4
_LINK_LOCAL = (0xFE80 << 112, 10)
# Router advertisement and redirect: a workload is no router, and a host that believed one would
# send it everybody's traffic.
_ROUTER_MESSAGES = (134, 137)
# Multicast listener query, report, done; router solicitation; neighbour solicitation and
# advertisement: without them a workload has no neighbour (7.11).
_NEIGHBOUR_MESSAGES = (130, 131, 132, 133, 135, 136)
# What a host sends before it has an address: duplicate address detection, MLD reports (v1, v2).
_ADDRESSLESS_MESSAGES = (131, 132, 135, 143)
_DHCP = {4: (68, 67), 6: (546, 547)}  # client, server


def chains(settings: RuleSettings) -> tuple[Chain, ...]:
    """Everything that does not depend on an endpoint."""
    return (
        *_base_chains(settings),
        Chain(FROM_WORKLOAD_RAW, tuple(_source_rules(settings))),
        policing_chain("out", settings),
        policing_chain("in", settings),
        Chain(WORKLOAD_EGRESS_INPUT, tuple(_from_workload_to_host(settings))),
        Chain(WORKLOAD_TO_HOST, tuple(_to_host(settings))),
    )


def policing_chain(direction: str, settings: RuleSettings, *, has_rates: bool = False) -> Chain:
    """What all workloads share of egress ("out") or ingress ("in") policy.

    `has_rates`: some of them have a packet rate, so all are looked up (qos.py)."""
    is_egress = direction == "out"
    field = Field.IIFNAME if is_egress else Field.OIFNAME
    rates = (Rule((), (Dispatch((field,), PACKET_RATE_MAPS[direction].name),)),)
    rules = _from_workload(settings) if is_egress else _to_workload(settings)
    name = FROM_WORKLOAD if is_egress else TO_WORKLOAD
    return Chain(name, (*(rates if has_rates else ()), *rules))


def _base_chains(settings: RuleSettings) -> tuple[Chain, ...]:
    """One comparison per prefix, then the common part."""
    inbound, outbound = Field.IIFNAME, Field.OIFNAME
    return tuple(
        Chain(
            name,
            tuple(
                Rule((Compare(field, prefix.encode()),), (goto(target),))
                for prefix in settings.interface_prefixes
            ),
            BaseHook(hook, priority),
            comment,
        )
        for name, hook, priority, field, target, comment in (
            (
                "antispoof",
                Hook.PREROUTING,
                PRIORITY_RAW,
                inbound,
                FROM_WORKLOAD_RAW,
                "a workload uses its own addresses only",
            ),
            (
                "egress-forward",
                Hook.FORWARD,
                PRIORITY_SENDER,
                inbound,
                FROM_WORKLOAD,
                "egress policy of the sending workload",
            ),
            (
                "ingress-forward",
                Hook.FORWARD,
                PRIORITY_RECEIVER,
                outbound,
                TO_WORKLOAD,
                "ingress policy of the receiving workload",
            ),
            (
                "egress-input",
                Hook.INPUT,
                PRIORITY_SENDER,
                inbound,
                WORKLOAD_EGRESS_INPUT,
                "egress policy of a workload talking to this host",
            ),
            (
                "to-host",
                Hook.INPUT,
                PRIORITY_RECEIVER,
                inbound,
                WORKLOAD_TO_HOST,
                "defaultEndpointToHostAction",
            ),
        )
    )


# ---------------------------------------------------------------------------------- antispoof


def _source_rules(settings: RuleSettings) -> Iterable[Rule]:
    v4, v6 = of_family(4), of_family(6)
    yield Rule(
        icmpv6(_ROUTER_MESSAGES), (DROP,), "a workload is no router: no advertisements, redirects"
    )
    own = {4: (Field.IIFNAME, Field.IP4_SADDR), 6: (Field.IIFNAME, Field.IP6_SADDR)}
    for version, family in ((4, v4), (6, v6)):
        lookup = Lookup(own[version], SOURCE_SETS[version].name)
        yield Rule((family, lookup), (ACCEPT,), "its own address")
    if settings.allows_source_prefixes:
        for version, family in ((4, v4), (6, v6)):
            lookup = Lookup(own[version], SOURCE_NET_SETS[version].name)
            yield Rule((family, lookup), (ACCEPT,), "an allowed source prefix")
    # Never forwarded, so good for nothing but talking to its host.
    yield Rule((v6, one_net(Field.IP6_SADDR, *_LINK_LOCAL)), (ACCEPT,), "link-local")
    unspecified = Compare(Field.IP6_SADDR, b"\0" * 16)
    yield Rule(
        (v6, unspecified, *icmpv6(_ADDRESSLESS_MESSAGES)[1:]), (ACCEPT,), "still without address"
    )
    if settings.allows_dhcp_to_host:
        nobody = Compare(Field.IP4_SADDR, b"\0" * 4)
        yield Rule((v4, nobody, *_dhcp(4)[1:]), (ACCEPT,), "DHCP")
    yield Rule((), (DROP,), "not an address of this workload")


def icmpv6(types: tuple[int, ...]) -> tuple[Match, ...]:
    """ICMPv6 messages of these types."""
    literal = Literal(tuple(bytes([number]) for number in sorted(types)))
    return (
        of_family(6),
        of_protocol(ICMP_PROTOCOL[6]),
        Lookup((Field.ICMPV6_TYPE,), literal),
    )


def _dhcp(version: int) -> tuple[Match, ...]:
    client, server = _DHCP[version]
    return (
        of_family(version),
        of_protocol(_UDP),
        Compare(Field.TH_SPORT, port_bytes(client)),
        Compare(Field.TH_DPORT, port_bytes(server)),
    )


# ------------------------------------------------------------------------------------- policy


def conntrack_rules(settings: RuleSettings) -> Iterable[Rule]:
    """5.1.7. RELATED lets ICMP errors of allowed connections through."""
    yield Rule((InState(CtState.ESTABLISHED | CtState.RELATED),), (ACCEPT,))
    if settings.drops_invalid:
        yield Rule((InState(CtState.INVALID),), (DROP,))


def _from_workload(settings: RuleSettings) -> Iterable[Rule]:
    yield from conntrack_rules(settings)
    if not settings.allows_vxlan_from_workloads:
        port = Compare(Field.TH_DPORT, port_bytes(settings.vxlan_port))
        yield Rule((of_protocol(_UDP), port), (DROP,), "VXLAN from a workload")
    if not settings.allows_ipip_from_workloads:
        yield Rule((of_protocol(_IPIP),), (DROP,), "IP in IP from a workload")
    yield Rule((), (Dispatch((Field.IIFNAME,), EGRESS_MAP.name),))
    yield Rule((), deny(settings), "unknown workload interface")


def _to_workload(settings: RuleSettings) -> Iterable[Rule]:
    yield from conntrack_rules(settings)
    yield Rule((), (Dispatch((Field.OIFNAME,), INGRESS_MAP.name),))
    yield Rule((), deny(settings), "unknown workload interface")


# --------------------------------------------------------------------------- workload to host


def _needed_by_host(settings: RuleSettings) -> Iterable[Rule]:
    yield Rule(icmpv6(_NEIGHBOUR_MESSAGES), (ACCEPT,), "neighbour discovery")
    if settings.allows_dhcp_to_host:
        yield Rule(_dhcp(4), (ACCEPT,), "DHCP")
        yield Rule(_dhcp(6), (ACCEPT,), "DHCPv6")


def _from_workload_to_host(settings: RuleSettings) -> Iterable[Rule]:
    yield from _needed_by_host(settings)
    yield Rule((), (goto(FROM_WORKLOAD),))


def _to_host(settings: RuleSettings) -> Iterable[Rule]:
    """Only what egress policy has accepted comes here."""
    yield Rule((InState(CtState.ESTABLISHED | CtState.RELATED),), (ACCEPT,))
    yield from _needed_by_host(settings)
    if settings.endpoint_to_host is HostAction.DROP:
        yield Rule((), deny(settings), "defaultEndpointToHostAction")
    else:
        yield Rule((), (ACCEPT,), "defaultEndpointToHostAction")
