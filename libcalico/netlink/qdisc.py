"""Traffic control: token buckets, the ingress hook, and its redirection to another interface.

Layer: bottom edge, pure (see messages). Used by felix.kernel.shaping.

A token bucket (tbf) shapes what the kernel sends out of an interface. What comes in can only be
shaped by sending it through another interface first: the ingress qdisc holds a filter that matches
everything (u32, which every stock kernel has; matchall is younger) and whose action (mirred)
redirects to an ifb, and the ifb carries the token bucket.

Facts of the kernel that shaped this (net/sched/sch_tbf.c, sch_api.c):
  - a bucket is given by its *time* at the rate, in ticks of 64 ns, and time beyond 2^32 - 1 ns is
    cut: 4.29 s of the rate is the largest burst. Within that, what is written is read back exactly;
  - rates of 2^32 bytes a second and more travel beside the old 32-bit field;
  - the ingress qdisc has one handle, ffff:, so nobody can mark it as his own.

Source: linux/pkt_sched.h, linux/pkt_cls.h, linux/tc_act/tc_mirred.h.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from libcalico.errors import WireError
from libcalico.netlink.messages import (
    NLM_F_CREATE,
    NLM_F_DUMP,
    NLM_F_EXCL,
    Message,
    Query,
    Request,
    attr,
    attr_text,
    iter_attrs,
    message,
    nested,
    parse_attrs,
    read_text,
)

RTM_NEWQDISC, RTM_DELQDISC, RTM_GETQDISC = 36, 37, 38
RTM_NEWTFILTER, RTM_DELTFILTER, RTM_GETTFILTER = 44, 45, 46
ROOT, INGRESS = 0xFFFFFFFF, 0xFFFFFFF1
INGRESS_HANDLE = 0xFFFF0000
TICK_NS = 64
MAX_TICKS = (2**32 - 1) // TICK_NS

_TCMSG = struct.Struct("=BxxxiIII")  # family, ifindex, handle, parent, info
_RATESPEC = struct.Struct("=BBHhHI")  # cell log, link layer, overhead, cell align, mpu, rate
_TBF_TAIL = struct.Struct("=III")  # limit, buffer, mtu
_TBF_BYTES = 2 * _RATESPEC.size + _TBF_TAIL.size
_U64 = struct.Struct("=Q")
_LINKLAYER_ETHERNET = 1
_TCA_KIND, _TCA_OPTIONS = 1, 2
_TBF_PARMS, _TBF_RATE64, _TBF_PRATE64 = 1, 4, 5
_U32_SEL, _U32_ACT = 5, 7
# One key that matches everything: flags "terminal", one key, no offsets; mask and value 0 at 0.
_MATCH_ALL = struct.pack("=BBBxHHhhI", 1, 0, 1, 0, 0, 0, 0, 0) + bytes(16)
_ACT_KIND, _ACT_OPTIONS, _MIRRED_PARMS = 1, 2, 2
_MIRRED = struct.Struct("=IIiiiiI")  # index, capab, action, refcnt, bindcnt, eaction, ifindex
_ACT_STOLEN, _EGRESS_REDIRECT = 4, 1
_ETH_P_ALL = 0x0300  # in network order


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """The parameters of a tbf, as the kernel keeps them.

    Units: rates in bytes a second; `burst_ticks` and `peak_ticks` (bytes that may leave faster than
    the peak rate) in TICK_NS, at most MAX_TICKS; `limit_bytes` of queue. `peak_rate` 0: none."""

    rate: int
    burst_ticks: int
    limit_bytes: int
    peak_rate: int = 0
    peak_ticks: int = 0


@dataclass(frozen=True, slots=True)
class Qdisc:
    """`handle` 0 is one the kernel put there by itself. `bucket` is None for other kinds."""

    ifindex: int
    kind: str
    handle: int
    parent: int
    bucket: TokenBucket | None = None


@dataclass(frozen=True, slots=True)
class IngressFilter:
    """A filter of an ingress qdisc. `target` is the ifindex it redirects to, 0 for anything else
    it may do."""

    ifindex: int
    kind: str
    priority: int
    target: int = 0


def set_tbf(ifindex: int, handle: int, bucket: TokenBucket) -> Request:
    """Make the root qdisc, or change the one of that handle in place; a default one gives way.

    EEXIST when there is one of another handle, EINVAL when peak_rate is not above rate."""
    options = attr(_TBF_PARMS, _pack_tbf(bucket))
    for attr_type, rate in ((_TBF_RATE64, bucket.rate), (_TBF_PRATE64, bucket.peak_rate)):
        if rate >= 1 << 32:
            options += attr(attr_type, _U64.pack(rate))
    body = _TCMSG.pack(0, ifindex, handle, ROOT, 0) + attr_text(_TCA_KIND, "tbf")
    body += nested(_TCA_OPTIONS, options)
    return Request(message(RTM_NEWQDISC, NLM_F_CREATE, body), "set tbf", str(ifindex))


def add_ingress(ifindex: int) -> Request:
    """EEXIST when there is an ingress (or clsact) qdisc."""
    body = _TCMSG.pack(0, ifindex, INGRESS_HANDLE, INGRESS, 0) + attr_text(_TCA_KIND, "ingress")
    flags = NLM_F_CREATE | NLM_F_EXCL
    return Request(message(RTM_NEWQDISC, flags, body), "add ingress qdisc", str(ifindex))


def delete_qdisc(ifindex: int, parent: int, handle: int) -> Request:
    """With all its filters. EINVAL when there is none, or when it has another handle."""
    body = _TCMSG.pack(0, ifindex, handle, parent, 0)
    return Request(message(RTM_DELQDISC, 0, body), "delete qdisc", str(ifindex))


def list_qdiscs() -> Query[Qdisc]:
    """Those of every interface: the kernel knows no narrower question."""
    return Query(message(RTM_GETQDISC, NLM_F_DUMP, _TCMSG.pack(0, 0, 0, 0, 0)), *_QDISCS)


def add_redirect(ifindex: int, target: int, priority: int) -> Request:
    """Send what comes in on `ifindex` through `target`; it returns from there as if it came in.

    EINVAL without an ingress qdisc."""
    parameters = _MIRRED.pack(0, 0, _ACT_STOLEN, 0, 0, _EGRESS_REDIRECT, target)
    action = attr_text(_ACT_KIND, "mirred")
    action += nested(_ACT_OPTIONS, attr(_MIRRED_PARMS, parameters))
    options = attr(_U32_SEL, _MATCH_ALL) + nested(_U32_ACT, nested(1, action))
    body = _filter_head(ifindex, priority) + attr_text(_TCA_KIND, "u32")
    body += nested(_TCA_OPTIONS, options)
    flags = NLM_F_CREATE | NLM_F_EXCL
    return Request(message(RTM_NEWTFILTER, flags, body), "add redirect", str(ifindex))


def delete_redirect(ifindex: int, priority: int) -> Request:
    """All u32 filters of that priority. ENOENT when there is none, EINVAL without a qdisc."""
    body = _filter_head(ifindex, priority) + attr_text(_TCA_KIND, "u32")
    return Request(message(RTM_DELTFILTER, 0, body), "delete redirect", str(ifindex))


def list_ingress_filters(ifindex: int) -> Query[IngressFilter]:
    """Of an interface that has an ingress or clsact qdisc."""
    body = _TCMSG.pack(0, ifindex, 0, INGRESS_HANDLE, 0)
    request = message(RTM_GETTFILTER, NLM_F_DUMP, body)
    return Query(request, "list filters", str(ifindex), parse_filter)


def parse_qdisc(received: Message) -> Qdisc | None:
    """An RTM_NEWQDISC."""
    if received.type != RTM_NEWQDISC:
        return None
    ifindex, handle, parent, _info, attrs = _parse(received)
    kind = read_text(attrs[_TCA_KIND]) if _TCA_KIND in attrs else ""
    bucket = _read_tbf(attrs[_TCA_OPTIONS]) if kind == "tbf" and _TCA_OPTIONS in attrs else None
    return Qdisc(ifindex, kind, handle, parent, bucket)


def parse_filter(received: Message) -> IngressFilter | None:
    """An RTM_NEWTFILTER; None for the hash tables that u32 lists beside its filters."""
    if received.type != RTM_NEWTFILTER:
        return None
    ifindex, handle, _parent, info, attrs = _parse(received)
    kind = read_text(attrs[_TCA_KIND]) if _TCA_KIND in attrs else ""
    options = parse_attrs(attrs[_TCA_OPTIONS], 0) if _TCA_OPTIONS in attrs else {}
    if not handle or (kind == "u32" and _U32_SEL not in options):
        return None
    target = 0
    if kind == "u32" and _U32_ACT in options:
        target = _redirect_target(options[_U32_ACT])
    return IngressFilter(ifindex, kind, info >> 16, target)


_QDISCS = ("list qdiscs", "all", parse_qdisc)


def _parse(received: Message) -> tuple[int, int, int, int, dict[int, memoryview]]:
    body = received.body
    if len(body) < _TCMSG.size:
        raise WireError(f"traffic control message of {len(body)} bytes")
    _family, ifindex, handle, parent, info = _TCMSG.unpack_from(body)
    return ifindex, handle, parent, info, parse_attrs(body, _TCMSG.size)


def _filter_head(ifindex: int, priority: int) -> bytes:
    return _TCMSG.pack(0, ifindex, 0, INGRESS_HANDLE, priority << 16 | _ETH_P_ALL)


def _pack_tbf(bucket: TokenBucket) -> bytes:
    return (
        _pack_rate(bucket.rate)
        + _pack_rate(bucket.peak_rate)
        + _TBF_TAIL.pack(bucket.limit_bytes, bucket.burst_ticks, bucket.peak_ticks)
    )


def _pack_rate(rate: int) -> bytes:
    """With the link layer named, the kernel wants no rate table; an unused one is all zero."""
    if not rate:
        return bytes(_RATESPEC.size)
    return _RATESPEC.pack(0, _LINKLAYER_ETHERNET, 0, 0, 0, min(rate, 0xFFFFFFFF))


def _read_tbf(options: memoryview) -> TokenBucket | None:
    attrs = parse_attrs(options, 0)
    parameters = attrs.get(_TBF_PARMS)
    if parameters is None:
        return None
    if len(parameters) < _TBF_BYTES:
        raise WireError(f"tbf parameters of {len(parameters)} bytes")
    rates = []
    for place, wide in ((0, _TBF_RATE64), (_RATESPEC.size, _TBF_PRATE64)):
        if wide in attrs and len(attrs[wide]) >= _U64.size:
            rates.append(int(_U64.unpack_from(attrs[wide])[0]))
        else:
            rates.append(int(_RATESPEC.unpack_from(parameters, place)[5]))
    limit, burst, peak = _TBF_TAIL.unpack_from(parameters, 2 * _RATESPEC.size)
    return TokenBucket(rates[0], burst, limit, rates[1], peak)


def _redirect_target(actions: memoryview) -> int:
    """The ifindex of a list of actions that is one redirection; 0 for any other list."""
    listed = [value for _place, value in iter_attrs(actions, 0)]
    attrs = parse_attrs(listed[0], 0) if len(listed) == 1 else {}
    if _ACT_OPTIONS not in attrs or read_text(attrs.get(_ACT_KIND, actions[:0])) != "mirred":
        return 0
    parameters = parse_attrs(attrs[_ACT_OPTIONS], 0).get(_MIRRED_PARMS)
    if parameters is None or len(parameters) < _MIRRED.size:
        return 0
    fields = _MIRRED.unpack_from(parameters)
    return int(fields[6]) if fields[5] == _EGRESS_REDIRECT else 0
