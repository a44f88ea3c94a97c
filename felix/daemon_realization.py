"""Tells the datastore which policies this node enforces: a small key under a lease.

Layer: felix.daemon. What is in force is felix.dataplane.policy_report's to know, what is ignored
the calc graph's; `calicoctl get networkpolicy -o wide` reads the keys of all nodes in one range.

  RR1  nothing is said before the kernel has acknowledged what felix found at start; what an earlier
       felix said stands until then, or until its lease ends;
  RR2  written when it says something else than before, once a second at most, and every
       ReportingInterval with a new lease of ReportingTTL. calico-node sets that interval to 0, as
       Calico's does, to have no alive reports: that is not about these, which then take its
       default. PolicyRealizationReporting turns them off;
  RR3  a policy that selects nothing here is done with as soon as that is known;
  RR4  at most `EXCEPTIONS` are listed, the rest is counted (RZ2).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from itertools import chain, islice
from typing import TypeVar

from felix.daemon_status import ReportOptions
from felix.dataplane.policy_report import POLICY_KINDS, PolicyReport
from libcalico.datastore.api import Datastore
from libcalico.errors import SuiteError
from libcalico.model.codec import encode
from libcalico.model.keys import Key, PolicyRealizationKey, ResourceKey, path_of
from libcalico.model.realization import PolicyException, PolicyRealization
from libcalico.runtime import log
from libcalico.runtime.clock import Clock, wait_for_event

LOG = log.get(__name__)
EXCEPTIONS = 500
_DELAY_S = 1.0
_REASON_CHARS = 200

Reasons = Mapping[Key, str]
_K = TypeVar("_K", bound=Key)


class RealizationReporter:
    """Task. `shortcomings`: objects that count as absent, those that do less here than they say,
    and how many of the former found no room (CalcGraph.shortcomings)."""

    def __init__(
        self,
        datastore: Datastore,
        options: ReportOptions,
        policies: PolicyReport,
        shortcomings: Callable[[], tuple[Reasons, Reasons, int]],
        *,
        clock: Clock,
    ) -> None:
        self._datastore, self._options, self._policies = datastore, options, policies
        defaults = ReportOptions(options.node)
        is_set = options.interval_s > 0
        self._interval_s = options.interval_s if is_set else defaults.interval_s
        self._ttl_s = options.ttl_s if is_set else defaults.ttl_s
        self._shortcomings, self._clock = shortcomings, clock
        self._wake = asyncio.Event()
        self._path = path_of(PolicyRealizationKey(options.node, options.region))
        self._written: bytes | None = None
        self._lease, self._lease_until = 0, 0.0

    def wake(self) -> None:
        """Something may have changed. Cheap."""
        self._wake.set()

    async def run(self) -> None:
        if not self._options.reports_policies:
            return
        while True:
            due_s = self._lease_until - self._clock.monotonic() if self._lease else self._interval_s
            await wait_for_event(self._wake, max(0.0, due_s), self._clock)
            self._wake.clear()
            if self._policies.is_loaded:
                try:
                    await self._report()
                except SuiteError as err:
                    LOG.warning("policy realization not reported", error=str(err))
                    self._written, self._lease = None, 0
                    self._wake.set()
            await self._clock.sleep(_DELAY_S)

    async def _report(self) -> None:
        ignored, partly, unlisted = self._shortcomings()
        said = realization(
            self._policies.realized(), self._policies.closed(), ignored, partly, unlisted
        )
        value = encode(said)
        now = self._clock.monotonic()
        has_lease = self._lease != 0 and now < self._lease_until
        if has_lease and value == self._written:
            return
        if not has_lease:
            ttl_s = max(1, round(self._ttl_s))
            self._lease = await self._datastore.grant_lease(ttl_s)
            self._lease_until = now + self._interval_s
        await self._datastore.put(self._path, value, lease=self._lease)
        self._written = value


def realization(
    revisions: Mapping[str, int],
    closed: Mapping[ResourceKey, str],
    ignored: Reasons,
    partly: Reasons,
    unlisted: int = 0,
) -> PolicyRealization:
    """What is said (RR4). A policy that is both closed and something else is said to be closed."""
    found = dict(
        chain(_worded(partly, "in part"), _worded(ignored, "ignored"), _worded(closed, "refused"))
    )
    listed = tuple(
        PolicyException(kind=key.kind, namespace=key.namespace, name=key.name, reason=reason)
        for key, reason in islice(sorted(found.items()), EXCEPTIONS)
    )
    return PolicyRealization(
        revisions=dict(sorted(revisions.items())),
        exceptions=listed,
        unlisted=len(found) - len(listed) + unlisted,
    )


def _worded(reasons: Mapping[_K, str], word: str) -> Iterable[tuple[ResourceKey, str]]:
    for key, reason in reasons.items():
        if isinstance(key, ResourceKey) and key.kind in POLICY_KINDS:
            yield key, f"{word}: {reason}"[:_REASON_CHARS]
