"""Whatever happens to the datastore, the intents add up to what a fresh graph would say (O5).

The fake dataplane refuses a broken order or a dangling reference after every flush (O1 to O4), the
graph's own bookkeeping is checked (`CalcGraph.check`), and at the end everything is torn down.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from libcalico.model.keys import ResourceKey
from libcalico.syncer.api import SyncStatus
from tests.support.calc import Object, Rig
from tests.support.calc_strategies import objects


class Converges(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig(fixed_revision=True)
        self.datastore: dict[ResourceKey, object] = {}

    @rule(items=st.lists(objects(), min_size=1, max_size=6))
    def write(self, items: list[Object]) -> None:
        for key, value in items:
            self.datastore[key] = value
            self.rig.change(key, value)

    @rule(data=st.data())
    @precondition(lambda self: self.datastore)
    def delete(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.datastore)))
        del self.datastore[key]
        self.rig.change(key, None)

    @rule(data=st.data())
    @precondition(lambda self: self.datastore)
    def say_again(self, data: st.DataObject) -> None:
        for key in data.draw(st.lists(st.sampled_from(sorted(self.datastore)), max_size=4)):
            self.rig.change(key, self.datastore[key])

    @rule(item=objects())
    def delete_what_was_never_there(self, item: Object) -> None:
        if item[0] not in self.datastore:
            self.rig.change(item[0], None)

    @rule()
    def list_again(self) -> None:
        self.rig.graph.on_status(SyncStatus.RESYNC)
        for key in sorted(self.datastore, reverse=True):
            self.rig.change(key, self.datastore[key])
        self.rig.graph.on_status(SyncStatus.IN_SYNC)

    @rule()
    def flush(self) -> None:
        self.rig.flush()
        fresh = Rig(*self.datastore.items(), fixed_revision=True)  # type: ignore[arg-type]
        assert self.rig.contents == fresh.contents
        assert self.rig.graph.problems.keys() == fresh.graph.problems.keys()
        assert self.rig.flush() == [], "a second flush had something to say"

    def teardown(self) -> None:
        for key in self.datastore:
            self.rig.change(key, None)
        self.rig.flush()
        assert self.rig.contents == Rig().contents


TestConverges = Converges.TestCase
TestConverges.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
