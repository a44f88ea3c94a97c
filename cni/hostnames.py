"""Names of the host's ends, unique among the living.

Layer: pure state, one per agent. Used by cni.add.

The usual name (datamodel 1.7: a hash of the pod's name, or the start of the container id) can be
the name of another endpoint: two container ids with the same eleven first characters, a second
network of one pod, two pods whose hashes agree. Then the later one gets another name.

  H1  a name that a known endpoint has, or that another request is about to use, is never given out;
  H2  what a name belongs to in the kernel is cni.veth's question: the stale wire of a dead endpoint
      is replaced there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from cni.facts import InterfaceNames
from cni.identity import Workload

_HASH_CHARS = 11


class HostNames:
    """`claimed` yields the workload under a name that is its own until the block ends; by then it
    is recorded, or not wanted any more."""

    def __init__(self) -> None:
        self._claims: dict[str, Workload] = {}

    def is_claimed(self, name: str) -> bool:
        """Whether a request is about to use the name."""
        return name in self._claims

    @contextmanager
    def claimed(self, workload: Workload, known: InterfaceNames) -> Iterator[Workload]:
        name = next(n for n in _candidates(workload) if not self._is_taken(n, workload, known))
        mine = workload if name == workload.interface else replace(workload, interface=name)
        # A second request of the same pod (another container) may hold the name as well.
        is_first = name not in self._claims
        self._claims.setdefault(name, mine)
        try:
            yield mine
        finally:
            if is_first:
                del self._claims[name]

    def _is_taken(self, name: str, workload: Workload, known: InterfaceNames) -> bool:
        claim = self._claims.get(name)
        if claim is not None and claim.key != workload.key:
            return True
        return known.has_other(name, workload.key)


def _candidates(workload: Workload) -> Iterator[str]:
    yield workload.interface
    seed, count = f"{workload.key.namespace}.{workload.key.name}", 0
    while True:
        text = f"{seed}.{count}" if count else seed
        digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        yield workload.interface_prefix + digest[:_HASH_CHARS]
        count += 1
