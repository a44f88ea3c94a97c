"""typha and its clients, joined by real connections on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from deploy.lab.typha_load import Workers, write_changes
from libcalico.datastore.config import connect, for_daemon
from libcalico.datastore.peer_tls import PeerIdentity, PeerTls
from libcalico.datastore.tls import TlsConfig
from libcalico.model.keys import Key, prefix_of
from libcalico.syncer.api import SyncStatus, Update
from libcalico.syncer.streams import FELIX
from libcalico.syncer.typha import TyphaOptions, TyphaSyncer
from libcalico.syncer.typhas import Finder, Target, parse_targets, registered
from libcalico.syncer.watcher import SyncerOptions, WatchSyncer
from libcalico.testing.certs import Authority
from libcalico.testing.datastore import MemoryDatastore
from libcalico.testing.etcd import EtcdCluster
from libcalico.wire import messages
from libcalico.wire.client import ClientProtocol
from libcalico.wire.messages import MAGIC, Goodbye, Hello
from tests.support.felix import FelixWorld, workload
from typha import server as server_module
from typha.config import TyphaConfig
from typha.fanout import Limits
from typha.server import TyphaServer
from typha.streams import Distributor, as_stored

PREFIX = prefix_of("GlobalNetworkSet")
CONFIG = {"server_host": "127.0.0.1", "server_port": 0, "allow_plaintext": True,
          "shutdown_timeout_s": 0.0, "server_ping_interval_s": 0.2}  # fmt: skip


def value(name: str, net: str = "10.0.0.0/8") -> bytes:
    body = {
        "kind": "GlobalNetworkSet",
        "apiVersion": "projectcalico.org/v3",
        "metadata": {"name": name},
        "spec": {"nets": [net]},
    }
    return json.dumps(body).encode()


async def until(condition: Callable[[], object], *, wait_s: float = 10.0) -> None:
    async with asyncio.timeout(wait_s):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)


class Sink:
    """What a client was told."""

    def __init__(self) -> None:
        self.revisions: dict[Key, int] = {}
        self.heard: list[tuple[str, bool]] = []
        self.statuses: list[SyncStatus] = []

    def on_updates(self, updates: Sequence[Update]) -> None:
        for update in updates:
            name = update.key.name  # type: ignore[union-attr]
            self.heard.append((name, update.value is not None))
            if update.value is None:
                self.revisions.pop(update.key, None)
            else:
                assert self.revisions.get(update.key, 0) < update.revision
                self.revisions[update.key] = update.revision

    def on_status(self, status: SyncStatus) -> None:
        self.statuses.append(status)

    @property
    def is_in_sync(self) -> bool:
        return bool(self.statuses) and self.statuses[-1] is SyncStatus.IN_SYNC

    @property
    def names(self) -> set[str]:
        return {key.name for key in self.revisions}  # type: ignore[union-attr]


class Typha:
    """A server in this process; `port` 0 before it listens."""

    def __init__(self, store: MemoryDatastore, *, tls: PeerTls | None = None, **config: object):
        settings = TyphaConfig(**{**CONFIG, **config})  # type: ignore[arg-type]
        limits = Limits(settings.server_max_fall_behind_s)
        self.distributor = Distributor(limits, lambda: self.server.on_change())
        options = SyncerOptions(decode=as_stored)
        prefixes = self.distributor.prefixes
        self.syncer = WatchSyncer(store, prefixes, self.distributor, options=options)
        self.server = TyphaServer(settings, self.distributor, self.syncer, tls=tls)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Typha]:
        tasks = [asyncio.create_task(self.syncer.run()), asyncio.create_task(self.server.run())]
        try:
            await self.server.is_listening.wait()
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def following(
    sink: Sink, *ports: int, tls: PeerTls | None = None
) -> AsyncIterator[TyphaSyncer]:
    targets = [Target("127.0.0.1", port, tls is not None) for port in ports]
    options = TyphaOptions(FELIX, "n1", tls=tls, retry_first_s=0.02, retry_limit_s=0.05)
    syncer = TyphaSyncer(Finder(targets), [PREFIX], sink, options)
    task = asyncio.create_task(syncer.run())
    try:
        yield syncer
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def store_of(*names: str) -> MemoryDatastore:
    store = MemoryDatastore()
    for name in names:
        await store.create(PREFIX + name, value(name))
    return store


async def test_a_client_has_what_the_datastore_has():
    store = await store_of("a", "b")
    sinks = [Sink() for _ in range(5)]
    async with Typha(store).running() as typha:
        port = typha.server.port
        async with following(sinks[0], port), following(sinks[1], port), following(sinks[2], port):
            await until(lambda: all(sink.is_in_sync for sink in sinks[:3]))
            await store.put(PREFIX + "a", value("a", "11.0.0.0/8"))
            await store.delete(PREFIX + "b")
            await store.create(PREFIX + "c", value("c"))
            await until(lambda: all(sink.names == {"a", "c"} for sink in sinks[:3]))
            async with following(sinks[3], port):
                await until(lambda: sinks[3].is_in_sync)
                assert sinks[3].names == {"a", "c"}
        assert typha.server.stats.snapshots == 4
        assert typha.server.stats.snapshots_made == 1
    wait, resync, in_sync = SyncStatus.WAIT_FOR_DATASTORE, SyncStatus.RESYNC, SyncStatus.IN_SYNC
    assert sinks[0].statuses == [wait, resync, in_sync]


async def test_the_load_tool_counts_what_came_to_every_client():
    store = await store_of("a", "b")
    workers = Workers()
    async with Typha(store).running() as typha:
        try:
            await workers.start("127.0.0.1", typha.server.port, 21, 2)
            assert len(typha.server.clients) == 21
            paths = await write_changes(store, 200.0, 0.1)
            found = await workers.stop(len(paths))
        finally:
            await workers.close()
    assert (found["clients"], found["items"], found["changes"]) == (21, 42, len(paths))
    assert (found["missing"], found["lost"], found["errors"]) == (0, 0, [])
    assert 0 < found["lag_p50_s"] <= found["lag_max_s"]


async def test_clients_dropped_at_random_lose_and_repeat_no_delete():
    names = [f"s{number}" for number in range(60)]
    store = await store_of(*names)
    sinks = [Sink() for _ in range(40)]
    choice = random.Random(6)
    async with Typha(store).running() as typha, AsyncExitStack() as stack:
        for sink in sinks:
            await stack.enter_async_context(following(sink, typha.server.port))
        await until(lambda: all(sink.names == set(names) for sink in sinks))
        for name in names[:50]:
            await store.delete(PREFIX + name)
            clients = sorted(typha.server.clients, key=lambda client: client.peer)
            for client in choice.sample(clients, len(clients) // 5):
                assert client.transport is not None
                client.transport.abort()
            # Most are back before the next is deleted, some are just joining.
            await until(lambda: len(typha.server.clients) >= 36)
        await until(lambda: all(sink.names == set(names[50:]) for sink in sinks))
        assert typha.server.stats.ended["client"] >= 200
    for sink in sinks:
        deleted = [name for name, exists in sink.heard if not exists]
        assert sorted(deleted) == sorted(names[:50])


async def test_a_typha_that_comes_back_says_only_what_changed_meanwhile():
    store = await store_of("a", "b", "c")
    sink = Sink()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    async with following(sink, port):
        async with Typha(store, server_port=port).running():
            await until(lambda: sink.is_in_sync)
        sink.heard.clear()
        await store.delete(PREFIX + "b")
        async with Typha(store, server_port=port).running():
            await until(lambda: sink.statuses.count(SyncStatus.IN_SYNC) == 2)
            assert sink.heard == [("b", False)]
            await store.put(PREFIX + "c", value("c"))
            await until(lambda: sink.heard == [("b", False), ("c", True)])


async def test_a_server_that_is_behind_sends_the_client_away(monkeypatch):
    monkeypatch.setattr(server_module, "CATCH_UP_S", 0.3)
    store = await store_of("a")
    typha = Typha(store)

    class Lagging:
        """A syncer that has seen nothing of what the store has."""

        def positions(self) -> dict[str, int]:
            return {}

        async def confirm(self, prefixes: object) -> int:
            return 1_000

    typha.server._source = Lagging()
    async with typha.running():
        goodbye = await greet(typha.server.port, {PREFIX: 900})
    assert goodbye.reason == "behind"
    assert goodbye.retry_after_s > 0


async def test_a_datastore_restored_from_a_backup_is_believed():
    store = await store_of("a", "b")
    for _ in range(20):
        await store.put(PREFIX + "a", value("a"))
    sink = Sink()
    typha = Typha(store)
    async with typha.running():
        port = typha.server.port
        async with following(sink, port) as syncer:
            await until(lambda: sink.is_in_sync)
            old = await store_of("a")
            sink.revisions.clear()  # what the sink checks is no longer true: revisions went back
            restored = Typha(old, server_port=0)
            async with restored.running():
                syncer._finder = Finder([Target("127.0.0.1", restored.server.port, False)])
                for client in list(typha.server.clients):
                    client.end(messages.Reason.SHUTDOWN, "test")
                await until(lambda: sink.statuses.count(SyncStatus.IN_SYNC) == 2)
                assert sink.names == {"a"}
                assert ("b", False) in sink.heard


async def greet(port: int, positions: dict[str, int], **changes: object) -> Goodbye:
    """Say hello and read to the goodbye."""
    fields = {"magic": MAGIC, "lowest_version": 1, "highest_version": 1, "stream": FELIX,
              "node": "n", "positions": positions} | changes  # fmt: skip
    protocol = ClientProtocol(Hello(**fields))  # type: ignore[arg-type]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(protocol.data_to_send())
        async with asyncio.timeout(10):
            while data := await reader.read(65536):
                for message in protocol.receive(data):
                    if isinstance(message, Goodbye):
                        return message
    finally:
        writer.transport.abort()
    raise AssertionError("closed without a word")


async def test_what_makes_no_sense_costs_its_own_connection_only():
    store = await store_of("a")
    sink = Sink()
    async with Typha(store).running() as typha:
        port = typha.server.port
        async with following(sink, port):
            await until(lambda: sink.is_in_sync)
            assert (await greet(port, {}, magic="HTTP/1.1")).reason == "protocol"
            assert (await greet(port, {}, stream="nonsense")).reason == "stream"
            assert (await greet(port, {}, lowest_version=9, highest_version=9)).reason == "version"
            for junk in (os.urandom(5000), b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x02\x01\xff"):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(junk)
                assert b"protocol" in await asyncio.wait_for(reader.read(), 10)
                writer.close()
            await store.create(PREFIX + "b", value("b"))
            await until(lambda: sink.names == {"a", "b"})
            assert typha.server.stats.ended["client"] == 0


async def test_there_is_room_for_so_many_and_no_more():
    store = await store_of("a")
    typha = Typha(store)
    typha.server.limit = 0
    async with typha.running():
        assert (await greet(typha.server.port, {})).reason == "full"
    assert typha.server.stats.ended["full"] == 1


async def test_a_client_that_does_not_read_delays_nobody_and_costs_a_bounded_buffer():
    store = MemoryDatastore()
    big = value("x") + b" " * 100_000
    for number in range(300):  # 30 MB: more than the kernel's buffers
        await store.create(f"{PREFIX}n{number}", big)
    sink = Sink()
    async with Typha(store).running() as typha:
        reader, writer = await asyncio.open_connection("127.0.0.1", typha.server.port, limit=2**10)
        protocol = ClientProtocol(Hello(MAGIC, 1, 1, FELIX, "slow"))
        writer.write(protocol.data_to_send())
        await until(lambda: any(client.is_paused for client in typha.server.clients))
        async with following(sink, typha.server.port):
            await until(lambda: sink.is_in_sync)
            await store.create(PREFIX + "late", value("late"))
            await until(lambda: "late" in sink.names)
        (slow,) = [
            item for item in typha.server.clients if item.hello and item.hello.node == "slow"
        ]
        assert slow.transport is not None
        buffered = slow.transport.get_write_buffer_size()
        assert buffered <= server_module.HIGH_WATER_BYTES + 2 * 1024 * 1024
        writer.transport.abort()
        del reader


def tls(authority: Authority, name: str, peer: PeerIdentity, *, is_server: bool) -> PeerTls:
    found = authority.issue(name, names=("DNS:localhost", f"URI:spiffe://calico/{name}"))
    files = TlsConfig(str(authority.certificate), str(found.certificate), str(found.key))
    return PeerTls(files, peer, is_server=is_server)


async def test_both_sides_must_be_who_they_should(tmp_path: Path):
    authority = Authority(tmp_path / "ca")
    stranger = Authority(tmp_path / "other", "other-ca")
    store = await store_of("a")
    to_client = PeerIdentity(common_name="felix")
    by_uri = PeerIdentity(uri_san="spiffe://calico/typha")
    typha = Typha(store, tls=tls(authority, "typha", to_client, is_server=True))
    async with typha.running():
        port = typha.server.port
        good = tls(authority, "felix", by_uri, is_server=False)
        sink = Sink()
        async with following(sink, port, tls=good):
            await until(lambda: sink.is_in_sync)
        refused = {
            "name": tls(authority, "imposter", by_uri, is_server=False),
            "ca": tls(stranger, "felix", by_uri, is_server=False),
            "server": tls(authority, "felix", PeerIdentity("somebody"), is_server=False),
        }
        for why, client in refused.items():
            sink = Sink()
            async with following(sink, port, tls=client):
                before = typha.server.stats.accepted + typha.server.stats.ended["tls"]
                await until(
                    lambda before=before: (
                        typha.server.stats.accepted + typha.server.stats.ended["tls"] > before
                    )
                )
                await asyncio.sleep(0)
                assert sink.names == set(), why


def ruleset(world: FelixWorld) -> dict[str, object]:
    """Chains and sets by content, without handles."""
    return {
        table.name: (
            {name: [rule.raw for rule in chain.rules] for name, chain in table.chains.items()},
            {name: sorted(found.elements) for name, found in table.sets.items()},
        )
        for table in world.nft.tables.values()
    }


async def test_felix_ends_with_the_same_kernel_by_way_of_typha(tmp_path: Path):
    directly = FelixWorld(tmp_path / "directly")
    directly.store(workload("a", "10.65.0.1/32"))
    directly.wire("a")
    async with directly.running():
        routes, rules = directly.routes(), ruleset(directly)
    world = FelixWorld(tmp_path / "typha")
    world.store(workload("a", "10.65.0.1/32"))
    world.wire("a")
    typha = Typha(world.datastore)
    async with typha.running():
        world.environ["FELIX_TYPHAADDR"] = f"tcp://127.0.0.1:{typha.server.port}"
        async with world.running():
            assert rules
            assert world.routes() == routes
            assert ruleset(world) == rules
            assert len(typha.server.clients) == 1


def free_environment(etcd: EtcdCluster, run: Path, **more: str) -> dict[str, str]:
    return {
        **os.environ,
        "ETCD_ENDPOINTS": etcd.endpoints[0],
        "DATASTORE_TYPE": "etcdv3",
        "CALICO_RUN_DIR": str(run),
        "TYPHA_SERVERHOST": "127.0.0.1",
        "TYPHA_SERVERPORT": "0",
        "TYPHA_HEALTHENABLED": "false",
        "TYPHA_SHUTDOWNTIMEOUTSECS": "0.1",
        **more,
    }


@pytest.mark.etcd
async def test_the_daemon_registers_serves_and_leaves(etcd: EtcdCluster, tmp_path: Path):
    environ = free_environment(etcd, tmp_path, TYPHA_ALLOWPLAINTEXT="true")
    etcd.ctl("put", PREFIX + "a", value("a").decode())
    command = [sys.executable, "-m", "typha.daemon"]
    process = subprocess.Popen(command, env=environ)  # noqa: ASYNC220 - started, not waited for
    store = connect(for_daemon(environ))
    sink = Sink()
    finder = Finder(parse_targets("etcd+tcp://"), store)
    options = TyphaOptions(FELIX, "n1", retry_first_s=0.05, retry_limit_s=0.2)
    task = asyncio.create_task(TyphaSyncer(finder, [PREFIX], sink, options).run())
    try:
        await until(lambda: sink.names == {"a"}, wait_s=30)
        etcd.ctl("put", PREFIX + "b", value("b").decode())
        await until(lambda: sink.names == {"a", "b"})
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 20) == 0
        assert await registered(store) == {}
        assert sink.names == {"a", "b"}
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await store.close()
        process.kill()
        process.wait()


def test_the_daemon_says_in_one_line_what_is_wrong(tmp_path: Path):
    command = [sys.executable, "-m", "typha.daemon"]
    base = {**os.environ, "ETCD_ENDPOINTS": "http://127.0.0.1:1", "DATASTORE_TYPE": "etcdv3"}
    cases = {
        "ServerCertFile": {},
        "TYPHA_ALLOWPLAINTEXT": {},
        "ServerPort": {"TYPHA_SERVERPORT": "x"},
        "unknown parameter": {"TYPHA_NONSENSE": "1"},
        "CAFile": {"TYPHA_SERVERCERTFILE": "/nonexistent"},
    }
    for words, more in cases.items():
        found = subprocess.run(
            command, env={**base, **more}, capture_output=True, text=True, timeout=30, check=False
        )
        assert found.returncode == 1
        assert words in found.stderr
        assert "Traceback" not in found.stderr
        assert found.stderr.count("\n") == 1
