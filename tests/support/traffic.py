"""Many flows across a fault: run as a program, `send` in one pod and `receive` in another.

    receive ADDRESS OPEN CLOSED OUT     counts what comes to UDP port OPEN, flow by flow, and what
                                        comes to CLOSED
    send ADDRESS OPEN CLOSED FLOWS OUT  FLOWS established flows to OPEN, and as many that start anew
                                        with every packet to CLOSED; ten packets a second each

SIGTERM ends either, which then writes OUT: {"allowed": [packets of flow 0, …], "forbidden": n,
"dropped": n}; `dropped` counts what the receiver's own buffers had no room for.
"""

from __future__ import annotations

import json
import selectors
import signal
import socket
import struct
import sys
import time
from collections import Counter
from pathlib import Path

SLOTS, SLOT_S = 20, 0.005
_PACKET = struct.Struct(">II")
_BUFFER_BYTES = 16 << 20
_SO_RCVBUFFORCE = 33
_SO_RXQ_OVFL = 40

_ended = False


def _end(*_: object) -> None:
    global _ended
    _ended = True


def _socket(family: socket.AddressFamily) -> socket.socket:
    made = socket.socket(family, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def send(address: str, open_port: int, closed_port: int, flows: int, out: Path) -> None:
    """Spread over slots, so that no queue on the way sees all flows at once."""
    family = _family(address)
    allowed = [_socket(family) for _ in range(flows)]
    for one in allowed:
        one.connect((address, open_port))
    forbidden = [_socket(family) for _ in range(flows)]
    sequence, tried = [0] * flows, 0
    due = time.monotonic()
    slot = 0
    while not _ended:
        for flow in range(slot, flows, SLOTS):
            allowed[flow].send(_PACKET.pack(flow, sequence[flow]))
            sequence[flow] += 1
            forbidden[flow].sendto(_PACKET.pack(flow, 0), (address, closed_port))
            tried += 1
        slot = (slot + 1) % SLOTS
        due += SLOT_S
        time.sleep(max(0.0, due - time.monotonic()))
    out.write_text(json.dumps({"allowed": sequence, "forbidden": tried, "dropped": 0}))


def receive(address: str, open_port: int, closed_port: int, out: Path) -> None:
    selector = selectors.DefaultSelector()
    for port in (open_port, closed_port):
        made = _socket(_family(address))
        made.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
        made.setsockopt(socket.SOL_SOCKET, _SO_RXQ_OVFL, 1)
        made.bind((address, port))
        selector.register(made, selectors.EVENT_READ, port)
    came: Counter[int] = Counter()
    forbidden = dropped = 0
    out.with_suffix(".ready").touch()
    while not _ended:
        for key, _ in selector.select(0.1):
            while True:
                try:
                    data, ancillary, _flags, _peer = key.fileobj.recvmsg(64, 64)  # type: ignore[union-attr]
                except BlockingIOError:
                    break
                for _level, _kind, value in ancillary:
                    dropped = struct.unpack("=I", value[:4])[0]
                if key.data == open_port:
                    came[_PACKET.unpack(data)[0]] += 1
                else:
                    forbidden += 1
    counts = [came[flow] for flow in range(max(came, default=-1) + 1)]
    out.write_text(json.dumps({"allowed": counts, "forbidden": forbidden, "dropped": dropped}))


def main() -> None:
    signal.signal(signal.SIGTERM, _end)
    verb, address, open_port, closed_port, *rest = sys.argv[1:]
    if verb == "send":
        send(address, int(open_port), int(closed_port), int(rest[0]), Path(rest[1]))
    else:
        receive(address, int(open_port), int(closed_port), Path(rest[0]))


if __name__ == "__main__":
    main()
