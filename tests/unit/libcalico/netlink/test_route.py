"""libcalico.netlink.route: what is built reads back, and templates equal single messages."""

from __future__ import annotations

import socket
import struct

import pytest

from libcalico.errors import WireError
from libcalico.netlink.messages import (
    AF_INET,
    AF_INET6,
    NLM_F_CREATE,
    NLM_F_EXCL,
    NLM_F_REPLACE,
    attr,
    attr_u32,
    iter_messages,
    message,
)
from libcalico.netlink.route import (
    RTM_DELROUTE,
    RTM_F_CLONED,
    RTM_GETROUTE,
    RTM_NEWROUTE,
    SCOPE_LINK,
    NextHop,
    Route,
    RouteFilter,
    RouteTemplate,
    RouteType,
    add_route,
    append_route,
    delete_route,
    device_route,
    list_routes,
    parse_route,
    replace_route,
    resolve_route,
)


def reread(request):
    (one,) = iter_messages(request.message)
    return one


SHAPES = [
    Route("10.65.0.1/32", (NextHop(7),), protocol=3, scope=SCOPE_LINK, metric=1024),
    Route("fd00::1/128", (NextHop(7),), protocol=3, metric=1024),
    Route("0.0.0.0/0", (NextHop(7, "192.0.2.1"),)),
    Route("10.1.0.0/26", (NextHop(7, "192.0.2.1", is_onlink=True),), protocol=80),
    Route("10.2.0.0/26", (NextHop(7, "fe80::1"),)),
    Route("10.3.0.0/26", type=RouteType.BLACKHOLE, protocol=186, metric=1024),
    Route("fd00:3::/122", type=RouteType.UNREACHABLE, protocol=186, metric=1024),
    Route("10.4.0.0/26", (NextHop(7, "192.0.2.1", weight=4), NextHop(8, "192.0.2.9", True))),
    Route("10.5.0.0/26", (NextHop(7),), table=1000, source="192.0.2.7", tos=4),
]


@pytest.mark.parametrize("route", SHAPES, ids=lambda route: route.dst)
@pytest.mark.parametrize("build", [replace_route, add_route, append_route])
def test_a_built_route_reads_back_equal(build, route):
    assert parse_route(reread(build(route))) == route


def test_the_flags_tell_create_from_replace():
    assert reread(replace_route(SHAPES[0])).flags & 0xF00 == NLM_F_CREATE | NLM_F_REPLACE
    assert reread(add_route(SHAPES[0])).flags & 0xF00 == NLM_F_CREATE | NLM_F_EXCL
    assert reread(append_route(SHAPES[0])).flags & 0xF00 == NLM_F_CREATE | 0x800


def test_a_delete_matches_any_scope_but_names_protocol_metric_and_table():
    sent = reread(delete_route(SHAPES[0]))
    assert sent.type == RTM_DELROUTE
    found = parse_route(sent)
    assert (found.scope, found.protocol, found.metric, found.table) == (255, 3, 1024, 254)


def test_canonical_tells_what_the_kernel_makes_of_ipv6():
    assert device_route("fd00::1/128", 7, protocol=3) == Route(
        "fd00::1/128", (NextHop(7),), protocol=3, scope=0, metric=1024
    )
    assert device_route("10.0.0.1/32", 7, protocol=3).metric == 0


def test_a_template_gives_the_bytes_of_the_single_message():
    for build in (replace_route, add_route, delete_route):
        for sample, other in (
            (SHAPES[0], "10.99.3.2/32"),
            (SHAPES[1], "fd00:9::9/128"),
            (SHAPES[7], "10.4.7.64/26"),
        ):
            address = other.partition("/")[0]
            packed = socket.inet_pton(AF_INET6 if ":" in other else AF_INET, address)
            alone = build(
                Route(
                    other,
                    sample.nexthops,
                    protocol=sample.protocol,
                    scope=sample.scope,
                    metric=sample.metric,
                )
            )
            assert RouteTemplate(build, sample).encode(packed) == alone.message


