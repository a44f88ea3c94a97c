"""bgp.kernel.decision: which kernel route a selected path asks for."""

from __future__ import annotations

import pytest

from bgp.kernel.decision import Decision, Spec
from bgp.rib.attributes import PathAttributes
from bgp.rib.nlri import parse
from bgp.rib.path import LOCAL, LocalRoute, Path, Source
from libcalico.model.speaker import KernelExport, PoolExport
from libcalico.netlink import NextHop, RouteType
from tests.unit.bgp.builders import config, packed, route

DIRECT, ROUTED = (NextHop(2, "10.0.0.2"),), (NextHop(2, "10.0.0.254"),)
HOPS = {
    packed("10.0.0.2"): DIRECT,
    packed("10.0.0.3"): (NextHop(2, "10.0.0.3"),),
    packed("192.0.2.2"): ROUTED,
}
PEER = Source("p", packed("10.0.0.2"), local_as=1, remote_as=1)
POOLS = (
    PoolExport(cidr="10.65.0.0/16"),
    PoolExport(cidr="10.66.0.0/16", vxlan_mode="Always"),
    PoolExport(cidr="10.67.0.0/16", ipip_mode="Always"),
    PoolExport(cidr="10.68.0.0/16", ipip_mode="CrossSubnet"),
    PoolExport(cidr="10.69.0.0/16", vxlan_mode="CrossSubnet"),
)


def decide(cidr: str, *paths: Path, mode: str = "EnabledNoEncapOnly", tunnel: int = 7):
    made = config(
        pools=POOLS,
        service_cidrs=("10.96.0.0/12",),
        kernel=KernelExport(program_cluster_routes=mode),
    )
    decision = Decision(made, resolve=lambda hop: HOPS.get(hop, ()), tunnel=lambda: tunnel)
    family, nlri = parse(cidr)
    return decision.spec(family, nlri, paths)


def learned(next_hop: str = "10.0.0.2", **changes) -> Path:
    return Path(PEER, route(next_hop, **changes))


def local(kind: str, *, blackhole: bool = False) -> Path:
    return Path(LOCAL, PathAttributes(), local=LocalRoute(kind, blackhole=blackhole))


def test_nothing_selected_nothing_programmed():
    assert decide("10.65.0.0/26") is None


def test_own_blocks_are_black_holes():
    assert decide("10.65.0.0/26", local("block", blackhole=True)) == Spec(
        1024, type=RouteType.BLACKHOLE
    )
    for path in (local("block"), local("workload"), local("service")):
        assert decide("10.65.0.0/26", path) is None


def test_a_learned_route_goes_where_its_next_hop_is():
    assert decide("10.65.0.0/26", learned()) == Spec(1024, DIRECT)
    assert decide("10.65.0.0/26", learned("192.0.2.2")) == Spec(1024, ROUTED)
    assert decide("172.16.0.0/12", learned()) == Spec(1024, DIRECT)  # outside all pools
    assert decide("10.65.0.0/26", learned("203.0.113.9")) is None


def test_all_selected_paths_share_the_load():
    found = decide("10.65.0.0/26", learned("10.0.0.3"), learned("10.0.0.2"), learned("203.0.113.9"))
    assert found == Spec(1024, (NextHop(2, "10.0.0.2"), NextHop(2, "10.0.0.3")))


def test_two_next_hops_behind_one_router_are_one():
    HOPS[packed("192.0.2.3")] = ROUTED
    assert decide("10.65.0.0/26", learned("192.0.2.2"), learned("192.0.2.3")) == Spec(1024, ROUTED)


def test_service_ranges_are_announced_and_not_programmed():
    assert decide("10.96.0.0/12", learned()) is None
    assert decide("10.96.0.7/32", learned()) is None


@pytest.mark.parametrize(
    ("preference", "metric"),
    [
        (100, 1024),
        (None, 1024),
        (2**31 - 1 - 1024, 1024),
        (2**31 - 1 - 512, 512),
        (2**31 - 1, 1024),
        (2**32 - 1, 1024),
    ],
)
def test_priorities_become_metrics(preference, metric):
    found = decide("10.65.0.0/26", learned(local_pref=preference))
    assert found is not None
    assert found.metric == metric


def test_each_family_has_its_own_metric():
    made = config(kernel=KernelExport(metric=500, metric_v6=600))
    decision = Decision(made, resolve=lambda hop: DIRECT, tunnel=lambda: 0)
    path = learned()
    for cidr, metric in (("10.65.0.0/26", 500), ("fd65::/122", 600), ("10.65.0.0/26", 500)):
        family, nlri = parse(cidr)
        assert decision.spec(family, nlri, (path,)) == Spec(metric, DIRECT)
        own = decision.spec(family, nlri, (local("block", blackhole=True),))
        assert own == Spec(metric, type=RouteType.BLACKHOLE)


TUNNEL = Spec(1024, (NextHop(7, "10.0.0.2", is_onlink=True),))
DIVISION = {
    # pool: (Disabled, EnabledNoEncapOnly, EnabledIPIPOnly, Enabled)
    "10.65.0.0/26": (None, Spec(1024, DIRECT), None, Spec(1024, DIRECT)),
    "10.66.0.0/26": (None, None, None, None),
    "10.67.0.0/26": (None, None, TUNNEL, TUNNEL),
    "10.68.0.0/26": (None, None, Spec(1024, DIRECT), Spec(1024, DIRECT)),
    "10.69.0.0/26": (None, None, None, None),
}


@pytest.mark.parametrize("cidr", DIVISION)
def test_the_division_of_labour_with_felix(cidr):
    modes = ("Disabled", "EnabledNoEncapOnly", "EnabledIPIPOnly", "Enabled")
    assert tuple(decide(cidr, learned(), mode=mode) for mode in modes) == DIVISION[cidr]


def test_across_subnets_the_tunnel_is_needed():
    found = decide("10.68.0.0/26", learned("192.0.2.2"), mode="Enabled")
    assert found == Spec(1024, (NextHop(7, "192.0.2.2", is_onlink=True),))
    assert decide("10.68.0.0/26", learned("192.0.2.2"), mode="Enabled", tunnel=0) is None
