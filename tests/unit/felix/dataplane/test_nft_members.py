"""felix.dataplane.nft_members: a set's differences, whatever order wishes and facts come in."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from felix.dataplane.nft_members import MemberTracker

ELEMENTS = st.sets(st.sampled_from([b"a", b"b", b"c", b"d"]))


class Converges(RuleBasedStateMachine):
    """Against two plain sets: what is wanted, and what a kernel would hold."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = MemberTracker()
        self.wanted: set[bytes] = set()
        self.kernel: set[bytes] = set()

    @rule(added=ELEMENTS, removed=ELEMENTS)
    def change(self, added: set[bytes], removed: set[bytes]) -> None:
        self.tracker.change(added, removed)
        self.wanted = (self.wanted - removed) | added

    @rule(elements=ELEMENTS)
    def replace(self, elements: set[bytes]) -> None:
        self.tracker.replace(elements)
        self.wanted = set(elements)

    @rule(observed=ELEMENTS)
    def resync(self, observed: set[bytes]) -> None:
        self.kernel = set(observed)
        self.tracker.resync(observed)

    @rule(added=ELEMENTS, removed=ELEMENTS)
    def apply_while_wishes_change(self, added: set[bytes], removed: set[bytes]) -> None:
        adds, deletes = set(self.tracker.to_add), set(self.tracker.to_delete)
        self.change(added, removed)
        self.kernel = (self.kernel - deletes) | adds
        self.tracker.confirm(adds, deletes)

    @rule()
    def apply(self) -> None:
        adds, deletes = set(self.tracker.to_add), set(self.tracker.to_delete)
        assert not adds & self.kernel, "would add what is there"
        assert deletes <= self.kernel, "would delete what is not there"
        self.kernel = (self.kernel - deletes) | adds
        self.tracker.confirm(adds, deletes)
        assert self.kernel == self.wanted
        assert not self.tracker.is_dirty

    @invariant()
    def agrees(self) -> None:
        self.tracker.check()
        assert self.tracker.wanted == self.wanted
        assert self.tracker.programmed() == self.kernel


TestConverges = Converges.TestCase


def test_a_wish_taken_back_before_the_write_leaves_nothing_to_do():
    tracker = MemberTracker()
    tracker.change({b"a"}, set())
    tracker.change(set(), {b"a"})
    assert not tracker.is_dirty
