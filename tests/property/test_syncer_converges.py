"""Whatever happens to the datastore and the connection, the sink ends with what is stored."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from libcalico.syncer.api import SyncStatus, Update
from libcalico.syncer.watcher import SyncerOptions, WatchSyncer
from libcalico.testing.clock import FakeClock
from libcalico.testing.datastore import MemoryDatastore

NODES = "/calico/resources/v3/projectcalico.org/nodes/"
NAMES = st.sampled_from(["n1", "n2", "n3", "n4"])
VALUES = st.sampled_from([b'{"kind":"Node"}', b'{"kind":"Node","spec":{}}', b"broken"])

STEPS = st.one_of(
    st.tuples(st.just("put"), NAMES, VALUES),
    st.tuples(st.just("erase"), NAMES),
    st.tuples(st.just("compact")),
    st.tuples(st.just("partition")),
    st.tuples(st.just("heal")),
    st.tuples(st.just("lose_watch_events"), st.integers(1, 2)),
    st.tuples(st.just("hold_watches")),
    st.tuples(st.just("release_watches")),
    st.tuples(st.just("fail"), st.integers(1, 3), st.integers(0, 3)),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 1.0, 12.0, 650.0])),
)


class Sink:
    def __init__(self) -> None:
        self.present: dict[str, int] = {}
        self.bad: set[str] = set()
        self.revisions: dict[str, int] = {}
        self.status = SyncStatus.WAIT_FOR_DATASTORE

    def on_updates(self, updates: Sequence[Update]) -> None:
        for update in updates:
            name = update.key.name  # type: ignore[union-attr]
            assert update.revision >= self.revisions.get(name, 0), "S1"
            self.revisions[name] = update.revision
            if update.value is None and update.error is None:
                assert name in self.present or name in self.bad, "S2: deleted twice"
            self.present.pop(name, None)
            self.bad.discard(name)
            if update.error is not None:
                self.bad.add(name)
            elif update.value is not None:
                self.present[name] = update.revision

    def on_status(self, status: SyncStatus) -> None:
        assert status is not self.status or status is SyncStatus.WAIT_FOR_DATASTORE, "S3"
        self.status = status


def apply(store: MemoryDatastore, step: tuple[object, ...]) -> None:
    match step:
        case ("put", str(name), bytes(value)):
            store.seed({NODES + name: value})
        case ("erase", str(name)):
            store.erase(NODES + name)
        case ("compact",):
            if store.revision > store.compacted:
                store.compact()
        case ("fail", int(count), int(after)):
            store.fail_next(count, operations=["list"], after=after)
        case (str(method), *arguments):
            getattr(store, method)(*arguments)


async def scenario(steps: list[tuple[object, ...]]) -> None:
    clock = FakeClock()
    store = MemoryDatastore(now=clock.monotonic)
    store.page_keys = 2
    sink = Sink()
    options = SyncerOptions(compare_jitter=0)
    syncer = WatchSyncer(store, [NODES], sink, options=options, clock=clock)
    running = asyncio.ensure_future(syncer.run())
    for step in steps:
        if step[0] == "wait":
            await clock.advance(step[1])  # type: ignore[arg-type]
        else:
            apply(store, step)
    # The last change has been made; the world is whole again. One comparison round must do.
    store.heal()
    store.release_watches()
    store.see_all_events()
    await clock.advance(1300)
    stored = {kv.key.removeprefix(NODES): kv for kv in store.snapshot()}
    good = {name: kv.mod_revision for name, kv in stored.items() if kv.value != b"broken"}
    assert sink.present == good
    assert sink.bad == stored.keys() - good.keys()
    assert sink.status is SyncStatus.IN_SYNC
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(STEPS, max_size=25))
def test_the_syncer_converges(steps: list[tuple[object, ...]]):
    asyncio.run(scenario(steps))
