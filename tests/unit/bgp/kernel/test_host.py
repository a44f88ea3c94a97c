"""bgp.kernel.host: ways to next hops and local workloads, from listings and events."""

from __future__ import annotations

import pytest
from msgspec import structs

from bgp.kernel.host import HostView, Listing
from bgp.rib.nlri import parse
from bgp.rib.path import LocalRoute
from libcalico.netlink import (
    PROTO_BGP,
    PROTO_BOOT,
    PROTO_KERNEL,
    SCOPE_LINK,
    Address,
    AddressEvent,
    Link,
    LinkEvent,
    NextHop,
    Route,
    RouteEvent,
    RouteType,
)
from tests.unit.bgp.builders import packed

ETH0 = Link(2, "eth0", is_up=True, has_carrier=True)
ETH1 = Link(3, "eth1", is_up=True, has_carrier=True)
CALI = Link(9, "cali123", is_up=True, has_carrier=True)
ADDRESSES = (Address(2, "10.0.0.1/24"), Address(2, "fd00::1/64"))


def connected(cidr: str, ifindex: int = 2) -> Route:
    return Route(cidr, (NextHop(ifindex),), protocol=PROTO_KERNEL, scope=SCOPE_LINK)


def via(cidr: str, gateway: str, ifindex: int = 2, **changes) -> Route:
    return Route(cidr, (NextHop(ifindex, gateway),), **changes)


def workload(cidr: str, ifindex: int = 9, metric: int = 0) -> Route:
    return Route(cidr, (NextHop(ifindex),), protocol=PROTO_BOOT, scope=SCOPE_LINK, metric=metric)


def event(route: Route, *, removed: bool = False, replaced: bool = False) -> RouteEvent:
    return RouteEvent(route, removed, replaced, 0)


def changed(link: Link, **changes) -> Link:
    return structs.replace(link, **changes)


BASE = (connected("10.0.0.0/24"), connected("fd00::/64"))


def view(*routes: Route, links: tuple[Link, ...] = (ETH0, ETH1, CALI)) -> HostView:
    made = HostView(table=254, own_protocol=PROTO_BGP, workload_prefixes=("cali",))
    made.load(Listing(links, ADDRESSES, (*BASE, *routes)))
    return made


@pytest.mark.parametrize("address", ["10.0.0.7", "fd00::7"])
def test_a_neighbour_on_the_link_is_its_own_gateway(address):
    assert view().resolve(packed(address)) == (NextHop(2, address),)


@pytest.mark.parametrize("address", ["10.0.0.1", "fd00::1"])
def test_our_own_address_leads_nowhere(address):
    assert view().resolve(packed(address)) == ()


def test_further_away_the_gateway_is_the_routers():
    assert view(via("0.0.0.0/0", "10.0.0.254")).resolve(packed("192.0.2.1")) == (
        NextHop(2, "10.0.0.254"),
    )
    assert view().resolve(packed("192.0.2.1")) == ()
    assert view(via("::/0", "fd00::fe")).resolve(packed("2001:db8::1")) == (NextHop(2, "fd00::fe"),)


def test_the_longest_match_and_the_lowest_metric_win():
    host = view(
        via("0.0.0.0/0", "10.0.0.254"),
        via("192.0.2.0/24", "10.0.0.253", metric=20),
        via("192.0.2.0/24", "10.0.0.252", metric=10),
    )
    assert host.resolve(packed("192.0.2.1")) == (NextHop(2, "10.0.0.252"),)


def test_a_route_of_several_ways_gives_several():
    hops = (NextHop(2, "10.0.0.253"), NextHop(3, "10.1.0.253"))
    host = view(Route("192.0.2.0/24", hops))
    assert host.resolve(packed("192.0.2.1")) == hops


def test_a_bare_host_route_needs_the_onlink_flag():
    assert view(connected("192.0.2.1/32")).resolve(packed("192.0.2.1")) == (
        NextHop(2, "192.0.2.1", is_onlink=True),
    )


def test_our_own_routes_never_carry_each_other():
    host = view(via("192.0.2.0/24", "10.0.0.7", protocol=PROTO_BGP, metric=1024))
    assert host.resolve(packed("192.0.2.1")) == ()
    host.apply(event(via("192.0.2.0/24", "10.0.0.7", protocol=PROTO_BGP)))
    assert host.resolve(packed("192.0.2.1")) == ()


def test_other_tables_are_not_ours_to_follow():
    assert view(via("192.0.2.0/24", "10.0.0.7", table=100)).resolve(packed("192.0.2.1")) == ()


def test_what_somebody_wants_gone_is_gone():
    host = view(via("0.0.0.0/0", "10.0.0.254"), Route("192.0.2.0/24", type=RouteType.BLACKHOLE))
    assert host.resolve(packed("192.0.2.1")) == ()


