"""libcalico.runtime.supervise: endings, restarts, signals."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from libcalico.errors import ConfigError, DataplaneStuck, DatastoreUnavailable, RestartRequired
from libcalico.runtime.supervise import Process, Restart
from libcalico.testing.clock import FakeClock


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


def raising(error: BaseException) -> Callable[[], Awaitable[None]]:
    async def work() -> None:
        raise error

    return work


async def life(
    start: Callable[[Process], Awaitable[None]], **options: object
) -> tuple[int, Process]:
    process = Process("demo", environ={}, **options)  # type: ignore[arg-type]
    async with asyncio.timeout(5):
        code = await process.run(start)
    process._report_failure()
    return code, process


async def test_a_stop_cancels_every_task_and_ends_with_zero():
    ended: list[str] = []

    async def work() -> None:
        try:
            await forever()
        finally:
            ended.append("work")

    async def start(process: Process) -> None:
        process.spawn("work", work)
        await asyncio.sleep(0)
        process.stop()

    code, _ = await life(start)
    assert (code, ended) == (0, ["work"])


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (RestartRequired("InterfacePrefix"), 129, "demo: InterfacePrefix\n"),
        (ConfigError("env", "X", "bad"), 1, "demo: env: X: bad\n"),
        (DataplaneStuck("nft"), 1, "demo: nft\n"),
    ],
)
async def test_the_exit_code_says_why_and_one_line_tells_it(
    error: Exception, code: int, line: str, capsys: pytest.CaptureFixture[str]
):
    async def start(process: Process) -> None:
        process.spawn("other", forever)
        process.spawn("work", raising(error))

    found, _ = await life(start)
    assert found == code
    assert capsys.readouterr().err == line


async def test_an_unexpected_error_ends_the_process_with_a_traceback(
    caplog: pytest.LogCaptureFixture,
):
    async def start(process: Process) -> None:
        process.spawn("work", raising(ZeroDivisionError("oops")))

    code, _ = await life(start)
    assert code == 1
    (record,) = [r for r in caplog.records if r.getMessage() == "unexpected failure"]
    assert record.exc_info is not None


async def test_a_failing_start_ends_the_process(capsys: pytest.CaptureFixture[str]):
    async def start(process: Process) -> None:
        raise ConfigError("env", "X", "bad")

    code, _ = await life(start)
    assert code == 1


async def test_the_first_failure_decides():
    async def start(process: Process) -> None:
        process.stop(RestartRequired("first"))
        process.stop(ConfigError("second", "x", "y"))

    code, _ = await life(start)
    assert code == 129


async def test_the_cause_inside_nested_groups_is_found():
    async def work() -> None:
        async with asyncio.TaskGroup() as inner:
            inner.create_task(raising(ValueError("noise"))())
            inner.create_task(raising(RestartRequired("cause"))())

    async def start(process: Process) -> None:
        process.spawn("work", work)

    code, _ = await life(start)
    assert code == 129


async def test_a_task_that_returns_is_done_and_nothing_ends():
    async def start(process: Process) -> None:
        process.spawn("once", lambda: asyncio.sleep(0))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        process.spawn("once", lambda: asyncio.sleep(0))  # the name is free again
        process.stop()

    code, _ = await life(start)
    assert code == 0


async def test_two_running_tasks_of_one_name_are_refused():
    async def start(process: Process) -> None:
        process.spawn("work", forever)
        with pytest.raises(ValueError, match="work"):
            process.spawn("work", forever)
        process.stop()

    assert (await life(start))[0] == 0


async def test_a_restartable_task_is_started_again_with_growing_waits():
    clock = FakeClock()
    starts: list[float] = []

    async def work() -> None:
        starts.append(clock.monotonic())
        raise DatastoreUnavailable("away")

    async def start(process: Process) -> None:
        process.spawn("work", work, restart=Restart.ON_FAILURE)
        await clock.advance(120)
        process.stop()

    code, process = await life(start, clock=clock)
    assert code == 0
    gaps = [b - a for a, b in itertools.pairwise(starts)]
    assert len(gaps) >= 6
    assert gaps[0] < 1.0
    assert 20 < max(gaps) <= 30.0
    tasks = process.dumps.collect()["tasks"]
    assert tasks["work"]["restarts"] == len(starts)  # type: ignore[index,call-overload]


async def test_after_a_long_healthy_run_the_waits_start_small_again():
    clock = FakeClock()
    starts: list[float] = []

    async def work() -> None:
        starts.append(clock.monotonic())
        await clock.sleep(0.01 if len(starts) < 8 else 100)
        raise DatastoreUnavailable("away")

    async def start(process: Process) -> None:
        process.spawn("work", work, restart=Restart.ON_FAILURE)
        await clock.advance(400)
        process.stop()

    await life(start, clock=clock)
    assert starts[-1] - starts[-2] < 101.0


async def test_a_fatal_error_ends_even_a_restartable_task():
    async def start(process: Process) -> None:
        process.spawn("work", raising(RestartRequired("x")), restart=Restart.ON_FAILURE)

    assert (await life(start))[0] == 129


async def test_a_stray_cancellation_is_a_failure_not_a_quiet_end():
    async def start(process: Process) -> None:
        process.spawn("work", raising(asyncio.CancelledError()))

    assert (await life(start))[0] == 1


async def test_one_task_can_be_cancelled_alone():
    async def start(process: Process) -> None:
        process.spawn("work", forever)
        await asyncio.sleep(0)
        process.cancel("work")
        await asyncio.sleep(0)
        process.stop()

    assert (await life(start))[0] == 0


async def test_sigterm_stops_and_sighup_reloads(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    called: list[str] = []

    def broken() -> None:
        called.append("broken")
        raise OSError("no such file")

    async def start(process: Process) -> None:
        process.on_reload(broken)
        process.on_reload(lambda: called.append("second"))
        process.on_reload(lambda: os.kill(os.getpid(), signal.SIGTERM))
        os.kill(os.getpid(), signal.SIGHUP)

    assert (await life(start))[0] == 0
    assert called == ["broken", "second"]
    assert {"reloading", "reload failed", "stopping"} <= set(caplog.messages)


async def test_sigusr1_writes_a_state_dump(tmp_path: Path):
    asked = asyncio.Event()

    def dump() -> dict[str, int]:
        asked.set()
        return {"answer": 42}

    async def start(process: Process) -> None:
        process.environ = {"CALICO_LOG_DIR": str(tmp_path)}
        process.dumps.register("thing", dump)
        os.kill(os.getpid(), signal.SIGUSR1)
        await asked.wait()
        process.stop()

    await life(start)
    (content,) = dumps_in(tmp_path)
    assert content["thing"] == {"answer": 42}


def dumps_in(directory: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in directory.glob("demo-*.json")]
