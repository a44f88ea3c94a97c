"""libcalico.model.quantity: Kubernetes' numbers with suffixes."""

from __future__ import annotations

import pytest

from libcalico.errors import ValidationError
from libcalico.model.quantity import parse_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("17", 17),
        ("10k", 10_000),
        ("10M", 10_000_000),
        ("1.5G", 1_500_000_000),
        ("1P", 10**15),
        ("1Ki", 1024),
        ("4Gi", 4 * 2**30),
        ("2e3", 2000),
        ("2E3", 2000),
        ("2E", 2 * 10**18),
        (".5k", 500),
        ("1500m", 2),
        ("1n", 1),
        ("-1500m", -2),
        ("+3", 3),
        ("1e999999999", 2**63 - 1),
        ("1e-999999999", 1),
    ],
)
def test_values_round_away_from_zero(text, value):
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    "text", ["", "k", "1 M", "1KB", "1K", "1Mi5", "0x10", "1e", "--1", "١", "9" * 41, "1\n"]
)
def test_what_is_no_quantity_is_refused(text):
    with pytest.raises(ValidationError):
        parse_quantity(text)
