"""Many flows across a fault: run as a program, `send` in one pod and `receive` in another.

    send OUT STREAM...         every flow of every stream sends a packet each 50 ms
    receive OUT STREAM...      counts what comes, flow by flow

    STREAM is kind,address,port,flows:
    udp   flows that stay what they are: one socket each
    new   every packet is a flow of its own, from a socket of its own
    tcp   connections that stay, a message of eight bytes each time
    syn   every packet asks for a connection of its own; what is accepted counts as come

SIGTERM ends sending, and receiving once what is on its way has come; OUT is written then, and is
{STREAM: {"packets": [of flow 0, ...], "dropped": n}}, where `dropped` is what the receiver's own
buffer had no room for. The sockets stay open until the process is killed, so that no connection
ends where packets are still counted.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

SLOTS, SLOT_S = 10, 0.005
PACKET = struct.Struct(">II")  # number of the flow, of the packet in it
BUFFER_BYTES = 16 << 20
SETTLED_S = 0.3
DIALLED_S = 5.0
_SO_RCVBUFFORCE, _SO_RXQ_OVFL = 33, 40

_ended = False


def _end(*_: object) -> None:
    global _ended
    _ended = True


@dataclass(frozen=True)
class Stream:
    kind: str
    address: str
    port: int
    flows: int

    @classmethod
    def of(cls, text: str) -> Stream:
        kind, address, port, flows = text.split(",")
        return cls(kind, address, int(port), int(flows))

    def __str__(self) -> str:
        return f"{self.kind},{self.address},{self.port},{self.flows}"

    @property
    def place(self) -> tuple[str, int]:
        return self.address, self.port

    def socket(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        is_tcp = self.kind in ("tcp", "syn")
        made = socket.socket(family, socket.SOCK_STREAM if is_tcp else socket.SOCK_DGRAM)
        made.setblocking(False)
        return made


# ---------------------------------------------------------------------------------------- sending


def _sender(stream: Stream) -> Callable[[bytes], object]:
    """What sends one packet of one flow."""
    if stream.kind in ("new", "syn"):
        return lambda packet: _send_anew(stream, packet)
    made = stream.socket()
    made.settimeout(DIALLED_S)
    made.connect(stream.place)
    made.setblocking(False)
    if stream.kind == "tcp":
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made.send


def _send_anew(stream: Stream, packet: bytes) -> None:
    with stream.socket() as made:
        if stream.kind == "syn":
            made.connect_ex(stream.place)
        else:
            made.sendto(packet, stream.place)


def send(out: Path, streams: list[Stream]) -> None:
    """Spread over slots, so that no queue on the way sees all flows at once."""
    flows = [(stream, flow, _sender(stream)) for stream in streams for flow in range(stream.flows)]
    sent = {stream: [0] * stream.flows for stream in streams}
    out.with_suffix(".ready").touch()
    due, slot = time.monotonic(), 0
    while not _ended:
        for stream, flow, put in flows[slot::SLOTS]:
            put(PACKET.pack(flow, sent[stream][flow]))
            sent[stream][flow] += 1
        slot = (slot + 1) % SLOTS
        due = max(due + SLOT_S, time.monotonic())  # what was missed is not made up for in a burst
        time.sleep(max(0.0, due - time.monotonic()))
    _write(out, {str(stream): {"packets": sent[stream], "dropped": 0} for stream in streams})


# -------------------------------------------------------------------------------------- receiving


@dataclass
class _Ear:
    """A listening socket of a stream, or one of its connections."""

    stream: Stream
    came: Counter[int]
    socket: socket.socket
    is_connection: bool = False
    dropped: int = 0
    _rest: bytes = field(default=b"", repr=False)

    def hear(self, selector: selectors.BaseSelector) -> None:
        """Everything there is."""
        while True:
            try:
                if self.is_connection:
                    is_open = self._take_bytes()
                elif self.stream.kind in ("tcp", "syn"):
                    is_open = self._take_connection(selector)
                else:
                    is_open = self._take_packet()
            except BlockingIOError:
                return
            if not is_open:
                selector.unregister(self.socket)
                return

    def _take_packet(self) -> bool:
        data, ancillary, _flags, _peer = self.socket.recvmsg(64, 64)
        for _level, _kind, value in ancillary:
            self.dropped = struct.unpack("=I", value[:4])[0]
        self.came[PACKET.unpack(data)[0]] += 1
        return True

    def _take_connection(self, selector: selectors.BaseSelector) -> bool:
        made, _peer = self.socket.accept()
        made.setblocking(False)
        if self.stream.kind == "syn":
            self.came[0] += 1
        ear = _Ear(self.stream, self.came, made, is_connection=True)
        selector.register(made, selectors.EVENT_READ, ear)
        return True

    def _take_bytes(self) -> bool:
        data = self.socket.recv(65536)
        self._rest += data
        whole = len(self._rest) // PACKET.size * PACKET.size
        for flow, _number in PACKET.iter_unpack(self._rest[:whole]):
            self.came[flow] += 1
        self._rest = self._rest[whole:]
        return bool(data)


def _listen(stream: Stream) -> _Ear:
    made = stream.socket()
    made.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, BUFFER_BYTES)
    made.bind(stream.place)
    if stream.kind in ("tcp", "syn"):
        made.listen(1024)
    else:
        made.setsockopt(socket.SOL_SOCKET, _SO_RXQ_OVFL, 1)
    return _Ear(stream, Counter(), made)


def receive(out: Path, streams: list[Stream]) -> None:
    selector = selectors.DefaultSelector()
    ears = [_listen(stream) for stream in streams]
    for ear in ears:
        selector.register(ear.socket, selectors.EVENT_READ, ear)
    out.with_suffix(".ready").touch()
    while (heard := selector.select(SETTLED_S)) or not _ended:
        for key, _ in heard:
            key.data.hear(selector)
    _write(
        out,
        {
            str(ear.stream): {
                "packets": [ear.came[flow] for flow in range(ear.stream.flows)],
                "dropped": ear.dropped,
            }
            for ear in ears
        },
    )


def _write(out: Path, counted: dict[str, object]) -> None:
    beside = out.with_suffix(".new")
    beside.write_text(json.dumps(counted))
    os.replace(beside, out)
    while True:
        signal.pause()


def main() -> None:
    signal.signal(signal.SIGTERM, _end)
    verb, out, *texts = sys.argv[1:]
    work = send if verb == "send" else receive
    work(Path(out), [Stream.of(text) for text in texts])


if __name__ == "__main__":
    main()
