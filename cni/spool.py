"""A folder of small records that must survive: one file per attachment.

Layer: edge (files). Under `cni.queue` (DELs the datastore has not heard of) and `cni.journal` (pods
it has not heard of). Felix and the process that does a DEL alone may both write.

  Q1  an entry is written whole and synced, file and folder, mode 0600; a half-written one is never
      seen;
  Q2  entries of one container are found by name, without reading the others;
  Q3  a file that is no entry, or not the one its name says, is set aside (suffix .bad) with one
      line in the log and stops nothing;
  Q4  there are never more than `limit` entries: a further one is refused, the runtime comes again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from libcalico.errors import Exhausted
from libcalico.model.keys import ResourceKey
from libcalico.model.names import cni_handle_id
from libcalico.runtime import log
from libcalico.runtime.files import replace_file

LOG = log.get(__name__)
VERSION = 1
_SUFFIX, _SET_ASIDE = ".json", ".bad"


class SpoolRefused(Exhausted):
    """The entry was not written; the reason is the whole text."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every entry says of its attachment. `endpoint` is the WorkloadEndpoint's name ("": it
    has none), `handle_id` IPAM's handle ("": its addresses are another plugin's), `queued_at`
    seconds since the epoch."""

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


E = TypeVar("E", bound=Entry)


def _container_part(network: str, container_id: str) -> str:
    return _digest((network, container_id))


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def decode(name: str, data: bytes, kind: type[E]) -> E:
    """Errors: ValueError saying what is wrong with it."""
    entry = msgspec.json.decode(data, type=kind)
    if entry.version != VERSION:
        raise ValueError(f"version {entry.version} is not known here")
    if entry.file_name != name:
        raise ValueError("it is not the entry its name says")
    if entry.handle_id not in ("", cni_handle_id(entry.network, entry.container_id)):
        raise ValueError(f"handle_id {entry.handle_id!r} is not the container's")
    return entry


class Spool(Generic[E]):
    """Entries of one kind in one folder. `noun` is what a person calls one. Blocking calls."""

    def __init__(self, folder: Path, kind: type[E], *, noun: str, limit: int) -> None:
        self._folder, self._kind, self._noun, self._limit = folder, kind, noun, limit

    def write(self, entry: E) -> None:
        """On the disk when this returns. Errors: SpoolRefused."""
        path = self._folder / entry.file_name
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not path.exists() and self.count() >= self._limit:
                text = f"{self._limit} {self._noun}s are queued already in {self._folder}"
                raise SpoolRefused(text)
            replace_file(path, msgspec.json.encode(entry), 0o600)
        except OSError as err:
            text = f"the {self._noun} cannot be queued in {self._folder}: {err}"
            raise SpoolRefused(text) from err

    def count(self) -> int:
        return len(self._names())

    def is_empty(self) -> bool:
        """One look at a folder that is nearly always empty: no reason to go to a thread."""
        return not self._names()

    def entries(self) -> list[E]:
        """All of them, oldest first."""
        return self._read(self._names())

    def of_container(self, network: str, container_id: str) -> list[E]:
        """Those of one container's attachments to a network, oldest first."""
        prefix = _container_part(network, container_id) + "-"
        return self._read(name for name in self._names() if name.startswith(prefix))

    def holds(self, entry: Entry) -> bool:
        """Whether there is an entry, this or a younger one, of the same attachment."""
        return (self._folder / entry.file_name).exists()

    def remove(self, entry: Entry) -> None:
        """Gone also after a power failure. Errors: OSError."""
        path = self._folder / entry.file_name
        try:
            path.unlink()
        except FileNotFoundError:
            return
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def set_aside(self, entry: Entry) -> None:
        """Keep it for a person to look at, and do nothing with it any more. Errors: OSError."""
        path = self._folder / entry.file_name
        path.replace(path.with_suffix(_SET_ASIDE))

    def _names(self) -> list[str]:
        try:
            found = os.listdir(self._folder)
        except OSError:
            return []  # nothing was ever queued; what is wrong with it otherwise, a write will tell
        return [name for name in found if name.endswith(_SUFFIX) and not name.startswith(".")]

    def _read(self, names: Iterable[str]) -> list[E]:
        found = [entry for name in names if (entry := self._entry(name)) is not None]
        return sorted(found, key=lambda entry: (entry.queued_at, entry.file_name))

    def _entry(self, name: str) -> E | None:
        path = self._folder / name
        try:
            return decode(name, path.read_bytes(), self._kind)
        except FileNotFoundError:
            return None
        except ValueError as err:  # msgspec's are ValueErrors
            LOG.warning("a queued entry is not readable and set aside", path=path, error=err)
            path.replace(path.with_suffix(_SET_ASIDE))
            return None
        except OSError as err:
            LOG.warning("a queued entry cannot be read", path=path, error=err)
            return None
