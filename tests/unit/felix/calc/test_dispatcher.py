"""felix.calc.dispatcher: one handler per kind, and what it refuses is absent."""

from __future__ import annotations

import pytest

from felix.calc.dispatcher import Dispatcher
from libcalico.errors import InvalidInput
from libcalico.model.keys import ResourceKey

KEY = ResourceKey("Tier", "t")


def test_an_update_goes_to_the_handler_of_its_kind():
    calls: list[tuple[object, ...]] = []
    dispatcher = Dispatcher(lambda key, err: calls.append(("refused", key)))
    dispatcher.register("Tier", lambda *args: calls.append(args))
    dispatcher.deliver(KEY, "value", 7)
    assert calls == [(KEY, "value", 7)]
    assert list(dispatcher.kinds()) == ["Tier"]


def test_a_kind_has_one_handler():
    dispatcher = Dispatcher(lambda key, err: None)
    dispatcher.register("Tier", lambda *args: None)
    with pytest.raises(ValueError, match="Tier"):
        dispatcher.register("Tier", lambda *args: None)


def test_a_refused_value_is_reported_and_then_absent():
    calls: list[tuple[object, ...]] = []

    def handle(key: ResourceKey, value: object | None, revision: int) -> None:
        if value is not None:
            raise InvalidInput("no")
        calls.append((key, value, revision))

    dispatcher = Dispatcher(lambda key, err: calls.append((key, str(err))))
    dispatcher.register("Tier", handle)
    dispatcher.deliver(KEY, "value", 7)
    assert calls == [(KEY, "no"), (KEY, None, 7)]
