"""What holds for every test: no sockets in unit tests, no task left behind, real daemons on demand.

Fixtures that start something real live in tests/support and are imported here, so that any test may
ask for them; each skips with its reason when the machine lacks the program.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.support.calicoctl import ctl  # noqa: F401  (fixture)
from tests.support.etcd import (  # noqa: F401  (fixtures)
    etcd,
    etcd_authority,
    etcd_cluster_factory,
    etcd_server,
    etcd_tls,
)

LAST_WORDS_S = 2.0
UNIT = Path(__file__).parent / "unit"


# The gate draws the same examples every time; `make hunt` draws new ones, many more, until stopped.
# No verdict by the clock: neither by how long an example takes nor by how long drawing the first
# ten takes (too_slow); the very first text alone builds a table of all characters.
_PROFILE = hypothesis.settings(
    deadline=None, print_blob=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("gate", _PROFILE, derandomize=True)
hypothesis.settings.register_profile("hunt", _PROFILE, max_examples=2000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """`make test` sets REQUIRE_ALL: a test that could not run there has not passed."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("REQUIRE_ALL"):
        report.outcome = "failed"
        report.longrepr = f"skipped, and REQUIRE_ALL is set: {report.longrepr}"
    return report


@pytest.fixture(autouse=True)
def _no_sockets_in_unit_tests(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unit test that connects or binds is no unit test. Socket pairs are allowed: asyncio's loop
    wakes itself through one."""
    if not request.node.path.is_relative_to(UNIT):
        return

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a unit test tried to use the network")

    for name in ("bind", "connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A program's entry point sets the process's logging up: its next test must not notice."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = [h for h in root.handlers if h not in handlers and _is_pytests(h)] + handlers
    root.setLevel(level)


def _is_pytests(handler: logging.Handler) -> bool:
    return type(handler).__module__.startswith("_pytest")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        function = getattr(item, "obj", None)
        if inspect.iscoroutinefunction(function) and not hasattr(function, "hypothesis"):
            item.obj = _without_leaked_tasks(function)  # type: ignore[attr-defined]


def _without_leaked_tasks(test: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(test)
    async def checked(*args: object, **kwargs: object) -> None:
        before = _own_tasks()
        await test(*args, **kwargs)
        # A task that was told to stop may have a few last words, and grpc speaks through a thread.
        deadline = time.monotonic() + LAST_WORDS_S
        while leaked := _own_tasks() - before:
            if time.monotonic() > deadline:
                raise AssertionError(f"tasks left running: {[t.get_coro() for t in leaked]}")
            await asyncio.sleep(0.001)

    return checked


def _own_tasks() -> set[asyncio.Task[Any]]:
    """Tasks named "fixture …" are ended by the fixture that made them, after the test."""
    return {task for task in asyncio.all_tasks() if not task.get_name().startswith("fixture ")}
