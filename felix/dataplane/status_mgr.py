"""Manager of endpoint status: decides up, down or error, and tells those who publish it.

Layer: felix.dataplane. The loop calls `on_applied` after every cycle; sinks (files for CNI, keys
in the datastore) are given by the daemon and do the I/O.

An endpoint is "up" when its interface runs and its routes, settings and policy are in the kernel;
"down" when the interface does not run or the endpoint is switched off; "error" when the kernel
refuses something. A host endpoint is "up" when its policy is in the kernel and all interfaces it
governs run, "down" when one of them does not; "error" when it governs none that exists, or its
policy is not in the kernel. One for `*` always governs some.

Invariants:
  T1  a sink hears of a status only when it changed; everything is said once after a start;
  T2  while the filter rules are not in the kernel nothing but removals is reported;
  T3  what is an error is looked at again after every cycle: it may heal by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from felix.dataplane.endpoint_mgr import EndpointManager, EndpointStatus
from felix.dataplane.host_rules_mgr import HostRulesManager
from felix.dataplane.manager import InterfaceState
from felix.host_interfaces import ANY_INTERFACE
from felix.intent import HostEndpointRemove, HostEndpointUpdate, Intent
from libcalico.model import HostEndpoint
from libcalico.model.keys import ResourceKey


@dataclass(frozen=True, slots=True)
class EndpointReport:
    """The published state of one endpoint; `nets` and `mac` are empty for a host endpoint."""

    key: ResourceKey
    status: EndpointStatus
    interface: str = ""
    mac: str = ""
    nets: tuple[str, ...] = ()


class StatusSink(Protocol):
    def on_report(self, key: ResourceKey, report: EndpointReport | None) -> None:
        """None: the endpoint is gone."""
        ...

    def on_complete(self) -> None:
        """Every present endpoint has been reported once: what else was published is stale."""
        ...


class StatusManager:
    """Manager and InterfaceListener; asks the EndpointManager about workloads, the HostRulesManager
    about host endpoints."""

    def __init__(
        self, endpoints: EndpointManager, hosts: HostRulesManager, sinks: Sequence[StatusSink]
    ) -> None:
        self._endpoints, self._host_rules, self._sinks = endpoints, hosts, tuple(sinks)
        self._reported: dict[ResourceKey, EndpointReport] = {}
        self._recheck: set[ResourceKey] = set()
        self._hosts: dict[ResourceKey, HostEndpointUpdate] = {}
        self._hosts_changed: set[ResourceKey] = set()
        self._interfaces: dict[str, InterfaceState] = {}
        self._is_complete = False

    def on_intent(self, intent: Intent) -> None:
        if isinstance(intent, HostEndpointUpdate):
            self._hosts[intent.key] = intent
            self._hosts_changed.add(intent.key)
        elif isinstance(intent, HostEndpointRemove):
            self._hosts.pop(intent.key, None)
            self._hosts_changed.add(intent.key)

    def complete_deferred_work(self) -> None:
        """Status follows what was applied: see on_applied."""

    def on_interface(self, name: str, state: InterfaceState | None) -> None:
        if not self._host_rules.is_host_interface(name):
            return  # of a workload: there are many, and no host endpoint is moved by one
        if state is None:
            self._interfaces.pop(name, None)
        else:
            self._interfaces[name] = state
        # A change of interfaces may move an endpoint from or to any of them.
        self._hosts_changed |= self._hosts.keys()

    def on_applied(self, *, is_filtering: bool) -> None:
        """After a cycle. `is_filtering` False: the rules are not (all) in the kernel (T2)."""
        # What a host endpoint governs depends on the others: one that goes makes room.
        hosts = self._hosts.keys() | self._hosts_changed if self._hosts_changed else set()
        self._recheck |= self._endpoints.take_touched() | hosts
        self._hosts_changed.clear()
        again: set[ResourceKey] = set()
        for key in sorted(self._recheck):
            is_host = key.kind == HostEndpoint.kind
            report = self._host_report(key) if is_host else self._workload_report(key)
            if report is not None and not is_filtering:
                again.add(key)  # T2
                continue
            if report is not None and report.status is EndpointStatus.ERROR:
                again.add(key)  # T3
            self._publish(key, report)
        self._recheck = again
        if not self._is_complete and is_filtering:
            self._is_complete = True
            for sink in self._sinks:
                sink.on_complete()

    def _workload_report(self, key: ResourceKey) -> EndpointReport | None:
        endpoint = self._endpoints.endpoint(key)
        if endpoint is None:
            return None
        status = self._endpoints.status(key)
        return EndpointReport(key, status, endpoint.interface, endpoint.mac, endpoint.nets)

    def _host_report(self, key: ResourceKey) -> EndpointReport | None:
        endpoint = self._hosts.get(key)
        if endpoint is None:
            return None
        governed = self._host_rules.governed_by(key)
        if governed == (ANY_INTERFACE,):
            return EndpointReport(key, self._host_status(key), ANY_INTERFACE)
        found = [self._interfaces[name] for name in governed if name in self._interfaces]
        if not found:
            return EndpointReport(key, EndpointStatus.ERROR, endpoint.interface)
        status = self._host_status(key)
        if status is EndpointStatus.UP and not all(state.is_running for state in found):
            status = EndpointStatus.DOWN
        return EndpointReport(key, status, found[0].name)

    def _host_status(self, key: ResourceKey) -> EndpointStatus:
        return EndpointStatus.ERROR if self._host_rules.problem(key) else EndpointStatus.UP

    def _publish(self, key: ResourceKey, report: EndpointReport | None) -> None:
        if self._reported.get(key) == report:
            return
        if report is None:
            del self._reported[key]
        else:
            self._reported[key] = report
        for sink in self._sinks:
            sink.on_report(key, report)

    def dump(self) -> dict[str, object]:
        return {
            f"{key.kind} {key.namespace}/{key.name}": report.status.value
            for key, report in sorted(self._reported.items())
        }
