"""NAT outgoing and floating addresses.

Layer: pure. Used by felix.dataplane.masq_mgr (outgoing) and endpoint_rules_mgr (floating).

Outgoing: what a workload of a pool with natOutgoing sends to an address outside all pools leaves
under the node's address. Pools change rarely and are sets, so no rule depends on them.

Floating (ipNATs, when FloatingIPs is Enabled): connections to the external address are sent to the
internal one, from outside (prerouting) and from the host itself (output); a workload that reaches
itself by its external address would see its own source, so that case gets the external one (of
several, the one that sorts first).

Source: Calico felix/rules/nat.go, dataplane/linux/masq_mgr.go, floating_ip_mgr.go.
"""

from __future__ import annotations

from collections.abc import Iterable

from felix.rules.chain import (
    DADDR,
    IPV4_ADDR,
    IPV6_ADDR,
    SADDR,
    Action,
    BaseHook,
    Chain,
    Compare,
    Field,
    Hook,
    Lookup,
    Masquerade,
    Match,
    NatByMap,
    Rule,
    SourceNat,
    ifname_bytes,
    of_family,
    of_protocol,
)
from felix.rules.match import PORT_PROTOCOLS
from felix.rules.sets import SetSpec, address_bytes, family_of, net_set
from felix.rules.settings import RuleSettings

PRIORITY_DNAT, PRIORITY_SNAT = -100, 100

NAT_POOLS = {
    version: net_set(f"nat-pools-{version}", version, "pools with natOutgoing")
    for version in (4, 6)
}
ALL_POOLS = {
    version: net_set(f"all-pools-{version}", version, "all IP pools") for version in (4, 6)
}
ALL_HOSTS = {version: net_set(f"all-hosts-{version}", version, "all nodes") for version in (4, 6)}
FLOATING = {
    4: SetSpec("floating-4", (IPV4_ADDR,), data=IPV4_ADDR, comment="external to internal"),
    6: SetSpec("floating-6", (IPV6_ADDR,), data=IPV6_ADDR, comment="external to internal"),
}
HAIRPINS = {
    4: SetSpec("hairpins-4", (IPV4_ADDR,), data=IPV4_ADDR, comment="internal to external"),
    6: SetSpec("hairpins-6", (IPV6_ADDR,), data=IPV6_ADDR, comment="internal to external"),
}
HAIRPIN_PAIRS = {
    4: SetSpec("hairpin-pairs-4", (IPV4_ADDR, IPV4_ADDR), comment="internal to itself"),
    6: SetSpec("hairpin-pairs-6", (IPV6_ADDR, IPV6_ADDR), comment="internal to itself"),
}
OUTGOING_SETS = (*NAT_POOLS.values(), *ALL_POOLS.values(), *ALL_HOSTS.values())
FLOATING_SETS = (*FLOATING.values(), *HAIRPINS.values(), *HAIRPIN_PAIRS.values())


def outgoing_chain(settings: RuleSettings) -> Chain:
    rules = [rule for version in (4, 6) for rule in _outgoing(version, settings)]
    base = BaseHook(Hook.POSTROUTING, PRIORITY_SNAT, "nat")
    return Chain("nat-outgoing", tuple(rules), base, "natOutgoing of IP pools")


def _outgoing(version: int, settings: RuleSettings) -> Iterable[Rule]:
    matches: list[Match] = [
        of_family(version),
        Lookup((SADDR[version],), NAT_POOLS[version].name),
        Lookup((DADDR[version],), ALL_POOLS[version].name, negated=True),
    ]
    if settings.nat_excludes_hosts:
        matches.append(Lookup((DADDR[version],), ALL_HOSTS[version].name, negated=True))
    if settings.nat_interface_filter:
        matches.append(_interface(settings.nat_interface_filter))
    if settings.nat_ports is not None:
        # Ports can only be chosen for protocols that have some.
        for protocol in PORT_PROTOCOLS:
            translate = _translate(version, settings, settings.nat_ports)
            yield Rule((*matches, of_protocol(protocol)), (translate,))
    yield Rule(tuple(matches), (_translate(version, settings, None),))


def _interface(pattern: str) -> Match:
    """iptables' notation: a trailing + is any ending."""
    if pattern.endswith("+"):
        return Compare(Field.OIFNAME, pattern[:-1].encode())
    return Compare(Field.OIFNAME, ifname_bytes(pattern))


def _translate(version: int, settings: RuleSettings, ports: tuple[int, int] | None) -> Action:
    address = settings.nat_outgoing_address
    if address is not None and family_of(address) == version:
        return SourceNat(address_bytes(address), ports)
    return Masquerade(ports)


def floating_chains() -> tuple[Chain, ...]:
    """The three places where floating addresses are translated."""
    inward = tuple(
        Rule((of_family(version),), (NatByMap(DADDR[version], FLOATING[version].name, False),))
        for version in (4, 6)
    )
    outward = tuple(
        Rule(
            (
                of_family(version),
                Lookup((SADDR[version], DADDR[version]), HAIRPIN_PAIRS[version].name),
            ),
            (NatByMap(SADDR[version], HAIRPINS[version].name, True),),
        )
        for version in (4, 6)
    )
    return (
        Chain("floating-in", inward, BaseHook(Hook.PREROUTING, PRIORITY_DNAT, "nat")),
        Chain("floating-host", inward, BaseHook(Hook.OUTPUT, PRIORITY_DNAT, "nat")),
        Chain("floating-self", outward, BaseHook(Hook.POSTROUTING, PRIORITY_SNAT - 1, "nat")),
    )
