"""DELs that wait for the datastore, on disk: one file per attachment.

Layer: edge (files). Written by cni.delete and cni.ipam_plugin, in felix and in the process that
does a DEL alone; read by cni.replay. The container is gone and its runtime was told so: what the
datastore still says of it has to go whatever happens to us, so an entry is on the disk before the
answer is given.

  Q1  an entry is written whole and synced, file and folder, mode 0600; a half-written one is never
      seen;
  Q2  entries of one container are found by name, without reading the others;
  Q3  a file that is no entry, or not the one its name says, is set aside (suffix .bad) with one
      line in the log and stops nothing;
  Q4  there are never more than `limit` entries: a further DEL is refused, its runtime comes again.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from libcalico.errors import ConfigError, Exhausted, Transient, Unauthorized
from libcalico.model.keys import ResourceKey
from libcalico.model.names import cni_handle_id
from libcalico.runtime import log
from libcalico.runtime.files import replace_file

LOG = log.get(__name__)
#: A node's pods, many times over: while the datastore is away hardly any new ones can start.
MAX_ENTRIES = 4096
VERSION = 1
_SUFFIX, _SET_ASIDE = ".json", ".bad"
#: What keeps a DEL from the datastore and passes: nobody answers, our identity is not accepted, a
#: certificate cannot be read.
AWAY = (Transient, Unauthorized, ConfigError, TimeoutError)


class QueueRefused(Exhausted):
    """The entry was not written; the reason is the whole text."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class QueuedDelete(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is left to do of one DEL. Nothing in it depends on the pod's namespace, which is gone.

    `endpoint` "": the attachment has none (calico-ipam alone); else it is deleted while it still
    has this container. `handle_id` "": its addresses are not ours (another IPAM plugin's).
    `queued_at`: seconds since the epoch."""

    version: int = VERSION
    network: str
    container_id: str
    ifname: str
    namespace: str
    endpoint: str
    handle_id: str
    queued_at: float

    @property
    def key(self) -> ResourceKey | None:
        if not self.endpoint:
            return None
        return ResourceKey("WorkloadEndpoint", self.endpoint, self.namespace)

    @property
    def file_name(self) -> str:
        rest = _digest((self.ifname, self.namespace, self.endpoint))
        return f"{_container_part(self.network, self.container_id)}-{rest}{_SUFFIX}"


def _container_part(network: str, container_id: str) -> str:
    return _digest((network, container_id))


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def decode(name: str, data: bytes) -> QueuedDelete:
    """Errors: ValueError saying what is wrong with it."""
    entry = msgspec.json.decode(data, type=QueuedDelete)
    if entry.version != VERSION:
        raise ValueError(f"version {entry.version} is not known here")
    if entry.file_name != name:
        raise ValueError("it is not the entry its name says")
    if entry.handle_id not in ("", cni_handle_id(entry.network, entry.container_id)):
        raise ValueError(f"handle_id {entry.handle_id!r} is not the container's")
    return entry


class DeleteQueue:
    """The entries of one folder. Several processes may write; felix alone takes out."""

    def __init__(self, folder: Path, limit: int = MAX_ENTRIES) -> None:
        self._folder, self._limit = folder, limit
        #: Set when this process queued something.
        self.changed = asyncio.Event()

    async def put(self, entry: QueuedDelete) -> None:
        """On the disk when this returns. Errors: QueueRefused."""
        await asyncio.to_thread(self._write, entry)
        self.changed.set()

    def count(self) -> int:
        return len(self._names())

    def entries(self) -> list[QueuedDelete]:
        """All of them, oldest first."""
        return self._read(self._names())

    def of_container(self, network: str, container_id: str) -> list[QueuedDelete]:
        """Those of one container's attachments to a network, oldest first."""
        prefix = _container_part(network, container_id) + "-"
        return self._read(name for name in self._names() if name.startswith(prefix))

    def holds(self, entry: QueuedDelete) -> bool:
        """Whether it, or a younger one of the same attachment, is still to be done."""
        return (self._folder / entry.file_name).exists()

    def remove(self, entry: QueuedDelete) -> None:
        (self._folder / entry.file_name).unlink(missing_ok=True)

    def _write(self, entry: QueuedDelete) -> None:
        path = self._folder / entry.file_name
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not path.exists() and self.count() >= self._limit:
                raise QueueRefused(f"{self._limit} DELs are queued already in {self._folder}")
            replace_file(path, msgspec.json.encode(entry), 0o600)
        except OSError as err:
            raise QueueRefused(f"the DEL cannot be queued in {self._folder}: {err}") from err

    def _names(self) -> list[str]:
        try:
            found = os.listdir(self._folder)
        except OSError:
            return []  # nothing was ever queued; what is wrong with it otherwise, a write will tell
        return [name for name in found if name.endswith(_SUFFIX) and not name.startswith(".")]

    def _read(self, names: Iterable[str]) -> list[QueuedDelete]:
        found = [entry for name in names if (entry := self._entry(name)) is not None]
        return sorted(found, key=lambda entry: (entry.queued_at, entry.file_name))

    def _entry(self, name: str) -> QueuedDelete | None:
        path = self._folder / name
        try:
            return decode(name, path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as err:  # msgspec's are ValueErrors
            LOG.warning("a queued DEL is not readable and set aside", path=path, error=err)
            path.replace(path.with_suffix(_SET_ASIDE))
            return None
        except OSError as err:
            LOG.warning("a queued DEL cannot be read", path=path, error=err)
            return None
