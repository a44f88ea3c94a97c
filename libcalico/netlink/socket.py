"""The request socket: batches out, errors mapped back, dumps in.

Layer: bottom edge. Users: felix.kernel, cni, bgp, calicoctl.node, the lab. Event subscription is in
`events`.

How a batch works: the kernel handles every message of one send before `send` returns, goes on after
a refused one, and answers refusals even without NLM_F_ACK. So only the last message of a chunk asks
for an acknowledgement; when that has come, everything before it was applied or refused, and the
refusals name their message by its sequence number.
Invariants:
  I1  a refused message never stops the others of its batch;
  I2  an answer with a sequence number we did not just use is dropped (left from a timed-out call);
  I3  a chunk is small enough for all its refusals to fit into the receive buffer;
  I4  an interrupted dump (NLM_F_DUMP_INTR) is repeated, at most 5 times, then DumpInterrupted.

Not thread-safe by design except that each call holds a lock: one transaction at a time. Calls
block: ~4 us a route, ~0.3 ms a veth, ~20 ms the deletion of a link.
Source: netlink(7), net/netlink/af_netlink.c; speeds measured, bgp reference 5.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from typing import TypeVar

from libcalico.errors import DumpInterrupted, ProgrammingFailed
from libcalico.netlink.messages import (
    FLAGS_OFFSET,
    NLM_F_ACK,
    NLM_F_DUMP,
    NLM_F_DUMP_INTR,
    NLM_F_MULTI,
    NLMSG_DONE,
    NLMSG_ERROR,
    SEQUENCE_OFFSET,
    Message,
    Query,
    Refusal,
    Request,
    iter_messages,
    parse_error,
)
from libcalico.netlink.namespace import run_in_namespace

T = TypeVar("T")

_SOL_NETLINK = 270
_NETLINK_EXT_ACK, _NETLINK_CAP_ACK, _NETLINK_GET_STRICT_CHK = 11, 10, 12
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33
_BUFFER_BYTES = 4 << 20
_CHUNK_MESSAGES = 512
# A refusal costs about a kilobyte of receive buffer (skb overhead), a chunk of 512 half a megabyte.
_REFUSAL_BYTES = 1024
_CHUNK_BYTES = 128 << 10
_RECEIVE_BYTES = 256 << 10
_DUMP_ATTEMPTS = 5
_U16 = struct.Struct("=H")
_U32 = struct.Struct("=I")


class NetlinkSocket:
    """One request socket in one network namespace."""

    def __init__(
        self,
        *,
        protocol: int = socket.NETLINK_ROUTE,
        timeout_s: float = 10.0,
        transport: socket.socket | None = None,  # None but for tests
    ) -> None:
        self._socket = _open(protocol) if transport is None else transport
        # A kernel that does not answer is a bug somewhere: better an error than a hung daemon.
        self._socket.settimeout(timeout_s)
        self._sequence = 0
        self._lock = threading.Lock()
        self._buffer = bytearray(_RECEIVE_BYTES)
        received = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        self._chunk_messages = max(16, min(_CHUNK_MESSAGES, received // (2 * _REFUSAL_BYTES)))

    @classmethod
    def in_namespace(
        cls,
        where: str | int,
        *,
        protocol: int = socket.NETLINK_ROUTE,
        timeout_s: float = 10.0,
    ) -> NetlinkSocket:
        """Open the socket inside another namespace (a path or an fd) and bring it home."""
        return run_in_namespace(where, lambda: cls(protocol=protocol, timeout_s=timeout_s))

    @property
    def port_id(self) -> int:
        """Our address: notifications caused by our own requests carry it as their origin."""
        return int(self._socket.getsockname()[0])

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> NetlinkSocket:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def execute(self, *requests: Request) -> None:
        """Send all in one batch; raise the first refusal (the others were applied or refused)."""
        failures = self.transact(requests)
        if failures:
            raise failures[min(failures)]

    def transact(self, requests: Sequence[Request]) -> dict[int, ProgrammingFailed]:
        """Send all; returns the refused ones by their index in `requests`."""
        refusals = self.transact_messages([request.message for request in requests])
        return {
            index: refusal.failure(requests[index].operation, requests[index].key)
            for index, refusal in refusals.items()
        }

    def transact_messages(self, messages: Sequence[bytes]) -> dict[int, Refusal]:
        """The hot path: built messages (RouteTemplate.encode) in chunks, refusals by index.

        Errors: ProgrammingFailed when the socket itself fails (ENOBUFS, timeout): what was applied
        is then unknown and the caller reads back."""
        refusals: dict[int, Refusal] = {}
        with self._lock:
            start = 0
            for chunk in self._chunks(messages):
                self._transact_chunk(chunk, start, refusals)
                start += len(chunk)
        return refusals

    def query(self, query: Query[T]) -> list[T]:
        """Ask and collect. Errors: ProgrammingFailed (e.g. ENODEV for get_link), DumpInterrupted,
        WireError."""
        with self._lock:
            for _ in range(_DUMP_ATTEMPTS):
                found = self._ask(query)
                if found is not None:
                    return found
        raise DumpInterrupted(f"{query.operation}: the table kept changing")

    def query_one(self, query: Query[T]) -> T:
        """The single answer of a get. Errors: as query; ProgrammingFailed ENOENT for none."""
        found = self.query(query)
        if not found:
            raise Refusal(errno.ENOENT, "no answer").failure(query.operation, query.key)
        return found[0]

    def _chunks(self, messages: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
        start, size = 0, 0
        for index, one in enumerate(messages):
            if index - start == self._chunk_messages or size + len(one) > _CHUNK_BYTES:
                if index > start:
                    yield messages[start:index]
                start, size = index, 0
            size += len(one)
        if start < len(messages):
            yield messages[start:]

    def _transact_chunk(
        self, chunk: Sequence[bytes], start: int, refusals: dict[int, Refusal]
    ) -> None:
        first = self._reserve(len(chunk))
        data = bytearray(b"".join(chunk))
        offset, sequence = SEQUENCE_OFFSET, first
        pack_into = _U32.pack_into
        last = 0
        for one in chunk:
            pack_into(data, offset, sequence)
            last = offset
            offset += len(one)
            sequence += 1
        flags_at = last - SEQUENCE_OFFSET + FLAGS_OFFSET
        flags = _U16.unpack_from(data, flags_at)[0]
        _U16.pack_into(data, flags_at, flags | NLM_F_ACK)
        self._send(data)
        count = len(chunk)
        for received in self._receive_until(first + count - 1, first):
            refusal = parse_error(received) if received.type == NLMSG_ERROR else None
            if refusal is not None:
                refusals[start + received.sequence - first] = refusal

    def _reserve(self, count: int) -> int:
        """`count` consecutive sequence numbers, never 0 (the kernel's own notifications)."""
        if self._sequence + count >= 0xFFFFFFFF:
            self._sequence = 0
        first = self._sequence + 1
        self._sequence += count
        return first

    def _receive_until(self, last: int, first: int) -> Iterator[Message]:
        """Messages numbered first..last, up to and including the verdict on `last`."""
        while True:
            for received in self._receive():
                if not first <= received.sequence <= last:
                    continue  # I2
                yield received
                if received.sequence == last and received.type == NLMSG_ERROR:
                    return

    def _ask(self, query: Query[T]) -> list[T] | None:
        """One attempt; None when the dump was interrupted."""
        request = bytearray(query.message)
        sequence = self._reserve(1)
        flags = _U16.unpack_from(request, FLAGS_OFFSET)[0]
        is_dump = flags & NLM_F_DUMP == NLM_F_DUMP
        if not is_dump:
            _U16.pack_into(request, FLAGS_OFFSET, flags | NLM_F_ACK)
        _U32.pack_into(request, SEQUENCE_OFFSET, sequence)
        self._send(request)
        found: list[T] = []
        interrupted = False
        while True:
            for received in self._receive():
                if received.sequence != sequence:
                    continue
                interrupted = interrupted or bool(
                    received.flags & NLM_F_DUMP_INTR and received.flags & NLM_F_MULTI
                )
                if received.type in (NLMSG_ERROR, NLMSG_DONE):
                    self._check_verdict(query, received)
                    return None if interrupted else found
                answer = query.parse(received)
                if answer is not None:
                    found.append(answer)

    def _check_verdict(self, query: Query[T], received: Message) -> None:
        if received.type == NLMSG_DONE and len(received.body) < 4:
            return
        refusal = parse_error(received)
        if refusal is not None and refusal.errno not in query.empty_errnos:
            raise refusal.failure(query.operation, query.key)

    def _send(self, data: bytearray) -> None:
        try:
            self._socket.send(data)
        except OSError as err:
            raise _os_failure("send", f"{len(data)} bytes", err) from err

    def _receive(self) -> Iterator[Message]:
        try:
            size = self._socket.recv_into(self._buffer)
        except OSError as err:
            raise _os_failure("receive", "netlink", err) from err
        return iter_messages(memoryview(self._buffer)[:size])


def _open(protocol: int) -> socket.socket:
    try:
        return _open_socket(protocol)
    except OSError as err:
        raise _os_failure("open netlink socket", str(protocol), err) from err


def _open_socket(protocol: int) -> socket.socket:
    opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
    try:
        for option in (_NETLINK_EXT_ACK, _NETLINK_CAP_ACK, _NETLINK_GET_STRICT_CHK):
            _try_option(opened, _SOL_NETLINK, option, 1)
        for option in (_SO_SNDBUFFORCE, _SO_RCVBUFFORCE):
            _try_option(opened, socket.SOL_SOCKET, option, _BUFFER_BYTES)
        opened.bind((0, 0))
    except BaseException:
        opened.close()
        raise
    return opened


def _try_option(opened: socket.socket, level: int, option: int, value: int) -> None:
    """Options that only help: an old kernel or a process without CAP_NET_ADMIN does without."""
    try:
        opened.setsockopt(level, option, value)
    except OSError as err:
        if err.errno not in (errno.ENOPROTOOPT, errno.EPERM, errno.EINVAL):
            raise


def _os_failure(operation: str, key: str, err: OSError) -> ProgrammingFailed:
    number = errno.ETIMEDOUT if isinstance(err, TimeoutError) else (err.errno or errno.EIO)
    return ProgrammingFailed(operation, key, number, os.strerror(number))
