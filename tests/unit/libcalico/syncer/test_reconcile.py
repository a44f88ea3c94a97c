"""libcalico.syncer.reconcile: what a key range has been told, and what it still has to be."""

from __future__ import annotations

import pytest

from libcalico.datastore.api import EventType, KeyValue, ListResult, WatchBatch, WatchEvent
from libcalico.model.keys import ResourceKey
from libcalico.syncer.api import Update
from libcalico.syncer.reconcile import Difference, RangeState

PREFIX = "/calico/resources/v3/projectcalico.org/nodes/"
N1, N2 = PREFIX + "n1", PREFIX + "n2"
K1, K2 = ResourceKey("Node", "n1"), ResourceKey("Node", "n2")


def plain(key: object, raw: bytes, revision: int) -> object:
    return raw.decode()


def kv(path: str, revision: int, value: str = "v") -> KeyValue:
    return KeyValue(path, value.encode(), revision)


def put(path: str, revision: int, value: str = "v") -> WatchEvent:
    return WatchEvent(EventType.PUT, kv(path, revision, value))


def delete(path: str, revision: int) -> WatchEvent:
    return WatchEvent(EventType.DELETE, KeyValue(path, b"", revision))


def listed(state: RangeState, revision: int, *kvs: KeyValue) -> list[Update]:
    state.begin_list()
    return state.on_page(ListResult(kvs, revision)) + state.end_list(revision)


@pytest.fixture
def state() -> RangeState:
    return RangeState(PREFIX, decode=plain)


def test_a_first_list_delivers_everything(state: RangeState):
    updates = listed(state, 9, kv(N1, 3, "a"), kv(N2, 5, "b"))
    assert updates == [Update(K1, "a", 3), Update(K2, "b", 5)]
    assert state.position == 9


def test_a_second_list_delivers_only_what_changed_and_deletes_what_vanished_once(
    state: RangeState,
):
    listed(state, 9, kv(N1, 3), kv(N2, 5))
    assert listed(state, 12, kv(N2, 11, "new")) == [Update(K2, "new", 11), Update(K1, None, 12)]
    assert listed(state, 13, kv(N2, 11, "new")) == []


def test_a_list_that_breaks_off_deletes_nothing(state: RangeState):
    listed(state, 9, kv(N1, 3), kv(N2, 5))
    state.begin_list()
    assert state.on_page(ListResult((kv(N2, 5),), 10)) == []
    assert listed(state, 11, kv(N1, 3), kv(N2, 5)) == []


def test_watch_events_become_updates(state: RangeState):
    listed(state, 9, kv(N1, 3))
    updates = state.on_batch(WatchBatch((put(N2, 10, "b"), delete(N1, 11)), 11))
    assert updates == [Update(K2, "b", 10), Update(K1, None, 11)]
    assert state.position == 11


def test_several_changes_of_one_key_in_a_batch_become_the_last(state: RangeState):
    batch = WatchBatch((put(N1, 3, "a"), put(N2, 4), put(N1, 5, "b"), delete(N2, 6)), 6)
    assert state.on_batch(batch) == [Update(K1, "b", 5)]


def test_a_delete_of_what_was_never_delivered_is_not_said(state: RangeState):
    assert state.on_batch(WatchBatch((delete(N1, 3),), 3)) == []


def test_progress_moves_the_position_only(state: RangeState):
    listed(state, 9)
    assert state.on_batch(WatchBatch((), 15)) == []
    assert state.position == 15


def test_a_bad_value_is_absent_with_its_error_and_said_once_per_revision():
    state = RangeState(PREFIX)
    (update,) = listed(state, 9, kv(N1, 3, "not json"))
    assert (update.key, update.value, update.revision) == (K1, None, 3)
    assert update.error is not None
    assert update.error.key == N1
    assert listed(state, 10, kv(N1, 3, "not json")) == []
    # When the bad object goes it is deleted like any other; when it is repaired it appears.
    (update,) = listed(state, 11, kv(N1, 11, '{"kind":"Node","metadata":{"name":"n1"}}'))
    assert update.error is None
    assert update.value is not None


def test_paths_that_are_not_ours_are_not_delivered(state: RangeState):
    foreign = PREFIX + "too/deep"
    assert listed(state, 9, kv(foreign, 3)) == []
    assert state.on_batch(WatchBatch((put(foreign, 10), delete(foreign, 11)), 11)) == []
    assert state.differences([kv(foreign, 12)]) == []


def test_keys_whose_values_nobody_decodes_are_left_out():
    state = RangeState("/calico/dhcp/")
    assert listed(state, 9, kv("/calico/dhcp/v2/no-region/subnet/s1", 3)) == []


def test_differences_are_what_either_side_lacks_or_has_otherwise(state: RangeState):
    listed(state, 9, kv(N1, 3), kv(N2, 5))
    n3 = PREFIX + "n3"
    assert state.differences([kv(N2, 8), kv(n3, 9)]) == [
        Difference(N2, 8, 5),
        Difference(n3, 9, 0),
        Difference(N1, 0, 3),
    ]
    assert state.differences([kv(N1, 3), kv(N2, 5)]) == []


def test_a_difference_that_stands_is_settled_by_the_value_read(state: RangeState):
    listed(state, 9, kv(N1, 3), kv(N2, 5))
    assert state.settle(Difference(N1, 8, 3), kv(N1, 8, "new"), 9) == [Update(K1, "new", 8)]
    assert state.settle(Difference(N2, 0, 5), None, 9) == [Update(K2, None, 9)]
    assert state.differences([kv(N1, 8)]) == []


def test_a_difference_that_moved_on_is_left_to_the_watch(state: RangeState):
    listed(state, 9, kv(N1, 3))
    difference = Difference(N1, 8, 3)
    assert state.settle(difference, kv(N1, 12), 9) == []  # written again meanwhile
    assert state.settle(difference, None, 9) == []  # deleted meanwhile
    state.on_batch(WatchBatch((put(N1, 8),), 8))  # the watch was only slow
    assert state.settle(difference, kv(N1, 8), 9) == []
