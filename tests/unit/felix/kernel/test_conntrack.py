"""felix.kernel.conntrack: what is asked and what is made of the answers. (Kernel: tests/netns.)"""

from __future__ import annotations

import errno
import socket
import struct

import pytest

from felix.dataplane.ports import TrackedConnection
from felix.kernel.conntrack import KernelConntrack, connections_of, tracked_connections
from felix.kernel.worker import KernelWorker
from libcalico.errors import ProgrammingFailed, WireError
from libcalico.netlink import Query, Request
from libcalico.netlink.messages import (
    NLM_F_DUMP,
    attr,
    attr_u16,
    attr_u32,
    iter_messages,
    message,
    nested,
    parse_attrs,
)
from libcalico.policy.packet import Packet

NEW, GET, DELETE = 0x100, 0x101, 0x102


def pack(address: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)


def connection(original: tuple[str, str], reply: tuple[str, str], *, zone: int = 0):
    """One connection as the kernel lists it."""
    first = 3 if ":" in original[0] else 1
    tuples = b"".join(
        nested(kind, nested(1, attr(first, pack(pair[0])), attr(first + 1, pack(pair[1]))))
        for kind, pair in ((1, original), (2, reply))
    )
    family = 10 if ":" in original[0] else 2
    body = struct.pack(">BBH", family, 0, 0) + tuples + attr_u32(12, 0xDEAD)
    if zone:
        body += attr_u16(18, zone)
    (one,) = iter_messages(message(NEW, 0, body))
    return one


A, B, C = "10.0.0.1", "10.0.0.2", "10.0.0.3"


def test_everything_of_both_families_is_listed_once():
    (sent,) = iter_messages(connections_of([A, "fd00::1"]).message)
    assert (sent.type, sent.flags & NLM_F_DUMP, bytes(sent.body)) == (GET, NLM_F_DUMP, bytes(4))


@pytest.mark.parametrize(
    ("original", "reply", "is_mine"),
    [
        ((A, B), (B, A), True),
        ((B, A), (A, B), True),
        ((B, C), (A, B), True),
        ((B, C), (C, A), True),
        ((B, C), (C, B), False),
    ],
)
def test_a_connection_with_the_address_anywhere_is_deleted_by_its_own_tuple(
    original, reply, is_mine
):
    query = connections_of([A])
    request = query.parse(connection(original, reply, zone=5))
    assert (request is not None) == is_mine
    if request is None:
        return
    (sent,) = iter_messages(request.message)
    assert sent.type == DELETE
    attrs = parse_attrs(sent.body, 4)
    assert set(attrs) == {1, 12, 18}, "tuple, id and zone: never a filter, which old kernels ignore"
    addresses = parse_attrs(parse_attrs(attrs[1], 0)[1], 0)
    assert {bytes(value) for value in addresses.values()} == {pack(a) for a in original}


def test_an_address_that_only_looks_like_ours_in_other_bytes_does_not_match():
    query = connections_of(["173.222.0.0"])  # the id of every connection, as bytes
    assert query.parse(connection((A, B), (B, A))) is None


def test_many_addresses_are_looked_for_at_once():
    query = connections_of([*(f"10.9.0.{n}" for n in range(50)), A, "fd00::1"])
    assert query.parse(connection((B, A), (A, B))) is not None
    assert query.parse(connection((B, "10.9.0.49"), ("10.9.0.49", B))) is not None
    assert query.parse(connection(("fd00::1", "fd00::2"), ("fd00::2", "fd00::1"))) is not None
    assert query.parse(connection((B, C), (C, B))) is None


@pytest.mark.parametrize("family", [2, 10])
def test_the_delete_is_of_the_family_of_the_connection(family):
    address, other = (A, B) if family == 2 else ("fd00::1", "fd00::2")
    request = connections_of([address]).parse(connection((other, address), (address, other)))
    (sent,) = iter_messages(request.message)
    assert sent.body[0] == family


def test_other_messages_are_skipped():
    (other,) = iter_messages(message(GET, 0, pack(A) * 4))
    assert connections_of([A]).parse(other) is None
    (empty,) = iter_messages(message(NEW, 0, b"\2\0\0\0" + attr(9, pack(A))))
    assert connections_of([A]).parse(empty) is None


def tuple_of(ends: tuple[str, str], *proto: tuple[int, bytes]) -> bytes:
    """CTA_TUPLE_IP and CTA_TUPLE_PROTO."""
    first = 3 if ":" in ends[0] else 1
    addresses = nested(1, attr(first, pack(ends[0])), attr(first + 1, pack(ends[1])))
    return addresses + nested(2, *(attr(kind, value) for kind, value in proto))


def tcp(source: int, destination: int) -> tuple[tuple[int, bytes], ...]:
    ports = ((2, source), (3, destination))
    return ((1, b"\6"), *((kind, port.to_bytes(2, "big")) for kind, port in ports))


def entry(original: bytes, reply: bytes, *more: bytes, family: int = 2):
    body = struct.pack(">BBH", family, 0, 0) + nested(1, original) + nested(2, reply)
    (one,) = iter_messages(message(NEW, 0, body + attr_u32(12, 7) + b"".join(more)))
    return one


def test_a_connection_is_read_as_policy_saw_it():
    """A client of a service: the destination was translated before policy, the source after."""
    service, node = "203.0.113.9", "192.0.2.1"
    original = tuple_of((A, service), *tcp(40000, 80))
    found = tracked_connections([A]).parse(
        entry(original, tuple_of((B, node), *tcp(8080, 50000)), nested(14, b"master"))
    )
    assert found is not None
    assert found.packet == Packet.tcp(A, B, 8080, source_port=40000)
    assert (found.original, found.master) == (original, b"master")
    (sent,) = iter_messages(found.handle.message)
    assert sent.type == DELETE


