"""How long to wait before trying again, and how often to say so.

Layer: runtime; no I/O. `Backoff` grows exponentially up to a limit, with jitter so that a thousand
nodes do not come back at the same instant. `Throttle` lets one log line through per period.
"""

from __future__ import annotations

import random

_RANDOM = random.Random()


class Backoff:
    """Waits of `first_s`, then `factor` times more each, never above `limit_s`.

    Each is spread by `jitter` (0.25: between three quarters of it and all of it): the limit holds.
    """

    def __init__(
        self,
        first_s: float,
        limit_s: float,
        *,
        factor: float = 2.0,
        jitter: float = 0.25,
        rng: random.Random | None = None,
    ) -> None:
        if first_s <= 0 or limit_s < first_s or factor < 1 or not 0 <= jitter < 1:
            raise ValueError("a backoff needs 0 < first <= limit, factor >= 1, 0 <= jitter < 1")
        self._first_s = first_s
        self._limit_s = limit_s
        self._factor = factor
        self._jitter = jitter
        # Seeding one of its own costs more than an etcd call's bookkeeping, and most never wait.
        self._rng = rng or _RANDOM
        self._current_s = first_s

    def next_s(self) -> float:
        """The wait before the next try; calling it counts as that try."""
        current = self._current_s
        self._current_s = min(current * self._factor, self._limit_s)
        return current * (1 - self._jitter * self._rng.random())

    def reset(self) -> None:
        """It worked: start small again."""
        self._current_s = self._first_s


class Throttle:
    """True at most once per `period_s`; the first question is always answered yes."""

    def __init__(self, period_s: float = 60.0) -> None:
        self._period_s = period_s
        self._last_at: float | None = None

    def allows(self, now: float) -> bool:
        if self._last_at is not None and now - self._last_at < self._period_s:
            return False
        self._last_at = now
        return True

    def reset(self) -> None:
        self._last_at = None
