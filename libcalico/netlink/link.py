"""Links: veth pairs with one end in another namespace, changes, lists, group deletion.

Layer: bottom edge, pure (see messages). Used by cni (veth), felix.kernel (states), the lab.

Facts measured on Linux 6.18 that shaped this:
  - the near end of a veth can be made up, with MAC and MTU, in the one RTM_NEWLINK; the far end
    cannot be up from the start (ENOTCONN), so bring it up from inside its namespace;
  - numtxqueues/numrxqueues = 1 given explicitly save a queue per CPU;
  - deleting a link costs ~20 ms (RCU), whoever asks; deleting a whole *group* in one message costs
    the same once: set the group of many links, then `delete_group`.
IPv4 per-interface settings can travel in `LinkChange.ipv4_conf`, which saves writing /proc files;
IPv6 has no such way.

Source: linux/if_link.h, linux/if.h, net/core/rtnetlink.c.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from msgspec import Struct

from libcalico.errors import WireError
from libcalico.netlink.messages import (
    AF_INET,
    AF_UNSPEC,
    NLM_F_CREATE,
    NLM_F_DUMP,
    NLM_F_EXCL,
    Message,
    Query,
    Request,
    attr,
    attr_s32,
    attr_text,
    attr_u32,
    find_attrs,
    message,
    nested,
    pack_mac,
    parse_attrs,
    read_mac,
    read_s32,
    read_text,
    read_u32,
)

RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK, RTM_SETLINK = 16, 17, 18, 19

_IFINFOMSG = struct.Struct("=BxHiII")  # family, device type, ifindex, flags, change mask

IFLA_ADDRESS, IFLA_IFNAME, IFLA_MTU, IFLA_LINK = 1, 3, 4, 5
IFLA_MASTER, IFLA_OPERSTATE, IFLA_LINKINFO, IFLA_IFALIAS = 10, 16, 18, 20
IFLA_AF_SPEC, IFLA_GROUP, IFLA_NET_NS_FD, IFLA_EXT_MASK = 26, 27, 28, 29
IFLA_NUM_TX_QUEUES, IFLA_NUM_RX_QUEUES, IFLA_LINK_NETNSID = 31, 32, 37
_IFLA_INFO_KIND, _IFLA_INFO_DATA = 1, 2
_VETH_INFO_PEER = 1
_IFLA_INET_CONF = 1
_RTEXT_FILTER_SKIP_STATS = 1 << 3

# What `Link` shows; a notification carries four times as many, statistics and settings above all.
_OF_A_LINK = frozenset(
    {
        IFLA_ADDRESS,
        IFLA_IFNAME,
        IFLA_MTU,
        IFLA_LINK,
        IFLA_MASTER,
        IFLA_LINKINFO,
        IFLA_IFALIAS,
        IFLA_GROUP,
        IFLA_LINK_NETNSID,
    }
)
_OF_AN_INFO = frozenset({_IFLA_INFO_KIND})

IFF_UP, IFF_LOWER_UP = 0x1, 0x10000
OPERSTATE_UP = 6

# linux/net_namespace.h: struct rtgenmsg (padded) and attributes.
_RTM_NEWNSID, _RTM_GETNSID = 88, 90
_NETNSA_NSID, _NETNSA_FD = 1, 3
_RTGENMSG = struct.Struct("=B3x")
_IFLA_TARGET_NETNSID = 46

# Indexes of IFLA_INET_CONF (linux/ip.h, IPV4_DEVCONF_*).
IPV4_FORWARDING, IPV4_PROXY_ARP, IPV4_RP_FILTER, IPV4_ROUTE_LOCALNET = 1, 3, 8, 26


class Link(Struct, frozen=True, gc=False):
    """One network interface as the kernel describes it. A Struct, as Route is, for speed.

    `peer_ifindex` is the other end of a veth (in namespace `peer_netnsid` when that is not -1),
    or the lower device of a stacked link; 0 when there is none."""

    ifindex: int
    name: str
    kind: str = ""
    mac: str = ""
    mtu_bytes: int = 0
    is_up: bool = False
    has_carrier: bool = False
    master: int = 0
    group: int = 0
    peer_ifindex: int = 0
    peer_netnsid: int = -1
    alias: str = ""

    @property
    def is_running(self) -> bool:
        """Up on both sides: the kernel keeps and uses routes over it."""
        return self.is_up and self.has_carrier


@dataclass(frozen=True, slots=True)
class VethEnd:
    """`netns_fd` None: in the namespace of the socket that sends the request. `num_queues` of
    each direction: a queue costs memory, and the kernel's own default is one for every CPU."""

    name: str
    mac: str = ""
    mtu_bytes: int = 0
    netns_fd: int | None = None
    num_queues: int = 1


