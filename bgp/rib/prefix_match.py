"""Which of the policy's prefix conditions a prefix meets, as one bit mask.

Layer: pure. Used by bgp.rib.policy. A policy of hundreds of conditions looks at each prefix once:
the mask is remembered, and everything that depends on (path, mask) is remembered with the path.

Positive conditions are found by hashing: one table per length of the conditions' own prefixes.
A negative one (NotEqual, NotIn) is the positive one with its bit turned round.

Source: BGPFilter matchOperator and prefixLength (bgp reference 6; Calico confd renders them as
`net = X`, `net ~ [X{min,max}]` and their negations).
"""

from __future__ import annotations

from dataclasses import dataclass

from bgp.rib.nlri import Family, Nlri, number, parse

EQUAL, NOT_EQUAL, IN, NOT_IN = "Equal", "NotEqual", "In", "NotIn"
_OPERATORS = frozenset({EQUAL, NOT_EQUAL, IN, NOT_IN})
_REMEMBERED = 1_000_000


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """`In`: inside `nlri` (itself included) with a length in min..max; `Equal`: exactly it."""

    family: Family
    nlri: Nlri
    operator: str = IN
    min_length: int = 0
    max_length: int = 128

    @classmethod
    def of(
        cls,
        cidr: str,
        operator: str = IN,
        *,
        min_length: int | None = None,
        max_length: int | None = None,
    ) -> PrefixMatch:
        """Errors: ValueError."""
        if operator not in _OPERATORS:
            raise ValueError(f"unknown match operator {operator!r}")
        family, nlri = parse(cidr)
        low = max(nlri[0], min_length or 0)
        high = family.bits if max_length is None else min(family.bits, max_length)
        return cls(family, nlri, operator, low, high)

    def matches(self, nlri: Nlri) -> bool:
        """The plain meaning of one condition; Classifier must agree (property test)."""
        shift = self.family.bits - self.nlri[0]
        inside = nlri[0] >= self.nlri[0] and (
            number(self.family, nlri) >> shift == number(self.family, self.nlri) >> shift
        )
        met = inside and self.min_length <= nlri[0] <= self.max_length
        if self.operator in (EQUAL, NOT_EQUAL):
            met = met and nlri == self.nlri
        return met is (self.operator in (EQUAL, IN))


class Classifier:
    """All prefix conditions of one family. Add first, classify after."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self._bits: dict[PrefixMatch, int] = {}
        self._negated = 0
        self._exact: dict[Nlri, int] = {}
        # length -> leading bits -> [(min, max, bit)]
        self._inside: dict[int, dict[int, list[tuple[int, int, int]]]] = {}
        self._masks: dict[Nlri, int] = {}

    def add(self, match: PrefixMatch) -> int:
        """The bit of this condition (the same for the same condition)."""
        known = self._bits.get(match)
        if known is not None:
            return known
        bit = 1 << len(self._bits)
        self._bits[match] = bit
        self._masks.clear()
        if match.operator in (NOT_EQUAL, NOT_IN):
            self._negated |= bit
        if match.operator in (EQUAL, NOT_EQUAL):
            if match.min_length <= match.nlri[0] <= match.max_length:
                self._exact[match.nlri] = self._exact.get(match.nlri, 0) | bit
            return bit
        length = match.nlri[0]
        key = number(self.family, match.nlri) >> (self.family.bits - length)
        entries = self._inside.setdefault(length, {}).setdefault(key, [])
        entries.append((match.min_length, match.max_length, bit))
        return bit

    def classify(self, nlri: Nlri) -> int:
        mask = self._masks.get(nlri)
        if mask is None:
            if len(self._masks) >= _REMEMBERED:
                self._masks.clear()
            mask = self._masks[nlri] = self._compute(nlri)
        return mask

    def _compute(self, nlri: Nlri) -> int:
        mask = self._exact.get(nlri, 0)
        address, bits, own = number(self.family, nlri), self.family.bits, nlri[0]
        for length, table in self._inside.items():
            if length > own:
                continue
            for low, high, bit in table.get(address >> (bits - length), ()):
                if low <= own <= high:
                    mask |= bit
        return mask ^ self._negated
