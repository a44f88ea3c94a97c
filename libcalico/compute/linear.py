"""LinearIndex: the calls of LabelIndex, slow and obvious. The oracle of its tests.

Layer: pure. Users: tests, and the benchmark's baseline. Every flush evaluates every selector on
every item; nothing is remembered but the state and what was reported last.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from libcalico.selector import Selector

I = TypeVar("I", bound=Hashable)  # noqa: E741
S = TypeVar("S", bound=Hashable)


@dataclass(frozen=True, slots=True)
class LinearDelta(Generic[S, I]):
    selector_id: S
    started: frozenset[I]
    stopped: frozenset[I]


class LinearIndex(Generic[I, S]):
    def __init__(self) -> None:
        self._items: dict[I, tuple[Mapping[str, str], tuple[str, ...]]] = {}
        self._parents: dict[str, Mapping[str, str]] = {}
        self._selectors: dict[S, Selector] = {}
        self._reported: dict[S, frozenset[I]] = {}

    def update_item(
        self, item_id: I, labels: Mapping[str, str], parents: Sequence[str] = ()
    ) -> None:
        self._items[item_id] = (labels, tuple(parents))

    def delete_item(self, item_id: I) -> None:
        self._items.pop(item_id, None)

    def update_parent(self, name: str, labels: Mapping[str, str]) -> None:
        self._parents[name] = labels

    def delete_parent(self, name: str) -> None:
        self._parents.pop(name, None)

    def update_selector(self, selector_id: S, selector: Selector) -> None:
        self._selectors[selector_id] = selector

    def delete_selector(self, selector_id: S) -> None:
        self._selectors.pop(selector_id, None)

    def flush(self) -> list[LinearDelta[S, I]]:
        matching: dict[S, frozenset[I]] = {
            selector_id: frozenset(
                item_id for item_id in self._items if selector.evaluate(self.labels_of(item_id))
            )
            for selector_id, selector in self._selectors.items()
        }
        deltas = []
        for selector_id in matching.keys() | self._reported.keys():
            old = self._reported.get(selector_id, frozenset())
            new = matching.get(selector_id, frozenset())
            if old != new:
                deltas.append(LinearDelta(selector_id, new - old, old - new))
        self._reported = matching
        return deltas

    def members(self, selector_id: S) -> frozenset[I]:
        return self._reported.get(selector_id, frozenset())

    def selectors_of(self, item_id: I) -> list[S]:
        return [
            selector_id for selector_id, members in self._reported.items() if item_id in members
        ]

    def labels_of(self, item_id: I) -> dict[str, str]:
        """Own labels win over parents', earlier parents over later ones."""
        own, parents = self._items[item_id]
        labels: dict[str, str] = {}
        for name in reversed(parents):
            labels.update(self._parents.get(name, {}))
        return labels | dict(own)
