"""Up to which revision the policies of each kind are done with.

Layer: felix.dataplane, pure. A part of policy_report.

    arrived ─► published ─► writing ─► done

  PM1  a kind's mark moves on when all that arrived up to it was calculated, and what came of that
       was acknowledged by the kernel, or nothing came of it;
  PM2  marks are of one kind each: every kind is a stream of its own, in the order of revisions;
  PM3  while the datastore is being listed nothing is published: a list is not in that order.
"""

from __future__ import annotations

from collections.abc import Mapping


class PolicyMarks:
    def __init__(self) -> None:
        self._arrived: dict[str, int] = {}
        self._published: dict[str, int] = {}
        self._writing: dict[str, int] = {}
        self._done: dict[str, int] = {}

    @property
    def done(self) -> Mapping[str, int]:
        """Kind to revision."""
        return self._done

    def arrive(self, kind: str, revision: int) -> None:
        _raise(self._arrived, {kind: revision})

    def publish(self) -> None:
        _raise(self._published, self._arrived)
        self._arrived.clear()

    def begin(self) -> None:
        """A cycle takes in what was published."""
        _raise(self._writing, self._published)
        self._published.clear()

    def finish(self) -> None:
        """The kernel has acknowledged that cycle."""
        _raise(self._done, self._writing)
        self._writing.clear()

    def skip(self) -> None:
        """Nothing of what was published waits for a cycle. Behind one that is not acknowledged yet
        it waits all the same: marks are passed in order."""
        if not self._writing:
            _raise(self._done, self._published)
            self._published.clear()


def _raise(marks: dict[str, int], other: Mapping[str, int]) -> None:
    for kind, revision in other.items():
        marks[kind] = max(revision, marks.get(kind, 0))
