"""Structured logs over the standard library: a constant event and key-values.

Layer: runtime edge. Pure code does not log. A terminal gets text, anything else gets one JSON
object a line on stderr (never stdout: the CNI plugin's stdout is its answer).

Key names used everywhere: node cidr ifname key revision peer took_ms error count reason pid path.
Why not structlog: it costs 100 ms at import (house rule 10.10).
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import TextIO

_JSON = json.JSONEncoder(default=str)
_LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
    "panic": logging.CRITICAL,
    "none": logging.CRITICAL + 10,
}


class Logger:
    """`get(__name__).info("event", key=value)`. Values are rendered with str() at output time."""

    __slots__ = ("_logger",)

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def is_debug(self) -> bool:
        """Guard for hot paths: computing the key-values may cost more than the line."""
        return self._logger.isEnabledFor(logging.DEBUG)

    def debug(self, event: str, **fields: object) -> None:
        self._emit(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        self._emit(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._emit(logging.WARNING, event, fields)

    def error(
        self, event: str, *, exc_info: bool | BaseException | None = False, **fields: object
    ) -> None:
        self._emit(logging.ERROR, event, fields, exc_info=exc_info)

    def _emit(
        self,
        level: int,
        event: str,
        fields: dict[str, object],
        *,
        exc_info: bool | BaseException | None = False,
    ) -> None:
        logger = self._logger
        if not logger.isEnabledFor(level):
            return
        found = exc_info if isinstance(exc_info, BaseException) else None
        if exc_info and found is None:
            found = sys.exc_info()[1]
        error = None if found is None else (type(found), found, found.__traceback__)
        # Made here: logging.Logger.log looks up who called, which no line of ours says, and that
        # takes longer than everything else.
        record = logging.LogRecord(logger.name, level, "", 0, event, (), error)
        record.fields = fields
        logger.handle(record)


def get(name: str) -> Logger:
    return Logger(name)


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%H:%M:%S", time.localtime(record.created))
        fields: dict[str, object] = getattr(record, "fields", {})
        pairs = "".join(f" {name}={value}" for name, value in fields.items())
        head = f"{stamp}.{int(record.msecs):03d} {record.levelname:<7} {record.name}: "
        line = head + record.getMessage() + pairs
        return line + ("\n" + self.formatException(record.exc_info) if record.exc_info else "")


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        out: dict[str, object] = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        out.update(getattr(record, "fields", {}))
        if record.exc_info:
            out["traceback"] = self.formatException(record.exc_info)
        return _JSON.encode(out)


def setup(level: str = "info", *, stream: TextIO | None = None) -> None:
    """Send the root logger to `stream` (stderr) at `level` (Calico's severity names, any case)."""
    target = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(target)
    handler.setFormatter(_TextFormatter() if target.isatty() else _JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    set_level(level)


def set_level(level: str) -> None:
    """Change the level of the running process; an unknown name means info."""
    logging.getLogger().setLevel(_LEVELS.get(level.lower(), logging.INFO))
