"""Routes: typed values, requests, dumps, and templates for thousands of them at once.

Layer: bottom edge, pure (see messages). Used by felix.kernel (device routes), bgp (learned routes,
blackholes), cni (routes inside the pod's namespace) and the lab.

What the kernel does not tell in its documentation, and `Route` hides or shows:
  - `replace` matches (dst, tos, metric, table) whatever the protocol: it may overwrite somebody
    else's route. Look at a dump first and use a metric of your own.
  - IPv6: metric 0 becomes 1024, the scope is always universe, a blackhole comes back with
    `dev lo`. `canonical()` turns a wished-for route into what a dump will show.
  - A delete whose metric is 0 matches any metric; protocol 0 any protocol.
  - `is_dead` is the kernel's opinion of the moment (carrier lost) and does not take part in
    comparisons.

Source: linux/rtnetlink.h, net/ipv4/fib_semantics.c, net/ipv6/route.c; measured in Linux 6.18.
"""

from __future__ import annotations

import enum
import errno
import functools
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import Struct, structs

from libcalico.errors import WireError
from libcalico.netlink.messages import (
    ADDRESS_BYTES,
    AF_INET,
    AF_INET6,
    NLM_F_APPEND,
    NLM_F_CREATE,
    NLM_F_DUMP,
    NLM_F_EXCL,
    NLM_F_REPLACE,
    Message,
    Query,
    Request,
    attr,
    attr_u32,
    find_attrs,
    iter_attrs,
    message,
    pack_address,
    pack_prefix,
    read_address,
    read_s32,
    read_u32,
)

RTM_NEWROUTE, RTM_DELROUTE, RTM_GETROUTE = 24, 25, 26

# family, dst_len, src_len, tos, table, protocol, scope, type, flags
_RTMSG = struct.Struct("=BBBBBBBBI")
RTMSG_BYTES = _RTMSG.size
_RTNEXTHOP = struct.Struct("=HBBi")  # length, flags, hops (weight - 1), ifindex
_U16 = struct.Struct("=H")

RTA_DST, RTA_OIF, RTA_GATEWAY, RTA_PRIORITY, RTA_PREFSRC = 1, 4, 5, 6, 7
RTA_METRICS, RTA_MULTIPATH, RTA_TABLE, RTA_VIA = 8, 9, 15, 18

# What `Route` shows.
_OF_A_ROUTE = frozenset(
    {
        RTA_DST,
        RTA_OIF,
        RTA_GATEWAY,
        RTA_PRIORITY,
        RTA_PREFSRC,
        RTA_MULTIPATH,
        RTA_TABLE,
        RTA_VIA,
    }
)

_RTNH_F_DEAD, _RTNH_F_ONLINK, _RTNH_F_LINKDOWN = 0x1, 0x4, 0x10
RTM_F_CLONED = 0x200

TABLE_MAIN, TABLE_LOCAL = 254, 255
PROTO_UNSPEC, PROTO_KERNEL, PROTO_BOOT, PROTO_STATIC, PROTO_BGP = 0, 2, 3, 4, 186
SCOPE_UNIVERSE, SCOPE_LINK, SCOPE_HOST, SCOPE_NOWHERE = 0, 253, 254, 255
_IPV6_DEFAULT_METRIC = 1024
LOOPBACK_IFINDEX = 1


class RouteType(enum.IntEnum):
    UNSPEC = 0
    UNICAST = 1
    LOCAL = 2
    BROADCAST = 3
    ANYCAST = 4
    MULTICAST = 5
    BLACKHOLE = 6
    UNREACHABLE = 7
    PROHIBIT = 8
    THROW = 9


_TYPE_BY_NUMBER = {int(one): one for one in RouteType}
# Types that send a packet nowhere, hence have no next hop.
_WITHOUT_NEXTHOP = frozenset(
    {RouteType.BLACKHOLE, RouteType.UNREACHABLE, RouteType.PROHIBIT, RouteType.THROW}
)


@dataclass(frozen=True, slots=True)
class NextHop:
    """One way out. `gateway` may be of the other family for an IPv4 route (RFC 8950)."""

    ifindex: int = 0
    gateway: str = ""
    is_onlink: bool = False
    weight: int = 1
    is_dead: bool = field(default=False, compare=False)


