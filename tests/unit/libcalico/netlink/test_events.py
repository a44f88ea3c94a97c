"""libcalico.netlink.events: notifications become typed events. (Sockets: tests/netns.)"""

from __future__ import annotations

import struct

import pytest

from libcalico.errors import WireError
from libcalico.netlink.addr import RTM_DELADDR, set_address
from libcalico.netlink.events import (
    AddressEvent,
    LinkEvent,
    RouteEvent,
    RouteInterest,
    decode_event,
)
from libcalico.netlink.link import RTM_DELLINK, RTM_NEWLINK
from libcalico.netlink.messages import HEADER, attr_text, iter_messages
from libcalico.netlink.route import RTM_DELROUTE, NextHop, Route, device_route, replace_route

ROUTE = device_route("10.0.0.1/32", 7, protocol=3)


def notification(kind: int, body: bytes, *, flags: int = 0, origin: int = 0):
    (one,) = iter_messages(HEADER.pack(16 + len(body), kind, flags, 0, origin) + body)
    return one


def body_of(request) -> bytes:
    return request.message[16:]


@pytest.mark.parametrize("is_replacement", [False, True])
def test_a_new_route_tells_its_origin_and_whether_it_replaced_one(is_replacement):
    flags = 0x100 if is_replacement else 0
    one = notification(24, body_of(replace_route(ROUTE)), flags=flags, origin=4711)
    assert decode_event(one) == RouteEvent(ROUTE, False, is_replacement, 4711)


def test_a_deleted_route_is_never_a_replacement():
    one = notification(RTM_DELROUTE, body_of(replace_route(ROUTE)), flags=0x100)
    assert decode_event(one) == RouteEvent(ROUTE, True, False, 0)


HEAD = struct.pack("=BBBBBBBBI", 2, 32, 0, 0, 254, 186, 0, 1, 0)
BROKEN = HEAD + b"\1\0\0\0"  # decoding it fails


@pytest.mark.parametrize(
    "interest",
    [
        RouteInterest(skip_protocols=frozenset({186})),
        RouteInterest(own_ports=frozenset({4711})),
        RouteInterest(table=255),
    ],
    ids=["protocol", "our own", "table"],
)
@pytest.mark.parametrize("kind", [24, RTM_DELROUTE])
def test_an_uninteresting_route_is_not_decoded(interest, kind):
    assert decode_event(notification(kind, BROKEN, origin=4711), interest) is None


@pytest.mark.parametrize(
    ("interest", "flags"),
    [
        (RouteInterest(), 0),
        (RouteInterest(254, frozenset({3}), frozenset({1})), 0),
        (RouteInterest(skip_protocols=frozenset({186})), 0x100),
    ],
    ids=["everything", "another", "took another's place"],
)
def test_an_interesting_route_is_decoded(interest, flags):
    with pytest.raises(WireError):
        decode_event(notification(24, BROKEN, flags=flags, origin=4711), interest)


@pytest.mark.parametrize("table", [1, 252, 254, 256, 70_000])
def test_the_table_is_found_where_the_kernel_puts_it(table):
    route = Route("10.0.0.1/32", (NextHop(7),), table=table)
    body = bytearray(body_of(replace_route(route)))
    for in_header in {body[4], 252} if table > 255 else {table}:
        body[4] = in_header
        one = notification(24, bytes(body))
        assert decode_event(one, RouteInterest(table)) == RouteEvent(route, False, False, 0)
        assert decode_event(one, RouteInterest(table + 1)) is None


def test_a_table_nobody_names_is_that_of_the_header():
    one = notification(24, bytes([*HEAD[:4], 252, *HEAD[5:]]))
    assert decode_event(one, RouteInterest(252)).route.table == 252
    assert decode_event(one, RouteInterest(254)) is None


@pytest.mark.parametrize("body", [HEAD[:-1], bytes([*HEAD[:4], 252, *BROKEN[5:]])])
def test_what_cannot_be_looked_at_is_refused(body):
    with pytest.raises(WireError):
        decode_event(notification(24, body), RouteInterest(254))


@pytest.mark.parametrize(("kind", "is_removed"), [(RTM_NEWLINK, False), (RTM_DELLINK, True)])
def test_links(kind, is_removed):
    body = struct.pack("=BxHiII", 0, 1, 7, 1, 0) + attr_text(3, "cali1")
    event = decode_event(notification(kind, body))
    assert isinstance(event, LinkEvent)
    assert (event.link.name, event.is_removed) == ("cali1", is_removed)
    bridge_port = struct.pack("=BxHiII", 7, 1, 7, 1, 0)
    assert decode_event(notification(kind, bridge_port)) is None


def test_addresses_and_others():
    body = body_of(set_address(7, "10.0.0.1/32"))
    event = decode_event(notification(RTM_DELADDR, body))
    assert isinstance(event, AddressEvent)
    assert event.is_removed
    assert decode_event(notification(RTM_DELADDR, struct.pack("=BBBBi", 28, 0, 0, 0, 1))) is None
    assert decode_event(notification(28, b"")) is None
