"""pytest fixtures around a real etcd; imported by tests/conftest.py.

`etcd_server` is one plain member for the whole session: tests must not kill it, and find it empty
through `etcd`. Tests that break things use `etcd_cluster_factory`, whose clusters are their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from libcalico.testing import etcd as runner
from libcalico.testing.certs import Authority
from libcalico.testing.etcd import EtcdCluster, EtcdOptions, EtcdTls

ClusterFactory = Callable[..., EtcdCluster]


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
