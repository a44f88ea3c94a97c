"""felix.dataplane.manager: results add up."""

from __future__ import annotations

from felix.dataplane.manager import NOTHING_DONE, ApplyResult


def test_results_add_up_and_the_soonest_retry_and_the_first_error_are_kept():
    one = ApplyResult(1, 2, 3, 4, 9.0, "first")
    two = ApplyResult(10, 20, 30, 40, 5.0, "second")
    assert one.merged(two) == ApplyResult(11, 22, 33, 44, 5.0, "first")
    assert one.merged(NOTHING_DONE) == one
    assert NOTHING_DONE.merged(two) == two
