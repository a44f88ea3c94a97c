"""Connections of an address, found and deleted through ctnetlink.

Layer: felix.kernel (edge). Implements ConntrackPort over libcalico.netlink's socket and framing.

Deleting is by tuple, zone and id of what a dump showed, never by filter: a kernel that does not
know filters on delete would flush everything.

Source: linux/netfilter/nfnetlink_conntrack.h, net/netfilter/nf_conntrack_netlink.c.
"""

from __future__ import annotations

import errno
import re
import struct
from collections.abc import Sequence

from felix.kernel.worker import KernelWorker
from libcalico.errors import ProgrammingFailed
from libcalico.netlink import NetlinkSocket, Query, Request
from libcalico.netlink.messages import (
    AF_UNSPEC,
    NLM_F_DUMP,
    Message,
    attr,
    message,
    nested,
    pack_address,
    parse_attrs,
)
from libcalico.runtime import log

LOG = log.get(__name__)

NETLINK_NETFILTER = 12
_SUBSYSTEM = 1 << 8  # NFNL_SUBSYS_CTNETLINK
_CT_NEW, _CT_GET, _CT_DELETE = _SUBSYSTEM | 0, _SUBSYSTEM | 1, _SUBSYSTEM | 2
_NFGENMSG = struct.Struct(">BBH")

_TUPLE_ORIG, _TUPLE_REPLY, _ID, _ZONE = 1, 2, 12, 18
_TUPLE_IP = 1


def delete_connection(family: int, attrs: dict[int, memoryview]) -> Request:
    """Delete exactly the connection that a dump showed."""
    body = _NFGENMSG.pack(family, 0, 0) + nested(_TUPLE_ORIG, bytes(attrs[_TUPLE_ORIG]))
    for wanted in (_ID, _ZONE):
        if wanted in attrs:
            body += attr(wanted, bytes(attrs[wanted]))
    return Request(message(_CT_DELETE, 0, body), "forget", "connection")


def connections_of(addresses: Sequence[str]) -> Query[Request]:
    """The dump that shows every connection of `addresses`, as requests that delete it.

    Not filtered by the kernel: its filter takes one side of one address, each such dump costs as
    much as one of everything (the hash table is walked, 9 ms for 262,144 buckets), and the one for
    IPv6 is inverted (ctnetlink_filter_match_tuple, `!ipv6_addr_cmp`; Linux 6.18)."""
    packed = frozenset(pack_address(address)[1] for address in addresses)
    # A search in C first: few connections in a hundred thousand are what we look for.
    search = re.compile(b"|".join(map(re.escape, sorted(packed)))).search

    def parse(received: Message) -> Request | None:
        if received.type != _CT_NEW or search(received.body) is None:
            return None
        attrs = parse_attrs(received.body, _NFGENMSG.size)
        if _TUPLE_ORIG not in attrs or packed.isdisjoint(_addresses(attrs)):
            return None
        return delete_connection(received.body[0], attrs)

    body = _NFGENMSG.pack(AF_UNSPEC, 0, 0)
    return Query(message(_CT_GET, NLM_F_DUMP, body), "list connections", "conntrack", parse)


def _addresses(attrs: dict[int, memoryview]) -> set[bytes]:
    """Both ends of both directions."""
    found: set[bytes] = set()
    for tuple_type in (_TUPLE_ORIG, _TUPLE_REPLY):
        addresses = (
            parse_attrs(attrs[tuple_type], 0).get(_TUPLE_IP) if tuple_type in attrs else None
        )
        if addresses is not None:
            found |= {bytes(value) for value in parse_attrs(addresses, 0).values()}
    return found


class KernelConntrack:
    """ConntrackPort. The socket is opened at the first use."""

    def __init__(self, worker: KernelWorker, *, timeout_s: float = 10.0) -> None:
        self._worker, self._timeout_s = worker, timeout_s
        self._socket: NetlinkSocket | None = None
        self._is_missing = False

    async def forget_addresses(self, addresses: Sequence[str]) -> int:
        return await self._worker.run(lambda: self._forget(addresses))

    def open_socket(self) -> NetlinkSocket:
        return NetlinkSocket(protocol=NETLINK_NETFILTER, timeout_s=self._timeout_s)

    def _forget(self, addresses: Sequence[str]) -> int:
        if self._is_missing:
            return 0
        if self._socket is None:
            self._socket = self.open_socket()
        try:
            requests = self._socket.query(connections_of(addresses))
        except ProgrammingFailed as err:
            if err.errno != errno.EINVAL:
                raise
            # nfnetlink's word for a subsystem it does not have: no conntrack, nothing to forget,
            # and asking again would not help.
            LOG.warning("this kernel has no ctnetlink: connections are not forgotten")
            self._is_missing = True
            return 0
        return self._delete(requests)

    def _delete(self, requests: list[Request]) -> int:
        assert self._socket is not None
        failures = self._socket.transact(requests)
        serious = [f for f in failures.values() if f.errno != errno.ENOENT]
        if serious:
            raise serious[0]
        return len(requests) - len(failures)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
