"""felix.dataplane.status_mgr: what is published, and when."""

from __future__ import annotations

import pytest

from felix.dataplane.endpoint_mgr import EndpointStatus
from felix.dataplane.manager import InterfaceState
from felix.dataplane.status_mgr import EndpointReport, StatusManager
from felix.intent import (
    HostEndpointRemove,
    HostEndpointUpdate,
    WorkloadEndpointUpdate,
)
from libcalico.model.keys import ResourceKey

UP, DOWN, ERROR = EndpointStatus.UP, EndpointStatus.DOWN, EndpointStatus.ERROR
ONE = ResourceKey("WorkloadEndpoint", "one", "prod")
HOST = ResourceKey("HostEndpoint", "host")


class Endpoints:
    """What StatusManager asks of the EndpointManager."""

    def __init__(self) -> None:
        self.present: dict[ResourceKey, EndpointStatus] = {}
        self.touched: set[ResourceKey] = set()

    def set(self, key: ResourceKey, status: EndpointStatus | None) -> None:
        self.touched.add(key)
        if status is None:
            del self.present[key]
        else:
            self.present[key] = status

    def take_touched(self) -> set[ResourceKey]:
        touched, self.touched = self.touched, set()
        return touched

    def endpoint(self, key: ResourceKey) -> WorkloadEndpointUpdate | None:
        if key not in self.present:
            return None
        return WorkloadEndpointUpdate(key, "cali1", "02:00:00:00:00:01", ("10.0.0.1/32",), (), ())

    def status(self, key: ResourceKey) -> EndpointStatus:
        return self.present[key]


class Hosts:
    """What StatusManager asks of the HostRulesManager."""

    def __init__(self) -> None:
        self.governed: dict[ResourceKey, tuple[str, ...]] = {}
        self.problems: dict[ResourceKey, str] = {}
        self.questions = 0

    def is_host_interface(self, name: str) -> bool:
        return not name.startswith("cali")

    def governed_by(self, key: ResourceKey) -> tuple[str, ...]:
        self.questions += 1
        return self.governed.get(key, ())

    def problem(self, key: ResourceKey) -> str:
        return self.problems.get(key, "")


class Sink:
    def __init__(self) -> None:
        self.heard: list[tuple[ResourceKey, EndpointStatus | None]] = []
        self.reports: dict[ResourceKey, EndpointReport | None] = {}
        self.completed = 0

    def on_report(self, key: ResourceKey, report: EndpointReport | None) -> None:
        self.heard.append((key, None if report is None else report.status))
        self.reports[key] = report

    def on_complete(self) -> None:
        self.completed += 1

    def take(self) -> list[tuple[ResourceKey, EndpointStatus | None]]:
        heard, self.heard = self.heard, []
        return heard


class World:
    def __init__(self) -> None:
        self.endpoints, self.hosts, self.sink = Endpoints(), Hosts(), Sink()
        self.manager = StatusManager(self.endpoints, self.hosts, [self.sink])  # type: ignore[arg-type]

    def applied(self, *, is_filtering: bool = True):
        self.manager.complete_deferred_work()
        self.manager.on_applied(is_filtering=is_filtering)
        return self.sink.take()


@pytest.fixture
def world() -> World:
    return World()


def test_a_status_is_published_when_it_changes_and_only_then(world):
    world.endpoints.set(ONE, UP)
    assert world.applied() == [(ONE, UP)]
    assert world.sink.reports[ONE] == EndpointReport(
        ONE, UP, "cali1", "02:00:00:00:00:01", ("10.0.0.1/32",)
    )
    world.endpoints.set(ONE, UP)
    assert world.applied() == []
    world.endpoints.set(ONE, DOWN)
    assert world.applied() == [(ONE, DOWN)]
    world.endpoints.set(ONE, None)
    assert world.applied() == [(ONE, None)]
    assert world.applied() == []
    assert world.manager.dump() == {}


def test_nothing_new_is_said_while_the_filter_is_not_in_the_kernel(world):
    world.endpoints.set(ONE, UP)
    assert world.applied(is_filtering=False) == []
    assert world.sink.completed == 0
    assert world.applied() == [(ONE, UP)], "though nothing touched it again"
    world.endpoints.set(ONE, None)
    assert world.applied(is_filtering=False) == [(ONE, None)], "an end is always said"


