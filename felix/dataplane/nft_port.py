"""What the nft driver needs from the kernel: one transaction of operations, and a read-back.

Layer: felix.dataplane (the contract). Implemented by felix.kernel.nft; the driver is nft_table.

  P1  a transaction is all or nothing: after Refused nothing of it is in the kernel;
  P2  operations take effect in the order given, and only together;
  P3  everything concerns our one table: no operation can name another.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from felix.rules.chain import BaseHook, Chain
from felix.rules.sets import MapValue, SetSpec
from libcalico.errors import ProgrammingFailed, Stale

# ------------------------------------------------------------------------------- operations


@dataclass(frozen=True, slots=True)
class AddTable:
    comment: str = ""


@dataclass(frozen=True, slots=True)
class DeleteTable:
    """With all that is in it: another dataplane has taken over."""


@dataclass(frozen=True, slots=True)
class AddChain:
    """An empty chain; its rules come with WriteRules, so chains may refer to each other."""

    name: str
    base: BaseHook | None = None
    comment: str = ""


@dataclass(frozen=True, slots=True)
class ClearChain:
    name: str


@dataclass(frozen=True, slots=True)
class WriteRules:
    """Append all rules of a chain that exists and is empty, marked with its digest."""

    chain: Chain
    digest: bytes


@dataclass(frozen=True, slots=True)
class DeleteChain:
    name: str


@dataclass(frozen=True, slots=True)
class AddSet:
    spec: SetSpec


@dataclass(frozen=True, slots=True)
class DeleteSet:
    name: str


@dataclass(frozen=True, slots=True)
class AddElements:
    spec: SetSpec
    elements: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class DeleteElements:
    """Of a set or a map."""

    spec: SetSpec
    elements: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class AddEntries:
    spec: SetSpec
    entries: Sequence[tuple[bytes, MapValue]]


Op = (
    AddTable
    | DeleteTable
    | AddChain
    | ClearChain
    | WriteRules
    | DeleteChain
    | AddSet
    | DeleteSet
    | AddElements
    | DeleteElements
    | AddEntries
)


def describe(op: Op) -> str:
    """For errors and logs: what the operation does to which object."""
    kind = type(op).__name__
    if isinstance(op, AddTable | DeleteTable):
        return kind
    if isinstance(op, WriteRules):
        return f"{kind} {op.chain.name}"
    if isinstance(op, AddSet | AddElements | DeleteElements | AddEntries):
        return f"{kind} {op.spec.name}"
    return f"{kind} {op.name}"


# --------------------------------------------------------------------------------- read-back


@dataclass(frozen=True, slots=True)
class ChainImage:
    """A chain as the kernel holds it. `digest` None: its rules are not (all) what we wrote."""

    base: BaseHook | None
    digest: bytes | None


@dataclass(slots=True)
class TableImage:
    """Our table as the kernel holds it. A set of a shape we do not know has no spec."""

    generation: int
    exists: bool = True
    chains: dict[str, ChainImage] = field(default_factory=dict)
    sets: dict[str, SetSpec | None] = field(default_factory=dict)
    elements: dict[str, set[bytes]] = field(default_factory=dict)
    entries: dict[str, dict[bytes, MapValue]] = field(default_factory=dict)


# ------------------------------------------------------------------------------------ errors


@dataclass(frozen=True, slots=True)
class Refusal:
    """The kernel's no to one operation of a transaction."""

    op_index: int
    errno: int
    text: str = ""


class TransactionRefused(ProgrammingFailed):
    """Nothing was applied. `refusals` names the guilty operations; empty: the batch as such."""

    def __init__(self, refusals: Sequence[Refusal], what: str, errno: int, text: str = "") -> None:
        super().__init__("nft transaction", what, errno, text or os.strerror(errno))
        self.refusals = tuple(refusals)


class GenerationMoved(Stale):
    """Somebody changed the ruleset since it was read: read again."""


# -------------------------------------------------------------------------------------- port


class NftPort(Protocol):
    async def read(self) -> TableImage:
        """Our table, whole and consistent; empty when it does not exist.

        Errors: DumpInterrupted when others kept changing the ruleset, ProgrammingFailed."""

    async def generation(self) -> int:
        """A number that changes with every change of any table in this namespace."""

    async def commit(self, ops: Sequence[Op], *, generation: int | None = None) -> None:
        """Apply all or nothing. With `generation`, only if nothing changed since it was read.

        Errors: TransactionRefused, GenerationMoved, ProgrammingFailed (outcome unknown)."""
