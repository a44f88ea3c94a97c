"""Selector: a parsed selector as a value.

Layer: pure, above selector.ast. Users: everybody who matches labels; made by parser.parse.

Invariants:
  S1  immutable; two selectors are equal, and hash alike, exactly when their canonical texts are
      the same;
  S2  `uid` is a function of the canonical text only, and Calico's for the same text.

Source: Calico libcalico-go/lib/selector/parser, lib/hash `MakeUniqueID`; reference 3.3.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from functools import cached_property

from libcalico.selector.ast import Labels, Node
from libcalico.selector.restrictions import Atoms, Clause, atoms, clauses


@dataclass(frozen=True, eq=False)
class Selector:
    """A parsed selector. Derived facts are computed once, when first asked for."""

    root: Node

    @cached_property
    def canonical(self) -> str:
        return self.root.text()

    @cached_property
    def uid(self) -> str:
        """Calico's selector id: short, and the same on every node."""
        # A literal may hold a lone surrogate (from \\ud800 in JSON); it must hash, not crash.
        text = ("s:" + self.canonical).encode("utf-8", "surrogatepass")
        digest = hashlib.sha224(text).digest()
        return "s:" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")

    def evaluate(self, labels: Labels) -> bool:
        return self.root.evaluate(labels)

    def prefixed(self, prefix: str) -> Selector:
        """The same selector with `prefix` before every label name."""
        return Selector(self.root.prefixed(prefix))

    def restrictions(self) -> tuple[Clause, ...]:
        """What labels must hold for a match to be possible: of every clause, one term."""
        return self._clauses

    def atoms(self) -> Atoms:
        """The comparisons that the verdict depends on, by kind."""
        return self._atoms

    @cached_property
    def _clauses(self) -> tuple[Clause, ...]:
        return clauses(self.root)

    @cached_property
    def _atoms(self) -> Atoms:
        return atoms(self.root)

    @cached_property
    def _hash(self) -> int:
        return hash(self.canonical)

    def __str__(self) -> str:
        return self.canonical

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Selector) and self.canonical == other.canonical

    def __hash__(self) -> int:
        return self._hash