# Many routes share one: a value, so the same object will do.
_next_hop = functools.lru_cache(maxsize=4096)(NextHop)


class Route(Struct, frozen=True, gc=False):
    """One kernel route. `dst` is canonical ("10.0.0.1/32", "::/0"); metric 0 is the default.

    A Struct, because a table has many of them: made and compared ten times as fast."""

    dst: str
    nexthops: tuple[NextHop, ...] = ()
    type: RouteType = RouteType.UNICAST
    protocol: int = PROTO_STATIC
    scope: int = SCOPE_UNIVERSE
    metric: int = 0
    table: int = TABLE_MAIN
    source: str = ""
    tos: int = 0

    @property
    def family(self) -> int:
        return AF_INET6 if ":" in self.dst else AF_INET

    def canonical(self) -> Route:
        """The same route as a dump will show it once programmed."""
        if self.family == AF_INET:
            return self
        metric = self.metric or _IPV6_DEFAULT_METRIC
        return structs.replace(self, scope=SCOPE_UNIVERSE, metric=metric)


def device_route(dst: str, ifindex: int, *, protocol: int, metric: int = 0) -> Route:
    """`dst dev X scope link`: what a workload's address needs."""
    hops = (NextHop(ifindex),)
    return Route(dst, hops, protocol=protocol, scope=SCOPE_LINK, metric=metric).canonical()


def replace_route(route: Route) -> Request:
    """Create, or overwrite whatever has the same (dst, tos, metric, table)."""
    body = _encode(route, for_delete=False)
    flags = NLM_F_CREATE | NLM_F_REPLACE
    return Request(message(RTM_NEWROUTE, flags, body), "replace route", route.dst)


def add_route(route: Route) -> Request:
    """Create; EEXIST when (dst, tos, metric, table) is taken."""
    body = _encode(route, for_delete=False)
    flags = NLM_F_CREATE | NLM_F_EXCL
    return Request(message(RTM_NEWROUTE, flags, body), "add route", route.dst)


def append_route(route: Route) -> Request:
    """Create beside an existing one (IPv4) or add a next hop to it (IPv6)."""
    body = _encode(route, for_delete=False)
    flags = NLM_F_CREATE | NLM_F_APPEND
    return Request(message(RTM_NEWROUTE, flags, body), "append route", route.dst)


def delete_route(route: Route) -> Request:
    """Delete exactly this one: table, metric, protocol and next hops all take part in the match.

    ESRCH when it is not there."""
    body = _encode(route, for_delete=True)
    return Request(message(RTM_DELROUTE, 0, body), "delete route", route.dst)


@dataclass(frozen=True, slots=True)
class RouteFilter:
    """Which routes of a dump are wanted; 0 means any. The kernel filters too where it can.

    Routes of `skip_protocols` are passed over before they are decoded: that costs little."""

    table: int = TABLE_MAIN
    protocol: int = 0
    ifindex: int = 0
    type: RouteType = RouteType.UNSPEC
    skip_protocols: frozenset[int] = frozenset()

    def matches(self, route: Route) -> bool:
        return (
            (not self.table or route.table == self.table)
            and (not self.protocol or route.protocol == self.protocol)
            and (not self.ifindex or any(h.ifindex == self.ifindex for h in route.nexthops))
            and (not self.type or route.type == self.type)
            and route.protocol not in self.skip_protocols
        )


MAIN_TABLE = RouteFilter()


