"""The endpoint overlay between a CNI agent and a datastore whose syncer is late.

A model: the datastore (one key, revisions), the syncer (a cursor that delivers in revision order,
or lists again) and the agent (pins, writes, confirms, retracts, deletes). The promises are E1 to E4
of felix/calc/overlay.py.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from felix.calc.overlay import EndpointOverlay
from libcalico.model import WorkloadEndpoint
from libcalico.syncer.api import Update
from tests.support.calc import wep

KEY = wep("w")[0]
ENDPOINTS = [wep("w", f"10.0.0.{n}")[1] for n in range(3)]


class Overlay(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.overlay = EndpointOverlay("here")
        self.revision = 1
        self.stored: WorkloadEndpoint | None = None
        self.backlog: list[Update] = []  # written, not delivered yet
        self.syncer_shows: WorkloadEndpoint | None = None
        self.shown: object | None = None  # what the graph believes
        self.pinned: WorkloadEndpoint | None = None  # E1 holds it
        self.must_stand_until: int | None = None
        self.retracted_at: int | None = None  # E2: nothing up to here may be seen

    # -- the datastore and its syncer --------------------------------------------------------

    def store(self, value: WorkloadEndpoint | None) -> int:
        self.revision += 1
        self.stored = value
        self.backlog.append(Update(KEY, value, self.revision))
        return self.revision

    def believe(self, update: Update) -> None:
        assert update.key == KEY
        self.shown = update.value

    def delivered(self, revision: int) -> None:
        """The syncer has reached `revision`: promises up to it are over."""
        if self.must_stand_until is not None and revision >= self.must_stand_until:
            self.pinned = self.must_stand_until = None
        if self.retracted_at is not None and revision > self.retracted_at:
            self.retracted_at = None

    @rule(value=st.sampled_from([*ENDPOINTS, None]))
    def somebody_else_writes(self, value: WorkloadEndpoint | None) -> None:
        self.store(value)

    @rule()
    @precondition(lambda self: self.backlog)
    def deliver(self) -> None:
        update = self.backlog.pop(0)
        assert update.value is None or isinstance(update.value, WorkloadEndpoint)
        self.syncer_shows = update.value
        self.delivered(update.revision)
        self.believe(self.overlay.on_update(KEY, update))

    @rule()
    def repeat(self) -> None:
        """The syncer may say again what is (S1); that is a word about the key like any other."""
        if not self.backlog and self.revision > 1:
            self.syncer_shows = self.stored
            self.delivered(self.revision)
            self.believe(self.overlay.on_update(KEY, Update(KEY, self.stored, self.revision)))

    @rule()
    def list_again(self) -> None:
        """Compaction: what vanished unseen gets a delete only if the syncer knew it (S2)."""
        self.backlog = []
        if self.stored is not None or self.syncer_shows is not None:
            self.delivered(self.revision)
            update = Update(KEY, self.stored, self.revision)
            self.believe(self.overlay.on_update(KEY, update))
        self.syncer_shows = self.stored

    # -- the agent ----------------------------------------------------------------------------

    @rule(value=st.sampled_from(ENDPOINTS))
    def pin(self, value: WorkloadEndpoint) -> None:
        self.believe(self.overlay.pin(KEY, value))
        self.pinned, self.must_stand_until, self.retracted_at = value, None, None

    @rule(first_delivered=st.booleans())
    @precondition(lambda self: self.pinned is not None and self.must_stand_until is None)
    def write_and_confirm(self, first_delivered: bool) -> None:
        """The echo may come before the answer to the write."""
        assert self.pinned is not None
        revision = self.store(self.pinned)
        while first_delivered and self.backlog:
            self.deliver()
        self.must_stand_until = revision
        released = self.overlay.confirm(KEY, revision)
        if released is not None:
            self.believe(released)
        if not self.backlog:
            self.pinned = self.must_stand_until = None

    @rule()
    @precondition(lambda self: self.retracted_at is not None)
    def confirm_a_write_of_the_retracted_endpoint(self) -> None:
        """ADD was cancelled while its write was on the way."""
        revision = self.store(ENDPOINTS[0])
        assert self.overlay.confirm(KEY, revision) is None
        self.retracted_at = revision

    @rule(delete_too=st.booleans())
    def retract(self, delete_too: bool) -> None:
        """The retraction hides what the syncer had shown, or what was confirmed."""
        shows_it = self.syncer_shows is not None
        known = self.revision - len(self.backlog) if shows_it else 0
        known = max(known, self.must_stand_until or 0, self.retracted_at or 0)
        update = self.overlay.retract(KEY)
        if update is not None:
            self.believe(update)
        self.pinned = self.must_stand_until = None
        self.retracted_at = known or None
        if delete_too:
            self.store(None)

    # -- what must hold -----------------------------------------------------------------------

    @invariant()
    def promises(self) -> None:
        if self.pinned is not None:
            assert self.shown is self.pinned, "E1"
        elif self.retracted_at is not None:
            assert self.shown is None, "E2"
        else:
            assert self.shown is self.syncer_shows, "E4"
            assert not self.overlay.held_keys()


TestOverlay = Overlay.TestCase
TestOverlay.settings = settings(max_examples=300, stateful_step_count=30, deadline=None)
