"""felix.deltatracker against a fake kernel table that can refuse any single write."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from felix.deltatracker import DeltaTracker

KEYS = st.sampled_from(["10.0.0.1/32", "10.0.0.2/32", "fd00::1/128"])
VALUES = st.sampled_from(["cali1", "cali2"])


def put(table: dict[str, str], key: str, value: str | None) -> None:
    table.pop(key, None) if value is None else table.update({key: value})


def test_resync_does_not_touch_a_route_that_is_already_right():
    tracker = DeltaTracker[str, str]()
    tracker.want("10.0.0.1/32", "cali1")
    tracker.resync({"10.0.0.1/32": "cali1", "10.9.9.9/32": "cali9"})
    assert tracker.pending_updates() == {}
    assert tracker.pending_deletions() == {"10.9.9.9/32"}
    assert not tracker.is_dirty("10.0.0.1/32")
    assert not tracker.in_sync()


def test_the_two_views_can_be_read():
    tracker = DeltaTracker[str, str]()
    tracker.want("fd00::1/128", "cali1")
    tracker.confirm("fd00::1/128", "cali2")
    assert (tracker.wanted("fd00::1/128"), tracker.programmed("fd00::1/128")) == ("cali1", "cali2")
    assert tracker.wanted("fd00::2/128") is None
    assert list(tracker.wanted_items()) == [("fd00::1/128", "cali1")]
    assert list(tracker.programmed_items()) == [("fd00::1/128", "cali2")]


def test_dump_names_the_dirty_keys():
    tracker = DeltaTracker[str, str]()
    tracker.want("10.0.0.1/32", "cali1")
    assert tracker.dump() == {"wanted": 1, "programmed": 0, "dirty": ["10.0.0.1/32"]}


class Converges(RuleBasedStateMachine):
    """Whatever the datastore, the kernel and other tools do, a full apply converges."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker: DeltaTracker[str, str] = DeltaTracker()
        self.desired: dict[str, str] = {}  # the oracle: what a human would say we want
        self.kernel: dict[str, str] = {}  # the fake: what is really programmed

    @rule(key=KEYS, value=VALUES | st.none())
    def datastore_changes(self, key: str, value: str | None) -> None:
        self.tracker.want(key, value)
        put(self.desired, key, value)

    @rule(key=KEYS, value=VALUES | st.none())
    def another_tool_interferes(self, key: str, value: str | None) -> None:
        put(self.kernel, key, value)

    @rule(refused=st.sets(KEYS))
    def apply(self, refused: set[str]) -> None:
        self.tracker.resync(self.kernel)
        for key in self.tracker.pending_deletions() - refused:
            del self.kernel[key]
            self.tracker.confirm(key, None)
        for key, value in self.tracker.pending_updates().items():
            if key not in refused:
                assert self.kernel.get(key) != value, "I3: rewrote a correct route"
                self.kernel[key] = value
                self.tracker.confirm(key, value)
        if not refused:
            assert self.kernel == self.desired
            assert not self.tracker.pending_updates(), "I2"
            assert not self.tracker.pending_deletions(), "I2"
            assert self.tracker.in_sync()

    @invariant()
    def internally_consistent(self) -> None:
        self.tracker.check()


TestConverges = Converges.TestCase
