"""What felix has to admit: that something it was asked for is not there.

Layer: felix.daemon. Used at start, after changes of the configuration, and by `check-config`.

  G1  each thing is said once, and again only after it had gone and come back.
"""

from __future__ import annotations

import dataclasses

from felix.config import SCHEMA, FelixConfig
from felix.config_inert import FACTS, InertParams
from libcalico.runtime import log
from libcalico.runtime.config import LiveConfig, Source

LOG = log.get(__name__)
NO_EFFECT = "accepted, no effect yet"
INERT = frozenset(item.name for item in dataclasses.fields(InertParams))
_REPORTED = INERT - FACTS


def inert_notices(live: LiveConfig[FelixConfig]) -> list[str]:
    """One line per parameter that somebody has set and nothing acts on."""
    return [f"{source.label}: {name}: {NO_EFFECT}" for name, source in _inert(live)]


def _inert(live: LiveConfig[FelixConfig]) -> list[tuple[str, Source]]:
    rows = [row for row in SCHEMA.params if row.attribute in _REPORTED]
    found = [(row.name, live.source_of(row.attribute)) for row in rows]
    return [(name, source) for name, source in found if source is not Source.DEFAULT]


class InertNotices:
    """G1, for the parameters."""

    def __init__(self, live: LiveConfig[FelixConfig]) -> None:
        self._live = live
        self._said: set[tuple[str, Source]] = set()

    def say(self) -> None:
        present = _inert(self._live)
        for name, source in present:
            if (name, source) not in self._said:
                LOG.warning("parameter accepted, no effect yet", key=name, source=source.label)
        self._said = set(present)
