"""libcalico.netlink.neigh: what is built reads back; dumps filter."""

from __future__ import annotations

import struct

import pytest

from libcalico.errors import WireError
from libcalico.netlink.messages import iter_messages, message
from libcalico.netlink.neigh import (
    NUD_STALE,
    RTM_NEWNEIGH,
    Neighbour,
    delete_neighbour,
    list_neighbours,
    parse_neighbour,
    set_neighbour,
)

STATIC = Neighbour(4, "10.0.0.1", "02:00:00:00:00:01")
PROXY = Neighbour(4, "fd00::1", is_proxy=True)


def reread(request):
    (one,) = iter_messages(request.message)
    return one


@pytest.mark.parametrize(
    "entry", [STATIC, PROXY, Neighbour(9, "fd00::2", "02:0:0:0:0:1", NUD_STALE)]
)
def test_an_entry_reads_back(entry):
    found = parse_neighbour(reread(set_neighbour(entry)))
    assert (found.ifindex, found.address, found.state, found.is_proxy) == (
        entry.ifindex,
        entry.address,
        entry.state,
        entry.is_proxy,
    )
    assert bool(found.mac) == bool(entry.mac)


def test_strange_and_short_messages():
    (fdb,) = iter_messages(message(RTM_NEWNEIGH, 0, struct.pack("=BxxxiHBB", 7, 4, 0, 0, 0)))
    assert parse_neighbour(fdb) is None
    (bare,) = iter_messages(message(RTM_NEWNEIGH, 0, struct.pack("=BxxxiHBB", 2, 4, 0, 0, 0)))
    assert parse_neighbour(bare) is None
    (short,) = iter_messages(message(RTM_NEWNEIGH, 0, b"x"))
    with pytest.raises(WireError):
        parse_neighbour(short)


def test_a_dump_tells_proxies_from_entries_and_filters_by_interface():
    static, proxy = reread(set_neighbour(STATIC)), reread(set_neighbour(PROXY))
    assert list_neighbours(2).parse(static) == STATIC
    assert list_neighbours(10).parse(proxy) is None
    assert list_neighbours(10, proxies=True).parse(proxy) == PROXY
    assert list_neighbours(2, ifindex=5).parse(static) is None
    assert list_neighbours(2).parse(reread(delete_neighbour(STATIC))) is None
