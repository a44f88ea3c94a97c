"""libcalico.netlink.qdisc: what is built reads back; other programs' things are told apart."""

from __future__ import annotations

import struct

import pytest

from libcalico.errors import WireError
from libcalico.netlink.messages import Message, attr, attr_text, iter_messages, message, nested
from libcalico.netlink.qdisc import (
    INGRESS,
    INGRESS_HANDLE,
    MAX_TICKS,
    ROOT,
    RTM_NEWQDISC,
    RTM_NEWTFILTER,
    IngressFilter,
    Qdisc,
    TokenBucket,
    add_ingress,
    add_redirect,
    delete_qdisc,
    delete_redirect,
    list_ingress_filters,
    list_qdiscs,
    parse_filter,
    parse_qdisc,
    set_tbf,
)

TCMSG = struct.Struct("=BxxxiIII")
BUCKETS = [
    TokenBucket(125, MAX_TICKS, 4000),
    TokenBucket(125_000, 15_625, 65_536, 250_000, 100),
    TokenBucket(5_000_000_000, 1, 0xFFFFFFFF, 6_000_000_000, MAX_TICKS),
]


def reread(request) -> Message:
    (one,) = iter_messages(request.message)
    return one


def as_dumped(request, handle: int) -> Message:
    """The filter of a request as the kernel lists it: with a handle."""
    data = bytearray(request.message)
    struct.pack_into("=I", data, 16 + 8, handle)
    (one,) = iter_messages(data)
    return one


@pytest.mark.parametrize("bucket", BUCKETS)
def test_a_token_bucket_reads_back(bucket):
    found = parse_qdisc(reread(set_tbf(7, 0xCA110000, bucket)))
    assert found == Qdisc(7, "tbf", 0xCA110000, ROOT, bucket)


def test_other_qdiscs_have_no_bucket():
    assert parse_qdisc(reread(add_ingress(7))) == Qdisc(7, "ingress", INGRESS_HANDLE, INGRESS)
    body = TCMSG.pack(0, 7, 1 << 16, ROOT, 0) + attr_text(1, "htb")
    (htb,) = iter_messages(message(RTM_NEWQDISC, 0, body))
    assert list_qdiscs().parse(htb) == Qdisc(7, "htb", 1 << 16, ROOT)
    assert parse_qdisc(reread(delete_qdisc(7, ROOT, 1))) is None


def test_a_redirection_names_its_target():
    listed = as_dumped(add_redirect(7, 9, 51_729), 0x80000800)
    assert list_ingress_filters(7).parse(listed) == IngressFilter(7, "u32", 51_729, 9)


def test_hash_tables_and_deletions_are_no_filters():
    assert parse_filter(as_dumped(add_redirect(7, 9, 1), 0)) is None
    body = TCMSG.pack(0, 7, 0x80000000, INGRESS_HANDLE, 1 << 16) + attr_text(1, "u32")
    (table,) = iter_messages(message(RTM_NEWTFILTER, 0, body))
    assert parse_filter(table) is None
    assert parse_filter(reread(delete_redirect(7, 1))) is None


def test_a_filter_of_another_kind_has_no_target():
    body = TCMSG.pack(0, 7, 1, INGRESS_HANDLE, 5 << 16) + attr_text(1, "bpf")
    (bpf,) = iter_messages(message(RTM_NEWTFILTER, 0, body))
    assert parse_filter(bpf) == IngressFilter(7, "bpf", 5)


@pytest.mark.parametrize(
    ("kind", "parse"), [(RTM_NEWQDISC, parse_qdisc), (RTM_NEWTFILTER, parse_filter)]
)
def test_short_messages_are_refused(kind, parse):
    (short,) = iter_messages(message(kind, 0, b"x"))
    with pytest.raises(WireError):
        parse(short)


def test_parameters_that_are_too_short_are_refused():
    body = TCMSG.pack(0, 7, 1 << 16, ROOT, 0) + attr_text(1, "tbf") + nested(2, attr(1, bytes(35)))
    (short,) = iter_messages(message(RTM_NEWQDISC, 0, body))
    with pytest.raises(WireError, match="35 bytes"):
        parse_qdisc(short)
