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

from libcalico.selector.ast import Labels, Node
from libcalico.selector.restrictions import Atoms, Clause, atoms, clauses


class Selector:
    """A parsed selector. What is not always needed is worked out when first asked for.

    Written by hand, not as a dataclass with cached properties: a large cluster holds 100,000.
    """

    __slots__ = ("_canonical", "_clauses", "_root")

    def __init__(self, root: Node) -> None:
        self._root = root
        self._canonical = root.text()
        self._clauses: tuple[Clause, ...] | None = None

    @property
    def root(self) -> Node:
        return self._root

    @property
    def canonical(self) -> str:
        return self._canonical

    @property
    def uid(self) -> str:
        """Calico's selector id: short, and the same on every node."""
        # A literal may hold a lone surrogate (from \\ud800 in JSON); it must hash, not crash.
        text = ("s:" + self._canonical).encode("utf-8", "surrogatepass")
        digest = hashlib.sha224(text).digest()
        return "s:" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")

    def evaluate(self, labels: Labels) -> bool:
        return self._root.evaluate(labels)

    def prefixed(self, prefix: str) -> Selector:
        """The same selector with `prefix` before every label name."""
        return Selector(self._root.prefixed(prefix))

    def restrictions(self) -> tuple[Clause, ...]:
        """What labels must hold for a match to be possible: of every clause, one term."""
        if self._clauses is None:
            self._clauses = clauses(self._root)
        return self._clauses

    def atoms(self) -> Atoms:
        """The comparisons that the verdict depends on, by kind. Worked out anew every time."""
        return atoms(self._root)

    def __str__(self) -> str:
        return self._canonical

    def __repr__(self) -> str:
        return f"Selector({self._canonical!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Selector) and self._canonical == other._canonical

    def __hash__(self) -> int:
        return hash(self._canonical)
