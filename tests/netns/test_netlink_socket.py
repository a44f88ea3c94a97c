"""libcalico.netlink against a real kernel."""

from __future__ import annotations

import errno
import os

import pytest

from libcalico.errors import DumpInterrupted, ProgrammingFailed
from libcalico.netlink import (
    AF_INET,
    AF_INET6,
    PROTO_BGP,
    PROTO_BOOT,
    Address,
    Link,
    LinkChange,
    Neighbour,
    NetlinkSocket,
    NextHop,
    Query,
    Route,
    RouteFilter,
    RouteTemplate,
    RouteType,
    VethEnd,
    add_route,
    append_route,
    change_link,
    create_veth,
    delete_address,
    delete_group,
    delete_link,
    delete_neighbour,
    delete_route,
    device_route,
    get_link,
    list_addresses,
    list_links,
    list_neighbours,
    list_routes,
    replace_route,
    resolve_route,
    set_address,
    set_neighbour,
)
from libcalico.netlink import socket as socket_module
from libcalico.netlink.link import IPV4_PROXY_ARP, IPV4_ROUTE_LOCALNET
from libcalico.netlink.messages import Message
from libcalico.netlink.route import MAIN_TABLE
from tests.support.netns import Namespace, NamespaceSet, add_addresses, connect


@pytest.fixture
def wired(netns: NamespaceSet) -> tuple[Namespace, Link]:
    """A namespace whose eth0 is up and has carrier and addresses of both families."""
    node, other = netns.make("a"), netns.make("b")
    connect(node, "eth0", other, "eth0")
    add_addresses(node, "eth0", "192.0.2.1/24", "2001:db8::1/64")
    add_addresses(other, "eth0", "192.0.2.2/24", "2001:db8::2/64")
    return node, node.link("eth0")


def routes(namespace: Namespace, family: int, wanted: RouteFilter = MAIN_TABLE) -> list[Route]:
    return namespace.socket.query(list_routes(family, wanted))


def shapes(ifindex: int) -> dict[str, Route]:
    """Every shape of route that felix and calico-bgp program."""
    over = NextHop(ifindex)
    return {
        "device-v4": device_route("10.65.0.1/32", ifindex, protocol=PROTO_BOOT, metric=1024),
        "device-v6": device_route("fd00::1/128", ifindex, protocol=PROTO_BOOT, metric=1024),
        "device-metric-0": device_route("fd00::2/128", ifindex, protocol=PROTO_BOOT),
        "gateway-v4": Route(
            "10.66.0.0/26", (NextHop(ifindex, "192.0.2.2"),), protocol=PROTO_BGP, metric=1024
        ),
        "gateway-v6": Route(
            "fd66::/122", (NextHop(ifindex, "2001:db8::2"),), protocol=PROTO_BGP, metric=1024
        ),
        "onlink-v4": Route(
            "10.67.0.0/26", (NextHop(ifindex, "198.51.100.9", is_onlink=True),), protocol=80
        ),
        "v4-over-v6": Route("10.68.0.0/26", (NextHop(ifindex, "2001:db8::2"),), metric=7),
        "blackhole-v4": Route("10.69.0.0/26", type=RouteType.BLACKHOLE, protocol=PROTO_BGP),
        "blackhole-v6": Route("fd69::/122", type=RouteType.BLACKHOLE, protocol=PROTO_BGP, metric=9),
        "multipath-v4": Route(
            "10.70.0.0/26",
            (NextHop(ifindex, "192.0.2.2", weight=3), NextHop(ifindex, "192.0.2.3")),
            protocol=PROTO_BGP,
        ),
        "multipath-v6": Route(
            "fd70::/122",
            (NextHop(ifindex, "2001:db8::2", weight=3), NextHop(ifindex, "2001:db8::3")),
            protocol=PROTO_BGP,
            metric=1024,
        ),
        "table-1000": Route("10.71.0.0/26", (over,), scope=253, table=1000),
        "source-v4": Route("10.72.0.0/26", (over,), scope=253, source="192.0.2.1"),
        "default-v6": Route("::/0", (NextHop(ifindex, "2001:db8::2"),), metric=2048),
    }


@pytest.mark.parametrize("shape", shapes(1))
def test_a_route_comes_back_as_it_was_programmed_and_goes_again(wired, shape):
    node, link = wired
    route = shapes(link.ifindex)[shape]
    only = RouteFilter(table=route.table)
    before = routes(node, route.family, only)
    node.socket.execute(replace_route(route))
    added = [found for found in routes(node, route.family, only) if found not in before]
    assert added == [route.canonical()]
    with pytest.raises(ProgrammingFailed) as refused:
        node.socket.execute(add_route(route))
    assert refused.value.errno == errno.EEXIST
    node.socket.execute(delete_route(route.canonical()))
    assert routes(node, route.family, only) == before
    with pytest.raises(ProgrammingFailed) as missing:
        node.socket.execute(delete_route(route.canonical()))
    assert missing.value.errno == errno.ESRCH


