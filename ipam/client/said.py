"""Complaints that are made once: the same object with the same reason is not worth a second line.

Layer: ipam edge. Used by the garbage collection, which looks at everything again and again.
"""

from __future__ import annotations

from libcalico.runtime import log

LOG = log.get(__name__)
# More than this many broken objects at once are complained about again.
_MAX_REMEMBERED = 10_000


class Said:
    """What has been said, by subject."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}

    def say(self, subject: str, error: BaseException) -> None:
        """A warning, unless it was the last thing said about `subject`."""
        text = f"{type(error).__name__}: {error}"
        if self._said.get(subject) == text:
            return
        if len(self._said) >= _MAX_REMEMBERED:
            self._said.clear()
        self._said[subject] = text
        LOG.warning("left as it is by the garbage collection", key=subject, error=error)

    def recovered(self, subject: str) -> None:
        """The next trouble with it is news again."""
        self._said.pop(subject, None)
