"""Fixtures of the tests in which a real container runtime runs the CNI plugin.

podman dropped CNI networking in its version 5: where that is the one installed, its tests are not
collected, and the header of the run says so. (A skip would be a failure of `make test`.)
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtimes.containerd import Containerd
from tests.runtimes.host import Host
from tests.runtimes.podman import Podman, podman_has_no_cni
from tests.support.netns import NamespaceSet, eventually, why_unavailable

HERE = Path(__file__).parent


def pytest_report_header() -> str | None:
    if podman_has_no_cni():
        return "podman here has no CNI networking (version 5 dropped it): its tests are left out"
    return None


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    if collection_path.name == "test_podman.py" and podman_has_no_cni():
        return True
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.runtimes)
            item.add_marker(pytest.mark.netns)


def _require(*programs: str) -> None:
    reason = why_unavailable("veth", "nft")
    missing = [name for name in ("etcd", "etcdctl", *programs) if shutil.which(name) is None]
    if not reason and missing:
        reason = f"not installed: {' '.join(missing)} (deploy/bootstrap --runtimes)"
    if reason:
        pytest.skip(reason)


@pytest.fixture
def netns() -> Iterator[NamespaceSet]:
    _require()
    with NamespaceSet() as made:
        yield made


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    """A host with etcd, calico-node and the plugin's files; one for the tests of a module."""
    _require()
    with NamespaceSet() as netns:
        made = Host(netns)
        try:
            made.install_cni()
            yield made
        finally:
            made.machine.close()


@pytest.fixture(scope="module")
def runtime(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containerd]:
    """containerd on that host."""
    _require("containerd", "runc", "gcc")
    with Containerd(host, tmp_path_factory.mktemp("images")) as made:
        yield made


@pytest.fixture
def containerd(runtime: Containerd) -> Iterator[Containerd]:
    """The same, without a pod; and the test may leave none that it did not remove itself."""
    assert runtime.left() == []
    yield runtime
    runtime.remove_all()
    assert runtime.host.leftovers() == []
    # What is containerd's own ends a moment after its answer.
    assert eventually(lambda: runtime.left() == []), runtime.left()


@pytest.fixture(scope="module")
def installed_podman(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Podman:
    """podman on that host."""
    _require("podman", "runc", "conmon", "busybox")
    return Podman(host, tmp_path_factory.mktemp("images"))


@pytest.fixture
def podman(installed_podman: Podman) -> Iterator[Podman]:
    """The same, without a container; and none of the test's leaves anything behind."""
    assert installed_podman.left() == []
    yield installed_podman
    installed_podman.remove_all()
    assert installed_podman.host.leftovers() == []
    assert eventually(lambda: installed_podman.left() == []), installed_podman.left()
