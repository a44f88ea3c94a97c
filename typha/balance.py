"""How many clients a typha takes, and when it asks one to go to another.

Layer: typha, pure. Used by `typha.server`.

  L1  the limit follows the cluster: room for all nodes' clients with one server lost, a fifth
      spare, between the configured bounds;
  L2  nobody is asked to move unless another server has room below its own fair share, and we hold
      more than ours by TOLERANCE: a kick never ends in a refusal, and two servers do not play ball;
  L3  a client that was moved within MOVE_AGAIN_S is left in peace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from libcalico.syncer.typhas import ServerRecord

#: felix and confd.
CLIENTS_PER_NODE = 2
SPARE = 1.2
TOLERANCE = 0.1
MOVE_AGAIN_S = 300.0


def connection_limit(nodes: int, servers: int, *, lower: int, upper: int) -> int:
    """L1. `servers`: all, with this one."""
    expected = nodes * CLIENTS_PER_NODE * SPARE
    return min(upper, max(lower, -int(-expected // max(1, servers - 1))))


def roomiest(own: str, clients: int, servers: Mapping[str, ServerRecord]) -> ServerRecord | None:
    """The server that should get one of ours, or None (L2). `servers` without or with our own."""
    others = {name: record for name, record in servers.items() if name != own}
    if not others:
        return None
    total = clients + sum(record.clients for record in others.values())
    share = total / (len(others) + 1)
    if clients <= share * (1 + TOLERANCE) + 1:
        return None
    best = min(others.values(), key=lambda record: record.clients)
    has_room = best.clients + 1 <= share and best.clients < best.limit
    return best if has_room else None


def may_move(moved_s_ago: float, connected_s: float) -> bool:
    """L3. `moved_s_ago` is what the client said when it connected, negative for never."""
    return moved_s_ago < 0 or moved_s_ago + connected_s >= MOVE_AGAIN_S


def first_movable(clients: Iterable[tuple[float, float]]) -> int | None:
    """Index of the first of (moved_s_ago, connected_s) that may move."""
    return next(
        (index for index, (moved, connected) in enumerate(clients) if may_move(moved, connected)),
        None,
    )
