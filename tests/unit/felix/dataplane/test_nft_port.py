"""felix.dataplane.nft_port: operations in words."""

from __future__ import annotations

import pytest

from felix.dataplane.nft_port import (
    AddChain,
    AddElements,
    AddTable,
    DeleteSet,
    Op,
    Refusal,
    TransactionRefused,
    WriteRules,
    describe,
)
from felix.rules.chain import Chain
from felix.rules.sets import net_set
from libcalico.errors import ProgrammingFailed


@pytest.mark.parametrize(
    ("op", "words"),
    [
        (AddTable(), "AddTable"),
        (AddChain("c"), "AddChain c"),
        (WriteRules(Chain("c", ()), b""), "WriteRules c"),
        (AddElements(net_set("s", 4), ()), "AddElements s"),
        (DeleteSet("s"), "DeleteSet s"),
    ],
)
def test_an_operation_names_its_object(op: Op, words: str):
    assert describe(op) == words


def test_a_refusal_is_a_programming_failure_with_the_guilty():
    error = TransactionRefused([Refusal(3, 17)], "AddChain c", 17)
    assert isinstance(error, ProgrammingFailed)
    assert error.refusals[0].op_index == 3
    assert "AddChain c" in str(error)
    assert "File exists" in str(error)
