"""The report of an IPAM check: what it says, and what of several may be released.

Layer: ipam, pure. Used by calicoctl (`ipam check -o`, `ipam release --from-report`). The file is
Calico's to the byte, so that either calicoctl can read what the other wrote.

  T1  a report is for the cluster it was made of, and the newest of several for its present state:
      locking and unlocking writes ClusterInformation, whose revision a report carries;
  T2  only what every report calls leaked may go, and only when it is the same assignment (address,
      handle, sequence number) or the same version of a handle in each;
  T3  what changed since is left alone.

Source: datamodel §6.8, §6.9; Calico calicoctl/calicoctl/commands/ipam/{check,release}.go.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field

from ipam import check
from ipam.blocks import assignment_of, network_of_block
from ipam.check import Findings
from ipam.leaks import Allocation, Standing
from ipam.requests import WINDOWS_RESERVED_HANDLE, Assignment, Release
from libcalico.errors import InvalidInput
from libcalico.model.cluster import ClusterInformation
from libcalico.model.ipam import Block
from libcalico.net import Address, AddressError, PrefixTrie, host_network, parse_ip

T = TypeVar("T")

FOREIGN_VERSION = (
    "WARNING: Report was produced using a different version of calicoctl. "
    "Ignoring due to --force option"
)
NOT_LOCKED = "WARNING: Data store is not locked. Ignoring due to --force option"


class ReportRefused(InvalidInput):
    """Nothing is released. The reason is the whole text."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class ReportedAllocation(Struct, frozen=True, kw_only=True):
    """One allocation. `owners` is null for none, as Go writes an empty slice."""

    ip: str
    handle: str = ""
    sequence_number: int | None = field(default=None, name="sequenceNumber")
    pod: str = ""
    namespace: str = ""
    node: str = ""
    type: str = ""
    creation_timestamp: str = field(default="", name="creationTimestamp")
    in_use: bool = field(default=False, name="inUse")
    borrowed: bool = False
    cooling_down: bool = field(default=False, name="coolingDown")
    owners: tuple[str, ...] | None = None


class ReportedHandle(Struct, frozen=True, kw_only=True):
    """One version of a handle. `uid` is Kubernetes', null in etcd."""

    id: str = field(name="ID")
    uid: str | None = field(default=None, name="UID")
    revision: str = field(default="", name="Revision")


class Report(Struct, frozen=True, kw_only=True):
    """`allocations` by address."""

    version: str = ""
    cluster_guid: str = field(default="", name="clusterGUID")
    datastore_locked: bool = field(default=False, name="datastoreLocked")
    cluster_information_revision: str = field(default="", name="clusterInformationRevision")
    cluster_type: str = field(default="", name="clusterType")
    allocations: dict[str, tuple[ReportedAllocation, ...]] | None = None
    leaked_handles: tuple[ReportedHandle, ...] | None = field(default=None, name="leakedHandles")


# ---- writing -------------------------------------------------------------------------------------


def report_of(findings: Findings, version: str) -> Report:
    """`version`: the client's, in full."""
    inventory = findings.inventory
    cluster, spec = inventory.cluster, inventory.cluster.spec
    return Report(
        version=version,
        cluster_guid=spec.cluster_guid or "",
        datastore_locked=is_locked(cluster),
        cluster_information_revision=cluster.metadata.resource_version or "",
        cluster_type=spec.cluster_type or "",
        allocations={
            str(address): tuple(map(_reported, held))
            for address, held in findings.by_address.items()
        },
        leaked_handles=tuple(
            ReportedHandle(id=handle_id, revision=str(inventory.handles[handle_id].revision))
            for handle_id in findings.handles.idle
        ),
    )


def _reported(allocation: Allocation) -> ReportedAllocation:
    attributes = allocation.attributes
    is_windows = (allocation.handle_id or "").lower() == WINDOWS_RESERVED_HANDLE
    return ReportedAllocation(
        ip=str(allocation.address),
        handle="" if is_windows else allocation.handle_id or "",
        sequence_number=allocation.sequence_number,
        pod=attributes.get("pod", ""),
        namespace=attributes.get("namespace", ""),
        node=check.node_of(allocation),
        type=attributes.get("type", ""),
        creation_timestamp=attributes.get("timestamp", ""),
        in_use=check.in_use(allocation),
        borrowed=allocation.borrowed,
        cooling_down=allocation.standing is Standing.COOLING,
        owners=check.owners_of(allocation) or None,
    )


