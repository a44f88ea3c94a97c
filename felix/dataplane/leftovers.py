"""What another dataplane of ours left behind goes, once the one in use is in the kernel.

Layer: felix.dataplane, a driver. A stage behind the filter's: the loop comes here only in a cycle
in which the filter was written, so at every moment one of the two polices, for a moment both. (Both
is no harm: what either drops is dropped.)

  nftables in use    the `cali-` chains, hooks and sets of both variants of iptables go
  iptables in use    the table `inet calico` goes, and the rules of the other variant of iptables

  O1  it is looked for once in the life of a process, when it starts: nobody else makes such things;
  O2  what cannot be removed now is tried again; traffic does not wait for it;
  O3  a tool that is not installed has left nothing, nor is anything looked for in a table that
      somebody has made unreadable for iptables.

Source: Calico felix/dataplane/linux/int_dataplane.go (cleanup of the backend not in use).
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Protocol

from felix.dataplane.ipt_plan import TableState
from felix.dataplane.ipt_port import IptablesPort, RestoreRefused
from felix.dataplane.ipt_save import parse_sets, parse_tables
from felix.dataplane.manager import NOTHING_DONE, ApplyResult
from felix.dataplane.nft_port import DeleteTable, NftPort
from libcalico.errors import ProgrammingFailed, SuiteError
from libcalico.runtime import log

LOG = log.get(__name__)

_AGAIN_FIRST_S, _AGAIN_LIMIT_S = 10.0, 600.0


class Leftover(Protocol):
    """Something another dataplane may have left. `remove` returns how many objects went."""

    @property
    def name(self) -> str: ...

    async def remove(self) -> int: ...


class Leftovers:
    """Driver of felix.dataplane.manager."""

    name = "leftovers"

    def __init__(self, leftovers: Sequence[Leftover]) -> None:
        self._waiting = list(leftovers)
        self._again_s = _AGAIN_FIRST_S

    def queue_resync(self, reason: str) -> None:
        """Nothing to read again (O1)."""

    async def apply(self) -> ApplyResult:
        if not self._waiting:
            return NOTHING_DONE
        deleted, error = 0, ""
        waiting, self._waiting = self._waiting, []
        for leftover in waiting:
            try:
                count = await leftover.remove()
            except SuiteError as err:
                LOG.warning("rules of another dataplane stay", table=leftover.name, error=str(err))
                self._waiting.append(leftover)
                error = error or str(err)
                continue
            if count:
                LOG.info("rules of another dataplane removed", table=leftover.name, count=count)
            deleted += count
        if not self._waiting:
            return ApplyResult(deleted=deleted)
        wait_s, self._again_s = self._again_s, min(2 * self._again_s, _AGAIN_LIMIT_S)
        return ApplyResult(
            deleted=deleted, deferred=len(self._waiting), retry_after_s=wait_s, error=error
        )

    def dump(self) -> dict[str, object]:
        return {"waiting": [leftover.name for leftover in self._waiting]}


class IptablesLeftover:
    """Our rules in one variant of iptables; `versions` are the IP versions the kernel has."""

    def __init__(self, port: IptablesPort, variant: str, versions: Sequence[int]) -> None:
        self._port, self.name, self._versions = port, f"iptables ({variant})", versions

    async def remove(self) -> int:
        try:
            return sum([await self._clear(version) for version in self._versions])
        except ProgrammingFailed as err:
            if err.errno == errno.ENOENT:  # O3
                return 0
            raise

    async def _clear(self, version: int) -> int:
        count = 0
        # No table is named: to ask for one would make it.
        saves = parse_tables(await self._port.save(version), skips_incompatible=True)
        for table, saved in saves.items():
            state = TableState(version, table)
            state.absorb(saved)
            script = state.script()
            if script is not None:
                await self._port.restore(version, script.text)
                count += len(script.deleted) + len(script.hooks)
        return count


class IpSetLeftover:
    """Our ipsets: behind the rules that use them."""

    name = "ipsets"

    def __init__(self, port: IptablesPort) -> None:
        self._port = port

    async def remove(self) -> int:
        try:
            names = list(parse_sets(await self._port.save_sets()))
            if names:
                await self._port.restore_sets("".join(f"destroy {name}\n" for name in names))
        except RestoreRefused:
            raise
        except ProgrammingFailed as err:
            if err.errno == errno.ENOENT:  # O3
                return 0
            raise
        return len(names)


class NftLeftover:
    """The table of the nftables dataplane."""

    name = "nft"

    def __init__(self, port: NftPort) -> None:
        self._port = port

    async def remove(self) -> int:
        image = await self._port.read()
        if not image.exists:
            return 0
        await self._port.commit([DeleteTable()])
        return 1