def list_routes(family: int, wanted: RouteFilter = MAIN_TABLE) -> Query[Route]:
    """A dump of one family. Cached exceptions (cloned routes) are left out."""
    header = _RTMSG.pack(
        family, 0, 0, 0, _table_byte(wanted.table), wanted.protocol, 0, wanted.type, 0
    )
    filters = attr_u32(RTA_TABLE, wanted.table) if wanted.table else b""
    if wanted.ifindex:
        filters += attr_u32(RTA_OIF, wanted.ifindex)

    def parse(received: Message) -> Route | None:
        body = received.body
        if received.type != RTM_NEWROUTE:
            return None
        if len(body) >= _RTMSG.size and (body[0] != family or body[5] in wanted.skip_protocols):
            return None
        route = parse_route(received)
        return route if route is not None and wanted.matches(route) else None

    request = message(RTM_GETROUTE, NLM_F_DUMP, header + filters)
    # Strict checking refuses a table in which nothing was ever programmed, and a vanished device.
    nothing = (errno.ENOENT, errno.ENODEV)
    return Query(request, "list routes", f"table {wanted.table}", parse, nothing)


def resolve_route(address: str) -> Query[Route]:
    """`ip route get`: the route a packet to `address` would take now."""
    family, packed = pack_address(address)
    body = _RTMSG.pack(family, len(packed) * 8, 0, 0, 0, 0, 0, 0, 0) + attr(RTA_DST, packed)

    def parse(received: Message) -> Route | None:
        return parse_route(received, include_cloned=True)

    return Query(message(RTM_GETROUTE, 0, body), "resolve route", address, parse)


def parse_route(received: Message, *, include_cloned: bool = False) -> Route | None:
    """An RTM_NEWROUTE or RTM_DELROUTE; None for another family or a cloned cache entry."""
    body = received.body
    if len(body) < _RTMSG.size:
        raise WireError(f"route message of {len(body)} bytes")
    family, dst_len, _, tos, table, protocol, scope, kind, flags = _RTMSG.unpack_from(body)
    if family not in ADDRESS_BYTES or (flags & RTM_F_CLONED and not include_cloned):
        return None
    attrs = find_attrs(body, _RTMSG.size, _OF_A_ROUTE)
    dst = attrs.get(RTA_DST)
    table_attr, metric = attrs.get(RTA_TABLE), attrs.get(RTA_PRIORITY)
    source = attrs.get(RTA_PREFSRC)
    return Route(
        dst=f"{read_address(family, dst if dst is not None else _ANY[family])}/{dst_len}",
        nexthops=_parse_nexthops(family, kind, flags, attrs),
        type=_TYPE_BY_NUMBER.get(kind, RouteType.UNSPEC),
        protocol=protocol,
        scope=scope,
        metric=0 if metric is None else read_u32(metric),
        table=table if table_attr is None else read_u32(table_attr),
        source="" if source is None else read_address(family, source),
        tos=tos,
    )


class RouteTemplate:
    """Encodes many routes that differ only in the prefix: one slice-and-join each.

    `sample` gives everything but the address; its prefix length is the template's. One template
    per (operation, next hops, metric, prefix length). The bytes go to
    `NetlinkSocket.transact_messages`.
    """

    __slots__ = ("_after", "_before", "prefix_len")

    def __init__(self, build: Callable[[Route], Request], sample: Route) -> None:
        encoded = build(sample).message
        family, packed, self.prefix_len = pack_prefix(sample.dst)
        at = _destination_offset(encoded)
        assert encoded[at : at + len(packed)] == packed, "the destination is the first attribute"
        assert family == encoded[16], "the family opens the route header"
        self._before = encoded[:at]
        self._after = encoded[at + len(packed) :]

    def encode(self, prefix: bytes) -> bytes:
        """`prefix` is the packed network address: 4 or 16 bytes, host bits zero."""
        return self._before + prefix + self._after


def _destination_offset(encoded: bytes) -> int:
    return 16 + _RTMSG.size + 4


_ANY = {family: bytes(size) for family, size in ADDRESS_BYTES.items()}


def _table_byte(table: int) -> int:
    """Tables above 255 go into RTA_TABLE; the header then says unspec (as iproute2 does)."""
    return table if table < 256 else 0


