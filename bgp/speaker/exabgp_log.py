"""ExaBGP's log lines, through our logger. Imported by whoever touches ExaBGP, before it is used.

Layer: edge. ExaBGP's `log` is a class whose methods take a callable; until it is initialised they
fail, and its codec logs too. It calls routine an error, so its levels are taken down by one; its
debug and info lines are dropped where they are made.
"""

from __future__ import annotations

from collections.abc import Callable

from exabgp.logger import log as exabgp_log

from libcalico.runtime import log

LOG = log.get("exabgp")


def _forward(emit: Callable[..., None]) -> Callable[..., None]:
    def forward(message: Callable[[], str] | str, source: str = "", level: str = "") -> None:
        emit("exabgp", source=source, text=message() if callable(message) else message)

    return forward


def _quiet(*_args: object, **_kwargs: object) -> None:
    """Not even the message is built."""


def install() -> None:
    exabgp_log.debug = exabgp_log.info = _quiet
    exabgp_log.warning = _forward(LOG.debug)
    exabgp_log.error = _forward(LOG.info)
    exabgp_log.critical = exabgp_log.fatal = _forward(LOG.warning)


install()
