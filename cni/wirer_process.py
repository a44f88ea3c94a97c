"""The process that makes and removes wires for felix: `python -m cni.wirer_process FD`.

Layer: edge, a program. Started by cni.wirer, in the node's network namespace.

  L1  wires are made one after the other: the kernel makes one interface at a time anyway. Removals,
      which wait 20 ms each, are done in a thread: those that were ordered together, together
      (cni.teardown);
  L2  it ends when its socket does, and only then. A signal to all processes of a unit or terminal
      also ends felix, which has wires to remove before it goes: it needs us until it is done. So
      we are born with those signals blocked;
  L3  every order gets its report, whatever happens.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from cni import teardown, veth
from cni.wirer_wire import (
    MESSAGE_BYTES,
    Order,
    Refusal,
    Report,
    Verb,
    decode_orders,
    encode_reports,
)

_REMOVERS = 4
# Wires that are made before felix hears of the first: it has work of its own with them.
_REPORTED_TOGETHER = 8
_MAKES = frozenset({Verb.ATTEMPT, Verb.MAKE})


def main(arguments: Sequence[str] | None = None) -> int:
    (handle,) = sys.argv[1:] if arguments is None else arguments
    with (
        socket.socket(fileno=int(handle)) as link,
        ThreadPoolExecutor(_REMOVERS, "removal") as threads,
    ):
        link.setblocking(True)
        while data := _received(link):
            orders = decode_orders(data)
            removals = [order for order in orders if order.verb not in _MAKES]
            if removals:
                threads.submit(_remove, link, removals)
            makes = [order for order in orders if order.verb in _MAKES]
            for start in range(0, len(makes), _REPORTED_TOGETHER):
                _report(link, [_made(one) for one in makes[start : start + _REPORTED_TOGETHER]])
    return 0


def _received(link: socket.socket) -> bytes:
    """Empty at the end, also when felix died with reports of ours unread."""
    try:
        return link.recv(MESSAGE_BYTES)
    except ConnectionResetError:
        return b""


def _made(order: Order) -> Report:
    make = veth.attempt if order.verb is Verb.ATTEMPT else veth.create
    try:
        return Report(order.number, made=make(order.wire))
    except Exception as err:  # noqa: BLE001 - it is the answer
        return Report(order.number, refusal=Refusal.of(err))


def _remove(link: socket.socket, orders: Sequence[Order]) -> None:
    try:
        ends = [_end(order) for order in orders]
        reports = [
            Report(order.number, is_done=found)
            if not isinstance(found, Exception)
            else Report(order.number, refusal=Refusal.of(found))
            for order, found in zip(orders, teardown.delete_all(ends), strict=True)
        ]
    except Exception as err:  # noqa: BLE001 - it is the answer
        reports = [Report(order.number, refusal=Refusal.of(err)) for order in orders]
    _report(link, reports)


def _end(order: Order) -> teardown.End:
    if order.verb is Verb.DELETE_ON_HOST:
        return teardown.End(order.name)
    return teardown.End(order.name, order.netns)


def _report(link: socket.socket, reports: Sequence[Report]) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        link.send(encode_reports(reports))


if __name__ == "__main__":
    sys.exit(main())
