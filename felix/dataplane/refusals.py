"""What the kernel refused: set aside, closed by whoever uses it, and tried again later.

Layer: felix.dataplane. Used by ipt_table; nft_table keeps its own book of the same kind.

An object is tried again after 1 s, 2 s, … 60 s, at once when it is wanted otherwise or a resync is
asked for. A lifted one counts as good until it is refused once more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from felix.dataplane.manager import NOTHING_DONE, ApplyResult
from libcalico.runtime.clock import Clock

_RETRY_FIRST_S, _RETRY_MAX_S = 1.0, 60.0


@dataclass(frozen=True, slots=True)
class RefusedItem:
    """A chain, a set, or one element of a set. `element` b"" is the whole object."""

    kind: str
    name: str
    element: bytes = b""

    def __str__(self) -> str:
        tail = f" element {self.element.hex()}" if self.element else ""
        return f"{self.kind} {self.name}{tail}"


@dataclass(slots=True)
class _Aside:
    reason: str
    attempts: int
    retry_at: float
    wanted_then: object
    is_lifted: bool = False


class Refusals:
    """`fingerprint` of (kind, name) changes when an object is no longer the same wish."""

    def __init__(self, fingerprint: Callable[[str, str], object], *, clock: Clock) -> None:
        self._fingerprint, self._clock = fingerprint, clock
        self._aside: dict[RefusedItem, _Aside] = {}

    def refuse(self, item: RefusedItem, reason: str) -> None:
        before = self._aside.get(item)
        attempts = before.attempts + 1 if before is not None else 1
        wait_s = min(_RETRY_FIRST_S * 2 ** (attempts - 1), _RETRY_MAX_S)
        retry_at = self._clock.monotonic() + wait_s
        wanted_then = self._fingerprint(item.kind, item.name)
        self._aside[item] = _Aside(reason, attempts, retry_at, wanted_then)

    def lift(self, *, everything: bool) -> None:
        """Let those be tried that are due, wanted otherwise, or all."""
        now = self._clock.monotonic()
        for item, aside in self._aside.items():
            has_changed = self._fingerprint(item.kind, item.name) != aside.wanted_then
            if everything or aside.retry_at <= now or has_changed:
                aside.is_lifted = True

    def settle(self) -> None:
        """An apply went through: what was lifted is good."""
        self._aside = {item: aside for item, aside in self._aside.items() if not aside.is_lifted}

    def names(self, kind: str) -> set[str]:
        """Whole objects of a kind that are out now."""
        return {
            item.name
            for item, aside in self._aside.items()
            if item.kind == kind and not item.element and not aside.is_lifted
        }

    def elements(self) -> frozenset[tuple[str, bytes]]:
        return frozenset(
            (item.name, item.element)
            for item, aside in self._aside.items()
            if item.element and not aside.is_lifted
        )

    def pending(self) -> ApplyResult:
        """What waits for its retry: no failure of an apply, but not done either."""
        if not self._aside:
            return NOTHING_DONE
        first, aside = min(self._aside.items(), key=lambda pair: pair[1].retry_at)
        return ApplyResult(
            deferred=len(self._aside),
            retry_after_s=max(0.0, aside.retry_at - self._clock.monotonic()),
            error=f"{first}: {aside.reason}",
        )

    def dump(self) -> dict[str, str]:
        return {str(item): aside.reason for item, aside in self._aside.items()}
