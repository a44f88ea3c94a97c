"""bgp.control: requests and answers (the socket is in tests/netns)."""

from __future__ import annotations

import pytest

from bgp.control import Request, answer, required
from libcalico.errors import NotFound


def find(request: Request) -> dict[str, object]:
    name = required(request, "name")
    if name == "nobody":
        raise NotFound("nobody")
    return {"found": name}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"command": "find", "name": "x"}', {"found": "x"}),
        (b'{"command": "find", "name": "x", "unknown": 1}', {"found": "x"}),
    ],
)
def test_an_answer(line: bytes, expected: dict[str, object]):
    assert answer({"find": find}, line) == expected


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[1]", "a JSON object"),
        (b"{}", "unknown command"),
        (b'{"command": ["find"]}', "unknown command"),
        (b'{"command": "find"}', "name"),
        (b'{"command": "find", "name": 5}', "name"),
        (b'{"command": "find", "name": "nobody"}', "does not exist"),
    ],
)
def test_what_a_client_gets_wrong_is_an_answer_too(line: bytes, words: str):
    assert words in answer({"find": find}, line)["error"]