def test_replace_overwrites_the_same_metric_whatever_the_protocol(wired):
    """The trap that `Route` warns of: why a driver looks at a dump before it writes."""
    node, link = wired
    foreign = Route("10.9.0.0/24", (NextHop(link.ifindex, "192.0.2.2"),), protocol=4, metric=50)
    ours = device_route("10.9.0.0/24", link.ifindex, protocol=PROTO_BOOT, metric=50)
    node.socket.execute(replace_route(foreign), replace_route(ours))
    assert [r for r in routes(node, AF_INET) if r.dst == "10.9.0.0/24"] == [ours]


def test_delete_leaves_a_route_of_another_protocol_alone(wired):
    node, link = wired
    foreign = device_route("10.9.0.0/24", link.ifindex, protocol=4, metric=50)
    ours = device_route("10.9.0.0/24", link.ifindex, protocol=PROTO_BOOT, metric=50)
    node.socket.execute(replace_route(foreign))
    refused = node.socket.transact([delete_route(ours)])
    assert refused[0].errno == errno.ESRCH
    assert foreign in routes(node, AF_INET)


def test_an_appended_ipv6_route_becomes_a_second_next_hop(wired):
    node, link = wired
    first = Route("fd00:5::/64", (NextHop(link.ifindex, "2001:db8::2"),), metric=1024)
    second = Route("fd00:5::/64", (NextHop(link.ifindex, "2001:db8::3"),), metric=1024)
    node.socket.execute(add_route(first), append_route(second))
    both = first.nexthops + second.nexthops
    assert [r.nexthops for r in routes(node, AF_INET6) if r.dst == "fd00:5::/64"] == [both]


def test_a_refused_message_does_not_stop_the_others_of_its_batch(wired):
    node, link = wired
    good = [device_route(f"10.5.0.{n}/32", link.ifindex, protocol=PROTO_BOOT) for n in range(3)]
    batch = [
        replace_route(good[0]),
        replace_route(device_route("10.5.1.1/32", 4711, protocol=PROTO_BOOT)),
        replace_route(good[1]),
        add_route(Route("10.5.1.1/24", type=RouteType.BLACKHOLE)),
        replace_route(good[2]),
    ]
    failures = node.socket.transact(batch)
    assert {index: failure.errno for index, failure in failures.items()} == {
        1: errno.ENODEV,
        3: errno.EINVAL,
    }
    assert "prefix length" in failures[3].detail, "the kernel's own words (NETLINK_EXT_ACK)"
    assert set(routes(node, AF_INET, RouteFilter(protocol=PROTO_BOOT))) == set(good)


def test_thousands_of_refusals_are_each_mapped_to_their_message(wired):
    node, link = wired
    sample = device_route("10.6.0.0/32", link.ifindex, protocol=PROTO_BOOT)
    add = RouteTemplate(add_route, sample)
    prefixes = [bytes([10, 6, n >> 8, n & 255]) for n in range(3000)]
    assert node.socket.transact_messages([add.encode(p) for p in prefixes[::2]]) == {}
    refusals = node.socket.transact_messages([add.encode(p) for p in prefixes])
    assert set(refusals) == set(range(0, 3000, 2))
    assert {refusal.errno for refusal in refusals.values()} == {errno.EEXIST}
    assert len(routes(node, AF_INET, RouteFilter(protocol=PROTO_BOOT))) == 3000
    delete = RouteTemplate(delete_route, sample)
    assert node.socket.transact_messages([delete.encode(p) for p in prefixes]) == {}
    assert routes(node, AF_INET, RouteFilter(protocol=PROTO_BOOT)) == []


def test_dump_filters_select(wired):
    node, link = wired
    everything = shapes(link.ifindex)
    node.socket.execute(*(replace_route(route) for route in everything.values()))
    bgp = {r.canonical() for r in everything.values() if r.protocol == PROTO_BGP}
    for family in (AF_INET, AF_INET6):
        mine = {r for r in bgp if r.family == family}
        assert set(routes(node, family, RouteFilter(protocol=PROTO_BGP))) == mine
        holes = {r for r in mine if r.type == RouteType.BLACKHOLE}
        assert set(routes(node, family, RouteFilter(type=RouteType.BLACKHOLE))) == holes
        assert routes(node, family, RouteFilter(ifindex=4711)) == []
    assert routes(node, AF_INET, RouteFilter(table=4242)) == [], "a table never used is empty"


