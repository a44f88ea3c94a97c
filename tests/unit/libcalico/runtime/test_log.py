"""libcalico.runtime.log: text for people, JSON for machines, levels by Calico's names."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from libcalico.runtime import log


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _root_logger_restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_anything_but_a_terminal_gets_one_json_object_a_line():
    stream = io.StringIO()
    log.setup("info", stream=stream)
    log.get("demo").info("route programmed", cidr="10.0.0.0/8", count=3)
    log.get("demo").warning("second")
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "info",
        "logger": "demo",
        "event": "route programmed",
        "cidr": "10.0.0.0/8",
        "count": 3,
    }
    assert second["level"] == "warning"


def test_a_terminal_gets_text():
    stream = Terminal()
    log.setup("info", stream=stream)
    log.get("demo").info("route programmed", cidr="10.0.0.0/8")
    line = stream.getvalue().rstrip("\n")
    assert line.endswith("INFO    demo: route programmed cidr=10.0.0.0/8")


@pytest.mark.parametrize(
    ("level", "shown"),
    [("debug", 4), ("Info", 3), ("WARNING", 2), ("warn", 2), ("error", 1), ("none", 0), ("odd", 3)],
)
def test_levels_have_calicos_names_in_any_case(level: str, shown: int):
    stream = io.StringIO()
    log.setup(level, stream=stream)
    logger = log.get("demo")
    logger.debug("d")
    logger.info("i")
    logger.warning("w")
    logger.error("e")
    assert len(stream.getvalue().splitlines()) == shown
    assert logger.is_debug() == (shown == 4)


def test_the_level_of_a_running_process_can_be_changed():
    stream = io.StringIO()
    log.setup("error", stream=stream)
    log.set_level("debug")
    log.get("demo").debug("now")
    assert "now" in stream.getvalue()


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_an_error_can_carry_its_traceback(stream: io.StringIO):
    log.setup("info", stream=stream)
    failure = ValueError("why")
    log.get("demo").error("broken", exc_info=failure)
    assert "ValueError: why" in stream.getvalue()


def test_values_that_are_not_json_are_shown_as_text():
    stream = io.StringIO()
    log.setup("info", stream=stream)
    log.get("demo").info("x", error=ValueError("why"), items={1, 2})
    assert json.loads(stream.getvalue())["error"] == "why"


def test_setting_up_twice_does_not_say_things_twice():
    stream = io.StringIO()
    log.setup("info", stream=stream)
    log.setup("info", stream=stream)
    log.get("demo").info("once")
    assert len(stream.getvalue().splitlines()) == 1
