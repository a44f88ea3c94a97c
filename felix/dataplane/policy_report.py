"""Which revision of each policy the kernel enforces, and how long it took to get there.

Layer: felix.dataplane, a manager, and a sink of the syncer. Used by the daemon for metrics, the
state dump and the report in the datastore; it decides nothing.

    on_updates ─► arrived ─► on_intent ─► handed ─► cycle begins ─► writing ─► on_cycle ─► in force
                     └► on_published: what led to no message concerns nobody here

  PR1  a policy is in force at a revision when a cycle that took its message in has been
       acknowledged by the kernel, and the kernel refused none of its chains;
  PR2  what is measured begins when the datastore's word arrived here, at the oldest of the changes
       that became one message, and ends with the acknowledgement; a deletion is a change too;
  PR3  what felix finds when it starts is not measured: that is a load, not a change;
  PR4  staged policies are never in force; they are listed as what they are;
  PR5  `realized` says up to which revision the policies of each kind are done with (policy_marks),
       `closed` which are not in force all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from felix.dataplane.loop import CycleReport
from felix.dataplane.policy_marks import PolicyMarks
from felix.intent import Intent, PolicyRemove, PolicyUpdate
from libcalico.model import (
    GlobalNetworkPolicy,
    NetworkPolicy,
    StagedGlobalNetworkPolicy,
    StagedKubernetesNetworkPolicy,
    StagedNetworkPolicy,
)
from libcalico.model.keys import Key, ResourceKey, prefix_of
from libcalico.runtime.clock import Clock
from libcalico.syncer.api import SyncStatus, Update

_ENFORCED_KINDS = frozenset({NetworkPolicy.kind, GlobalNetworkPolicy.kind})
_STAGED_KINDS = frozenset(
    {StagedNetworkPolicy.kind, StagedGlobalNetworkPolicy.kind, StagedKubernetesNetworkPolicy.kind}
)
POLICY_KINDS = _ENFORCED_KINDS | _STAGED_KINDS


@dataclass(frozen=True, slots=True)
class _Change:
    """`revision` None: the policy is to go. `since` None: not to be measured."""

    revision: int | None
    since: float | None


class PolicyReport:
    """Manager and SyncSink. `why_closed`: what the kernel did not take of a policy, None when it
    has it as it is."""

    def __init__(self, why_closed: Callable[[ResourceKey], str | None], *, clock: Clock) -> None:
        self._why_closed, self._clock = why_closed, clock
        self._marks = PolicyMarks()
        self._status = SyncStatus.WAIT_FOR_DATASTORE
        self._arrived: dict[Key, float] = {}
        self._handed: dict[ResourceKey, _Change] = {}
        self._writing: dict[ResourceKey, _Change] = {}
        self._in_force: dict[ResourceKey, int] = {}
        self._staged: dict[ResourceKey, int] = {}
        self._is_loaded = False
        self._listeners: list[Callable[[float], None]] = []

    def add_listener(self, listener: Callable[[float], None]) -> None:
        """Told the seconds from arrival to acknowledgement of every change."""
        self._listeners.append(listener)

    @property
    def staged_count(self) -> int:
        return len(self._staged)

    # -- the syncer's word -------------------------------------------------------------------

    def on_updates(self, updates: Sequence[Update]) -> None:
        now = self._clock.monotonic()
        for update in updates:
            key = update.key
            if not isinstance(key, ResourceKey) or key.kind not in POLICY_KINDS:
                continue
            self._marks.arrive(key.kind, update.revision)
            if self._is_loaded and key.kind in _ENFORCED_KINDS:  # PR3
                self._arrived.setdefault(key, now)

    def on_status(self, status: SyncStatus) -> None:
        self._status = status

    def on_positions(self, positions: Mapping[str, int]) -> None:
        """Prefix to revision: of a stream that tells only what concerns this node, what else there
        was. It concerns nobody here."""
        for kind in POLICY_KINDS:
            revision = positions.get(prefix_of(kind))
            if revision:
                self._marks.arrive(kind, revision)

    # -- intents -----------------------------------------------------------------------------

    def on_intent(self, intent: Intent) -> None:
        if isinstance(intent, PolicyUpdate):
            self._hand(intent.key, intent.revision)
        elif isinstance(intent, PolicyRemove):
            self._hand(intent.key, None)

    def on_published(self) -> None:
        """All that had arrived was calculated: what led to no message concerns nobody here."""
        self._arrived.clear()
        if self._status is SyncStatus.IN_SYNC:
            self._marks.publish()
            self._skip_what_led_to_nothing()

    def complete_deferred_work(self) -> None:
        """A cycle begins, and takes in what was handed over."""
        for key, change in self._handed.items():
            self._writing[key] = _joined(self._writing.get(key), change)
        self._handed.clear()
        self._marks.begin()

    def on_cycle(self, report: CycleReport) -> None:
        if not report.is_filtering:
            return
        self._is_loaded = True
        now = self._clock.monotonic()
        self._marks.finish()
        self._skip_what_led_to_nothing()
        done = [key for key in self._writing if self._why_closed(key) is None]
        for key in done:
            change = self._writing.pop(key)
            self._settle(key, change)
            if change.since is not None:
                for listener in self._listeners:
                    listener(now - change.since)

    # -- what is asked -----------------------------------------------------------------------

    @property
    def is_loaded(self) -> bool:
        """The kernel has acknowledged what felix found when it started."""
        return self._is_loaded

    def realized(self) -> Mapping[str, int]:
        """Kind to revision (PR5)."""
        return self._marks.done

    def closed(self) -> dict[ResourceKey, str]:
        """Policies of this node that the kernel does not have as they are, and why (PR5)."""
        keys = {*self._in_force, *self._writing}
        found = ((key, self._why_closed(key)) for key in keys)
        return {key: why for key, why in found if why is not None}

    def dump(self) -> dict[str, object]:
        waiting = {**self._writing, **self._handed}
        return {
            "in_force": {str(key): revision for key, revision in self._in_force.items()},
            "waiting": {str(key): change.revision for key, change in waiting.items()},
            "staged": {str(key): revision for key, revision in self._staged.items()},
            "realized": dict(self.realized()),
            "closed": {str(key): why for key, why in self.closed().items()},
        }

    def _hand(self, key: ResourceKey, revision: int | None) -> None:
        change = _Change(revision, self._arrived.get(key))
        self._handed[key] = _joined(self._handed.get(key), change)

    def _skip_what_led_to_nothing(self) -> None:
        if self._is_loaded and not self._handed:
            self._marks.skip()

    def _settle(self, key: ResourceKey, change: _Change) -> None:
        table = self._staged if key.kind in _STAGED_KINDS else self._in_force
        if change.revision is None:
            table.pop(key, None)
        else:
            table[key] = change.revision


def _joined(before: _Change | None, after: _Change) -> _Change:
    """The newest revision, since the oldest of both (PR2)."""
    if before is None or before.since is None:
        return after
    since = before.since if after.since is None else min(before.since, after.since)
    return _Change(after.revision, since)
