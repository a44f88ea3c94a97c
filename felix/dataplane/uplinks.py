"""The node's uplinks, and the MTU that packets of workloads must not exceed.

Layer: felix.dataplane, pure: an InterfaceListener. Used by the daemon (the file `mtu`) and the
endpoint programmer (the MTU of new pods).

  M1  an uplink is an interface whose name MTUIfacePattern is found in, and not a workload's;
  M2  the MTU is the smallest of them; 0 when there is none, and somebody else must know better.

Source: Calico felix/dataplane/linux/int_dataplane.go (findHostMTU).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from felix.dataplane.manager import InterfaceState


class Uplinks:
    def __init__(self, pattern: re.Pattern[str], workload_prefixes: Sequence[str]) -> None:
        self._pattern, self._workload_prefixes = pattern, tuple(workload_prefixes)
        self._mtu_by_name: dict[str, int] = {}

    def on_interface(self, name: str, state: InterfaceState | None) -> None:
        if state is None or not state.mtu_bytes or not self._is_uplink(name):
            self._mtu_by_name.pop(name, None)
        else:
            self._mtu_by_name[name] = state.mtu_bytes

    def mtu_bytes(self) -> int:
        """M2."""
        return min(self._mtu_by_name.values(), default=0)

    def dump(self) -> dict[str, object]:
        return dict(self._mtu_by_name)

    def _is_uplink(self, name: str) -> bool:
        """M1."""
        is_workload = name.startswith(self._workload_prefixes)
        return not is_workload and self._pattern.search(name) is not None
