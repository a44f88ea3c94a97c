"""libcalico.runtime.backoff: growing waits, and one line per period."""

from __future__ import annotations

import random

import pytest

from libcalico.runtime.backoff import Backoff, Throttle


def test_waits_grow_to_the_limit_and_start_again_after_a_reset():
    backoff = Backoff(1.0, 5.0, jitter=0)
    assert [backoff.next_s() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    backoff.reset()
    assert backoff.next_s() == 1.0


def test_jitter_only_shortens_and_spreads():
    backoff = Backoff(8.0, 8.0, jitter=0.25, rng=random.Random(1))
    waits = [backoff.next_s() for _ in range(200)]
    assert all(6.0 <= wait <= 8.0 for wait in waits)
    assert max(waits) - min(waits) > 1.0


@pytest.mark.parametrize(("first", "limit"), [(0.0, 1.0), (2.0, 1.0), (-1.0, 1.0)])
def test_a_senseless_backoff_is_refused(first: float, limit: float):
    with pytest.raises(ValueError, match="backoff"):
        Backoff(first, limit)


def test_a_throttle_lets_one_through_per_period():
    throttle = Throttle(60.0)
    assert [now for now in range(0, 200, 10) if throttle.allows(float(now))] == [0, 60, 120, 180]
    throttle.reset()
    assert throttle.allows(181.0)