def encode(report: Report) -> bytes:
    """As Go's MarshalIndent: members in order, empty ones left out where Calico does, addresses
    sorted as text, <, > and & escaped."""
    stored = {
        "version": report.version,
        "clusterGUID": report.cluster_guid,
        "datastoreLocked": report.datastore_locked,
        "clusterInformationRevision": report.cluster_information_revision,
        "clusterType": report.cluster_type,
        "allocations": {
            address: [_encoded(allocation) for allocation in held]
            for address, held in sorted((report.allocations or {}).items())
        },
    }
    if report.leaked_handles:
        stored["leakedHandles"] = [msgspec.to_builtins(item) for item in report.leaked_handles]
    text = json.dumps(stored, indent=2, ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode()


def _encoded(allocation: ReportedAllocation) -> dict[str, Any]:
    members: dict[str, Any] = msgspec.to_builtins(allocation)
    kept = ("ip", "sequenceNumber", "inUse", "owners")
    return {name: value for name, value in members.items() if value or name in kept}


# ---- reading and judging -------------------------------------------------------------------------


def decode(text: bytes, name: str) -> Report:
    """`name`: the file's, for the error. Errors: ReportRefused."""
    try:
        return msgspec.json.decode(text, type=Report)
    except (ValueError, RecursionError) as err:  # msgspec's errors are ValueErrors
        raise ReportRefused(f"cannot read the report {name}: {err}") from err


def is_locked(cluster: ClusterInformation) -> bool:
    """Only an explicit false locks; felix and CNI then refuse to go on (§6.10)."""
    return cluster.spec.datastore_ready is False


def judge(
    reports: Mapping[str, Report], cluster: ClusterInformation, version: str, *, force: bool
) -> list[str]:
    """Whether these reports, by file name, may be acted upon (T1); returns the warnings to print.

    Errors: ReportRefused; `force` overrides all but another cluster and staleness."""
    warnings: list[str] = []
    for name, report in reports.items():
        if report.cluster_guid != (cluster.spec.cluster_guid or ""):
            raise ReportRefused(
                f"cluster does not match the provided report ({name}): "
                "mismatched cluster GUID. Refusing to release"
            )
        if report.version != version:
            if not force:
                raise ReportRefused(
                    f"the provided report ({name}) was produced using a different version "
                    f"({report.version}) of calicoctl. Refusing to release"
                )
            warnings.append(FOREIGN_VERSION)
    present = cluster.metadata.resource_version
    if all(report.cluster_information_revision != present for report in reports.values()):
        raise ReportRefused(
            "the provided reports are all stale - at least one should be up-to-date. "
            "Please generate a new report while the data store is locked and try again"
        )
    if not is_locked(cluster):
        if not force:
            raise ReportRefused(
                "data store is not locked. Either lock the data store, or re-run with --force"
            )
        warnings.append(NOT_LOCKED)
    return warnings


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What every report calls leaked."""

    addresses: tuple[Release, ...]
    handles: tuple[ReportedHandle, ...]


def common_leaks(reports: Mapping[str, Report]) -> Leftovers:
    """T2, of one report or more; in order of the last one.

    Errors: ReportRefused for an address nobody can read."""
    each_addresses = [_leaked_addresses(name, report) for name, report in reports.items()]
    each_handles = [dict.fromkeys(report.leaked_handles or ()) for report in reports.values()]
    return Leftovers(_in_all(each_addresses), _in_all(each_handles))


def _in_all(each: Sequence[Mapping[T, None]]) -> tuple[T, ...]:
    """What is in every one of them, in the order of the last."""
    return tuple(item for item in each[-1] if all(item in others for others in each))


def _leaked_addresses(name: str, report: Report) -> dict[Release, None]:
    found: dict[Release, None] = {}
    for address, held in (report.allocations or {}).items():
        for allocation in held:
            if allocation.in_use or allocation.cooling_down:
                continue
            try:
                parsed = parse_ip(allocation.ip)
            except AddressError as err:
                raise ReportRefused(
                    f"cannot read the report {name}: allocations[{address}].ip: {err}"
                ) from err
            release = Release(
                address=parsed,
                handle_id=allocation.handle,
                sequence_number=allocation.sequence_number,
            )
            found[release] = None
    return found


@dataclass(frozen=True, slots=True)
class Present:
    """How leaks of a report stand now (T3): still as reported, free already, or another's."""

    same: tuple[Release, ...]
    gone: tuple[Address, ...]
    changed: tuple[Address, ...]


def compare(leaks: Iterable[Release], blocks: Iterable[Block]) -> Present:
    """What a report says against the blocks as they are."""
    block_by_cidr: PrefixTrie[Block] = PrefixTrie()
    for block in blocks:
        block_by_cidr.add(network_of_block(block.cidr), block)
    same: list[Release] = []
    gone: list[Address] = []
    changed: list[Address] = []
    for leak in leaks:
        covering = block_by_cidr.all_covering(host_network(leak.address))
        assigned = (assignment_of(block, leak.address) for _, block in covering)
        held = [assignment for assignment in assigned if assignment is not None]
        if not held:
            gone.append(leak.address)
        elif any(_is_same(leak, assignment) for assignment in held):
            same.append(leak)
        else:
            changed.append(leak.address)
    return Present(tuple(same), tuple(gone), tuple(changed))


def _is_same(leak: Release, held: Assignment) -> bool:
    number = leak.sequence_number
    return leak.handle_id == (held.handle_id or "") and number in (None, held.sequence_number)
