"""felix.dataplane.endpoint_mgr with real drivers on the fake kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest

from felix.config import SCHEMA
from felix.dataplane.endpoint_mgr import (
    EndpointManager,
    EndpointSettings,
    EndpointStatus,
    interface_settings,
    node_settings,
)
from felix.dataplane.link_monitor import LinkMonitor
from felix.dataplane.ownership import RouteOwnership
from felix.dataplane.route_table import RouteTable
from felix.dataplane.shaping_table import ShapingTable
from felix.dataplane.sysctl_table import SysctlTable
from felix.intent import (
    DirectionLimits,
    NatMapping,
    QosControls,
    WorkloadEndpointRemove,
    WorkloadEndpointUpdate,
)
from libcalico.model.keys import ResourceKey
from libcalico.netlink import AF_INET, AF_INET6, Route, RouteEvent, device_route
from libcalico.runtime.config import Layer, LiveConfig, Source
from libcalico.testing.clock import FakeClock
from libcalico.testing.kernel import FakeKernel, Written

NETS = ("10.65.0.1/32", "fd00:65::1/128")


def key(name: str, namespace: str = "prod") -> ResourceKey:
    return ResourceKey("WorkloadEndpoint", name, namespace)


def endpoint(
    name: str, interface: str, *, nets: tuple[str, ...] = NETS, **more: object
) -> WorkloadEndpointUpdate:
    return WorkloadEndpointUpdate(
        key(name),
        interface,
        "ee:ee:ee:ee:ee:ee",
        nets,
        (),
        (),
        **more,  # type: ignore[arg-type]
    )


class Conntrack:
    """What the manager asks to be forgotten; noted down as the kernel's other writes are."""

    def __init__(self, kernel: FakeKernel) -> None:
        self._kernel = kernel

    def forget(self, address: str) -> None:
        self._kernel.writes.append(Written("forget", address))


class World:
    def __init__(self, settings: EndpointSettings | None = None) -> None:
        self.kernel = FakeKernel()
        self.routes = [
            RouteTable(self.kernel, family, ownership=RouteOwnership(), clock=FakeClock())
            for family in (AF_INET, AF_INET6)
        ]
        self.sysctls = SysctlTable(self.kernel)
        self.conntrack = Conntrack(self.kernel)
        self.shaping = ShapingTable(self.kernel.shaping, ("cali",))  # type: ignore[arg-type]
        self.links = LinkMonitor(self.kernel)
        self.manager = EndpointManager(
            self.routes,
            self.sysctls,
            self.conntrack,  # type: ignore[arg-type]
            self.shaping,
            settings=settings or EndpointSettings(),
        )
        for listener in (*self.routes, self.manager):
            self.links.add_listener(listener)

    async def cycle(self, *intents: object) -> None:
        for intent in intents:
            self.manager.on_intent(intent)  # type: ignore[arg-type]
        for event in self.kernel.read():
            if isinstance(event, RouteEvent):
                for table in self.routes:
                    table.on_route_event(event)
        self.links.queue_relist("test")
        await self.links.refresh()
        self.manager.complete_deferred_work()
        for driver in (self.sysctls, self.shaping, *self.routes):
            await driver.apply()

    def forgotten(self) -> list[str]:
        return [write.key for write in self.kernel.writes if write.operation == "forget"]

    def conf(self, ifname: str) -> dict[str, str]:
        return {
            path.replace(f"/{ifname}/", "/*/").removeprefix("net/"): value
            for path, value in self.kernel.sysctls.items()
            if f"/{ifname}/" in path and value != "?"
        }


@pytest.fixture
def world() -> World:
    return World()


def devices(ifindex: int, nets: tuple[str, ...] = NETS) -> set[Route]:
    return {device_route(net, ifindex, protocol=3, metric=1024) for net in nets}


