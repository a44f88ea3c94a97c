"""libcalico.netlink.EventStream against a real kernel."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from libcalico.netlink import (
    SCOPE_LINK,
    AddressEvent,
    Event,
    EventStream,
    Group,
    LinkChange,
    LinkEvent,
    NextHop,
    Overrun,
    Route,
    RouteEvent,
    RouteInterest,
    RouteTemplate,
    VethEnd,
    change_link,
    create_veth,
    delete_link,
    delete_route,
    device_route,
    replace_route,
    set_address,
)
from libcalico.netlink.events import EVERY_ROUTE
from tests.support.netns import Namespace, add_bridge, eventually

ROUTES = (Group.IPV4_ROUTE, Group.IPV6_ROUTE)


@contextmanager
def listening(
    node: Namespace, *groups: Group, interest: RouteInterest = EVERY_ROUTE
) -> Iterator[EventStream]:
    stream = EventStream.in_namespace(node.path, *groups, interest=interest)
    try:
        yield stream
    finally:
        stream.close()


def kinds(events: list[Event], want: type) -> list[Event]:
    return [event for event in events if isinstance(event, want)]


async def test_waiting_for_an_event_does_not_block_the_loop(node):
    with listening(node, Group.LINK) as stream:
        waiting = asyncio.create_task(stream.next())
        await asyncio.sleep(0)
        assert not waiting.done()
        node.socket.execute(create_veth(VethEnd("cali1"), VethEnd("far1")))
        events = await asyncio.wait_for(waiting, 2)
        assert {event.link.name for event in kinds(events, LinkEvent)} >= {"cali1"}
        cancelled = asyncio.create_task(stream.next())
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        node.socket.execute(delete_link("cali1"))
        gone = [e for e in kinds(stream.read(), LinkEvent) if e.is_removed]
        assert {event.link.name for event in gone} == {"cali1", "far1"}


def test_our_own_writes_are_recognised_by_their_origin(node):
    bridge = add_bridge(node, "br0")
    route = device_route("10.0.0.1/32", bridge.ifindex, protocol=3)
    with listening(node, *ROUTES) as stream:
        node.socket.execute(replace_route(route), replace_route(route))
        node.run("ip", "route", "replace", "10.0.0.1/32", "dev", "br0", "proto", "4")
        node.run("ip", "route", "del", "10.0.0.1/32")
        events = kinds(stream.read(), RouteEvent)
    ours = [event for event in events if event.origin == node.socket.port_id]
    assert {event.route for event in ours} == {route}
    foreign = [event for event in events if event not in ours]
    assert [(e.is_removed, e.is_replacement, e.route.protocol) for e in foreign] == [
        (False, True, 4),
        (True, False, 4),
    ]


def test_uninteresting_protocols_are_skipped_unless_they_replace(node):
    bridge = add_bridge(node, "br0")
    interest = RouteInterest(skip_protocols=frozenset({186}))
    with listening(node, *ROUTES, interest=interest) as stream:
        ours = device_route("fd00::1/128", bridge.ifindex, protocol=3)
        theirs = device_route("fd00::1/128", bridge.ifindex, protocol=186)
        node.socket.execute(
            replace_route(device_route("10.0.0.9/32", bridge.ifindex, protocol=186)),
            replace_route(ours),
            replace_route(theirs),
            delete_route(theirs),
        )
        events = kinds(stream.read(), RouteEvent)
    assert [(event.route, event.is_replacement) for event in events] == [
        (ours, False),
        (theirs, True),
    ]


def test_only_the_table_that_is_looked_at_is_seen(node):
    bridge = add_bridge(node, "br0")
    routes = {
        table: Route("10.0.0.9/32", (NextHop(bridge.ifindex),), scope=SCOPE_LINK, table=table)
        for table in (100, 254, 1000, 70_000)
    }
    with ExitStack() as stack:
        streams = {
            table: stack.enter_context(listening(node, *ROUTES, interest=RouteInterest(table)))
            for table in routes
        }
        node.socket.execute(*map(replace_route, routes.values()))
        node.socket.execute(*map(delete_route, routes.values()))
        node.socket.execute(set_address(bridge.ifindex, "192.0.2.1/32"))  # table 255
        for table, stream in streams.items():
            seen = [(event.route, event.is_removed) for event in stream.read()]
            assert seen == [(routes[table], False), (routes[table], True)]


def test_addresses_are_seen(node):
    bridge = add_bridge(node, "br0")
    with listening(node, Group.IPV4_ADDRESS, Group.IPV6_ADDRESS) as stream:
        node.socket.execute(
            set_address(bridge.ifindex, "192.0.2.1/24"), set_address(bridge.ifindex, "fd00::1/64")
        )
        seen: set[str] = set()

        def are_seen() -> bool:
            # The kernel announces an IPv6 address from a work queue, a moment later.
            seen.update(event.address.cidr for event in kinds(stream.read(), AddressEvent))
            return seen >= {"192.0.2.1/24", "fd00::1/64"}

        assert eventually(are_seen), seen


def test_lost_notifications_are_reported_once_and_reading_goes_on(node):
    bridge = add_bridge(node, "br0")
    template = RouteTemplate(replace_route, device_route("10.0.0.0/32", bridge.ifindex, protocol=3))
    messages = [template.encode(bytes([10, 1, n >> 8, n & 255])) for n in range(30_000)]
    with listening(node, *ROUTES) as stream:
        node.socket.transact_messages(messages)
        events = drain(stream.read)
        assert any(isinstance(event, Overrun) for event in events)
        assert len(events) < 30_000
        node.socket.execute(change_link("br0", LinkChange(is_up=False)))
        node.socket.execute(change_link("br0", LinkChange(is_up=True)))
        node.socket.execute(replace_route(device_route("10.9.9.9/32", bridge.ifindex, protocol=3)))
        assert "10.9.9.9/32" in {e.route.dst for e in kinds(drain(stream.read), RouteEvent)}


def drain(read: Callable[[], list[Event]]) -> list[Event]:
    found: list[Event] = []
    while batch := read():
        found += batch
    return found
