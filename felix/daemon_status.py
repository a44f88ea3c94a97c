"""Publishes status: files for CNI on this node, keys in the datastore for everybody.

Layer: felix.daemon. StatusFiles and StatusReporter are the sinks of felix.dataplane.status_mgr.

  Z1  a file exists exactly while its endpoint is up; what a dead process left is removed once all
      present endpoints have been reported, not before (CNI may be waiting for one);
  Z2  the alive report carries a lease: a node that dies is seen to be dead when it runs out;
  Z3  reports are written at most once per `delay_s`, the last state of each endpoint wins; a
      datastore that is away costs nothing but the reports.

Source: reference/datamodel.md 1.6, 1.7; Calico felix/statusrep, libcalico-go/lib/epstatusfile.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from felix.config import FelixConfig
from felix.dataplane.endpoint_mgr import EndpointStatus
from felix.dataplane.status_mgr import EndpointReport
from felix.deltatracker import DeltaTracker
from libcalico.datastore.api import Datastore
from libcalico.errors import InvalidInput, NotFound, SuiteError
from libcalico.model import HostEndpoint
from libcalico.model.keys import (
    FelixLastReportedKey,
    FelixStatusKey,
    HostEndpointStatusKey,
    ResourceKey,
    WorkloadEndpointStatusKey,
    path_of,
)
from libcalico.model.names import felix_endpoint_id, parse_status_file_name, status_file_name
from libcalico.runtime import log, paths
from libcalico.runtime.clock import Clock
from libcalico.runtime.files import replace_file

LOG = log.get(__name__)
_DIRECTORY = "endpoint-status"
_SERVING_POLL_S = 1.0


def status_directory(config: FelixConfig) -> Path | None:
    """None: no files are wanted."""
    prefix = config.endpoint_status_path_prefix
    if prefix == "":
        return None
    return (paths.run_dir() if prefix is None else Path(prefix)) / _DIRECTORY


class StatusFiles:
    """StatusSink: one file per workload endpoint that is up.

    `submit` runs what it is given later, in order (a ThreadPoolExecutor of one thread has one): the
    event loop does not wait for files. Without it they are written at once."""

    def __init__(
        self,
        directory: Path,
        node: str,
        submit: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        self._directory, self._node = directory, node
        self._submit = submit or (lambda work: work())
        self._present: set[str] = set()  # of the thread that writes

    def on_report(self, key: ResourceKey, report: EndpointReport | None) -> None:
        if key.kind == HostEndpoint.kind:
            return
        try:
            name = status_file_name(felix_endpoint_id(key.namespace, key.name))
        except InvalidInput as err:
            LOG.warning("endpoint has no status file", key=key.name, error=str(err))
            return
        if report is not None and report.status is EndpointStatus.UP:
            self._submit(partial(self._write, name, report))
        else:
            self._submit(partial(self._remove, name))

    def on_complete(self) -> None:
        """Z1."""
        self._submit(self._remove_stale)

    def _remove_stale(self) -> None:
        try:
            names = [path.name for path in self._directory.iterdir()]
        except FileNotFoundError:
            return
        for name in names:
            is_ours = parse_status_file_name(self._node, name) is not None or name[0] == "."
            if is_ours and name not in self._present:
                self._remove(name)

    def _write(self, name: str, report: EndpointReport) -> None:
        content: dict[str, object] = {
            "ifaceName": report.interface,
            "mac": report.mac,
            "ipv4Nets": [net for net in report.nets if ":" not in net],
            "ipv6Nets": [net for net in report.nets if ":" in net],
        }
        text = _json({member: value for member, value in content.items() if value})
        try:
            replace_file(self._directory / name, text, 0o644, is_durable=False)
        except OSError as err:
            LOG.warning("status file not written", path=name, error=str(err))
        else:
            self._present.add(name)

    def _remove(self, name: str) -> None:
        self._present.discard(name)
        try:
            (self._directory / name).unlink(missing_ok=True)
        except OSError as err:
            LOG.warning("status file not removed", path=name, error=str(err))


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """`region` "" is no region (OpenStack only). An interval of 0 means no alive report."""

    node: str
    region: str = ""
    reports_endpoints: bool = False
    reports_policies: bool = True
    delay_s: float = 1.0
    interval_s: float = 30.0
    ttl_s: float = 90.0

    @classmethod
    def of(cls, config: FelixConfig, node: str) -> ReportOptions:
        return cls(
            node,
            region=config.openstack_region,
            reports_endpoints=config.endpoint_reporting_enabled,
            reports_policies=config.policy_realization_reporting == "Enabled",
            delay_s=config.endpoint_reporting_delay_s,
            interval_s=config.reporting_interval_s,
            ttl_s=config.reporting_ttl_s,
        )


class StatusReporter:
    """StatusSink and task: the status keys of this node."""

    def __init__(
        self,
        datastore: Datastore,
        options: ReportOptions,
        *,
        clock: Clock,
        is_serving: Callable[[], bool],
    ) -> None:
        self._datastore, self._options, self._clock = datastore, options, clock
        self._is_serving = is_serving
        self._tracker: DeltaTracker[str, bytes] = DeltaTracker()
        self._wake = asyncio.Event()
        self._is_complete = False
        self._has_listed = False
        self._started_at = clock.monotonic()
        self._has_reported = False

    # ------------------------------------------------------------------------------ endpoints

    def on_report(self, key: ResourceKey, report: EndpointReport | None) -> None:
        if not self._options.reports_endpoints:
            return
        try:
            path = self._path_of(key)
        except InvalidInput as err:
            LOG.warning("endpoint has no status key", key=key.name, error=str(err))
            return
        value = None if report is None else _json({"status": report.status.value})
        self._tracker.want(path, value)
        self._wake.set()

    def on_complete(self) -> None:
        self._is_complete = True
        self._wake.set()

    def _path_of(self, key: ResourceKey) -> str:
        if key.kind == HostEndpoint.kind:
            return path_of(HostEndpointStatusKey(self._options.node, key.name))
        ids = felix_endpoint_id(key.namespace, key.name)
        region = self._options.region
        return path_of(
            WorkloadEndpointStatusKey(
                ids.host, ids.orchestrator, ids.workload, ids.endpoint, region
            )
        )

    async def run_endpoints(self) -> None:
        """Z3. Does nothing until every present endpoint has been reported once."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._is_complete and self._options.reports_endpoints:
                try:
                    await self._write_reports()
                except SuiteError as err:
                    LOG.warning("endpoint status not reported", error=str(err))
                    self._has_listed = False
                    self._wake.set()
            await self._clock.sleep(self._options.delay_s)

    async def _write_reports(self) -> None:
        if not self._has_listed:
            self._tracker.resync(await self._list())
            self._has_listed = True
        for path, value in self._tracker.pending_updates().items():
            await self._datastore.put(path, value)
            self._tracker.confirm(path, value)
        for path in self._tracker.pending_deletions():
            try:
                await self._datastore.delete(path)
            except NotFound:
                LOG.debug("a status key was gone already", key=path)
            self._tracker.confirm(path, None)

    async def _list(self) -> dict[str, bytes]:
        found = {}
        node, region = self._options.node, self._options.region
        workload = path_of(WorkloadEndpointStatusKey(node, "x", "x", "x", region))
        host = path_of(HostEndpointStatusKey(node, "x"))
        prefixes = (workload.removesuffix("x/x/endpoint/x"), host.removesuffix("x"))
        for prefix in prefixes:
            for kv in (await self._datastore.list(prefix)).kvs:
                found[kv.key] = kv.value
        return found

    # ------------------------------------------------------------------------------ ourselves

    async def run_alive(self) -> None:
        """Z2. Begins when the node serves: a felix that hangs at start must not look alive."""
        if self._options.interval_s <= 0:
            return
        while True:
            wait_s = self._options.interval_s
            if self._is_serving():
                try:
                    await self._report_alive()
                except SuiteError as err:
                    LOG.warning("alive report not written", error=str(err))
            else:
                wait_s = min(wait_s, _SERVING_POLL_S)
            await self._clock.sleep(wait_s)

    async def _report_alive(self) -> None:
        report: dict[str, object] = {
            "time": datetime.fromtimestamp(self._clock.wall(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "uptime": round(self._clock.monotonic() - self._started_at, 3),
            "first_update": not self._has_reported,
        }
        value = _json(report)
        node, region = self._options.node, self._options.region
        # A new lease each time: one that ran out while the datastore was away needs no care then.
        lease = await self._datastore.grant_lease(max(1, round(self._options.ttl_s)))
        await self._datastore.put(path_of(FelixStatusKey(node, region)), value, lease=lease)
        await self._datastore.put(path_of(FelixLastReportedKey(node, region)), value)
        self._has_reported = True

    def dump(self) -> dict[str, object]:
        return self._tracker.dump()


def _json(value: dict[str, object]) -> bytes:
    """As Go writes it: no spaces."""
    return json.dumps(value, separators=(",", ":")).encode()
