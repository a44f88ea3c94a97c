"""The state-sequence harness: a scenario is data, the harness multiplies it.

Layer: testing. For anything whose output is a function of the present state and nothing else: the
calc graph, bgp/rib, ipam planning, confd contexts. A scenario is a list of states (key -> value);
it must be valid to go from any state to any other. From a handful of scenarios `cases` makes
hundreds of runs, each of which asks the same question after every state: does what was handed out
so far add up to exactly this state?

Expanders (house-rules 10.7):
  as written; reversed (the teardown paths); with gaps (create, destroy, create again); each state
  alone; squashed (all changes in one step, ending in the last state); all times the order of the
  changes within a step (as listed, reversed) and how often each is said (once, twice, and once more
  with the value before: a reversion within one step).

Blind spot, from Felix: `[{A}, {A,B}, {A}]` is its own mirror image. A deletion with a live referrer
(`[{A,B}, {B}]`) has to be written by hand.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)

State = Mapping[K, object]
Change = tuple[K, object | None]


class Repeat(enum.Enum):
    """How often one step says the same thing."""

    ONCE = "once"
    TWICE = "twice"
    THERE_AND_BACK = "there and back"  # new, old, new: a reversion must leave no trace


class Subject(Protocol[K]):
    """The thing under test together with the fake that checks its output."""

    def change(self, key: K, value: object | None) -> None:
        """Say one change; None: the key does not exist any more."""
        ...

    def settle(self) -> None:
        """Let it hand out what it has to say."""
        ...

    def verify(self, state: State[K], name: str) -> None:
        """Assert that everything handed out so far adds up to `state`."""
        ...


@dataclass(frozen=True, slots=True)
class Named(Generic[K]):
    """One state and what to call it in a failure."""

    name: str
    state: State[K]


@dataclass(frozen=True, slots=True)
class Case(Generic[K]):
    """One run: a sequence of states, and how the changes between them are said."""

    name: str
    states: tuple[Named[K], ...]
    is_reversed: bool = False
    repeat: Repeat = Repeat.ONCE


def cases(name: str, states: Sequence[Named[K]]) -> Iterator[Case[K]]:
    """All runs of one scenario."""
    for how, sequence in expand(states):
        for is_reversed in (False, True):
            for repeat in Repeat:
                order = "changes reversed" if is_reversed else "changes as listed"
                label = ", ".join((name, how, order, repeat.value))
                yield Case(label, tuple(sequence), is_reversed, repeat)


def expand(states: Sequence[Named[K]]) -> Iterator[tuple[str, list[Named[K]]]]:
    nothing: Named[K] = Named("nothing", {})
    yield "as written", list(states)
    yield "reversed", list(states[::-1])
    yield "with gaps", [item for state in states for item in (state, nothing)]
    for index, state in enumerate(states):
        yield f"alone {index}", [state]
    yield "squashed", [nothing, *states[-1:]]


def deltas(before: State[K], after: State[K]) -> list[Change[K]]:
    """What has to be said to get from one state to the other."""
    gone: list[Change[K]] = [(key, None) for key in before if key not in after]
    return gone + [
        (key, value) for key, value in after.items() if key not in before or before[key] != value
    ]


def drive(subject: Subject[K], case: Case[K]) -> None:
    """Run one case. It ends with an empty state, so that every teardown is seen too."""
    before: State[K] = {}
    for item in (*case.states, Named("the end", {})):
        changes = deltas(before, item.state)
        for key, value in reversed(changes) if case.is_reversed else changes:
            for said in _said(before.get(key), value, case.repeat):
                subject.change(key, said)
        subject.settle()
        subject.verify(item.state, f"{case.name}: {item.name}")
        before = item.state


def _said(before: object | None, value: object | None, repeat: Repeat) -> tuple[object | None, ...]:
    if repeat is Repeat.TWICE:
        return (value, value)
    if repeat is Repeat.THERE_AND_BACK:
        return (value, before, value)
    return (value,)
