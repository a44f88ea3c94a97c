"""QoS controls of workloads in the filter: packet rates, connection limits, DSCP marks.

Layer: pure. Used by static.py (who looks up), endpoints.py, felix.dataplane.qos_rules. (Bandwidth
is not filtered but shaped: felix.dataplane.shaping_table.)

    from-workload  iifname vmap @packet-rate-egress  ──► packet-rate-out-<interface>
    to-workload    oifname vmap @packet-rate-ingress ──► packet-rate-in-<interface>
    (then conntrack; then the endpoint chain:)
    endpoint chain jump connections-<direction>-<interface>, then its tiers
    forward, 0     iifname vmap @dscp-egress         ──► dscp-<value>                  after policy

Whatever stands here exists only while a workload wants it: one without controls meets no rule more.

  K1  a packet rate counts every packet, established or not, before anything else is asked; what is
      over the rate is dropped;
  K2  a connection limit counts TCP connections that get as far as policy; one too many is reset. A
      chain of its own holds the counter, so that an edited policy does not forget the connections;
  K3  marked is what goes to an address outside all IP pools: what leaves the cluster. Traffic to
      the host itself is not forwarded and so not marked.

Source: Calico felix/rules/endpoints.go (endpointIptablesChain), static.go (egress-dscp).
"""

from __future__ import annotations

from felix.intent import DirectionLimits, QosControls
from felix.rules import names
from felix.rules.chain import (
    DADDR,
    DROP,
    IFNAME,
    BaseHook,
    Chain,
    Compare,
    Count,
    CountConnections,
    CtState,
    Dispatch,
    Field,
    Hook,
    InState,
    Limit,
    Lookup,
    Reject,
    Rule,
    SetDscp,
    of_family,
    of_protocol,
)
from felix.rules.nat import ALL_POOLS
from felix.rules.sets import SetSpec
from felix.rules.settings import RuleSettings

PRIORITY_AFTER_POLICY = 0
DSCP_BASE = "dscp"
PACKET_RATE_MAPS = {
    "out": SetSpec(
        "packet-rate-egress", (IFNAME,), verdicts=True, comment="what a workload sends: its rate"
    ),
    "in": SetSpec(
        "packet-rate-ingress", (IFNAME,), verdicts=True, comment="what a workload gets: its rate"
    ),
}
DSCP_MAP = SetSpec(
    "dscp-egress", (IFNAME,), verdicts=True, comment="what a workload sends: its mark"
)

_TCP = 6


def limits_of(controls: QosControls, direction: str) -> DirectionLimits:
    """`direction` is "out" (egress) or "in" (ingress)."""
    return controls.egress if direction == "out" else controls.ingress


def packet_rate_chain_name(direction: str, ifname: str) -> str:
    return names.interface_chain("packet-rate", direction, ifname)


def packet_rate_chain(direction: str, ifname: str, limits: DirectionLimits) -> Chain:
    """K1."""
    over = Limit(limits.packets_per_s, 1, limits.packet_burst, over=True)
    rule = Rule((), (over, Count(), DROP), f"over {limits.packets_per_s} packets a second")
    name = packet_rate_chain_name(direction, ifname)
    return Chain(name, (rule,), comment=f"packet rate of {ifname}")


def connections_chain_name(direction: str, ifname: str) -> str:
    return names.interface_chain("connections", direction, ifname)


def connections_chain(direction: str, ifname: str, limits: DirectionLimits) -> Chain:
    """K2."""
    rule = Rule(
        (of_protocol(_TCP), InState(CtState.NEW)),
        (CountConnections(limits.connections), Count(), Reject(tcp_reset=True)),
        f"more than {limits.connections} connections",
    )
    name = connections_chain_name(direction, ifname)
    return Chain(name, (rule,), comment=f"connections of {ifname}")


def dscp_chain_name(value: int) -> str:
    return f"dscp-{value}"


def dscp_chain(value: int) -> Chain:
    """K3."""
    rules = tuple(
        Rule(
            (of_family(version), Lookup((DADDR[version],), ALL_POOLS[version].name, negated=True)),
            (SetDscp(version, value),),
        )
        for version in (4, 6)
    )
    return Chain(dscp_chain_name(value), rules, comment="marks what leaves the cluster")


def dscp_base_chain(settings: RuleSettings) -> Chain:
    rules = tuple(
        Rule(
            (Compare(Field.IIFNAME, prefix.encode()),), (Dispatch((Field.IIFNAME,), DSCP_MAP.name),)
        )
        for prefix in settings.interface_prefixes
    )
    base = BaseHook(Hook.FORWARD, PRIORITY_AFTER_POLICY)
    return Chain(DSCP_BASE, rules, base, "DSCP of workloads that ask for one")