def create_veth(near: VethEnd, far: VethEnd, *, near_is_up: bool = True) -> Request:
    """Make a pair, each end directly where it belongs. EEXIST when a name is taken."""
    assert near.netns_fd is None, "the near end is made where the socket lives"
    peer = _IFINFOMSG.pack(AF_UNSPEC, 0, 0, 0, 0) + _veth_attrs(far)
    info = nested(
        IFLA_LINKINFO,
        attr_text(_IFLA_INFO_KIND, "veth"),
        nested(_IFLA_INFO_DATA, attr(_VETH_INFO_PEER, peer)),
    )
    flags = IFF_UP if near_is_up else 0
    body = _IFINFOMSG.pack(AF_UNSPEC, 0, 0, flags, IFF_UP) + _veth_attrs(near) + info
    return Request(message(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, body), "create veth", near.name)


def create_link(name: str, kind: str, *, mtu_bytes: int = 0, data: bytes = b"") -> Request:
    """Any other kind ("bridge", "vxlan", …); `data` are its encoded IFLA_INFO_DATA attributes."""
    info = attr_text(_IFLA_INFO_KIND, kind)
    if data:
        info += nested(_IFLA_INFO_DATA, data)
    body = _IFINFOMSG.pack(AF_UNSPEC, 0, 0, 0, 0) + attr_text(IFLA_IFNAME, name)
    if mtu_bytes:
        body += attr_u32(IFLA_MTU, mtu_bytes)
    body += nested(IFLA_LINKINFO, info)
    return Request(message(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, body), f"create {kind}", name)


@dataclass(frozen=True, slots=True)
class LinkChange:
    """What to change; None leaves it. `master` 0 releases; `ipv4_conf` pairs (IPV4_*, value)."""

    is_up: bool | None = None
    mac: str | None = None
    mtu_bytes: int | None = None
    name: str | None = None
    group: int | None = None
    master: int | None = None
    netns_fd: int | None = None
    alias: str | None = None
    ipv4_conf: tuple[tuple[int, int], ...] = ()


def change_link(link: int | str, change: LinkChange) -> Request:
    """`link` is an ifindex or a name. ENODEV when there is none."""
    assert change.name is None or isinstance(link, int), "a rename needs the ifindex"
    up = change.is_up
    flags, mask = (0, 0) if up is None else (IFF_UP if up else 0, IFF_UP)
    body = _select(link, flags, mask) + _change_attrs(change)
    return Request(message(RTM_SETLINK, 0, body), "change link", str(link))


def delete_link(link: int | str) -> Request:
    """Both ends of a veth go. ENODEV when there is none."""
    return Request(message(RTM_DELLINK, 0, _select(link)), "delete link", str(link))


def delete_group(group: int) -> Request:
    """Delete every link of a group in one teardown. Group 0, which all links start in, is refused.

    ENODEV when the group has no member."""
    assert group > 0, "group 0 is everybody"
    body = _IFINFOMSG.pack(AF_UNSPEC, 0, 0, 0, 0) + attr_u32(IFLA_GROUP, group)
    return Request(message(RTM_DELLINK, 0, body), "delete link group", str(group))


def get_link(link: int | str, *, netnsid: int | None = None) -> Query[Link]:
    """ENODEV when there is none. `netnsid`: in another namespace, by the id it has in ours."""
    body = _select(link) + attr_u32(IFLA_EXT_MASK, _RTEXT_FILTER_SKIP_STATS)
    if netnsid is not None:
        body += attr_u32(_IFLA_TARGET_NETNSID, netnsid)
    return Query(message(RTM_GETLINK, 0, body), "get link", str(link), _parse_new_link)


def get_netnsid(netns_fd: int) -> Query[int]:
    """The id that the socket's namespace has for another one, as in `Link.peer_netnsid`; -1 when it
    has none (yet: it gets one when a link with its peer there is shown). Errors: EINVAL and others
    for what is no namespace."""
    body = _RTGENMSG.pack(AF_UNSPEC) + attr_u32(_NETNSA_FD, netns_fd)

    def parse(received: Message) -> int | None:
        if received.type != _RTM_NEWNSID:
            return None
        found = parse_attrs(received.body, _RTGENMSG.size).get(_NETNSA_NSID)
        return -1 if found is None else read_s32(found)

    return Query(message(_RTM_GETNSID, 0, body), "get netnsid", str(netns_fd), parse)