@pytest.mark.parametrize(
    "link",
    [Link(2, "eth0"), Link(2, "eth0", is_up=True), Link(5, "other", is_up=True, has_carrier=True)],
    ids=["down", "no carrier", "gone"],
)
def test_a_dead_link_carries_nothing(link):
    assert view(links=(link,)).resolve(packed("10.0.0.7")) == ()


def test_behind_a_dead_way_the_next_best_is_taken():
    dead = NextHop(3, "10.1.0.1", is_dead=True)
    host = view(via("0.0.0.0/0", "10.0.0.254"), Route("192.0.2.0/24", (dead,)))
    assert host.resolve(packed("192.0.2.1")) == (NextHop(2, "10.0.0.254"),)


def test_events_keep_the_mirror_true():
    host = view()
    host.affected([])
    route = via("192.0.2.0/24", "10.0.0.254")
    near, far = packed("10.0.0.7"), packed("192.0.2.1")
    host.apply(event(route))
    assert host.affected([near, far]) == [far]
    assert host.affected([near, far]) == []
    assert host.resolve(far) == (NextHop(2, "10.0.0.254"),)
    host.apply(event(route, removed=True))
    host.apply(event(route, removed=True))
    assert host.resolve(far) == ()


def test_a_listing_puts_everything_in_question():
    host, hop = view(), packed("10.0.0.7")
    assert host.affected([hop]) == [hop]
    assert host.affected([hop]) == []
    host.load(Listing())
    assert host.affected([hop]) == [hop]
    assert host.resolve(hop) == ()


@pytest.mark.parametrize(
    ("change", "asks"),
    [
        (LinkEvent(ETH0, False, 0), False),
        (LinkEvent(Link(2, "eth0"), False, 0), True),
        (LinkEvent(ETH0, True, 0), True),
        (LinkEvent(Link(7, "new"), True, 0), False),
        (LinkEvent(Link(7, "new"), False, 0), False),
        (LinkEvent(Link(7, "eth0"), False, 0), True),
        (LinkEvent(changed(ETH0, group=7, alias="x"), False, 0), False),
        (LinkEvent(changed(CALI, name="cali4"), False, 0), True),
        (LinkEvent(changed(CALI, mtu_bytes=9), False, 0), True),
        (LinkEvent(changed(CALI, master=2), False, 0), True),
        (LinkEvent(changed(CALI, is_up=False), False, 0), False),
        (LinkEvent(changed(CALI, has_carrier=False), False, 0), False),
        (LinkEvent(CALI, True, 0), False),
        (AddressEvent(Address(2, "10.0.0.9/24"), False, 0), False),
        (AddressEvent(Address(2, "10.0.0.1/24"), True, 0), True),
        (AddressEvent(Address(2, "10.0.0.9/24"), True, 0), False),
        (AddressEvent(Address(9, "fe80::9/64"), True, 0), False),
        (AddressEvent(Address(2, "fe80::9/64"), True, 0), True),
        (AddressEvent(Address(9, "fd00::9/64"), True, 0), True),
    ],
    ids=str,
)
def test_what_asks_for_a_listing(change, asks):
    host = view()
    for known in (Address(2, "fe80::9/64"), Address(9, "fe80::9/64"), Address(9, "fd00::9/64")):
        host.apply(AddressEvent(known, False, 0))
    host.apply(change)
    assert host.needs_listing is asks
    host.load(Listing())
    assert not host.needs_listing


def test_a_pods_link_takes_its_routes_along():
    host = view(
        workload("10.65.0.5/32"), workload("fd65::5/128"), via("10.66.0.0/16", "10.65.0.5", 9)
    )
    behind = packed("10.66.0.1")
    host.affected([])
    host.take_workload_changes()
    assert host.resolve(behind) == (NextHop(9, "10.65.0.5"),)
    for down in (LinkEvent(changed(CALI, is_up=False), False, 0), LinkEvent(CALI, True, 0)):
        host.apply(down)
        assert host.take_fallen_links() == {9}
        assert host.workloads == {}
        assert host.resolve(behind) == ()
    assert host.affected([behind, packed("10.0.0.7")]) == [behind]
    assert host.take_workload_changes() == {WORKLOAD, parse("fd65::5/128")}
    assert host.take_fallen_links() == set()


def test_a_pods_link_without_carrier_carries_nothing_but_stays_a_way():
    host = view(via("10.66.0.0/16", "10.65.0.5", 9), via("0.0.0.0/0", "10.0.0.254"))
    behind, before = packed("10.66.0.1"), (NextHop(9, "10.65.0.5"),)
    for has_carrier, hops in ((False, (NextHop(2, "10.0.0.254"),)), (True, before)):
        host.affected([])
        host.apply(LinkEvent(changed(CALI, has_carrier=has_carrier), False, 0))
        assert host.affected([behind]) == [behind]
        assert host.resolve(behind) == hops
    assert host.take_fallen_links() == set()