def test_dead_next_hops_are_shown_but_do_not_make_a_route_differ():
    alive = reread(replace_route(SHAPES[0]))
    body = bytearray(alive.body)
    struct.pack_into("=I", body, 8, 0x11)
    (dead,) = iter_messages(message(RTM_NEWROUTE, 0, bytes(body)))
    found = parse_route(dead)
    assert found.nexthops[0].is_dead
    assert found == SHAPES[0]


def test_other_families_and_cloned_entries_are_none():
    header = struct.pack("=BBBBBBBBI", 28, 0, 0, 0, 254, 0, 0, 1, 0)
    (mpls,) = iter_messages(message(RTM_NEWROUTE, 0, header))
    assert parse_route(mpls) is None
    header = struct.pack("=BBBBBBBBI", AF_INET, 0, 0, 0, 254, 0, 0, 1, RTM_F_CLONED)
    (cloned,) = iter_messages(message(RTM_NEWROUTE, 0, header))
    assert parse_route(cloned) is None
    assert parse_route(cloned, include_cloned=True).dst == "0.0.0.0/0"


def test_an_unknown_type_and_an_unknown_gateway_family_do_not_break_the_dump():
    header = struct.pack("=BBBBBBBBI", AF_INET, 24, 0, 0, 254, 9, 0, 77, 0)
    body = header + attr(1, b"\x0a\0\0\0") + attr(18, struct.pack("=H", 28) + b"\1\2\3\4")
    (strange,) = iter_messages(message(RTM_NEWROUTE, 0, body + attr_u32(4, 7)))
    found = parse_route(strange)
    assert (found.type, found.nexthops) == (RouteType.UNSPEC, (NextHop(7),))


@pytest.mark.parametrize(
    "body",
    [
        b"short",
        struct.pack("=BBBBBBBBI", AF_INET, 8, 0, 0, 254, 0, 0, 1, 0) + attr(1, b"\x0a\0"),
        struct.pack("=BBBBBBBBI", AF_INET, 8, 0, 0, 254, 0, 0, 1, 0) + attr(18, b"\1"),
        struct.pack("=BBBBBBBBI", AF_INET, 8, 0, 0, 254, 0, 0, 1, 0) + attr(9, b"\1" * 8),
        struct.pack("=BBBBBBBBI", AF_INET, 8, 0, 0, 254, 0, 0, 1, 0) + attr(6, b"\1"),
    ],
)
def test_a_malformed_route_is_refused(body):
    (one,) = iter_messages(message(RTM_NEWROUTE, 0, body))
    with pytest.raises(WireError):
        parse_route(one)


def test_the_parser_of_a_dump_filters_again_for_kernels_that_do_not():
    query = list_routes(AF_INET, RouteFilter(protocol=3, ifindex=7))
    assert query.parse(reread(replace_route(SHAPES[0]))) == SHAPES[0]
    for other in (SHAPES[1], SHAPES[2], SHAPES[5], SHAPES[8]):
        assert query.parse(reread(replace_route(other))) is None
    assert query.parse(reread(delete_route(SHAPES[0]))) is None
    only_holes = list_routes(AF_INET, RouteFilter(type=RouteType.BLACKHOLE))
    assert only_holes.parse(reread(replace_route(SHAPES[0]))) is None
    assert only_holes.parse(reread(replace_route(SHAPES[5]))) == SHAPES[5]


def test_the_filter_travels_to_the_kernel():
    (sent,) = iter_messages(list_routes(AF_INET, RouteFilter(protocol=3, ifindex=7)).message)
    assert sent.type == RTM_GETROUTE
    assert sent.body[5] == 3
    assert attr_u32(4, 7) in bytes(sent.body)
    assert attr_u32(15, 254) in bytes(sent.body)


def test_resolve_asks_for_the_host_route():
    (sent,) = iter_messages(resolve_route("10.0.0.1").message)
    assert (sent.type, sent.body[0], sent.body[1]) == (RTM_GETROUTE, AF_INET, 32)
    answer = reread(replace_route(SHAPES[0]))
    assert resolve_route("10.65.0.1").parse(answer) == SHAPES[0]
