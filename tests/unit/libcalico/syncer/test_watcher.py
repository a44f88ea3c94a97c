"""libcalico.syncer.watcher on the datastore in memory: order, status, absence, comparison."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence

import pytest

from libcalico.errors import Unauthorized
from libcalico.model.keys import Key, ResourceKey
from libcalico.syncer.api import SyncStatus, Update
from libcalico.syncer.watcher import SyncerOptions, WatchSyncer
from libcalico.testing.clock import FakeClock
from libcalico.testing.datastore import MemoryDatastore

NODES = "/calico/resources/v3/projectcalico.org/nodes/"
POOLS = "/calico/resources/v3/projectcalico.org/ippools/"
N1, N2, N3 = (ResourceKey("Node", name) for name in ("n1", "n2", "n3"))
OPTIONS = SyncerOptions(compare_interval_s=600, compare_jitter=0, compare_grace_s=10)


def node(name: str) -> tuple[str, bytes]:
    return NODES + name, b'{"kind":"Node","metadata":{"name":"%s"}}' % name.encode()


class Sink:
    """Keeps what it is told and refuses what the contract forbids."""

    def __init__(self) -> None:
        self.state: dict[Key, object] = {}
        self.log: list[object] = []
        self._revisions: dict[Key, int] = {}

    def on_updates(self, updates: Sequence[Update]) -> None:
        assert updates, "an empty call says nothing"
        for update in updates:
            if not self.forgives:
                assert update.revision >= self._revisions.get(update.key, 0), "S1"
            self._revisions[update.key] = update.revision
            if update.value is None:
                if update.error is None:
                    assert update.key in self.state or update.key in self.bad, "S2: said twice"
                self.state.pop(update.key, None)
                self.bad = self.bad | {update.key} if update.error else self.bad - {update.key}
            else:
                self.state[update.key] = update.value
            self.log.append(update)

    bad: frozenset[Key] = frozenset()
    forgives = False

    def on_status(self, status: SyncStatus) -> None:
        self.log.append(status)

    def statuses(self) -> list[SyncStatus]:
        return [entry for entry in self.log if isinstance(entry, SyncStatus)]

    def names(self) -> set[str]:
        return {key.name for key in self.state if isinstance(key, ResourceKey)}


class Rig:
    def __init__(self, *, prefixes: Sequence[str] = (NODES,)) -> None:
        self.clock = FakeClock()
        self.store = MemoryDatastore(now=self.clock.monotonic)
        self.sink = Sink()
        self.syncer = WatchSyncer(
            self.store, prefixes, self.sink, options=OPTIONS, clock=self.clock
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Rig]:
        task = asyncio.ensure_future(self.syncer.run())
        await self.settle()
        try:
            yield self
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def settle(self) -> None:
        await self.clock.advance(0)


async def test_everything_is_listed_before_in_sync_and_followed_after():
    rig = Rig()
    rig.store.seed(dict([node("n1"), node("n2")]))
    async with rig.running():
        assert rig.sink.log[:2] == [SyncStatus.WAIT_FOR_DATASTORE, SyncStatus.RESYNC]
        assert rig.sink.log[-1] is SyncStatus.IN_SYNC
        assert rig.sink.names() == {"n1", "n2"}
        await rig.store.create(*node("n3"))
        await rig.store.delete(NODES + "n1")
        await rig.settle()
        assert rig.sink.names() == {"n2", "n3"}
        assert rig.sink.statuses()[-1] is SyncStatus.IN_SYNC
        assert rig.syncer.status is SyncStatus.IN_SYNC


async def test_an_empty_datastore_is_in_sync_too():
    async with Rig().running() as rig:
        assert rig.sink.log == [
            SyncStatus.WAIT_FOR_DATASTORE,
            SyncStatus.RESYNC,
            SyncStatus.IN_SYNC,
        ]


async def test_several_prefixes_share_one_in_sync_said_after_the_last():
    rig = Rig(prefixes=[NODES, POOLS])
    rig.store.seed(dict([node("n1")]))
    rig.store.fail_next(prefix=POOLS, operations=["list"])
    async with rig.running():
        assert rig.sink.names() == {"n1"}
        assert SyncStatus.IN_SYNC not in rig.sink.log
        await rig.clock.advance(5)
        assert rig.sink.statuses().count(SyncStatus.IN_SYNC) == 1


async def test_only_the_given_prefixes_are_read():
    async with Rig(prefixes=[NODES, POOLS]).running() as rig:
        await rig.clock.advance(700)
        assert {key for _, key in rig.store.calls} == {NODES, POOLS}


def test_overlapping_prefixes_are_refused():
    for prefixes in ([], [NODES, NODES + "n1"]):
        with pytest.raises(ValueError, match="prefix"):
            WatchSyncer(MemoryDatastore(), prefixes, Sink())


async def test_a_datastore_that_is_down_at_start_is_waited_for_with_one_line_a_minute(
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.INFO)
    rig = Rig()
    rig.store.seed(dict([node("n1")]))
    rig.store.partition()
    async with rig.running():
        for _ in range(175):
            await rig.clock.advance(1)
        assert rig.sink.log == [SyncStatus.WAIT_FOR_DATASTORE]
        lines = [r for r in caplog.records if r.getMessage() == "waiting for the datastore"]
        assert len(lines) == 3
        rig.store.heal()
        await rig.clock.advance(10)
        assert rig.sink.names() == {"n1"}
        assert rig.sink.log[-1] is SyncStatus.IN_SYNC
        assert "the datastore answers again" in caplog.messages


async def test_a_datastore_that_goes_away_later_leaves_the_sink_alone():
    rig = Rig()
    rig.store.seed(dict([node("n1")]))
    async with rig.running():
        before = list(rig.sink.log)
        rig.store.partition()
        rig.store.seed(dict([node("n2")]))
        await rig.clock.advance(3600)
        assert rig.sink.log == before
        rig.store.heal()
        await rig.clock.advance(10)
        assert rig.sink.names() == {"n1", "n2"}


async def test_a_list_that_fails_after_a_compaction_is_tried_until_it_works():
    rig = Rig()
    rig.store.seed(dict([node("n1")]))
    async with rig.running():
        rig.store.partition()
        rig.store.erase(NODES + "n1")
        rig.store.seed(dict([node("n2")]))
        rig.store.compact()
        rig.store.fail_next(3, operations=["list"])
        rig.store.heal()
        await rig.settle()
        assert rig.sink.names() == {"n1"}, "a list that failed says nothing"
        await rig.clock.advance(30)
        assert rig.sink.names() == {"n2"}
        assert rig.sink.log[-1] is SyncStatus.IN_SYNC


async def test_what_vanished_behind_a_compaction_is_deleted_exactly_once():
    rig = Rig()
    rig.store.seed(dict([node("n1"), node("n2")]))
    async with rig.running():
        rig.store.partition()
        rig.store.seed(dict([node("n3")]))
        told = len(rig.sink.log)
        rig.store.erase(NODES + "n1")
        rig.store.compact()
        rig.store.heal()
        await rig.clock.advance(10)
        assert rig.sink.names() == {"n2", "n3"}
        after = rig.sink.log[told:]
        deletes = [e for e in after if isinstance(e, Update) and e.value is None]
        assert [update.key for update in deletes] == [N1]
        # Told again: only what changed, and IN_SYNC once more, at the very end.
        assert [entry for entry in after if isinstance(entry, SyncStatus)] == [
            SyncStatus.RESYNC,
            SyncStatus.IN_SYNC,
        ]
        assert after[-1] is SyncStatus.IN_SYNC
        assert rig.syncer.stats.resyncs == 1


async def test_a_list_interrupted_between_pages_is_begun_again_and_deletes_nothing():
    rig = Rig()
    rig.store.page_keys = 2
    rig.store.seed(dict(node(f"n{i}") for i in range(6)))
    async with rig.running():
        rig.store.partition()
        rig.store.erase(NODES + "n5")
        rig.store.seed(dict([node("n0")]))
        rig.store.compact()
        rig.store.fail_next(operations=["list"], after=2)
        rig.store.heal()
        await rig.clock.advance(0.01)
        assert rig.sink.names() == {f"n{i}" for i in range(6)}
        await rig.clock.advance(10)
        assert rig.sink.names() == {f"n{i}" for i in range(5)}


async def test_one_bad_object_is_absent_is_warned_of_once_and_stops_nobody(
    caplog: pytest.LogCaptureFixture,
):
    rig = Rig()
    rig.store.seed({NODES + "bad": b"{not json", **dict([node("n1")])})
    async with rig.running():
        assert rig.sink.names() == {"n1"}
        assert rig.sink.log[-1] is SyncStatus.IN_SYNC
        (update,) = [e for e in rig.sink.log if isinstance(e, Update) and e.error]
        assert update.key == ResourceKey("Node", "bad")
        rig.store.partition()
        rig.store.compact()
        rig.store.seed(dict([node("n2")]))
        rig.store.compact()
        rig.store.heal()
        await rig.clock.advance(10)
        warnings = [r for r in caplog.records if "does not parse" in r.getMessage()]
        assert len(warnings) == 1
        assert rig.syncer.stats.bad_values == 1
        rig.store.seed(dict([node("bad")]))
        await rig.settle()
        assert rig.sink.names() == {"n1", "n2", "bad"}


async def test_the_comparison_finds_and_counts_what_the_watch_missed():
    rig = Rig()
    rig.store.seed(dict([node("n1"), node("n2")]))
    async with rig.running():
        rig.store.lose_watch_events(2)
        rig.store.seed(dict([node("n3")]))
        rig.store.erase(NODES + "n1")
        await rig.clock.advance(599)
        assert rig.sink.names() == {"n1", "n2"}
        await rig.clock.advance(20)
        assert rig.sink.names() == {"n2", "n3"}
        assert rig.syncer.stats.missed == 2
        await rig.clock.advance(700)
        assert rig.syncer.stats.missed == 2
        assert rig.sink.statuses().count(SyncStatus.IN_SYNC) == 1


async def test_a_quiet_comparison_says_nothing():
    rig = Rig()
    rig.store.seed(dict([node("n1")]))
    async with rig.running():
        before = list(rig.sink.log)
        await rig.clock.advance(3000)
        assert rig.sink.log == before
        assert rig.syncer.stats.compared >= 4
        assert rig.syncer.stats.missed == 0


async def test_a_change_that_is_only_slow_is_not_called_missed():
    rig = Rig()
    async with rig.running():
        await rig.clock.advance(599.5)
        rig.store.hold_watches()
        rig.store.seed(dict([node("n1")]))
        await rig.clock.advance(1)  # the comparison has listed n1
        rig.store.release_watches()
        await rig.clock.advance(20)
        assert rig.sink.names() == {"n1"}
        assert rig.syncer.stats.missed == 0


async def test_a_flood_of_differences_is_settled_by_one_new_list():
    rig = Rig()
    async with rig.running():
        rig.store.lose_watch_events(1500)
        rig.store.seed(dict(node(f"n{i}") for i in range(1500)))
        await rig.clock.advance(601)
        assert len(rig.sink.state) == 1500
        assert [key for op, key in rig.store.calls if op == "get"] == []
        assert rig.sink.log[-1] is SyncStatus.IN_SYNC
        await rig.store.create(*node("later"))
        await rig.settle()
        assert "later" in rig.sink.names()


async def test_a_store_restored_from_a_backup_is_told_anew():
    rig = Rig()
    rig.store.seed(dict([node("n1"), node("n2"), node("n3")]))
    async with rig.running():
        before = rig.sink.state[N1]
        rig.sink.forgives = True
        changed = b'{"kind":"Node","metadata":{"name":"n1","uid":"another"}}'
        # n1 is at the same revision as before the restore, with another value.
        rig.store.restore({NODES + "n1": changed})
        await rig.clock.advance(620)
        assert rig.sink.names() == {"n1"}
        assert rig.sink.state[N1] != before
        assert rig.sink.log[-1] is SyncStatus.IN_SYNC
        await rig.store.create(*node("later"))
        await rig.settle()
        assert rig.sink.names() == {"n1", "later"}


async def test_a_refused_login_is_reported_and_tried_again():
    rig = Rig()
    rig.store.seed(dict([node("n1")]))
    rig.store.fail_next(3, operations=["list"], error=Unauthorized("permission denied"))
    async with rig.running():
        assert rig.sink.names() == set()
        await rig.clock.advance(20)
        assert rig.sink.names() == {"n1"}


async def test_the_dump_tells_status_counters_and_positions():
    rig = Rig()
    rig.store.seed(dict([node("n1")]))
    async with rig.running():
        dump = rig.syncer.dump()
        assert dump["status"] == "in-sync"
        assert dump["ranges"] == [{"prefix": NODES, "known": 1, "position": rig.store.revision}]
        assert dump["stats"]["updates"] == 1  # type: ignore[index]