async def test_an_endpoint_gets_routes_of_both_families_and_its_interfaces_settings(world):
    ifindex = world.kernel.add_link("cali1")
    await world.cycle(endpoint("one", "cali1"))
    assert world.kernel.routes() == devices(ifindex)
    assert world.conf("cali1") == {
        "ipv4/conf/*/rp_filter": "1",
        "ipv4/conf/*/route_localnet": "1",
        "ipv4/conf/*/proxy_arp": "1",
        "ipv4/conf/*/forwarding": "1",
        "ipv4/neigh/*/proxy_delay": "0",
        "ipv6/conf/*/accept_ra": "0",
        "ipv6/conf/*/disable_ipv6": "0",
        "ipv6/conf/*/accept_dad": "0",
        "ipv6/conf/*/proxy_ndp": "1",
        "ipv6/conf/*/forwarding": "1",
    }
    assert world.manager.problem(key("one")) == ""
    assert world.manager.status(key("one")) is EndpointStatus.UP


async def test_an_endpoint_that_goes_takes_routes_and_connections_but_not_its_settings(world):
    world.kernel.add_link("cali1")
    await world.cycle(endpoint("one", "cali1"))
    assert not world.manager.is_gone(key("one"), NETS)
    await world.cycle(WorkloadEndpointRemove(key("one")))
    assert world.kernel.routes() == set()
    assert world.forgotten() == ["10.65.0.1", "fd00:65::1"]
    assert world.conf("cali1")["ipv4/conf/*/proxy_arp"] == "1"
    assert world.manager.is_gone(key("one"), NETS)
    assert "not known" in world.manager.problem(key("one"))


async def test_only_the_address_that_left_is_forgotten(world):
    world.kernel.add_link("cali1")
    await world.cycle(endpoint("one", "cali1"))
    await world.cycle(endpoint("one", "cali1", nets=("10.65.0.1/32", "10.65.0.2/32")))
    assert world.forgotten() == ["fd00:65::1"]


async def test_an_address_that_moves_to_another_interface_is_routed_there(world):
    world.kernel.add_link("cali1")
    two = world.kernel.add_link("cali2")
    await world.cycle(endpoint("one", "cali1"))
    await world.cycle(WorkloadEndpointRemove(key("one")), endpoint("two", "cali2"))
    assert world.kernel.routes() == devices(two)
    assert set(world.forgotten()) == {"10.65.0.1", "fd00:65::1"}
    assert world.manager.is_gone(key("one"), NETS), "the new owner's routes do not count"


async def test_an_address_is_forgotten_when_its_route_moves_and_not_when_the_former_owner_goes(
    world,
):
    """The predecessor's endpoint may go late: its connections are the successor's by then."""
    world.kernel.add_link("cali1")
    two = world.kernel.add_link("cali2")
    await world.cycle(endpoint("one", "cali1"))
    world.kernel.delete_link("cali1")
    await world.cycle(endpoint("two", "cali2"))
    assert world.kernel.routes() == devices(two)
    assert world.forgotten() == ["10.65.0.1", "fd00:65::1"]
    await world.cycle(WorkloadEndpointRemove(key("one")))
    assert world.forgotten() == ["10.65.0.1", "fd00:65::1"], "no more than before"
    assert world.manager.addresses_of(key("two")) == {"10.65.0.1", "fd00:65::1"}
    await world.cycle(WorkloadEndpointRemove(key("two")))
    assert world.forgotten() == ["10.65.0.1", "fd00:65::1"] * 2


async def test_of_two_owners_the_routes_one_counts(world):
    one = world.kernel.add_link("cali1")
    two = world.kernel.add_link("cali2")
    await world.cycle(endpoint("one", "cali1"), endpoint("two", "cali2"))
    assert (world.kernel.routes(), world.forgotten()) == (devices(one), [])
    world.kernel.set_link("cali1", is_up=False)
    await world.cycle()
    assert world.kernel.routes() == devices(two)
    assert world.forgotten() == ["10.65.0.1", "fd00:65::1"], "the route has moved"
    world.kernel.set_link("cali2", is_up=False)
    await world.cycle()
    assert len(world.forgotten()) == 2, "with both down it stays where it was"
    world.kernel.set_link("cali1", is_up=True)
    await world.cycle()
    assert len(world.forgotten()) == 4