def test_resolve_route_tells_where_a_packet_would_go(wired):
    node, link = wired
    found = node.socket.query_one(resolve_route("192.0.2.77"))
    assert found.nexthops == (NextHop(link.ifindex),)
    assert found.source == "192.0.2.1"
    with pytest.raises(ProgrammingFailed) as refused:
        node.socket.query_one(resolve_route("203.0.113.1"))
    assert refused.value.errno == errno.ENETUNREACH


def test_a_veth_pair_is_made_across_namespaces_in_one_message(netns):
    node, pod = netns.make("node"), netns.make("pod")
    fd = os.open(pod.path, os.O_RDONLY)
    try:
        near = VethEnd("cali1", "ee:ee:ee:ee:ee:ee", 1440)
        node.socket.execute(create_veth(near, VethEnd("eth0", "02:00:00:00:00:07", 1440, fd)))
        again = node.socket.transact([create_veth(near, VethEnd("eth0", netns_fd=fd))])
    finally:
        os.close(fd)
    assert again[0].errno == errno.EEXIST
    host, inside = node.link("cali1"), pod.link("eth0")
    assert (host.kind, host.mac, host.mtu_bytes) == ("veth", "ee:ee:ee:ee:ee:ee", 1440)
    assert (inside.mac, inside.mtu_bytes, inside.peer_ifindex) == (
        "02:00:00:00:00:07",
        1440,
        host.ifindex,
    )
    assert (host.is_up, host.is_running) == (True, False), "no carrier until the far end is up"
    pod.socket.execute(change_link("eth0", LinkChange(is_up=True)))
    assert node.link("cali1").is_running
    node.socket.execute(delete_link("cali1"))
    with pytest.raises(ProgrammingFailed) as gone:
        pod.link("eth0")
    assert gone.value.errno == errno.ENODEV


def test_link_changes_take_effect(wired):
    node, link = wired
    change = LinkChange(
        mac="02:00:00:00:00:99",
        mtu_bytes=1300,
        group=77,
        alias="pod web-0",
        ipv4_conf=((IPV4_PROXY_ARP, 1), (IPV4_ROUTE_LOCALNET, 1)),
    )
    node.socket.execute(change_link(link.ifindex, change))
    now = node.link("eth0")
    assert (now.mac, now.mtu_bytes, now.group, now.alias) == (
        "02:00:00:00:00:99",
        1300,
        77,
        "pod web-0",
    )
    assert node.sysctl("net/ipv4/conf/eth0/proxy_arp") == "1"
    assert node.sysctl("net/ipv4/conf/eth0/route_localnet") == "1"
    node.socket.execute(change_link("eth0", LinkChange(is_up=False)))
    node.socket.execute(change_link(link.ifindex, LinkChange(name="eth9")))
    assert not node.link("eth9").is_up


def test_a_group_of_links_goes_in_one_message(node):
    for n in range(3):
        node.socket.execute(create_veth(VethEnd(f"cali{n}"), VethEnd(f"far{n}")))
    for name in ("cali0", "cali2"):
        node.socket.execute(change_link(name, LinkChange(group=4001)))
    node.socket.execute(delete_group(4001))
    assert {link.name for link in node.socket.query(list_links(kind="veth"))} == {"cali1", "far1"}
    assert node.socket.transact([delete_group(4001)])[0].errno == errno.ENODEV


def test_list_links_filters_by_kind_and_master(netns):
    node, other = netns.make("a"), netns.make("b")
    connect(node, "eth0", other, "eth0")
    node.run("ip", "link", "add", "br0", "type", "bridge")
    bridge = node.link("br0")
    node.socket.execute(change_link("eth0", LinkChange(master=bridge.ifindex)))
    assert [x.name for x in node.socket.query(list_links(master=bridge.ifindex))] == ["eth0"]
    assert [x.name for x in node.socket.query(list_links(kind="bridge"))] == ["br0"]
    node.socket.execute(change_link("eth0", LinkChange(master=0)))
    assert node.socket.query(list_links(master=bridge.ifindex)) == []


