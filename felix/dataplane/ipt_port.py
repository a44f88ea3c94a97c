"""What the iptables dataplane needs of the kernel's tools: text read, text written.

Layer: felix.dataplane (contract). felix.kernel.iptables implements it with subprocesses; tests run
that over libcalico.testing.fakeiptables.
"""

from __future__ import annotations

from typing import Protocol

from libcalico.errors import ProgrammingFailed


class RestoreRefused(ProgrammingFailed):
    """A script was refused. `line` is the guilty one, from 1; 0 when the tool does not say.

    A refused iptables-restore has changed nothing, a refused `ipset restore` has done what stood
    before the line."""

    def __init__(self, tool: str, line: int, text: str) -> None:
        super().__init__(tool, f"line {line}" if line else "script", 0, text)
        self.line = line


class IptablesPort(Protocol):
    """One namespace, one variant of iptables, both families. `version` is 4 or 6.

    Errors of all methods: ProgrammingFailed, with RestoreRefused where the content is at fault and
    not the moment (a lock that is held, a tool that does not answer)."""

    async def save(self, version: int, table: str = "") -> str:
        """What `iptables-save -t` prints; "": of all tables there are, making none."""

    async def restore(self, version: int, script: str) -> None:
        """`iptables-restore --noflush`: all or nothing for each table in it."""

    async def save_sets(self) -> str:
        """What `ipset save` prints, of all families."""

    async def restore_sets(self, script: str) -> None:
        """`ipset restore`."""