async def test_a_link_that_goes_down_and_up_keeps_its_connections(world):
    world.kernel.add_link("cali1")
    await world.cycle(endpoint("one", "cali1"))
    for is_up in (False, True):
        world.kernel.set_link("cali1", is_up=is_up)
        await world.cycle()
    assert world.forgotten() == []


async def test_an_interface_that_comes_later_gets_everything(world):
    await world.cycle(endpoint("one", "cali1"))
    assert "no interface" in world.manager.problem(key("one"))
    assert world.manager.status(key("one")) is EndpointStatus.DOWN
    ifindex = world.kernel.add_link("cali1")
    await world.cycle()
    assert world.kernel.routes() == devices(ifindex)
    assert world.conf("cali1")["ipv4/conf/*/proxy_arp"] == "1"
    assert world.manager.problem(key("one")) == ""


async def test_an_interface_made_anew_gets_everything_again(world):
    world.kernel.add_link("cali1")
    await world.cycle(endpoint("one", "cali1"))
    world.kernel.delete_link("cali1")
    second = world.kernel.add_link("cali1")
    await world.cycle()
    assert world.kernel.routes() == devices(second)
    assert world.conf("cali1")["ipv4/conf/*/rp_filter"] == "1"


async def test_an_interface_that_goes_leaves_no_failing_settings_behind(world):
    world.kernel.add_link("cali1")
    await world.cycle(endpoint("one", "cali1"))
    world.kernel.delete_link("cali1")
    await world.cycle()
    world.sysctls.queue_resync("test")
    assert (await world.sysctls.apply()).failed == 0


@pytest.mark.parametrize("running", [True, False])
async def test_status_follows_the_interface(world, running):
    world.kernel.add_link("cali1", has_carrier=running)
    await world.cycle(endpoint("one", "cali1"))
    expected = EndpointStatus.UP if running else EndpointStatus.DOWN
    assert world.manager.status(key("one")) is expected


async def test_a_refusal_makes_the_status_error_and_names_the_reason(world):
    world.kernel.add_link("cali1")
    world.kernel.fail_next("replace route", NETS[0])
    await world.cycle(endpoint("one", "cali1"))
    assert world.manager.status(key("one")) is EndpointStatus.ERROR
    assert world.manager.problem(key("one")).startswith("route to 10.65.0.1/32: ")
    await world.cycle()
    assert world.manager.status(key("one")) is EndpointStatus.UP


async def test_a_refused_setting_makes_the_status_error_too(world):
    world.kernel.add_link("cali1")
    world.kernel.fail_next("set", "net/ipv4/conf/cali1/proxy_arp")
    await world.cycle(endpoint("one", "cali1"))
    assert world.manager.status(key("one")) is EndpointStatus.ERROR
    assert "proxy_arp" in world.manager.problem(key("one"))


async def test_an_endpoint_is_not_gone_while_its_route_is_there(world):
    world.kernel.add_link("cali1")
    await world.cycle(endpoint("one", "cali1"))
    world.kernel.fail_next("delete route", NETS[1])
    await world.cycle(WorkloadEndpointRemove(key("one")))
    assert not world.manager.is_gone(key("one"), NETS)
    await world.cycle()
    assert world.manager.is_gone(key("one"), NETS)
    assert world.manager._keys_by_ifname == {}


