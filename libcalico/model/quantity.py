"""Kubernetes quantities: "10M", "1Gi", "2e3", "500m" as whole numbers.

Layer: libcalico.model, pure. Used by cni (bandwidth annotations).
Source: Kubernetes apimachinery pkg/api/resource/quantity.go: a number, then one suffix; `Value()`
rounds away from zero.
"""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from libcalico.errors import ValidationError

_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:\d+\.?\d*|\.\d+))(?P<suffix>[eE][+-]?\d+|[numkMGTPE]|[KMGTPE]i|)", re.ASCII
)
_FACTOR_BY_SUFFIX = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    **{letter: Decimal(1000) ** power for power, letter in enumerate("kMGTPE", 1)},
    **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", 1)},
}
# What fits Kubernetes' int64; a longer text is refused before it is computed with.
_LONGEST = 40
_LIMIT = 2**63 - 1


def parse_quantity(text: str) -> int:
    """The value, rounded away from zero. Errors: ValidationError."""
    matched = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST else None
    if matched is None:
        raise ValidationError.of("quantity", text, "must be a number with at most one suffix")
    suffix = matched["suffix"]
    number = Decimal(matched["number"])
    if suffix[:1] in ("e", "E") and len(suffix) > 1:
        # Three digits are already far beyond what any limit allows.
        exponent = max(-999, min(999, int(suffix[1:])))
        number *= Decimal(10) ** exponent
    elif suffix:
        number *= _FACTOR_BY_SUFFIX[suffix]
    rounding = ROUND_CEILING if number > 0 else ROUND_FLOOR
    value = int(number.to_integral_value(rounding=rounding))
    return max(-_LIMIT, min(_LIMIT, value))
