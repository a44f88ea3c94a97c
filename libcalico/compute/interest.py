"""Which selectors could care: the indexes from a label change to the selectors it may concern.

Layer: pure, above libcalico.selector. User: compute.labelindex.

Two indexes are crossed, because either alone can be useless. Ten thousand selectors
`namespace == "X" && app == "web"` all compare `app`, but only one is reachable for an endpoint of
one namespace; ten thousand selectors `a != "x"` restrict nothing, but a change of `b` flips none of
their comparisons.

  flipped     selectors one of whose comparisons changed its outcome (exact, also when negated);
  reachable   selectors whose narrowest clause has a term that the labels satisfy, plus those
              that restrict nothing.

Invariants:
  I1  a selector whose verdict differs between two label sets is in `flipped` of the change and
      in `reachable` of the old or the new labels;
  I2  after remove() of every entry all indexes are empty.

Source: design.md 4.1; Calico felix/labelindex/labelrestrictionindex (reachable only).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Set
from typing import Generic, TypeVar

from libcalico.compute.ordinals import Ordinals
from libcalico.selector import Atoms, Clause, Selector, Term

Labels = Mapping[str, str]
S = TypeVar("S", bound=Hashable)
K = TypeVar("K", bound=Hashable)

# So few candidates are cheaper to evaluate than to narrow down.
_FEW = 16


class Entry(Generic[S]):
    """One distinct selector, whoever asked for it, and the ordinals it matches now."""

    __slots__ = ("clause", "matches", "selector", "subscribers")

    def __init__(self, selector: Selector) -> None:
        self.selector = selector
        self.matches: Ordinals = set()
        self.subscribers: dict[S, None] = {}
        self.clause: Clause | None = None


class Interest(Generic[S]):
    """See the module."""

    def __init__(self) -> None:
        self._by_equal: dict[str, dict[str, set[Entry[S]]]] = {}
        self._by_present: dict[str, set[Entry[S]]] = {}
        self._by_substring: dict[str, set[Entry[S]]] = {}
        self._by_term: dict[Term, set[Entry[S]]] = {}
        self._unrestricted: set[Entry[S]] = set()
        self._true_of_nothing: set[Entry[S]] = set()
        # How many entries name a label at all.
        self.named: dict[str, int] = {}

    def add(self, entry: Entry[S]) -> Atoms:
        """Take in an entry; the comparisons it makes."""
        atoms = entry.selector.atoms()
        for label in atoms.labels():
            self.named[label] = self.named.get(label, 0) + 1
        for label, values in atoms.equal.items():
            by_value = self._by_equal.setdefault(label, {})
            for value in values:
                _put(by_value, value, entry)
        for label in atoms.present:
            _put(self._by_present, label, entry)
        for label in atoms.substring:
            _put(self._by_substring, label, entry)
        entry.clause = self._least_loaded(entry.selector.restrictions())
        if entry.clause is None:
            self._unrestricted.add(entry)
        for term in entry.clause or ():
            _put(self._by_term, term, entry)
        if entry.selector.evaluate({}):
            self._true_of_nothing.add(entry)
        return atoms

    def remove(self, entry: Entry[S]) -> list[str]:
        """Forget an entry; the labels that nothing names any more."""
        atoms = entry.selector.atoms()
        for label, values in atoms.equal.items():
            by_value = self._by_equal[label]
            for value in values:
                _drop(by_value, value, entry)
            if not by_value:
                del self._by_equal[label]
        for label in atoms.present:
            _drop(self._by_present, label, entry)
        for label in atoms.substring:
            _drop(self._by_substring, label, entry)
        for term in entry.clause or ():
            _drop(self._by_term, term, entry)
        self._unrestricted.discard(entry)
        self._true_of_nothing.discard(entry)
        unnamed = []
        for label in atoms.labels():
            self.named[label] -= 1
            if not self.named[label]:
                del self.named[label]
                unnamed.append(label)
        return unnamed

    def concerned(self, old: Labels | None, new: Labels | None) -> set[Entry[S]]:
        """Every entry whose verdict on one item may change; None: the item does not exist."""
        if old is None or new is None:
            return set().union(*self._reachable(old or {}, new or {}))
        flipped = list(self._flipped(old, new))
        if sum(map(len, flipped)) <= _FEW:
            return set().union(*flipped)
        concerned: set[Entry[S]] = set()
        for reachable in self._reachable(old, new):
            for part in flipped:
                concerned |= part & reachable
        return concerned

    def reachable(self, labels: Labels) -> set[Entry[S]]:
        """Every entry that could match an item with these labels."""
        return set().union(*self._reachable(labels, {}))

    def flipped_by_values(self, label: str, values: Set[str]) -> Iterator[set[Entry[S]]]:
        """The entries that compare `label` with one of `values`, or look inside its value."""
        by_value = self._by_equal.get(label)
        if by_value:
            for value in by_value.keys() & values:
                yield by_value[value]
        if label in self._by_substring:
            yield self._by_substring[label]

    def flipped_by_presence(self, label: str) -> set[Entry[S]]:
        return self._by_present.get(label, set())

    def flipped_by_existence(self) -> set[Entry[S]]:
        """The entries that match an item without labels, so that its mere coming counts."""
        return self._true_of_nothing

    def _least_loaded(self, clauses: tuple[Clause, ...]) -> Clause | None:
        """The clause whose terms lead to the fewest selectors so far; values before has()."""
        best: Clause | None = None
        least: tuple[int, int] | None = None
        for clause in clauses:
            reached = presences = 0
            for term in clause:
                reached += len(self._by_term.get(term, ()))
                presences += term[1] is None
            if least is None or (reached, presences) < least:
                best, least = clause, (reached, presences)
        return best

    def _reachable(self, old: Labels, new: Labels) -> Iterator[set[Entry[S]]]:
        yield self._unrestricted
        terms: set[Term] = {*old.items(), *new.items()}
        terms.update((label, None) for label in old)
        terms.update((label, None) for label in new)
        for term in terms & self._by_term.keys():
            yield self._by_term[term]

    def _flipped(self, old: Labels, new: Labels) -> Iterator[set[Entry[S]]]:
        for label in old.keys() | new.keys():
            before, after = old.get(label), new.get(label)
            if before == after:
                continue
            yield from self.flipped_by_values(
                label, {value for value in (before, after) if value is not None}
            )
            if before is None or after is None:
                yield self.flipped_by_presence(label)

    def check(self, entries: Iterable[Entry[S]]) -> None:
        """I2, the other way round: the indexes hold these entries and no others."""
        fresh: Interest[S] = Interest()
        live = set(entries)
        clauses = {entry: entry.clause for entry in live}
        for entry in live:
            fresh.add(entry)
            entry.clause = clauses[entry]
        assert fresh.named == self.named
        assert fresh._by_equal == self._by_equal
        assert fresh._by_present == self._by_present
        assert fresh._by_substring == self._by_substring
        assert fresh._true_of_nothing == self._true_of_nothing
        placed = {entry for held in self._by_term.values() for entry in held}
        assert placed | self._unrestricted <= live
        for entry in live:
            assert (entry.clause is None) == (entry in self._unrestricted)
            assert all(entry in self._by_term[term] for term in entry.clause or ())


def _put(index: dict[K, set[Entry[S]]], key: K, entry: Entry[S]) -> None:
    held = index.get(key)
    if held is None:
        index[key] = {entry}
    else:
        held.add(entry)


def _drop(index: dict[K, set[Entry[S]]], key: K, entry: Entry[S]) -> None:
    held = index[key]
    held.discard(entry)
    if not held:
        del index[key]
