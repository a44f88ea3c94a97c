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

from bgp.rib.nlri import FAMILIES, IPV4, IPV6, Family, Nlri, address_text
from bgp.rib.path import Path
from bgp.rib.policy import PRIORITY_BASE
from bgp.rib.prefix_match import Classifier, PrefixMatch
from libcalico.model.speaker import PoolExport, SpeakerConfig
from libcalico.netlink import NextHop, RouteType

TUNNEL = "tunl0"
# A LOCAL_PREF above this is a priority that Calico (or we) encoded, below it somebody's preference.
_ENCODED_ABOVE = 2**30
_IPIP_PROGRAMMED = frozenset({"Enabled", "EnabledIPIPOnly"})
_NO_ENCAP_PROGRAMMED = frozenset({"Enabled", "EnabledNoEncapOnly"})

_REMEMBERED = 4096
Resolve = Callable[[bytes], tuple[NextHop, ...]]


@dataclass(frozen=True, slots=True)
class Spec:
    """A kernel route but for its destination. Next hops are sorted: equal sets are equal."""

    metric: int
    nexthops: tuple[NextHop, ...] = ()
    type: RouteType = RouteType.UNICAST


class Decision:
    """Compiled from one speaker file. `tunnel` gives tunl0's index, 0 when there is none.

    The answer depends on family, paths and pool alone, so it is remembered for those; `forget`
    when a next hop leads elsewhere."""

    def __init__(
        self, config: SpeakerConfig, *, resolve: Resolve, tunnel: Callable[[], int]
    ) -> None:
        """Errors: ConfigError is not expected: the RIB's policy has compiled the same prefixes."""
        kernel = config.kernel
        self._metrics = {IPV4: kernel.metric_of(4), IPV6: kernel.metric_of(6)}
        self._mode = config.kernel.program_cluster_routes
        self._resolve = resolve
        self._tunnel = tunnel
        self._classifiers = {family: Classifier(family) for family in FAMILIES}
        self._pools: dict[Family, list[tuple[int, int, PoolExport]]] = {f: [] for f in FAMILIES}
        self._services = dict.fromkeys(FAMILIES, 0)
        for pool in config.pools:
            match = PrefixMatch.of(pool.cidr)
            bit = self._classifiers[match.family].add(match)
            self._pools[match.family].append((match.nlri[0], bit, pool))
        for cidr in config.service_cidrs:
            match = PrefixMatch.of(cidr)
            self._services[match.family] |= self._classifiers[match.family].add(match)
        self._known: dict[tuple[Family, Sequence[Path], int], Spec | None] = {}

    def forget(self) -> None:
        self._known.clear()

    def spec(self, family: Family, nlri: Nlri, paths: tuple[Path, ...]) -> Spec | None:
        """None: no route of ours."""
        if not paths:
            return None
        local = paths[0].local
        if local is not None:
            metric = self._metrics[family]
            return Spec(metric, type=RouteType.BLACKHOLE) if local.blackhole else None
        mask = self._classifiers[family].classify(nlri)
        key = (family, paths, mask)
        if key not in self._known:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[key] = self._learned(family, mask, paths)
        return self._known[key]

    def _learned(self, family: Family, mask: int, paths: Sequence[Path]) -> Spec | None:
        if mask & self._services[family]:
            return None
        found = [(length, pool) for length, bit, pool in self._pools[family] if mask & bit]
        ipip_mode = "Never"
        if found:
            pool = max(found, key=lambda item: item[0])[1]
            ipip_mode = pool.ipip_mode
            if not self._programs(pool):
                return None
        hops = self._hops(paths, ipip_mode)
        return Spec(self.metric(family, paths[0]), hops) if hops else None

    def metric(self, family: Family, path: Path) -> int:
        preference = path.attributes.local_pref
        if preference is not None and _ENCODED_ABOVE < preference < PRIORITY_BASE:
            return PRIORITY_BASE - preference
        return self._metrics[family]

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
