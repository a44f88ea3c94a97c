"""Driver for kernel settings below /proc/sys: those of workload interfaces and of the node.

Layer: felix.dataplane. Fed by endpoint_mgr; reconciles through SysctlPort, which writes only what
differs. A setting is never taken back: that of an interface goes with the interface, and whether
the node wants to forward without us is not ours to guess.

Recognised by a fresh process: there is nothing to recognise, values are compared with the kernel's.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from dataclasses import dataclass

from felix.dataplane.manager import NOTHING_DONE, ApplyResult
from felix.dataplane.ports import Sysctl, SysctlPort
from felix.deltatracker import DeltaTracker
from libcalico.errors import ProgrammingFailed, SuiteError
from libcalico.runtime import log

LOG = log.get(__name__)
NODE = ""


@dataclass(frozen=True, slots=True)
class Setting:
    """One wanted value. An `is_optional` one that is refused is warned of once and left."""

    path: str
    value: str
    is_optional: bool = False


class SysctlTable:
    """Settings in the order their owner gave them; owners are interface names, or NODE."""

    name = "sysctls"

    def __init__(self, port: SysctlPort) -> None:
        self._port = port
        self._tracker: DeltaTracker[str, str] = DeltaTracker()
        self._settings_by_owner: dict[str, tuple[Setting, ...]] = {}
        self._optional: set[str] = set()
        self._refusals: dict[str, str] = {}
        self._resync_reason = ""

    def set_settings(self, owner: str, settings: Iterable[Setting]) -> None:
        """Everything wanted for this owner, in the order of writing. Empty: the owner is gone."""
        before = self._settings_by_owner.pop(owner, ())
        after = tuple(settings)
        if after:
            self._settings_by_owner[owner] = after
        for setting in before:
            if setting not in after:
                self._forget(setting.path)
        for setting in after:
            (self._optional.add if setting.is_optional else self._optional.discard)(setting.path)
            self._tracker.want(setting.path, setting.value)

    def _forget(self, path: str) -> None:
        self._tracker.want(path, None)
        self._tracker.confirm(path, None)
        self._refusals.pop(path, None)
        self._optional.discard(path)

    def forget_written(self, owner: str) -> None:
        """The interface was made anew, or its settings may have been reset: write again."""
        for setting in self._settings_by_owner.get(owner, ()):
            self._tracker.confirm(setting.path, None)

    def queue_resync(self, reason: str) -> None:
        self._resync_reason = self._resync_reason or reason

    async def apply(self) -> ApplyResult:
        if self._resync_reason:
            LOG.debug("settings compared", reason=self._resync_reason)
            self._resync_reason = ""
            # The port compares before it writes, so forgetting is a comparison, not a rewrite.
            self._tracker.resync({})
        if self._tracker.in_sync():
            return NOTHING_DONE
        pending = self._in_order(self._tracker.pending_updates())
        try:
            refused = await self._port.write_sysctls(pending)
        except SuiteError as err:
            LOG.warning("settings could not be written", error=str(err))
            return ApplyResult(failed=len(pending), error=str(err))
        failed = 0
        for index, sysctl in enumerate(pending):
            if index in refused and self._refuse(sysctl, refused[index]):
                failed += 1
                continue
            if index not in refused:
                self._refusals.pop(sysctl.path, None)
            self._tracker.confirm(sysctl.path, sysctl.value)
        first = str(refused[min(refused)]) if failed else ""
        return ApplyResult(written=len(pending) - len(refused), failed=failed, error=first)

    def _in_order(self, pending: dict[str, str]) -> list[Sysctl]:
        """The node's first (ip_forward resets settings of interfaces), then as their owner gave
        them (an interface that has IPv6 disabled ignores what follows)."""
        owners = sorted(self._settings_by_owner, key=lambda owner: owner != NODE)
        return [
            Sysctl(setting.path, setting.value)
            for owner in owners
            for setting in self._settings_by_owner[owner]
            if setting.path in pending
        ]

    def _refuse(self, sysctl: Sysctl, refusal: ProgrammingFailed) -> bool:
        """Log once per reason; returns whether to try again."""
        if self._refusals.get(sysctl.path) != str(refusal):
            # A kernel without IPv6 lacks the files of every interface: not worth a line each.
            is_absent = sysctl.path in self._optional and refusal.errno == errno.ENOENT
            say = LOG.debug if is_absent else LOG.warning
            say("setting refused", path=sysctl.path, reason=refusal.detail)
        self._refusals[sysctl.path] = str(refusal)
        return sysctl.path not in self._optional

    def problem(self, owner: str) -> str:
        """Why a vital setting of this owner is not in place; "" when all are."""
        for setting in self._settings_by_owner.get(owner, ()):
            if self._tracker.is_dirty(setting.path):
                return self._refusals.get(setting.path, f"{setting.path} not written yet")
        return ""

    def dump(self) -> dict[str, object]:
        return self._tracker.dump() | {"refusals": dict(self._refusals)}
