"""bgp.kernel.host against a real kernel: whatever is done, the mirror shows what a listing does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from bgp.kernel.host import HostView, Listing
from bgp.kernel.side import GROUPS
from libcalico.netlink import (
    AF_INET,
    AF_INET6,
    SCOPE_HOST,
    SCOPE_LINK,
    SCOPE_UNIVERSE,
    EventStream,
    LinkChange,
    NextHop,
    Overrun,
    Request,
    Route,
    RouteInterest,
    RouteType,
    VethEnd,
    add_route,
    append_route,
    change_link,
    create_veth,
    delete_address,
    delete_link,
    delete_route,
    list_addresses,
    list_links,
    list_routes,
    replace_route,
    set_address,
)
from tests.support.netns import Namespace, NamespaceSet, eventually

OWN, OTHER = 186, 3  # route protocols
WORKLOADS = ("cali1", "cali2")
LINKS = (*WORKLOADS, "eth0")


class Mirrored:
    """A node whose mirror is fed by its notifications alone, as long as it asks for no listing."""

    def __init__(self, node: Namespace, pod: Namespace) -> None:
        self.node, self.pod = node, pod
        for each in (node, pod):
            each.sysctl("net/ipv6/conf/default/accept_dad", "0")
        self._pod_fd = os.open(pod.path, os.O_RDONLY | os.O_CLOEXEC)
        self._stream = EventStream.in_namespace(node.path, *GROUPS, interest=RouteInterest(254))
        self.view = self._fresh()
        self.listings = 0

    def close(self) -> None:
        self._stream.close()
        os.close(self._pod_fd)

    def create(self, name: str) -> Request:
        far = VethEnd(f"far-{name}", netns_fd=self._pod_fd)
        return create_veth(VethEnd(name, mtu_bytes=1500), far)

    def ifindex(self, name: str) -> int:
        found = [link.ifindex for link in self.node.socket.query(list_links()) if link.name == name]
        return found[0] if found else 0

    def settle(self) -> None:
        """Until the mirror is right: IPv6 announces some of what it does a moment later."""
        if not eventually(self._is_right, timeout_s=5.0):
            self._catch_up()  # says what is wrong

    def _is_right(self) -> bool:
        try:
            self._catch_up()
        except AssertionError:
            return False
        return True

    def _catch_up(self) -> None:
        """Errors: AssertionError, the mirror is not (yet) what a listing shows."""
        for event in self._stream.read():
            assert not isinstance(event, Overrun)
            self.view.apply(event)
        fresh = self._fresh()
        if self.view.needs_listing:
            self.view = fresh
            self.listings += 1
        self.view.check(fresh)

    def _fresh(self) -> HostView:
        view = HostView(table=254, own_protocol=OWN, workload_prefixes=("cali",))
        query = self.node.socket.query
        routes = [*query(list_routes(AF_INET)), *query(list_routes(AF_INET6))]
        view.load(
            Listing(tuple(query(list_links())), tuple(query(list_addresses())), tuple(routes))
        )
        return view


@contextmanager
def mirrored() -> Iterator[Mirrored]:
    with NamespaceSet() as netns:
        made = Mirrored(netns.make("node"), netns.make("pod"))
        try:
            yield made
        finally:
            made.close()


# Operations, of few values, so that they meet. What the kernel refuses changes nothing.


@dataclass(frozen=True)
class OnLink:
    """`what`: create, delete, or a change of the link, of its far end, of its addresses."""

    what: str
    name: str

    def perform(self, on: Mirrored) -> None:
        node, pod = on.node.socket, on.pod.socket
        word, _, value = self.what.partition(" ")
        if word == "create":
            node.transact([on.create(self.name)])
        elif word == "delete":
            node.transact([delete_link(self.name)])
        elif word == "far":
            pod.transact([change_link(f"far-{self.name}", LinkChange(is_up=value == "up"))])
        elif word in ("have", "lose"):
            change = set_address if word == "have" else delete_address
            node.transact([change(on.ifindex(self.name), value)])
        else:
            changes = {
                "up": LinkChange(is_up=True),
                "down": LinkChange(is_up=False),
                "mtu": LinkChange(mtu_bytes=1400),
                "group": LinkChange(group=7),
                "rename": LinkChange(name="renamed"),
            }
            node.transact([change_link(on.ifindex(self.name), changes[word])])


@dataclass(frozen=True)
class OnRoute:
    """Add, replace, append or delete; no link: a blackhole, two: of several ways."""

    how: str
    route: Route
    over: tuple[str, ...]
    has_gateway: bool = False

    def perform(self, on: Mirrored) -> None:
        hops = tuple(NextHop(on.ifindex(name), self._gateway(name)) for name in self.over)
        scope = SCOPE_UNIVERSE if self.has_gateway or not hops else self.route.scope
        kind = RouteType.UNICAST if hops else RouteType.BLACKHOLE
        route = structs.replace(self.route, nexthops=hops, type=kind, scope=scope)
        on.node.socket.transact([HOW[self.how](route)])

    def _gateway(self, name: str) -> str:
        if not self.has_gateway:
            return ""
        return f"fd{LINKS.index(name):02}::9" if ":" in self.route.dst else f"{_subnet(name)}.9"


def _subnet(name: str) -> str:
    return f"10.{LINKS.index(name)}.0"


HOW = {"add": add_route, "replace": replace_route, "append": append_route, "delete": delete_route}
NAMES = st.sampled_from(LINKS)
ADDRESSES = ("10.0.0.1/24", "10.0.0.1/32", "10.1.0.1/24", "fd00::1/64", "fe80::1:1/64")
SOMETIMES = ("mtu", "group", "rename", *(f"{do} {a}" for do in ("have", "lose") for a in ADDRESSES))
BIRTHS = st.builds(OnLink, st.sampled_from(["create", "create", "delete"]), NAMES)
STATES = st.builds(OnLink, st.sampled_from(["up", "up", "down", "far up", "far down"]), NAMES)
CHANGES = st.builds(OnLink, st.sampled_from(SOMETIMES), NAMES)
ROUTES = st.builds(
    Route,
    st.sampled_from(["10.65.0.1/32", "fd65::1/128"]),
    protocol=st.sampled_from([OTHER, OTHER, OTHER, OWN]),
    scope=st.sampled_from([SCOPE_LINK, SCOPE_LINK, SCOPE_HOST]),
    metric=st.sampled_from([512, 512, 512, 1024]),
    table=st.sampled_from([254] * 9 + [100]),
)
ROUTINGS = st.builds(
    OnRoute,
    st.sampled_from(["add", "add", "append", "append", "replace", "delete"]),
    ROUTES,
    st.sampled_from([(), *((name,) for name in LINKS), ("cali1", "cali2"), ("eth0", "cali1")]),
    st.booleans(),
)


@settings(max_examples=15)
@given(st.lists(BIRTHS | STATES | CHANGES | ROUTINGS | ROUTINGS | ROUTINGS, min_size=20))
def test_the_mirror_is_what_a_listing_shows(operations):
    with mirrored() as on:
        for name in LINKS:
            OnLink("create", name).perform(on)
            OnLink("far up", name).perform(on)
            OnLink(f"have {_subnet(name)}.1/24", name).perform(on)
            OnLink(f"have fd{LINKS.index(name):02}::1/64", name).perform(on)
        on.settle()
        for operation in operations:
            operation.perform(on)
            on.settle()


def test_pods_that_come_and_go_need_no_listing():
    with mirrored() as on:
        for way in ("delete", "down", "far down"):
            for name in WORKLOADS:
                OnLink("create", name).perform(on)
                OnLink("far up", name).perform(on)
                for dst in ("10.65.0.1/32", "fd65::1/128"):
                    route = Route(dst, protocol=OTHER, scope=SCOPE_LINK, metric=on.ifindex(name))
                    OnRoute("replace", route, (name,)).perform(on)
                on.settle()
            assert {key[1][0] for key in on.view.workloads} == {32, 128}
            OnLink(way, "cali1").perform(on)
            on.settle()
            OnLink("delete", "cali1").perform(on)
            OnLink("delete", "cali2").perform(on)
            on.settle()
            assert on.view.workloads == {}
        assert on.listings == 0
