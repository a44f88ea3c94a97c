"""Which kernel route a selected path asks for, if any.

Layer: kernel side, pure. Used by bgp.kernel.side for every change of the RIB.

Own blocks become blackholes (not single addresses), workloads and service ranges nothing. A learned
route is programmed unless it lies in a service range or in a pool whose routes are felix's
(VXLAN always; IPIP and unencapsulated ones by programClusterRoutes). All reachable next hops of the
selected paths share the load.

Source: bgp reference 6 (kernel filter, programClusterRoutes, IPIP); Calico bgp_processor.go
(processIPPool, SetMetricForBGPRoutes).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_network

from bgp.rib.nlri import Family, Nlri, address_text, text
from bgp.rib.path import Path
from bgp.rib.policy import PRIORITY_BASE
from libcalico.model.speaker import PoolExport, SpeakerConfig
from libcalico.net import PrefixTrie
from libcalico.netlink import NextHop, RouteType

TUNNEL = "tunl0"
# A LOCAL_PREF above this is a priority that Calico (or we) encoded, below it somebody's preference.
_ENCODED_ABOVE = 2**30
_IPIP_PROGRAMMED = frozenset({"Enabled", "EnabledIPIPOnly"})
_NO_ENCAP_PROGRAMMED = frozenset({"Enabled", "EnabledNoEncapOnly"})

Resolve = Callable[[bytes], tuple[NextHop, ...]]


@dataclass(frozen=True, slots=True)
class Spec:
    """A kernel route but for its destination. Next hops are sorted: equal sets are equal."""

    metric: int
    nexthops: tuple[NextHop, ...] = ()
    type: RouteType = RouteType.UNICAST


class Decision:
    """Compiled from one speaker file. `tunnel` gives tunl0's index, 0 when there is none."""

    def __init__(
        self, config: SpeakerConfig, *, resolve: Resolve, tunnel: Callable[[], int]
    ) -> None:
        self._metric = config.kernel.metric
        self._mode = config.kernel.program_cluster_routes
        self._resolve = resolve
        self._tunnel = tunnel
        self._pools: PrefixTrie[PoolExport] = PrefixTrie()
        for pool in config.pools:
            self._pools.add(ip_network(pool.cidr, strict=False), pool)
        self._services: PrefixTrie[bool] = PrefixTrie()
        for cidr in config.service_cidrs:
            self._services.add(ip_network(cidr, strict=False), True)

    def spec(self, family: Family, nlri: Nlri, paths: Sequence[Path]) -> Spec | None:
        """None: no route of ours."""
        if not paths:
            return None
        local = paths[0].local
        if local is not None:
            return Spec(self._metric, type=RouteType.BLACKHOLE) if local.blackhole else None
        network = ip_network(text(family, nlri))
        if self._services.covering(network) is not None:
            return None
        found = self._pools.covering(network)
        ipip_mode = found[1].ipip_mode if found is not None else "Never"
        if found is not None and not self._programs(found[1]):
            return None
        hops = self._hops(paths, ipip_mode)
        if not hops:
            return None
        return Spec(self.metric(paths[0]), hops)

    def metric(self, path: Path) -> int:
        preference = path.attributes.local_pref
        if preference is not None and _ENCODED_ABOVE < preference < PRIORITY_BASE:
            return PRIORITY_BASE - preference
        return self._metric

    def _programs(self, pool: PoolExport) -> bool:
        if pool.vxlan_mode != "Never":
            return False
        modes = _NO_ENCAP_PROGRAMMED if pool.ipip_mode == "Never" else _IPIP_PROGRAMMED
        return self._mode in modes

    def _hops(self, paths: Sequence[Path], ipip_mode: str) -> tuple[NextHop, ...]:
        found: dict[NextHop, None] = {}
        for path in paths:
            packed = path.attributes.next_hop
            for hop in self._encapsulated(packed, self._resolve(packed), ipip_mode):
                found[hop] = None
        return tuple(sorted(found, key=_order))

    def _encapsulated(
        self, packed: bytes, hops: tuple[NextHop, ...], ipip_mode: str
    ) -> tuple[NextHop, ...]:
        if ipip_mode == "Never" or not hops:
            return hops
        gateway = address_text(packed)
        if ipip_mode == "CrossSubnet" and all(hop.gateway == gateway for hop in hops):
            return hops
        tunnel = self._tunnel()
        return (NextHop(tunnel, gateway, is_onlink=True),) if tunnel else ()


def _order(hop: NextHop) -> tuple[str, int]:
    return hop.gateway, hop.ifindex
