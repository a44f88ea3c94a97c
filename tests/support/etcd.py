"""pytest fixtures around a real etcd; imported by tests/conftest.py.

`etcd_server` is one plain member for the whole session: tests must not kill it, and find it empty
through `etcd`. Tests that break things use `etcd_cluster_factory`, whose clusters are their own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest

from libcalico.testing import etcd as runner
from libcalico.testing.certs import Authority
from libcalico.testing.etcd import EtcdCluster, EtcdOptions, EtcdTls

ClusterFactory = Callable[..., EtcdCluster]


class LossyProxy:
    """Between client and etcd: can lose the answers to requests (and counts what it lost), or be
    cut off altogether."""

    def __init__(self, endpoint: str) -> None:
        host, port = endpoint.removeprefix("http://").split(":")
        self._target = (host, int(port))
        self._port = 0
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None
        self.is_deaf = False
        self.lost_bytes = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def __aenter__(self) -> Self:
        self._tasks = asyncio.TaskGroup()
        await self._tasks.__aenter__()
        await self.open()
        return self

    async def __aexit__(self, *reason: object) -> None:
        self.cut()
        await self._tasks.__aexit__(None, None, None)

    async def open(self) -> None:
        """Accept connections (again), on the same port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Refuse connections from now on, and end those that there are."""
        if self._server is not None:
            self._server.close()
        self.hang_up()

    def hang_up(self) -> None:
        """End every connection that there is, and hear again."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()
        self.is_deaf = False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers += [writer, upstream_writer]
        for copying in (
            self._copy(upstream_reader, writer, lossy=True),
            self._copy(reader, upstream_writer, lossy=False),
        ):
            self._tasks.create_task(copying, name="fixture proxy")

    async def _copy(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, lossy: bool
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65536):
                if lossy and self.is_deaf:
                    self.lost_bytes += len(data)
                else:
                    sink.write(data)
        sink.close()
        with contextlib.suppress(ConnectionError):
            await sink.wait_closed()


def _require() -> None:
    if not runner.is_installed():
        pytest.skip("etcd and etcdctl are not installed")


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """A plain etcd, shared by the session. Never kill it."""
    _require()
    with EtcdCluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


@pytest.fixture
def etcd(etcd_server: EtcdCluster) -> EtcdCluster:
    """The shared etcd with no key in it. Revisions go on counting."""
    etcd_server.ctl("del", "", "--from-key")
    return etcd_server


@pytest.fixture
def etcd_cluster_factory(tmp_path: Path) -> Iterator[ClusterFactory]:
    """`factory(size=3, options=EtcdOptions(...))`: a started cluster that this test may break."""
    _require()
    with ExitStack() as stack:

        def start(*, size: int = 1, options: EtcdOptions | None = None) -> EtcdCluster:
            count = sum(1 for _ in tmp_path.glob("etcd*"))
            cluster = EtcdCluster(tmp_path / f"etcd{count}", size=size, options=options)
            return stack.enter_context(cluster)

        yield start


@pytest.fixture
def etcd_authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "pki")


@pytest.fixture
def etcd_tls(etcd_authority: Authority) -> EtcdTls:
    """Server and client certificates of `etcd_authority`."""
    return EtcdTls(
        etcd_authority.certificate,
        etcd_authority.issue("etcd-server"),
        etcd_authority.issue("brindle-client"),
    )