def list_links(*, kind: str = "", master: int = 0) -> Query[Link]:
    """All links, or those of a kind and/or enslaved to a master."""
    body = _IFINFOMSG.pack(AF_UNSPEC, 0, 0, 0, 0)
    body += attr_u32(IFLA_EXT_MASK, _RTEXT_FILTER_SKIP_STATS)
    if master:
        body += attr_u32(IFLA_MASTER, master)
    if kind:
        body += nested(IFLA_LINKINFO, attr_text(_IFLA_INFO_KIND, kind))

    def parse(received: Message) -> Link | None:
        link = _parse_new_link(received)
        if link is None or (kind and link.kind != kind) or (master and link.master != master):
            return None
        return link

    return Query(message(RTM_GETLINK, NLM_F_DUMP, body), "list links", kind or "all", parse)


def parse_link(received: Message) -> Link | None:
    """An RTM_NEWLINK or RTM_DELLINK; None for the bridge-port dialect (family AF_BRIDGE)."""
    body = received.body
    if len(body) < _IFINFOMSG.size:
        raise WireError(f"link message of {len(body)} bytes")
    family, _, ifindex, flags, _ = _IFINFOMSG.unpack_from(body)
    if family != AF_UNSPEC:
        return None
    attrs = find_attrs(body, _IFINFOMSG.size, _OF_A_LINK)
    info = attrs.get(IFLA_LINKINFO)
    kind = find_attrs(info, 0, _OF_AN_INFO).get(_IFLA_INFO_KIND) if info is not None else None
    mac = attrs.get(IFLA_ADDRESS)
    netnsid = attrs.get(IFLA_LINK_NETNSID)
    return Link(
        ifindex=ifindex,
        name=_text(attrs, IFLA_IFNAME),
        kind="" if kind is None else read_text(kind),
        mac="" if mac is None else read_mac(mac),
        mtu_bytes=_number(attrs, IFLA_MTU),
        is_up=bool(flags & IFF_UP),
        has_carrier=bool(flags & IFF_LOWER_UP),
        master=_number(attrs, IFLA_MASTER),
        group=_number(attrs, IFLA_GROUP),
        peer_ifindex=_number(attrs, IFLA_LINK),
        peer_netnsid=-1 if netnsid is None else read_s32(netnsid),
        alias=_text(attrs, IFLA_IFALIAS),
    )


def _parse_new_link(received: Message) -> Link | None:
    return parse_link(received) if received.type == RTM_NEWLINK else None


def _select(link: int | str, flags: int = 0, mask: int = 0) -> bytes:
    if isinstance(link, int):
        return _IFINFOMSG.pack(AF_UNSPEC, 0, link, flags, mask)
    return _IFINFOMSG.pack(AF_UNSPEC, 0, 0, flags, mask) + attr_text(IFLA_IFNAME, link)


def _veth_attrs(end: VethEnd) -> bytes:
    parts = [attr_text(IFLA_IFNAME, end.name)]
    parts += [attr_u32(kind, end.num_queues) for kind in (IFLA_NUM_TX_QUEUES, IFLA_NUM_RX_QUEUES)]
    if end.mac:
        parts.append(attr(IFLA_ADDRESS, pack_mac(end.mac)))
    if end.mtu_bytes:
        parts.append(attr_u32(IFLA_MTU, end.mtu_bytes))
    if end.netns_fd is not None:
        parts.append(attr_u32(IFLA_NET_NS_FD, end.netns_fd))
    return b"".join(parts)


def _change_attrs(change: LinkChange) -> bytes:
    parts = []
    if change.mac is not None:
        parts.append(attr(IFLA_ADDRESS, pack_mac(change.mac)))
    for attr_type, text in ((IFLA_IFNAME, change.name), (IFLA_IFALIAS, change.alias)):
        if text is not None:
            parts.append(attr_text(attr_type, text))
    numbers = (
        (IFLA_MTU, change.mtu_bytes),
        (IFLA_GROUP, change.group),
        (IFLA_MASTER, change.master),
        (IFLA_NET_NS_FD, change.netns_fd),
    )
    parts += [attr_u32(attr_type, value) for attr_type, value in numbers if value is not None]
    if change.ipv4_conf:
        settings = (attr_s32(index, value) for index, value in change.ipv4_conf)
        inet = nested(AF_INET, nested(_IFLA_INET_CONF, *settings))
        parts.append(nested(IFLA_AF_SPEC, inet))
    return b"".join(parts)


def _number(attrs: dict[int, memoryview], attr_type: int) -> int:
    value = attrs.get(attr_type)
    return 0 if value is None else read_u32(value)


def _text(attrs: dict[int, memoryview], attr_type: int) -> str:
    value = attrs.get(attr_type)
    return "" if value is None else read_text(value)
