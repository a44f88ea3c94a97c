"""typha.cache and typha.fanout over random histories, with clients that join, lag and leave."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libcalico.wire import messages
from libcalico.wire.framing import FrameReader
from libcalico.wire.messages import Deltas, Page
from typha import cache, fanout
from typha.fanout import Cursor, Fanout, FellBehind, Limits

PATHS = [f"/p/{number}" for number in range(40)]
CHANGES = st.lists(
    st.tuples(st.sampled_from(PATHS), st.none() | st.binary(min_size=1, max_size=300)), max_size=12
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("change"), CHANGES),
        st.tuples(st.just("join"), st.booleans()),
        st.tuples(st.just("read"), st.integers(0, 5)),
        st.tuples(st.just("trim"), st.none()),
        st.tuples(st.just("leave"), st.integers(0, 5)),
    ),
    max_size=40,
)


class Client:
    """What one client knows, from the bytes it was sent."""

    def __init__(self, fan: Fanout, is_compressed: bool, now: float) -> None:
        self._reader = FrameReader()
        self._reader.may_be_compressed = is_compressed
        shared = fan.shared_snapshot(is_compressed=is_compressed)
        snapshot = shared or fan.take_snapshot({}, now, is_compressed=is_compressed)
        self.state: dict[str, tuple[bytes, int]] = {}
        self.hear(snapshot.pages.frames)
        assert len(self.state) == snapshot.pages.count
        self.cursor: Cursor = fan.cursor_at(snapshot, now, is_compressed=is_compressed)

    def hear(self, frames: tuple[bytes, ...]) -> None:
        for data in frames:
            for frame in self._reader.receive(data):
                message = messages.decode(frame)
                if isinstance(message, Page):
                    self.state |= {path: (value, at) for path, value, at in message.items}
                else:
                    assert isinstance(message, Deltas)
                    self._on_deltas(message)

    def _on_deltas(self, deltas: Deltas) -> None:
        assert len({path for path, _, _ in deltas.changes}) == len(deltas.changes)
        for path, value, at in deltas.changes:
            assert self.state.get(path, (b"", 0))[1] < at, "back in time, or said twice"
            if value is None:
                self.state.pop(path, None)
            else:
                self.state[path] = (value, at)

    def read_all(self, fan: Fanout, now: float) -> None:
        while frames := fan.next_frames(self.cursor, now):
            self.hear(frames)


class World:
    def __init__(self) -> None:
        self.fan = Fanout(Limits())
        self.truth: dict[str, tuple[bytes, int]] = {}
        self.clients: list[Client] = []
        self.revision, self.now = 0, 0.0

    def change(self, changes: list[tuple[str, bytes | None]]) -> None:
        said = []
        for path, value in changes:
            self.revision += 1
            said.append((path, value, self.revision))
            if value is None:
                self.truth.pop(path, None)
            else:
                self.truth[path] = (value, self.revision)
        self.fan.on_changes(said)
        # Older news of a path that is there changes nothing.
        self.fan.on_changes([(path, b"old", at - 1) for path, (_, at) in self.truth.items()])
        self.fan.cut(self.now)

    def step(self, what: str, value: object) -> None:
        self.now += 1.0
        if what == "change":
            self.change(value)  # type: ignore[arg-type]
        elif what == "join":
            self.clients.append(Client(self.fan, bool(value), self.now))
        elif what == "trim":
            self.fan.trim(client.cursor for client in self.clients)
        elif self.clients:
            index = int(value) % len(self.clients)  # type: ignore[call-overload]
            if what == "read":
                self.clients[index].hear(self.fan.next_frames(self.clients[index].cursor, self.now))
            else:
                del self.clients[index]


@pytest.fixture(scope="module", autouse=True)
def small_pages():
    """Limits that few objects reach."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "PAGE_ITEMS", 4)
        patch.setattr(cache, "PAGE_BYTES", 600)
        patch.setattr(cache, "_SPARSE", 2)
        patch.setattr(fanout, "COALESCE_CRUMBS", 2)
        patch.setattr(fanout, "SHARE_CHANGES", 5)
        patch.setattr(fanout, "FRAME_BYTES", 700)
        yield


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_every_client_ends_with_what_is_there(steps):
    world = World()
    for what, value in steps:
        world.step(what, value)
    world.clients += [Client(world.fan, True, world.now), Client(world.fan, False, world.now)]
    for client in world.clients:
        client.read_all(world.fan, world.now)
        assert client.state == world.truth
    assert len(world.fan.cache) == len(world.truth)
    assert world.fan.cache.value_bytes == sum(len(value) for value, _ in world.truth.values())


def test_who_reads_nothing_falls_behind_and_the_log_is_bounded():
    world = World()
    world.fan = Fanout(Limits(max_fall_behind_s=10.0, max_log_bytes=5_000))
    slow = Client(world.fan, False, 0.0)
    for _ in range(50):
        world.now += 1.0
        world.change([("/p/1", b"x" * 500)])
        world.fan.trim([slow.cursor])
        assert world.fan.dump()["log_bytes"] <= 5_000  # type: ignore[operator]
    assert world.fan.has_fallen_behind(slow.cursor, world.now)
    try:
        world.fan.next_frames(slow.cursor, world.now)
    except FellBehind:
        return
    raise AssertionError("crumbs that are gone were sent")


def test_lag_is_the_age_of_what_was_not_sent():
    world = World()
    client = Client(world.fan, False, 0.0)
    world.now = 5.0
    world.change([("/p/1", b"x")])
    assert world.fan.lag_s(client.cursor, 7.0) == 2.0
    assert not world.fan.has_fallen_behind(client.cursor, 300.0)
    assert world.fan.has_fallen_behind(client.cursor, 306.0)
    assert not world.fan.has_fallen_behind(client.cursor, 306.0, grace_s=10.0)
    client.read_all(world.fan, 7.0)
    assert world.fan.lag_s(client.cursor, 9.0) == 0.0
