"""libcalico.netlink.socket with a scripted kernel at the other end of a socket pair.

Sequence numbers start at 1, so the answers can be laid ready before the question is asked.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator

import pytest

from libcalico.errors import DumpInterrupted, ProgrammingFailed, WireError
from libcalico.netlink.messages import (
    HEADER,
    NLM_F_ACK,
    NLM_F_DUMP,
    NLM_F_DUMP_INTR,
    NLM_F_MULTI,
    NLMSG_DONE,
    NLMSG_ERROR,
    Query,
    Refusal,
    Request,
    iter_messages,
    message,
)
from libcalico.netlink.socket import NetlinkSocket


class ScriptedKernel:
    """The other end: lay answers ready, then look at what was sent."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def answer(self, *datagram: tuple[int, int, int, bytes]) -> None:
        """Messages of one datagram: (type, flags, sequence, body)."""
        self._end.send(
            b"".join(
                HEADER.pack(16 + len(body), kind, flags, sequence, 0) + body
                for kind, flags, sequence, body in datagram
            )
        )

    def received(self):
        return list(iter_messages(self._end.recv(1 << 20)))


@pytest.fixture
def pair() -> Iterator[tuple[NetlinkSocket, ScriptedKernel]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.settimeout(1.0)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    with NetlinkSocket(transport=ours, timeout_s=0.05) as netlink:
        yield netlink, ScriptedKernel(theirs)
    theirs.close()


def verdict(sequence: int, code: int = 0) -> tuple[int, int, int, bytes]:
    return (NLMSG_ERROR, 0, sequence, struct.pack("=i", -code) + bytes(16))


def request(key: str) -> Request:
    return Request(message(24, 0x400, key.encode()), "try", key)


DUMP = Query(message(26, NLM_F_DUMP, b"\0" * 4), "list", "things", lambda one: bytes(one.body))
GET = Query(message(18, 0, b"\0" * 4), "get", "thing", lambda one: bytes(one.body))


def test_only_the_last_message_of_a_batch_asks_for_an_acknowledgement(pair):
    netlink, kernel = pair
    kernel.answer(verdict(3))
    assert netlink.transact([request("aaaa"), request("bbbb"), request("cccc")]) == {}
    sent = kernel.received()
    assert [one.sequence for one in sent] == [1, 2, 3]
    assert [bool(one.flags & NLM_F_ACK) for one in sent] == [False, False, True]


def test_refusals_name_their_request(pair):
    netlink, kernel = pair
    kernel.answer(verdict(1, errno.EEXIST))
    kernel.answer(verdict(3, errno.ENODEV))
    failures = netlink.transact([request("aaaa"), request("bbbb"), request("cccc")])
    assert {index: (f.key, f.errno) for index, f in failures.items()} == {
        0: ("aaaa", errno.EEXIST),
        2: ("cccc", errno.ENODEV),
    }


def test_execute_raises_the_first_refusal(pair):
    netlink, kernel = pair
    kernel.answer(verdict(1, errno.EPERM), verdict(2, errno.ENODEV))
    with pytest.raises(ProgrammingFailed) as refused:
        netlink.execute(request("aaaa"), request("bbbb"))
    assert (refused.value.key, refused.value.errno) == ("aaaa", errno.EPERM)


def test_sequence_numbers_go_on_and_late_answers_are_dropped(pair):
    netlink, kernel = pair
    kernel.answer(verdict(1))
    netlink.execute(request("aaaa"))
    kernel.answer(verdict(1, errno.EIO))
    kernel.answer(verdict(7, errno.EIO), verdict(2))
    netlink.execute(request("bbbb"))


def test_a_large_batch_goes_in_chunks_each_with_its_acknowledgement(pair):
    netlink, kernel = pair
    size = netlink._chunk_messages
    kernel.answer(verdict(size))
    kernel.answer(verdict(size + 2, errno.EEXIST))
    refusals = netlink.transact_messages([message(24, 0, b"dddd")] * (size + 2))
    assert refusals == {size + 1: Refusal(errno.EEXIST, "")}
    assert [len(kernel.received()) for _ in range(2)] == [size, 2]


def test_a_chunk_is_bounded_in_bytes_too(pair):
    netlink, kernel = pair
    big = message(24, 0, bytes(100_000))
    kernel.answer(verdict(1))
    kernel.answer(verdict(2))
    assert netlink.transact_messages([big, big]) == {}
    assert [len(kernel.received()) for _ in range(2)] == [1, 1]


def test_an_empty_batch_sends_nothing(pair):
    netlink, _ = pair
    assert netlink.transact([]) == {}
    assert netlink.transact_messages([]) == {}


def test_a_dump_collects_until_done(pair):
    netlink, kernel = pair
    kernel.answer((24, NLM_F_MULTI, 1, b"aaaa"), (24, NLM_F_MULTI, 1, b"bbbb"))
    kernel.answer((24, NLM_F_MULTI, 9, b"late"), (24, NLM_F_MULTI, 1, b"cccc"))
    kernel.answer((NLMSG_DONE, NLM_F_MULTI, 1, struct.pack("=i", 0)))
    assert netlink.query(DUMP) == [b"aaaa", b"bbbb", b"cccc"]
    assert not kernel.received()[0].flags & NLM_F_ACK, "DONE ends a dump, not an acknowledgement"


def test_an_interrupted_dump_starts_again(pair):
    netlink, kernel = pair
    kernel.answer((24, NLM_F_MULTI | NLM_F_DUMP_INTR, 1, b"half"))
    kernel.answer((NLMSG_DONE, NLM_F_MULTI, 1, struct.pack("=i", 0)))
    kernel.answer((24, NLM_F_MULTI, 2, b"full"), (NLMSG_DONE, NLM_F_MULTI, 2, b""))
    assert netlink.query(DUMP) == [b"full"]


def test_a_dump_that_is_always_interrupted_is_given_up(pair):
    netlink, kernel = pair
    for sequence in range(1, 6):
        kernel.answer((NLMSG_DONE, NLM_F_MULTI | NLM_F_DUMP_INTR, sequence, bytes(4)))
    with pytest.raises(DumpInterrupted, match="list"):
        netlink.query(DUMP)
    assert netlink._sequence == 5


def test_a_refused_dump_is_an_error_unless_the_errno_means_nothing_there(pair):
    netlink, kernel = pair
    kernel.answer(verdict(1, errno.ENOENT))
    with pytest.raises(ProgrammingFailed):
        netlink.query(DUMP)
    kernel.answer((NLMSG_DONE, NLM_F_MULTI, 2, struct.pack("=i", -errno.ENOENT)))
    empty = Query(DUMP.message, "list", "things", DUMP.parse, (errno.ENOENT,))
    assert netlink.query(empty) == []


def test_a_get_is_acknowledged_and_has_one_answer(pair):
    netlink, kernel = pair
    kernel.answer((16, 0, 1, b"here"), verdict(1))
    assert netlink.query_one(GET) == b"here"
    kernel.answer(verdict(2))
    with pytest.raises(ProgrammingFailed) as none:
        netlink.query_one(GET)
    assert none.value.errno == errno.ENOENT


def test_what_the_parser_does_not_want_is_left_out(pair):
    netlink, kernel = pair
    kernel.answer((24, NLM_F_MULTI, 1, b"aaaa"), (NLMSG_DONE, NLM_F_MULTI, 1, bytes(4)))
    assert netlink.query(Query(DUMP.message, "list", "x", lambda one: None)) == []


def test_silence_becomes_a_timeout_not_a_hang(pair):
    netlink, _ = pair
    with pytest.raises(ProgrammingFailed) as silent:
        netlink.execute(request("aaaa"))
    assert silent.value.errno == errno.ETIMEDOUT


def test_garbage_is_a_wire_error(pair):
    netlink, kernel = pair
    kernel._end.send(struct.pack("=IHHII", 3, 0, 0, 1, 0))
    with pytest.raises(WireError):
        netlink.execute(request("aaaa"))


def test_the_counter_wraps_without_using_zero(pair):
    netlink, kernel = pair
    netlink._sequence = 0xFFFFFFFD
    kernel.answer(verdict(2))
    netlink.execute(request("aaaa"), request("bbbb"))


def test_a_closed_socket_is_a_typed_error(pair):
    netlink, kernel = pair
    kernel._end.close()
    with pytest.raises(ProgrammingFailed):
        netlink.execute(request("aaaa"))