def _encode(route: Route, *, for_delete: bool) -> bytes:
    family, packed, dst_len = pack_prefix(route.dst)
    # A delete by scope NOWHERE matches any scope: the rest identifies the route already.
    scope = SCOPE_NOWHERE if for_delete and family == AF_INET else route.scope
    flags = _header_flags(route)
    header = _RTMSG.pack(
        family,
        dst_len,
        0,
        route.tos,
        _table_byte(route.table),
        route.protocol,
        scope,
        route.type,
        flags,
    )
    # RTA_DST stays first: RouteTemplate patches it in place.
    parts = [header, attr(RTA_DST, packed), attr_u32(RTA_TABLE, route.table)]
    if route.metric:
        parts.append(attr_u32(RTA_PRIORITY, route.metric))
    if route.source:
        parts.append(attr(RTA_PREFSRC, pack_address(route.source)[1]))
    if route.type not in _WITHOUT_NEXTHOP:
        parts.append(_encode_nexthops(family, route.nexthops))
    return b"".join(parts)


def _header_flags(route: Route) -> int:
    if len(route.nexthops) == 1 and route.nexthops[0].is_onlink:
        return _RTNH_F_ONLINK
    return 0


def _encode_nexthops(family: int, nexthops: tuple[NextHop, ...]) -> bytes:
    if len(nexthops) == 1:
        hop = nexthops[0]
        oif = attr_u32(RTA_OIF, hop.ifindex) if hop.ifindex else b""
        return _encode_gateway(family, hop.gateway) + oif
    blocks = []
    for hop in nexthops:
        gateway = _encode_gateway(family, hop.gateway)
        flags = _RTNH_F_ONLINK if hop.is_onlink else 0
        length = _RTNEXTHOP.size + len(gateway)
        blocks.append(_RTNEXTHOP.pack(length, flags, hop.weight - 1, hop.ifindex) + gateway)
    return attr(RTA_MULTIPATH, b"".join(blocks)) if blocks else b""


def _encode_gateway(family: int, gateway: str) -> bytes:
    if not gateway:
        return b""
    gateway_family, packed = pack_address(gateway)
    if gateway_family == family:
        return attr(RTA_GATEWAY, packed)
    return attr(RTA_VIA, _U16.pack(gateway_family) + packed)


def _parse_nexthops(
    family: int, kind: int, flags: int, attrs: dict[int, memoryview]
) -> tuple[NextHop, ...]:
    if kind in _WITHOUT_NEXTHOP:
        return ()
    multipath = attrs.get(RTA_MULTIPATH)
    if multipath is not None:
        return _parse_multipath(family, multipath)
    oif = attrs.get(RTA_OIF)
    gateway = _parse_gateway(family, attrs)
    if oif is None and not gateway:
        return ()
    ifindex = 0 if oif is None else read_s32(oif)
    return (_next_hop(ifindex, gateway, bool(flags & _RTNH_F_ONLINK), 1, _is_dead(flags)),)


def _parse_multipath(family: int, multipath: memoryview) -> tuple[NextHop, ...]:
    hops = []
    offset, end = 0, len(multipath)
    while offset + _RTNEXTHOP.size <= end:
        length, flags, weight, ifindex = _RTNEXTHOP.unpack_from(multipath, offset)
        if length < _RTNEXTHOP.size or offset + length > end:
            raise WireError(f"next hop of {length} bytes at {offset} of {end}")
        attrs = dict(iter_attrs(multipath[offset + _RTNEXTHOP.size : offset + length]))
        gateway = _parse_gateway(family, attrs)
        onlink = bool(flags & _RTNH_F_ONLINK)
        hops.append(_next_hop(ifindex, gateway, onlink, weight + 1, _is_dead(flags)))
        offset += (length + 3) & ~3
    return tuple(hops)


def _parse_gateway(family: int, attrs: dict[int, memoryview]) -> str:
    gateway = attrs.get(RTA_GATEWAY)
    if gateway is not None:
        return read_address(family, gateway)
    via = attrs.get(RTA_VIA)
    if via is None:
        return ""
    if len(via) < 2:
        raise WireError(f"RTA_VIA of {len(via)} bytes")
    via_family: int = _U16.unpack_from(via)[0]
    # A gateway of a family we do not speak (MPLS) is as good as an unknown one.
    return read_address(via_family, via[2:]) if via_family in ADDRESS_BYTES else ""


def _is_dead(flags: int) -> bool:
    return bool(flags & (_RTNH_F_DEAD | _RTNH_F_LINKDOWN))