@pytest.mark.parametrize("cidr", ["10.7.0.1/24", "10.7.0.1/32", "fd07::1/64", "fd07::1/128"])
def test_addresses_come_and_go(wired, cidr):
    node, link = wired
    node.socket.execute(set_address(link.ifindex, cidr), set_address(link.ifindex, cidr))
    found = [a for a in node.socket.query(list_addresses(ifindex=link.ifindex)) if a.cidr == cidr]
    assert len(found) == 1
    assert found[0].is_usable, "duplicate address detection is skipped"
    node.socket.execute(delete_address(link.ifindex, cidr))
    left = node.socket.query(list_addresses(Address(0, cidr).family, ifindex=link.ifindex))
    assert cidr not in {address.cidr for address in left}
    assert node.socket.transact([delete_address(link.ifindex, cidr)])[0].errno == (
        errno.EADDRNOTAVAIL
    )


def test_an_address_without_prefix_route_adds_no_route(wired):
    node, link = wired
    node.socket.execute(set_address(link.ifindex, "10.8.0.1/24", prefix_route=False))
    assert "10.8.0.0/24" not in {route.dst for route in routes(node, AF_INET)}


@pytest.mark.parametrize("address", ["192.0.2.50", "2001:db8::50"])
def test_static_and_proxy_neighbours(wired, address):
    node, link = wired
    family = AF_INET6 if ":" in address else AF_INET
    static = Neighbour(link.ifindex, address, "02:00:00:00:00:50")
    proxy = Neighbour(link.ifindex, address.replace("50", "51"), is_proxy=True)
    node.socket.execute(set_neighbour(static), set_neighbour(proxy))
    assert static in node.socket.query(list_neighbours(family, ifindex=link.ifindex))
    proxies = node.socket.query(list_neighbours(family, proxies=True))
    assert [entry.address for entry in proxies] == [proxy.address]
    node.socket.execute(delete_neighbour(static), delete_neighbour(proxy))
    assert node.socket.query(list_neighbours(family, proxies=True)) == []
    assert node.socket.transact([delete_neighbour(static)])[0].errno == errno.ENOENT


def test_an_unknown_namespace_or_link_is_a_typed_error(node):
    with pytest.raises(ProgrammingFailed) as missing:
        NetlinkSocket.in_namespace("/run/netns/brn-never-there")
    assert missing.value.errno == errno.ENOENT
    with pytest.raises(ProgrammingFailed) as not_one:
        NetlinkSocket.in_namespace("/dev/null")
    assert not_one.value.errno == errno.EINVAL
    with pytest.raises(ProgrammingFailed) as refused:
        node.socket.query_one(get_link("nope"))
    assert (refused.value.errno, refused.value.key) == (errno.ENODEV, "nope")


def test_the_thread_of_the_caller_never_leaves_its_namespace(node):
    here = os.stat("/proc/thread-self/ns/net").st_ino
    inside = node.call(lambda: os.stat("/proc/thread-self/ns/net").st_ino)
    assert inside == os.stat(node.path).st_ino != here

    def fail() -> None:
        raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        node.call(fail)
    assert os.stat("/proc/thread-self/ns/net").st_ino == here


class _Interrupter:
    """A parse function that changes the table now and then while it is dumped."""

    def __init__(self, node: Namespace, *, times: int) -> None:
        self._socket = NetlinkSocket.in_namespace(node.path)
        self._left, self.parsed = times, 0

    def __call__(self, received: Message) -> int:
        self.parsed += 1
        if self._left and self.parsed % 300 == 0:
            address = f"10.{self.parsed >> 16}.{self.parsed >> 8 & 255}.{self.parsed & 255}/32"
            self._socket.execute(set_address(1, address))
            self._left -= 1
        return 1

    def close(self) -> None:
        self._socket.close()


@pytest.mark.parametrize(("interruptions", "gives_up"), [(2, False), (10_000, True)])
def test_a_dump_that_the_kernel_calls_inconsistent_is_repeated_a_few_times(
    node, monkeypatch, interruptions, gives_up
):
    # Address dumps carry a generation check; a tiny receive buffer makes the dump take many calls.
    requests = [set_address(1, f"172.16.{n >> 8}.{n & 255}/32") for n in range(2000)]
    node.socket.execute(*requests)
    monkeypatch.setattr(socket_module, "_RECEIVE_BYTES", 4096)
    interrupter = _Interrupter(node, times=interruptions)
    query = Query(list_addresses(AF_INET).message, "list", "x", interrupter)
    try:
        with NetlinkSocket.in_namespace(node.path) as slow:
            if gives_up:
                with pytest.raises(DumpInterrupted):
                    slow.query(query)
                assert interrupter.parsed >= 5 * 2001
            else:
                assert len(slow.query(query)) == 2001 + interruptions
                assert 2 * 2001 <= interrupter.parsed < 3 * 2003, "dumped twice"
    finally:
        interrupter.close()
