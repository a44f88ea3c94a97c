"""Fan out updates to the handler of their kind.

Layer: felix.calc, pure. Used by graph.py.

One handler per kind, registered once; a kind without one is none of our business. A handler is
given the value that the key has now, None for "does not exist", never what changed. When it refuses
a value (InvalidInput) it is called again with None: what cannot be used is absent, and what stood
there before is gone too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from libcalico.errors import InvalidInput
from libcalico.model.keys import ResourceKey

Refusal = Callable[[ResourceKey, InvalidInput], None]


class Handler(Protocol):
    """Must be idempotent, and must change nothing before it raises."""

    def __call__(self, key: ResourceKey, value: object | None, revision: int) -> None: ...


class Dispatcher:
    def __init__(self, on_refusal: Refusal) -> None:
        self._handler_by_kind: dict[str, Handler] = {}
        self._on_refusal = on_refusal

    def register(self, kind: str, handler: Handler) -> None:
        if kind in self._handler_by_kind:
            raise ValueError(f"{kind} has a handler already")
        self._handler_by_kind[kind] = handler

    def kinds(self) -> Collection[str]:
        return self._handler_by_kind.keys()

    def deliver(self, key: ResourceKey, value: object | None, revision: int) -> None:
        handler = self._handler_by_kind[key.kind]
        try:
            handler(key, value, revision)
        except InvalidInput as err:
            self._on_refusal(key, err)
            handler(key, None, revision)
