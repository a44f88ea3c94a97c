"""The nfnetlink socket: one batch as one transaction, errors by message, dumps.

Layer: felix.kernel. Used by felix.kernel.nft. Blocking; nft decides in which thread.

How a batch works (net/netfilter/nfnetlink.c): everything between BATCH_BEGIN and BATCH_END of one
send is one transaction of the subsystem. The kernel looks at every message before it gives up, and
answers each refused one; a refusal of the batch as such (generation moved, commit failed) is
answered to BATCH_BEGIN. Only the last message asks for an acknowledgement. `send` returns when
all is done and all answers are queued, so nothing here waits for the kernel.

  B1  a batch is one send, hence one socket buffer: the send buffer is raised to fit it;
  B2  an answer whose sequence number is not of this call is dropped (left from a failed call).

The byte transport is a Protocol so that libcalico.testing.fakenft can stand in for the kernel.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from libcalico.errors import ProgrammingFailed
from libcalico.netlink.messages import (
    NLM_F_ACK,
    NLM_F_DUMP,
    NLMSG_DONE,
    NLMSG_ERROR,
    Message,
    attr,
    iter_messages,
    parse_error,
)
from libcalico.netlink.namespace import run_in_namespace

NFNL_SUBSYS_NFTABLES = 10
NFNL_MSG_BATCH_BEGIN, NFNL_MSG_BATCH_END = 0x10, 0x11
_NFNL_BATCH_GENID = 1
_NLM_F_REQUEST = 0x1
_NETLINK_NETFILTER = 12
_SOL_NETLINK, _NETLINK_CAP_ACK, _NETLINK_EXT_ACK = 270, 10, 11
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33
_RECEIVE_BUFFER_BYTES = 16 << 20
_RECEIVE_BYTES = 256 << 10
_SEND_BUFFER_BYTES = 1 << 20
_HEADER = struct.Struct("=IHHIIBBH")  # nlmsghdr and nfgenmsg
HEADER_BYTES = _HEADER.size


class Answer(NamedTuple):
    """A refused message of a batch: its place (-1: the batch itself), a positive errno, a text."""

    place: int
    errno: int
    text: str


class Transport(Protocol):
    """Datagrams to and from the kernel."""

    def send(self, data: bytes) -> None: ...

    def receive(self) -> bytes: ...

    def close(self) -> None: ...


class SocketTransport:
    """A real NETLINK_NETFILTER socket in the namespace of the calling thread."""

    def __init__(self, *, timeout_s: float = 10.0) -> None:
        try:
            self._socket = _open(timeout_s)
        except OSError as err:
            raise _os_failure("open nfnetlink socket", "", err) from err
        self._send_buffer_bytes = _SEND_BUFFER_BYTES

    @classmethod
    def in_namespace(cls, where: str | int, *, timeout_s: float = 10.0) -> SocketTransport:
        """The same, in another namespace (a path or an fd)."""
        return run_in_namespace(where, lambda: cls(timeout_s=timeout_s))

    def send(self, data: bytes) -> None:
        if len(data) + 4096 > self._send_buffer_bytes:
            self._send_buffer_bytes = len(data) + 65536
            with suppress(OSError):  # without the right to, the send itself says EMSGSIZE
                self._socket.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, self._send_buffer_bytes)
        try:
            self._socket.send(data)
        except OSError as err:
            raise _os_failure("nfnetlink send", f"{len(data)} bytes", err) from err

    def receive(self) -> bytes:
        try:
            return self._socket.recv(_RECEIVE_BYTES)
        except OSError as err:
            raise _os_failure("nfnetlink receive", "", err) from err

    def close(self) -> None:
        self._socket.close()


class NfnetlinkSocket:
    """nf_tables requests over a transport. Not thread-safe: one caller at a time."""

    def __init__(self, transport: Transport, *, family: int) -> None:
        self._transport = transport
        self._family = family
        self._sequence = 0

    def close(self) -> None:
        self._transport.close()

    def transact(
        self, messages: Sequence[tuple[int, int, bytes]], *, generation: int | None = None
    ) -> list[Answer]:
        """Send (type, flags, payload) messages as one transaction; [] when it was applied.

        Errors: ProgrammingFailed when the socket fails: the outcome is then unknown."""
        first = self._reserve(len(messages) + 2)
        self._transport.send(self._batch(messages, first, generation))
        last = first + len(messages)
        refused: list[Answer] = []
        while True:
            for received in iter_messages(self._transport.receive()):
                if received.type != NLMSG_ERROR or not first <= received.sequence <= last:
                    continue  # B2
                refusal = parse_error(received)
                if refusal is not None:
                    place = received.sequence - first - 1
                    refused.append(Answer(place, refusal.errno, refusal.text))
                if received.sequence == last or (refusal and received.sequence == first):
                    return refused

    def dump(self, message_type: int, payload: bytes = b"") -> Iterator[Message]:
        """All answers to a dump request. Errors: ProgrammingFailed (e.g. ENOENT)."""
        yield from self._ask(message_type, NLM_F_DUMP, payload)

    def get(self, message_type: int, payload: bytes = b"") -> list[Message]:
        """The answers to a plain request."""
        return list(self._ask(message_type, NLM_F_ACK, payload))

    def _ask(self, message_type: int, flags: int, payload: bytes) -> Iterator[Message]:
        sequence = self._reserve(1)
        kind = NFNL_SUBSYS_NFTABLES << 8 | message_type
        size = HEADER_BYTES + len(payload)
        header = _HEADER.pack(size, kind, _NLM_F_REQUEST | flags, sequence, 0, self._family, 0, 0)
        self._transport.send(header + payload)
        while True:
            for received in iter_messages(self._transport.receive()):
                if received.sequence != sequence:
                    continue  # B2
                if received.type in (NLMSG_DONE, NLMSG_ERROR):
                    _check_end(received, message_type)
                    return
                yield received

    def _batch(
        self, messages: Sequence[tuple[int, int, bytes]], first: int, generation: int | None
    ) -> bytes:
        begin = (
            b"" if generation is None else attr(_NFNL_BATCH_GENID, generation.to_bytes(4, "big"))
        )
        parts = [_batch_mark(NFNL_MSG_BATCH_BEGIN, first, begin)]
        pack, family = _HEADER.pack, self._family
        last = len(messages) - 1
        for index, (message_type, flags, payload) in enumerate(messages):
            wanted = flags | _NLM_F_REQUEST | (NLM_F_ACK if index == last else 0)
            size = HEADER_BYTES + len(payload)
            kind = NFNL_SUBSYS_NFTABLES << 8 | message_type
            parts.append(pack(size, kind, wanted, first + 1 + index, 0, family, 0, 0))
            parts.append(payload)
        parts.append(_batch_mark(NFNL_MSG_BATCH_END, first + 1 + len(messages), b""))
        return b"".join(parts)

    def _reserve(self, count: int) -> int:
        if self._sequence + count >= 0xFFFFFFFF:
            self._sequence = 0
        first = self._sequence + 1
        self._sequence += count
        return first


def _check_end(received: Message, message_type: int) -> None:
    """The last word on a request. Errors: ProgrammingFailed when it is a refusal."""
    refusal = parse_error(received) if received.type == NLMSG_ERROR else None
    if refusal is not None:
        raise refusal.failure("nfnetlink request", str(message_type))


def _batch_mark(kind: int, sequence: int, payload: bytes) -> bytes:
    # res_id names the subsystem, in network order.
    resource = socket.htons(NFNL_SUBSYS_NFTABLES)
    size = HEADER_BYTES + len(payload)
    return _HEADER.pack(size, kind, _NLM_F_REQUEST, sequence, 0, 0, 0, resource) + payload


def _open(timeout_s: float) -> socket.socket:
    opened = socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_NETFILTER
    )
    try:
        opened.settimeout(timeout_s)
        for level, option, value in (
            (_SOL_NETLINK, _NETLINK_CAP_ACK, 1),
            (_SOL_NETLINK, _NETLINK_EXT_ACK, 1),
            (socket.SOL_SOCKET, _SO_SNDBUFFORCE, _SEND_BUFFER_BYTES),
            (socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER_BYTES),
        ):
            with suppress(OSError):  # they help, an old kernel does without
                opened.setsockopt(level, option, value)
        opened.bind((0, 0))
    except BaseException:
        opened.close()
        raise
    return opened


def _os_failure(operation: str, key: str, err: OSError) -> ProgrammingFailed:
    number = errno.ETIMEDOUT if isinstance(err, TimeoutError) else (err.errno or errno.EIO)
    return ProgrammingFailed(operation, key, number, os.strerror(number))
