"""From interface to endpoint in one lookup: the maps and sets that are keyed by interface name.

Layer: pure. Used by static.py (who looks up) and felix.dataplane.endpoint_rules_mgr (who fills).

A new workload is one element in each of them and no rule at all, however many there are. A
workload interface that is in no map is dropped by the rule after the lookup (fail closed).
"""

from __future__ import annotations

from collections.abc import Iterable

from felix.rules.chain import IFNAME, IPV4_ADDR, IPV6_ADDR, ifname_bytes, key_of
from felix.rules.sets import ADDRESS_TYPE, BITS, SetSpec, outermost, parse_net

EGRESS_MAP = SetSpec(
    "dispatch-egress", (IFNAME,), verdicts=True, comment="what a workload sends: its egress policy"
)
INGRESS_MAP = SetSpec(
    "dispatch-ingress", (IFNAME,), verdicts=True, comment="what a workload gets: its ingress policy"
)
SOURCE_SETS = {
    4: SetSpec("sources-4", (IFNAME, IPV4_ADDR), comment="addresses of workloads"),
    6: SetSpec("sources-6", (IFNAME, IPV6_ADDR), comment="addresses of workloads"),
}
SOURCE_NET_SETS = {
    4: SetSpec(
        "source-nets-4", (IFNAME, IPV4_ADDR), interval=True, comment="allowed source prefixes"
    ),
    6: SetSpec(
        "source-nets-6", (IFNAME, IPV6_ADDR), interval=True, comment="allowed source prefixes"
    ),
}
ALL_SETS = (
    EGRESS_MAP,
    INGRESS_MAP,
    *SOURCE_SETS.values(),
    *SOURCE_NET_SETS.values(),
)


def source_elements(ifname: str, nets: Iterable[str], version: int) -> set[bytes]:
    """One element per address of the endpoint; wider nets belong into `source_net_elements`."""
    name = ifname_bytes(ifname)
    size = BITS[version] // 8
    return {
        key_of((IFNAME, name), (ADDRESS_TYPE[version], base.to_bytes(size, "big")))
        for family, base, length in map(parse_net, nets)
        if family == version and length == BITS[version]
    }


def source_net_elements(ifname: str, nets: Iterable[str], version: int) -> set[bytes]:
    """Interval elements: the same name at both ends, the first and last address of the net."""
    name = ifname_bytes(ifname)
    parsed = [net[1:] for net in map(parse_net, nets) if net[0] == version]
    elements = outermost(version, parsed)
    half = BITS[version] // 8
    return {name + element[:half] + name + element[half:] for element in elements}