@pytest.mark.parametrize(
    ("ends", "number", "attrs", "family"),
    [((A, B), 1, (5, 6), 2), (("fd00::1", "fd00::2"), 58, (8, 9), 10)],
)
def test_a_ping_is_read_with_type_and_code(ends, number, attrs, family):
    proto = ((1, bytes([number])), (attrs[0], b"\x08"), (attrs[1], b"\1"))
    one = entry(tuple_of(ends, *proto), tuple_of(ends[::-1], *proto), family=family)
    found = tracked_connections([ends[0]]).parse(one)
    assert found is not None
    assert (found.packet.protocol, found.packet.icmp_type, found.packet.icmp_code) == (number, 8, 1)
    assert found.packet.source_port is None


def test_connections_of_others_and_what_is_no_connection_are_not_read():
    mine = entry(tuple_of((A, B), *tcp(1, 2)), tuple_of((B, A), *tcp(2, 1)))
    for addresses in ([C], [C, *(f"10.9.{n}.1" for n in range(100))]):
        assert tracked_connections(addresses).parse(mine) is None
        assert tracked_connections([*addresses, A]).parse(mine) is not None
    bare = entry(nested(1, attr(1, pack(A)), attr(2, pack(B))), tuple_of((B, A), *tcp(2, 1)))
    assert tracked_connections([A]).parse(bare) is None, "a tuple without a protocol"
    (half,) = iter_messages(message(NEW, 0, b"\2\0\0\0" + nested(1, tuple_of((A, B), *tcp(1, 2)))))
    assert tracked_connections([A]).parse(half) is None
    (other,) = iter_messages(message(GET, 0, bytes(mine.body)))
    assert tracked_connections([A]).parse(other) is None


def proto_first(source: str, destination: str) -> bytes:
    return nested(2, attr(1, b"\x2f")) + nested(
        1, attr(1, pack(source)), attr(2, pack(destination))
    )


def test_the_second_direction_is_found_behind_a_first_of_any_length():
    for proto in (((1, b"\x2f"),), tcp(1, 2), ((1, b"\x2f"), (9, bytes(33)))):
        one = entry(tuple_of((B, C), *proto), tuple_of((A, B), *proto))
        assert tracked_connections([A]).parse(one) is not None


def test_a_connection_that_is_written_in_another_order_is_read_all_the_same():
    (original, reply) = (tuple_of((A, B), *tcp(1, 2)), tuple_of((B, A), *tcp(2, 1)))
    for body in (
        nested(2, reply) + nested(1, original),
        attr_u32(12, 7) + nested(1, original) + nested(2, reply),
        nested(1, proto_first(A, B)) + nested(2, proto_first(B, A)),
    ):
        (one,) = iter_messages(message(NEW, 0, struct.pack(">BBH", 2, 0, 0) + body))
        assert tracked_connections([A]).parse(one) is not None
        assert tracked_connections([C]).parse(one) is None
    (short,) = iter_messages(message(NEW, 0, b"\2\0\0\0" + nested(1, original)[:20]))
    with pytest.raises(WireError):
        tracked_connections([A]).parse(short)


class Socket:
    def __init__(self) -> None:
        self.listed: list[Request] = []
        self.deleted: list[Request] = []
        self.error: ProgrammingFailed | None = None
        self.failures: dict[int, ProgrammingFailed] = {}

    def query(self, query: Query[Request]) -> list[Request]:
        if self.error is not None:
            raise self.error
        listed, self.listed = self.listed, []
        return listed

    def transact(self, requests: list[Request]) -> dict[int, ProgrammingFailed]:
        self.deleted += requests
        return self.failures if requests else {}


@pytest.fixture
async def port():
    worker = KernelWorker()
    made = KernelConntrack(worker)
    made._socket = Socket()  # type: ignore[assignment]
    yield made
    worker.close()


REQUEST = Request(b"", "forget connection", A)


async def test_what_is_listed_is_deleted_and_counted(port):
    port._socket.listed = [REQUEST, REQUEST]
    assert await port.forget_addresses([A]) == 2
    assert port._socket.deleted == [REQUEST, REQUEST]


async def test_a_connection_that_ended_meanwhile_is_no_failure_but_a_refusal_is(port):
    port._socket.listed = [REQUEST, REQUEST]
    port._socket.failures = {0: ProgrammingFailed("forget", A, errno.ENOENT)}
    assert await port.forget_addresses([A]) == 1
    port._socket.listed = [REQUEST]
    port._socket.failures = {0: ProgrammingFailed("forget", A, errno.EPERM)}
    with pytest.raises(ProgrammingFailed):
        await port.forget_addresses([A])


async def test_a_kernel_without_conntrack_is_asked_once(port):
    port._socket.error = ProgrammingFailed("list", A, errno.EINVAL)
    assert await port.forget_addresses([A]) == 0
    port._socket.error = ProgrammingFailed("list", A, errno.ENOBUFS)
    assert await port.forget_addresses([A]) == 0, "not asked again"


async def test_another_error_is_handed_on(port):
    port._socket.error = ProgrammingFailed("list", A, errno.ENOBUFS)
    with pytest.raises(ProgrammingFailed):
        await port.forget_addresses([A])


async def test_connections_are_listed_and_deleted_by_what_was_listed(port):
    one = TrackedConnection(Packet.tcp(A, B, 80), b"1", handle=REQUEST)
    port._socket.listed = [one]
    assert await port.list_connections([A]) == [one]
    assert await port.delete_connections([one]) == 1
    assert port._socket.deleted == [REQUEST]
    assert await port.delete_connections([]) == 0