def test_an_error_is_looked_at_again_until_it_heals(world):
    world.endpoints.set(ONE, ERROR)
    assert world.applied() == [(ONE, ERROR)]
    world.endpoints.present[ONE] = UP
    assert world.applied() == [(ONE, UP)]
    world.endpoints.present[ONE] = DOWN
    assert world.applied() == [], "healthy ones are only looked at when touched"


def test_completion_is_said_once_after_the_first_whole_report(world):
    world.applied()
    world.applied()
    assert world.sink.completed == 1


def host(interface: str = "eth0") -> HostEndpointUpdate:
    return HostEndpointUpdate(HOST, interface, (), (), ())


def interface(name: str, *, is_running: bool = True) -> InterfaceState:
    return InterfaceState(name, 2, True, is_running)


def test_a_host_endpoint_follows_its_interface(world):
    world.hosts.governed = {HOST: ("eth0",)}
    world.manager.on_intent(host())
    assert world.applied() == [(HOST, ERROR)], "there is no such interface"
    world.manager.on_interface("eth0", interface("eth0", is_running=False))
    assert world.applied() == [(HOST, DOWN)]
    world.manager.on_interface("eth0", interface("eth0"))
    assert world.applied() == [(HOST, UP)]
    assert world.sink.reports[HOST] == EndpointReport(HOST, UP, "eth0")
    world.manager.on_interface("eth0", None)
    assert world.applied() == [(HOST, ERROR)]
    world.manager.on_intent(HostEndpointRemove(HOST))
    assert world.applied() == [(HOST, None)]


def test_a_host_endpoint_of_several_interfaces_is_up_when_all_of_them_run(world):
    world.hosts.governed = {HOST: ("eth0", "eth1")}
    world.manager.on_intent(host(""))
    world.manager.on_interface("eth0", interface("eth0"))
    assert world.applied() == [(HOST, UP)], "the other does not exist"
    world.manager.on_interface("eth1", interface("eth1", is_running=False))
    assert world.applied() == [(HOST, DOWN)]
    world.manager.on_interface("eth1", interface("eth1"))
    assert world.applied() == [(HOST, UP)]


def test_a_host_endpoint_that_governs_nothing_is_an_error_until_it_does(world):
    world.manager.on_intent(host())
    world.manager.on_interface("eth0", interface("eth0"))
    assert world.applied() == [(HOST, ERROR)]
    world.hosts.governed = {HOST: ("eth0",)}
    assert world.applied() == [(HOST, UP)], "another endpoint made room"


def test_the_star_endpoint_needs_no_interface(world):
    world.hosts.governed = {HOST: ("*",)}
    world.manager.on_intent(host("*"))
    assert world.applied() == [(HOST, UP)]
    assert world.sink.reports[HOST] == EndpointReport(HOST, UP, "*")


@pytest.mark.parametrize("name", ["eth0", "*"])
def test_a_host_endpoint_whose_policy_is_not_in_the_kernel_is_an_error(world, name):
    world.hosts.governed = {HOST: (name,)}
    world.hosts.problems = {HOST: "chain host-in is not in the kernel"}
    world.manager.on_intent(host(name))
    world.manager.on_interface("eth0", interface("eth0"))
    assert world.applied(is_filtering=False) == []
    assert world.applied() == [(HOST, ERROR)]
    world.hosts.problems = {}
    assert world.applied() == [(HOST, UP)]


def test_a_host_endpoint_that_loses_its_interface_to_another_is_an_error(world):
    world.hosts.governed = {HOST: ("eth0",)}
    world.manager.on_intent(host())
    world.manager.on_interface("eth0", interface("eth0"))
    assert world.applied() == [(HOST, UP)]
    other = ResourceKey("HostEndpoint", "a")
    world.hosts.governed = {other: ("eth0",)}
    world.manager.on_intent(HostEndpointUpdate(other, "eth0", (), (), ()))
    assert world.applied() == [(other, UP), (HOST, ERROR)]


def test_interfaces_of_workloads_ask_nothing_of_host_endpoints(world):
    world.hosts.governed[HOST] = ("eth0",)
    world.manager.on_intent(HostEndpointUpdate(HOST, "eth0", (), (), ()))
    world.manager.on_interface("eth0", InterfaceState("eth0", 2, True, True))
    world.applied()
    asked = world.hosts.questions
    for number in range(1000):
        name = f"cali{number}"
        world.manager.on_interface(name, InterfaceState(name, 10 + number, True, True))
        world.applied()
    assert world.hosts.questions == asked
    world.manager.on_interface("eth0", InterfaceState("eth0", 2, True, False))
    assert world.applied() == [(HOST, DOWN)]
