"""libcalico.netlink.qdisc against a real kernel: parameters come back exactly as written."""

from __future__ import annotations

import errno

import pytest

from libcalico.errors import ProgrammingFailed
from libcalico.netlink import (
    IngressFilter,
    LinkChange,
    TokenBucket,
    VethEnd,
    add_ingress,
    add_redirect,
    change_link,
    create_link,
    create_veth,
    delete_qdisc,
    delete_redirect,
    list_ingress_filters,
    list_qdiscs,
    set_tbf,
)
from libcalico.netlink.qdisc import INGRESS, INGRESS_HANDLE, MAX_TICKS, ROOT
from tests.support.netns import Namespace, why_unavailable

pytestmark = pytest.mark.skipif(bool(why := why_unavailable("veth", "ifb")), reason=why)

HANDLE = 0xCA110000
PRIORITY = 0xCA11


@pytest.fixture
def wired(node: Namespace) -> Namespace:
    node.socket.execute(create_veth(VethEnd("cali1"), VethEnd("far1")))
    node.socket.execute(create_link("ifb9", "ifb", mtu_bytes=1400))
    node.socket.execute(change_link("ifb9", LinkChange(is_up=True)))
    return node


@pytest.mark.parametrize(
    "bucket",
    [
        TokenBucket(125, MAX_TICKS, 4000),
        TokenBucket(125_000, 1_000_000, 65_536),
        TokenBucket(125_000, 1_000_000, 65_536, 250_000, 100_000),
        TokenBucket(5_000_000_000, 15_625, 1 << 20, 6_000_000_000, 15_625),
        TokenBucket(125_000_000_000_000, 1, 0xFFFFFFFF),
    ],
)
def test_a_token_bucket_is_read_back_exactly(wired: Namespace, bucket: TokenBucket):
    ifindex = wired.link("cali1").ifindex
    wired.socket.execute(set_tbf(ifindex, HANDLE, TokenBucket(1000, 1_000_000, 9000)))
    wired.socket.execute(set_tbf(ifindex, HANDLE, bucket))
    (found,) = [q for q in wired.socket.query(list_qdiscs()) if q.ifindex == ifindex]
    assert (found.kind, found.handle, found.bucket) == ("tbf", HANDLE, bucket)


def test_only_ours_is_changed(wired: Namespace):
    ifindex = wired.link("cali1").ifindex
    wired.run("tc", "qdisc", "add", "dev", "cali1", "root", "handle", "1:", "htb")
    with pytest.raises(ProgrammingFailed) as refused:
        wired.socket.execute(set_tbf(ifindex, HANDLE, TokenBucket(1000, 1_000_000, 9000)))
    assert refused.value.errno == errno.EEXIST
    assert "htb 1:" in wired.run("tc", "qdisc", "show", "dev", "cali1")


def test_only_ours_is_deleted(wired: Namespace):
    ifindex = wired.link("cali1").ifindex
    wired.run("tc", "qdisc", "add", "dev", "cali1", "root", "handle", "1:", "htb")
    with pytest.raises(ProgrammingFailed, match="Invalid handle"):
        wired.socket.execute(delete_qdisc(ifindex, ROOT, HANDLE))
    assert "htb 1:" in wired.run("tc", "qdisc", "show", "dev", "cali1")


def test_what_comes_in_is_redirected_beside_foreign_filters(wired: Namespace):
    ifindex, target = wired.link("cali1").ifindex, wired.link("ifb9").ifindex
    wired.socket.execute(add_ingress(ifindex), add_redirect(ifindex, target, PRIORITY))
    ours = IngressFilter(ifindex, "u32", PRIORITY, target)
    assert wired.socket.query(list_ingress_filters(ifindex)) == [ours]
    foreign = "dev cali1 ingress prio 1 u32 match u32 0 0 action mirred egress mirror dev far1"
    wired.run("tc", "filter", "add", *foreign.split())
    theirs = IngressFilter(ifindex, "u32", 1)
    assert wired.socket.query(list_ingress_filters(ifindex)) == [theirs, ours]
    wired.socket.execute(delete_redirect(ifindex, PRIORITY))
    assert wired.socket.query(list_ingress_filters(ifindex)) == [theirs]
    wired.socket.execute(delete_qdisc(ifindex, INGRESS, INGRESS_HANDLE))
    assert [q for q in wired.socket.query(list_qdiscs()) if q.parent == INGRESS] == []