async def test_an_endpoint_that_is_switched_off_has_no_routes(world):
    world.kernel.add_link("cali1")
    await world.cycle(endpoint("one", "cali1"))
    await world.cycle(endpoint("one", "cali1", active=False))
    assert world.kernel.routes() == set()
    assert world.manager.status(key("one")) is EndpointStatus.DOWN
    assert world.manager.problem(key("one")) == ""


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
async def test_of_two_endpoints_with_one_interface_the_first_name_is_in_force(world, order):
    ifindex = world.kernel.add_link("cali1")
    nets = {"a": ("10.65.0.1/32",), "b": ("10.65.0.2/32",)}
    for name in order:
        await world.cycle(endpoint(name, "cali1", nets=nets[name]))
    assert world.kernel.routes() == devices(ifindex, nets["a"])
    assert world.manager.status(key("b")) is EndpointStatus.ERROR
    assert "belongs to endpoint a" in world.manager.problem(key("b"))
    await world.cycle(WorkloadEndpointRemove(key("a")))
    assert world.kernel.routes() == devices(ifindex, nets["b"])
    assert world.manager.status(key("b")) is EndpointStatus.UP


async def test_an_endpoint_that_changes_its_interface_leaves_the_old_one(world):
    world.kernel.add_link("cali1")
    two = world.kernel.add_link("cali2")
    await world.cycle(endpoint("one", "cali1"))
    await world.cycle(endpoint("one", "cali2"))
    assert world.kernel.routes() == devices(two)


async def test_touched_endpoints_are_told_once(world):
    world.kernel.add_link("cali1")
    await world.cycle(endpoint("one", "cali1"))
    assert world.manager.take_touched() == {key("one")}
    assert world.manager.take_touched() == set()
    world.kernel.set_link("cali1", has_carrier=False)
    await world.cycle()
    assert world.manager.take_touched() == {key("one")}
    await world.cycle(WorkloadEndpointRemove(key("one")))
    assert world.manager.take_touched() == {key("one")}


async def test_the_last_word_of_one_cycle_counts(world):
    world.kernel.add_link("cali1")
    await world.cycle(WorkloadEndpointRemove(key("one")), endpoint("one", "cali1"))
    assert world.kernel.routes()
    await world.cycle(endpoint("one", "cali1"), WorkloadEndpointRemove(key("one")))
    assert not world.kernel.routes()


async def test_the_configuration_decides_metric_protocol_source_and_families():
    settings = EndpointSettings(
        metrics={AF_INET: 7, AF_INET6: 8}, sources={AF_INET: "192.0.2.1"}, route_protocol=99
    )
    world = World(settings)
    world.kernel.add_link("cali1")
    await world.cycle(endpoint("one", "cali1"))
    found = {(r.metric, r.protocol, r.source) for r in world.kernel.routes()}
    assert found == {(7, 99, "192.0.2.1"), (8, 99, "")}


async def test_without_route_sync_no_route_is_wanted_and_the_endpoint_is_well():
    world = World(EndpointSettings(programs_routes=False))
    world.kernel.add_link("cali1")
    await world.cycle(endpoint("one", "cali1"))
    assert world.kernel.routes() == set()
    assert world.manager.problem(key("one")) == ""


@pytest.mark.parametrize("enabled", [True, False])
async def test_floating_addresses_are_routed_when_they_are_enabled(enabled):
    world = World(EndpointSettings(has_floating_ips=enabled))
    world.kernel.add_link("cali1")
    nats = (NatMapping("10.65.0.1", "203.0.113.1"), NatMapping("fd00:65::1", "2001:db8::9"))
    await world.cycle(endpoint("one", "cali1", nats=nats))
    routed = {route.dst for route in world.kernel.routes()}
    floating = {"203.0.113.1/32", "2001:db8::9/128"}
    assert routed == set(NETS) | (floating if enabled else set())


def test_an_ipv4_endpoint_leaves_ipv6_of_its_interface_alone_but_for_advertisements():
    only_v4 = endpoint("one", "cali1", nets=("10.65.0.1/32",))
    paths = [s.path for s in interface_settings("cali1", only_v4, EndpointSettings())]
    assert [path for path in paths if "ipv6" in path] == ["net/ipv6/conf/cali1/accept_ra"]


