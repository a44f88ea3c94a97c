"""libcalico.netlink.events: notifications become typed events. (Sockets: tests/netns.)"""

from __future__ import annotations

import struct

import pytest

from libcalico.netlink.addr import RTM_DELADDR, set_address
from libcalico.netlink.events import (
    AddressEvent,
    LinkEvent,
    RouteEvent,
    decode_event,
)
from libcalico.netlink.link import RTM_DELLINK, RTM_NEWLINK
from libcalico.netlink.messages import HEADER, attr_text, iter_messages
from libcalico.netlink.route import RTM_DELROUTE, device_route, replace_route

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


def test_an_uninteresting_route_is_not_decoded():
    seen = []

    def interest(protocol: int, is_replacement: bool) -> bool:
        seen.append((protocol, is_replacement))
        return False

    broken = notification(24, struct.pack("=BBBBBBBBI", 2, 32, 0, 0, 254, 186, 0, 1, 0) + b"\1\0")
    assert decode_event(broken, interest) is None
    assert seen == [(186, False)]


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
