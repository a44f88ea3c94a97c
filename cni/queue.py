"""DELs that wait for the datastore, on disk.

Layer: edge (files, cni.spool). Written by cni.delete and cni.ipam_plugin, in felix and in the
process that does a DEL alone; felix alone takes out (cni.replay). The container is gone and its
runtime was told so: what the datastore still says of it has to go whatever happens to us, so an
entry is on the disk before the answer is given.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from cni.spool import Entry, Spool, SpoolRefused
from ipam.errors import MalformedBlock
from libcalico.errors import ConfigError, DecodeError, Transient, Unauthorized

QueueRefused = SpoolRefused
#: A node's pods, many times over: while the datastore is away hardly any new ones can start.
MAX_ENTRIES = 4096
#: What keeps a DEL from the datastore and passes: nobody answers, our identity is not accepted, a
#: certificate cannot be read.
AWAY = (Transient, Unauthorized, ConfigError, TimeoutError)
#: What keeps one DEL's addresses until somebody mends it: a block or handle that does not parse.
UNREADABLE = (DecodeError, MalformedBlock)


class QueuedDelete(Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is left to do of one DEL: the endpoint goes while it is still of this container, and
    what the handle holds. Nothing in it depends on the pod's namespace, which is gone."""


def delete_of(entry: Entry, now: float) -> QueuedDelete:
    """The DEL of another entry's attachment."""
    return QueuedDelete(
        network=entry.network,
        container_id=entry.container_id,
        ifname=entry.ifname,
        namespace=entry.namespace,
        endpoint=entry.endpoint,
        handle_id=entry.handle_id,
        queued_at=now,
    )


class DeleteQueue(Spool[QueuedDelete]):
    def __init__(self, folder: Path, limit: int = MAX_ENTRIES) -> None:
        super().__init__(folder, QueuedDelete, noun="DEL", limit=limit)
        #: Set when this process queued something.
        self.changed = asyncio.Event()
        #: Held by whoever tells the datastore of an attachment (cni.offline F5).
        self.lock = asyncio.Lock()

    async def put(self, entry: QueuedDelete) -> None:
        """On the disk when this returns. Errors: QueueRefused."""
        await asyncio.to_thread(self.write, entry)
        self.changed.set()
