"""Pods that were made while the datastore was away, on disk.

Layer: edge (files, cni.spool). Written and read by cni.offline; a DEL without felix takes out its
own. The runtime has been told that the pod runs: an entry is on the disk before that answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from cni.spool import Entry, Spool
from libcalico.model import WorkloadEndpoint
from libcalico.model.codec import decode_as
from libcalico.model.keys import ResourceKey

MAX_ENTRIES = 4096


def holder_of(handle_id: str, ifname: str) -> str:
    return f"{handle_id}/{ifname}"


class OfflinePod(Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One attachment the datastore is to hear of. `addresses` are out of the node's reserve and go
    to `handle_id` with `attributes`; `record` is the WorkloadEndpoint as it is to be stored;
    `replaces` the containers whose endpoint it takes over. `is_begun`: the datastore may have heard
    of some of it already."""

    addresses: tuple[str, ...]
    attributes: Mapping[str, str]
    record: str
    replaces: tuple[str, ...] = ()
    is_begun: bool = False

    @property
    def holder(self) -> str:
        """Of its addresses in cni.reserve."""
        return holder_of(self.handle_id, self.ifname)

    @property
    def workload_key(self) -> ResourceKey:
        return ResourceKey("WorkloadEndpoint", self.endpoint, self.namespace)

    def workload_endpoint(self) -> WorkloadEndpoint:
        """Errors: DecodeError."""
        return decode_as(WorkloadEndpoint, self.workload_key, self.record.encode(), 0)


class Journal(Spool[OfflinePod]):
    def __init__(self, folder: Path, limit: int = MAX_ENTRIES) -> None:
        super().__init__(folder, OfflinePod, noun="offline pod", limit=limit)

    def of_attachment(self, network: str, container_id: str, ifname: str) -> OfflinePod | None:
        found = self.of_container(network, container_id)
        return next((entry for entry in reversed(found) if entry.ifname == ifname), None)

    def youngest(self, key: ResourceKey) -> OfflinePod | None:
        """The one of all containers with this endpoint that has it now."""
        found = [entry for entry in self.entries() if entry.workload_key == key]
        return found[-1] if found else None

    def begin(self, entry: OfflinePod) -> OfflinePod:
        """From now on the datastore may know of it. Errors: SpoolRefused."""
        begun = msgspec.structs.replace(entry, is_begun=True)
        if not entry.is_begun:
            self.write(begun)
        return begun