def test_a_new_link_and_its_routes_need_no_listing():
    host = view()
    host.take_workload_changes()
    for new in (Link(7, "cali7"), Link(7, "cali7", is_up=True, has_carrier=True)):
        host.apply(LinkEvent(new, False, 0))
    host.apply(event(workload("10.65.0.5/32", ifindex=7)))
    assert host.workloads == {WORKLOAD: LocalRoute("workload", 0, "cali7")}
    assert host.take_workload_changes() == {WORKLOAD}


def test_an_address_is_ours_until_the_last_link_gives_it_up():
    host, ours = view(), packed("fe80::9")
    for ifindex in (9, 2):
        host.apply(AddressEvent(Address(ifindex, "fe80::9/64"), False, 0))
    host.apply(AddressEvent(Address(9, "fe80::9/64"), False, 0))
    host.apply(AddressEvent(Address(9, "fe80::9/64"), True, 0))
    assert host.dump()["own_addresses"] == 3
    host.affected([])
    host.apply(event(Route("fe80::/10", (NextHop(2),))))
    assert host.resolve(packed("fe80::1")) == (), "no next hop is link-local"
    host.apply(AddressEvent(Address(9, "10.0.0.7/32"), False, 0))
    neighbour = packed("10.0.0.7")
    assert host.affected([neighbour, packed("10.0.0.8"), ours]) == [neighbour]
    assert host.resolve(neighbour) == ()
    host.apply(LinkEvent(CALI, True, 0))
    assert host.affected([neighbour]) == [neighbour]
    assert host.resolve(neighbour) == (NextHop(2, "10.0.0.7"),)


@pytest.mark.parametrize(
    ("change", "asks"),
    [
        (event(via("192.0.2.0/24", "10.0.0.2", protocol=PROTO_BGP), replaced=True), True),
        (event(via("192.0.2.0/24", "10.0.0.2", protocol=PROTO_BGP)), False),
        (event(via("192.0.3.0/24", "10.0.0.2", protocol=PROTO_BGP), replaced=True), False),
        (event(via("192.0.2.0/24", "10.0.0.2", table=9), replaced=True), False),
        (event(via("192.0.2.0/24", "10.0.0.2")), True),
        (event(via("192.0.2.0/24", "10.0.0.2"), removed=True), True),
        (event(via("192.0.2.0/24", "10.0.0.254"), removed=True), False),
    ],
)
def test_routes_of_one_rank_that_are_told_apart_by_a_listing(change, asks):
    host = view(via("192.0.2.0/24", "10.0.0.254"))
    host.apply(change)
    assert host.needs_listing is asks


WORKLOAD = parse("10.65.0.5/32")


def test_workloads_are_routes_out_of_their_interfaces():
    host = view(
        workload("10.65.0.5/32"),
        workload("fd65::5/128", metric=1024),
        workload("10.65.0.6/32", metric=512),
        workload("10.65.0.7/32", ifindex=2),  # not a workload's
        via("10.65.0.8/32", "10.65.0.5", ifindex=9),  # behind a workload
        workload("fe80::/64"),
    )
    assert host.workloads == {
        WORKLOAD: LocalRoute("workload", 0, "cali123"),
        parse("fd65::5/128"): LocalRoute("workload", 1024, "cali123"),
        parse("10.65.0.6/32"): LocalRoute("workload", 512, "cali123"),
    }
    assert host.take_workload_changes() == set(host.workloads)
    assert host.take_workload_changes() == set()


def test_workloads_come_and_go_with_events():
    host = view()
    host.apply(event(workload("10.65.0.5/32")))
    assert host.take_workload_changes() == {WORKLOAD}
    assert WORKLOAD in host.workloads
    host.apply(event(workload("10.65.0.5/32")))
    assert host.take_workload_changes() == set()
    host.apply(event(workload("10.65.0.5/32"), removed=True))
    assert host.take_workload_changes() == {WORKLOAD}
    assert host.workloads == {}


def test_workloads_that_vanished_from_a_listing_are_noticed():
    host = view(workload("10.65.0.5/32"))
    host.take_workload_changes()
    host.load(Listing((ETH0, CALI), ADDRESSES, BASE))
    assert host.take_workload_changes() == {WORKLOAD}
    assert host.workloads == {}


def test_other_prefixes_make_other_workloads():
    host = view(workload("10.65.0.5/32"), workload("10.65.0.6/32", ifindex=3))
    host.take_workload_changes()
    host.use_workload_prefixes(("eth1", "tap"))
    assert set(host.workloads) == {parse("10.65.0.6/32")}
    assert len(host.take_workload_changes()) == 2


def test_the_tunnel_is_found_by_name():
    host = view(links=(ETH0, Link(7, "tunl0", is_up=True), Link(8, "down0")))
    assert (host.ifindex_of("tunl0"), host.ifindex_of("down0"), host.ifindex_of("x")) == (7, 0, 0)
