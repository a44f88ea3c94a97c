"""Python's garbage collector as felix runs it: few collections, none of what stays (felix.daemon).

Layer: tooling. Used by benchmarks that measure felix's work in their own process.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_THRESHOLDS = (200_000, 50, 1000)


def settle() -> None:
    """For good: in a process that measures one thing and ends."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)


@contextmanager
def settled() -> Iterator[None]:
    """As it was, afterwards."""
    before = gc.get_threshold()
    settle()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
