"""Is this process alive and ready? Named reporters, each with a deadline, behind two HTTP pages.

Layer: runtime edge (`HealthServer`); `Health` itself does no I/O, its clock is handed in.

  H1  a reporter that does not report within its timeout counts as neither live nor ready: a loop
      that hangs is seen although nobody says so;
  H2  until its first report a reporter is live (until the timeout) and not ready;
  H3  the process is live when all reporters that answer for liveness are, and ready likewise;
  H4  `simulate_hang(name)` makes a reporter's reports go unheard: the proof that H1 works.

As in Felix (libcalico-go/lib/health) `/liveness` and `/readiness` answer 200 or 503 with a table.
"""

from __future__ import annotations

from dataclasses import dataclass

from libcalico.runtime.clock import SYSTEM, Clock
from libcalico.runtime.httpd import HttpServer, Request, Response


@dataclass(slots=True)
class _Reporter:
    name: str
    timeout_s: float | None
    answers_live: bool
    answers_ready: bool
    reported_at: float
    live: bool = True
    ready: bool = False
    detail: str = ""
    is_deaf: bool = False


@dataclass(frozen=True, slots=True)
class ReporterState:
    """One row of the table."""

    name: str
    live: bool
    ready: bool
    timed_out: bool
    detail: str


class Health:
    """The reporters of one process."""

    def __init__(self, *, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._reporters: dict[str, _Reporter] = {}

    def register(
        self, name: str, *, timeout_s: float | None = None, live: bool = True, ready: bool = True
    ) -> None:
        """`live`/`ready`: whether this reporter has a say in that question."""
        now = self._clock.monotonic()
        self._reporters[name] = _Reporter(name, timeout_s, live, ready, now)

    def unregister(self, name: str) -> None:
        self._reporters.pop(name, None)

    def report(self, name: str, *, live: bool = True, ready: bool = True, detail: str = "") -> None:
        """Say how it goes. Unknown names are a bug: KeyError."""
        reporter = self._reporters[name]
        if not reporter.is_deaf:
            reporter.live, reporter.ready, reporter.detail = live, ready, detail
            reporter.reported_at = self._clock.monotonic()

    def set_timeout(self, name: str, timeout_s: float | None) -> None:
        """healthTimeoutOverrides; names that do not exist are ignored (they may come later)."""
        if name in self._reporters:
            self._reporters[name].timeout_s = timeout_s

    def simulate_hang(self, name: str) -> None:
        self._reporters[name].is_deaf = True

    def states(self) -> tuple[ReporterState, ...]:
        now = self._clock.monotonic()
        return tuple(_state(reporter, now) for reporter in self._reporters.values())

    @property
    def is_live(self) -> bool:
        return all(
            state.live for state in self.states() if self._reporters[state.name].answers_live
        )

    @property
    def is_ready(self) -> bool:
        return all(
            state.ready for state in self.states() if self._reporters[state.name].answers_ready
        )

    def dump(self) -> dict[str, object]:
        rows = {
            state.name: {"live": state.live, "ready": state.ready, "detail": state.detail}
            for state in self.states()
        }
        return {"live": self.is_live, "ready": self.is_ready, "reporters": rows}

    def table(self) -> str:
        """What a person sees when asking the page."""
        rows = [("COMPONENT", "LIVE", "READY", "DETAIL")]
        for state in self.states():
            detail = ("timed out; " if state.timed_out else "") + state.detail
            rows.append((state.name, _word(state.live), _word(state.ready), detail))
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = (
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        )
        return "\n".join(lines) + "\n"


class HealthServer(HttpServer):
    """The two pages. `run()` serves until cancelled."""

    def __init__(self, health: Health, host: str = "localhost", port: int = 9099) -> None:
        self._health = health
        pages = {"/liveness": self._liveness, "/readiness": self._readiness}
        super().__init__(host, port, pages)

    def _liveness(self, request: Request) -> Response:
        return _page(self._health.is_live, self._health.table())

    def _readiness(self, request: Request) -> Response:
        return _page(self._health.is_ready, self._health.table())


def _state(reporter: _Reporter, now: float) -> ReporterState:
    late = reporter.timeout_s is not None and now - reporter.reported_at > reporter.timeout_s
    return ReporterState(
        reporter.name,
        live=reporter.live and not late,
        ready=reporter.ready and not late,
        timed_out=late,
        detail=reporter.detail,
    )


def _page(good: bool, table: str) -> Response:
    return Response(200 if good else 503, table.encode())


def _word(value: bool) -> str:
    return "yes" if value else "no"
