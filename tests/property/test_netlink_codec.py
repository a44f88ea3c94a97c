"""libcalico.netlink's codec: routes read back, and no input does more than raise WireError."""

from __future__ import annotations

import ipaddress
import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libcalico.errors import WireError
from libcalico.netlink.addr import Address, parse_address, set_address
from libcalico.netlink.events import decode_event
from libcalico.netlink.link import parse_link
from libcalico.netlink.messages import (
    HEADER,
    attr,
    find_attrs,
    iter_messages,
    message,
    parse_attrs,
    parse_error,
)
from libcalico.netlink.neigh import parse_neighbour
from libcalico.netlink.qdisc import parse_filter, parse_qdisc
from libcalico.netlink.route import (
    NextHop,
    Route,
    RouteTemplate,
    RouteType,
    add_route,
    delete_route,
    parse_route,
    replace_route,
)

V4 = st.integers(0, 2**32 - 1).map(lambda n: str(ipaddress.IPv4Address(n)))
# inet_ntop writes mapped addresses with dots, as the kernel's own tools do; they are no prefixes.
V6 = st.integers(2**64, 2**128 - 1).map(lambda n: str(ipaddress.IPv6Address(n)))
V4_PREFIX = st.tuples(V4, st.integers(0, 32)).map(
    lambda pair: str(ipaddress.IPv4Network(pair, strict=False))
)
V6_PREFIX = st.tuples(V6, st.integers(1, 128)).map(
    lambda pair: str(ipaddress.IPv6Network(pair, strict=False))
)
IFINDEX = st.integers(1, 2**31 - 1)
PLAIN = st.builds(NextHop, IFINDEX)


def hops(gateway: st.SearchStrategy[str]) -> st.SearchStrategy[tuple[NextHop, ...]]:
    single = st.builds(NextHop, IFINDEX, gateway, st.booleans())
    several = st.builds(NextHop, IFINDEX, gateway, st.booleans(), st.integers(1, 256))
    return st.one_of(
        st.tuples(PLAIN), st.tuples(single), st.lists(several, min_size=2, max_size=8).map(tuple)
    )


def routes(
    prefix: st.SearchStrategy[str], gateway: st.SearchStrategy[str]
) -> st.SearchStrategy[Route]:
    common = {
        "protocol": st.integers(0, 255),
        "scope": st.sampled_from([0, 253]),
        "metric": st.integers(0, 2**32 - 1),
        "table": st.integers(1, 2**32 - 1),
        "tos": st.integers(0, 255),
    }
    unicast = st.builds(Route, prefix, hops(gateway), source=st.just("") | gateway, **common)
    dropping = st.sampled_from([RouteType.BLACKHOLE, RouteType.UNREACHABLE, RouteType.PROHIBIT])
    return unicast | st.builds(Route, prefix, type=dropping, **common)


ROUTES = routes(V4_PREFIX, V4) | routes(V6_PREFIX, V6)


@given(ROUTES)
def test_a_route_reads_back_as_it_was_built(route):
    for build in (replace_route, add_route):
        (one,) = iter_messages(build(route).message)
        assert parse_route(one) == route


@given(ROUTES, st.sampled_from([replace_route, add_route, delete_route]))
def test_a_template_made_of_another_route_gives_the_same_bytes(route, build):
    network = ipaddress.ip_network(route.dst)
    sample = type(network)((0, network.prefixlen))
    template = RouteTemplate(
        build,
        Route(
            str(sample),
            route.nexthops,
            route.type,
            route.protocol,
            route.scope,
            route.metric,
            route.table,
            route.source,
            route.tos,
        ),
    )
    assert template.encode(network.network_address.packed) == build(route).message


@given(IFINDEX, V4 | V6, st.integers(0, 32), st.integers(0, 255))
def test_an_address_reads_back_with_its_host_bits(ifindex, address, length, scope):
    cidr = f"{address}/{length}"
    (one,) = iter_messages(set_address(ifindex, cidr, scope=scope).message)
    found = parse_address(one)
    assert (found.ifindex, found.cidr, found.scope) == (ifindex, cidr, scope)
    assert isinstance(found, Address)


PARSERS = (
    parse_route,
    parse_link,
    parse_address,
    parse_neighbour,
    parse_qdisc,
    parse_filter,
    parse_error,
)


@given(
    st.sampled_from([2, 3, 16, 17, 20, 21, 24, 25, 28, 29, 36, 44]),
    st.integers(0, 0xFFFF),
    st.sampled_from([b"", b"\2", b"\x0a", b"\0\0\0\0", b"\1" * 20 + b"\x08\0\1\0tbf\0"]),
    st.binary(max_size=120),
)
def test_no_input_does_more_than_raise_a_wire_error(kind, flags, head, tail):
    (one,) = iter_messages(message(kind, flags, head + tail))
    for parse in PARSERS:
        with suppress(WireError):
            parse(one)
    with suppress(WireError):
        decode_event(one)


ATTRS = st.lists(st.tuples(st.integers(0, 0xFFFF), st.binary(max_size=12)), max_size=8).map(
    lambda pairs: b"".join(attr(kind, payload) for kind, payload in pairs)
)


@given(ATTRS | st.binary(max_size=80), st.frozensets(st.integers(0, 0x3FFF) | st.integers(0, 9)))
def test_attributes_looked_for_are_those_of_a_full_reading(data, wanted):
    body = memoryview(data)
    try:
        everything = parse_attrs(body, 0)
    except WireError as err:
        with pytest.raises(WireError, match=re.escape(str(err))):
            find_attrs(body, 0, wanted)
        return
    wanted |= set(list(everything)[::2])
    assert find_attrs(body, 0, wanted) == {
        kind: value for kind, value in everything.items() if kind in wanted
    }


@given(st.binary(max_size=200))
def test_random_datagrams_are_split_or_refused(data):
    with suppress(WireError):
        total = sum(16 + len(one.body) for one in iter_messages(data))
        assert total <= len(data)


@given(st.lists(st.tuples(st.integers(0, 0xFFFF), st.binary(max_size=40)), max_size=6))
def test_framed_messages_come_back_one_by_one(parts):
    data = b"".join(
        HEADER.pack(16 + len(body), kind, 0, 0, 0) + body + b"\0" * (-len(body) % 4)
        for kind, body in parts
    )
    assert [(one.type, bytes(one.body)) for one in iter_messages(data)] == parts