@pytest.mark.parametrize(
    ("allows", "prefixes", "expected"),
    [(True, ("10.9.0.0/16",), "0"), (True, (), "1"), (False, ("10.9.0.0/16",), "1")],
)
def test_the_reverse_path_check_is_strict_unless_spoofing_is_allowed(allows, prefixes, expected):
    settings = EndpointSettings(allows_spoofing=allows)
    one = endpoint("one", "cali1", allowed_source_prefixes=prefixes)
    (found,) = [s for s in interface_settings("cali1", one, settings) if "rp_filter" in s.path]
    assert found.value == expected


def test_the_nodes_forwarding_is_switched_on_if_configured():
    assert [s.path for s in node_settings(EndpointSettings())] == [
        "net/ipv4/ip_forward",
        "net/ipv6/conf/all/forwarding",
    ]
    assert node_settings(EndpointSettings(enables_forwarding=False)) == ()
    only_v4 = EndpointSettings(families=(AF_INET,))
    assert [s.path for s in node_settings(only_v4)] == ["net/ipv4/ip_forward"]


def test_where_policy_ends_connections_none_comes_back_out_of_its_middle():
    only = EndpointSettings(enables_forwarding=False, sweeps_connections=True)
    (found,) = node_settings(only)
    assert (found.path, found.value) == ("net/netfilter/nf_conntrack_tcp_loose", "0")


def test_settings_come_from_the_configuration():
    raw = {
        "Ipv6Support": "false",
        "IPForwarding": "Disabled",
        "WorkloadSourceSpoofing": "Any",
        "FloatingIPs": "Enabled",
        "DeviceRouteProtocol": "99",
        "DeviceRouteSourceAddress": "192.0.2.1",
        "IPv4NormalRoutePriority": "5",
        "RouteSyncDisabled": "true",
    }
    config = LiveConfig(SCHEMA, [Layer(Source.ENVIRONMENT, raw)]).config
    assert EndpointSettings.of(config) == EndpointSettings(
        families=(AF_INET,),
        metrics={AF_INET: 5, AF_INET6: 1024},
        sources={AF_INET: "192.0.2.1"},
        route_protocol=99,
        programs_routes=False,
        enables_forwarding=False,
        allows_spoofing=True,
        has_floating_ips=True,
    )
    default = LiveConfig(SCHEMA).config
    assert EndpointSettings.of(default) == EndpointSettings()
    assert EndpointSettings.of(default, has_ipv6=False).families == (AF_INET,)


LIMITED = QosControls(egress=DirectionLimits(bits_per_s=10**6, burst_bits=10**5))


async def test_a_bandwidth_is_shaped_while_its_endpoint_holds_the_interface(world):
    world.kernel.add_link("cali1", mtu_bytes=9000)
    limited = endpoint("a", "cali1", qos=LIMITED)
    await world.cycle(limited)
    ifb = world.kernel.shaping.target("cali1")
    assert ifb.startswith("bwcali")
    assert world.kernel.shaping.bucket(ifb).limit_bytes == 3125 + 12_500
    assert world.manager.status(limited.key) is EndpointStatus.UP
    await world.cycle(replace(limited, active=False))
    assert world.kernel.shaping.target("cali1") == ""


async def test_a_bandwidth_that_cannot_be_limited_is_an_error_and_stops_nothing(world):
    ifindex = world.kernel.add_link("cali1")
    world.kernel.shaping.put_filter("cali1", "u32", 1)
    limited = endpoint("a", "cali1", qos=LIMITED)
    await world.cycle(limited)
    assert world.kernel.routes() == devices(ifindex)
    assert world.manager.problem(limited.key) == ""
    assert world.manager.status(limited.key) is EndpointStatus.ERROR
    shown = world.manager.dump()["endpoints"]["prod/a"]["problem"]
    assert "another program" in shown


async def test_an_interface_made_anew_within_one_cycle_is_shaped_again(world):
    world.kernel.add_link("cali1")
    await world.cycle(endpoint("a", "cali1", qos=LIMITED))
    world.kernel.delete_link("cali1")
    world.kernel.add_link("cali1")
    await world.cycle()
    assert world.kernel.shaping.target("cali1").startswith("bwcali")
