"""From lists and watch events to updates: what has been said, and what still has to be.

Layer: syncer; pure (no I/O, no clock, no logging). Used by `libcalico.syncer.watcher`.

  I1  `known[path]` is the mod revision of the value that was delivered for that path;
  I2  a listed value is delivered when its revision differs from the known one, and not again;
  I3  after a complete list every known path that was not listed is delivered as a delete, once
      (S2); a list that broke off half way deletes nothing;
  I4  a value that does not parse is delivered as absent with its error (S4); paths that are not
      ours are not delivered at all;
  I5  several changes of one path in one batch become one update, the last (S1);
  I6  a range that `never_goes_back` says nothing older than it has said: of a key the largest
      revision wins, whoever tells it. For one store that is so by itself (and a store restored from
      a backup is to be believed); for a client that moves between typhas it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from libcalico.datastore.api import EventType, KeyValue, ListResult, WatchBatch
from libcalico.errors import DecodeError, InvalidInput
from libcalico.model import codec
from libcalico.model.keys import Key, parse
from libcalico.syncer.api import Update

_UNTRUSTED = -1
Decode = Callable[[Key, bytes, int], object]


#: Deletes that are remembered where a list may be older than they are.
MAX_DELETED = 65_536


@dataclass(frozen=True, slots=True)
class Difference:
    """The store and we disagree about `path`: revisions as listed and as known, 0 for absent."""

    path: str
    listed_revision: int
    known_revision: int


class RangeState:
    """What has been delivered of one key range."""

    def __init__(
        self, prefix: str, *, decode: Decode = codec.decode, never_goes_back: bool = False
    ) -> None:
        self.prefix = prefix
        self._never_goes_back = never_goes_back
        #: Store revision up to which everything has been delivered; a watch starts behind it.
        self.position = 0
        self._decode = decode
        self._known: dict[str, int] = {}
        self._seen: set[str] = set()
        # Where a list may be older than what was delivered: it must not bring back what was
        # deleted since. The newest deletes only; a list is not older than those by much.
        self._deleted: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._known)

    def begin_list(self) -> None:
        self._seen.clear()

    def distrust(self) -> None:
        """The store is another one than before (restored from a backup): revisions of before may
        stand for other values now. Everything is delivered again by the next list."""
        self._known = dict.fromkeys(self._known, _UNTRUSTED)
        self._deleted.clear()

    def on_page(self, page: ListResult) -> list[Update]:
        """What is new on one page of a list."""
        updates = []
        for kv in page.kvs:
            self._seen.add(kv.key)
            if self._known.get(kv.key) != kv.mod_revision and not self._is_old(kv):
                updates.append(self._deliver(kv))
        return [update for update in updates if update is not None]

    def end_list(self, revision: int) -> list[Update]:
        """The deletes of what vanished (I3); the range now shows the store at `revision`."""
        gone = [path for path in self._known if path not in self._seen]
        if self._never_goes_back:
            gone = [path for path in gone if self._known[path] <= revision]
        self._seen.clear()
        self.position = revision
        updates = [self._forget(path, revision) for path in gone]
        return [update for update in updates if update is not None]

    def on_batch(self, batch: WatchBatch) -> list[Update]:
        """What a watch reported; an empty batch only moves the position."""
        last = {event.kv.key: event for event in batch.events}  # I5
        updates = []
        for event in last.values():
            if self._is_old(event.kv):
                continue
            if event.type is EventType.PUT:
                updates.append(self._deliver(event.kv))
            else:
                updates.append(self._forget(event.kv.key, event.kv.mod_revision))
        self.position = max(self.position, batch.revision)
        return [update for update in updates if update is not None]

    def differences(self, kvs: Iterable[KeyValue]) -> list[Difference]:
        """Where a list (values do not matter) and what was delivered disagree.

        Not yet a fault: a change may be on its way through the watch.
        """
        listed = {kv.key: kv.mod_revision for kv in kvs}
        paths = [path for path, revision in listed.items() if self._known.get(path) != revision]
        paths += [path for path in self._known if path not in listed]
        return [
            Difference(path, listed.get(path, 0), self._known.get(path, 0))
            for path in paths
            if path in self._known or parse(path) is not None
        ]

    def settle(self, difference: Difference, found: KeyValue | None, revision: int) -> list[Update]:
        """The update that the watch missed, given the value read some time after the difference.

        Nothing when either side has moved since: then the watch works, or a later check decides.
        """
        path = difference.path
        found_revision = 0 if found is None else found.mod_revision
        moved = found_revision != difference.listed_revision
        if moved or self._known.get(path, 0) != difference.known_revision:
            return []
        update = self._forget(path, revision) if found is None else self._deliver(found)
        return [] if update is None else [update]

    def dump(self) -> dict[str, object]:
        return {"prefix": self.prefix, "known": len(self._known), "position": self.position}

    def _is_old(self, kv: KeyValue) -> bool:
        if not self._never_goes_back:
            return False
        seen = self._known.get(kv.key) or self._deleted.get(kv.key, _UNTRUSTED)
        return seen > kv.mod_revision

    def _deliver(self, kv: KeyValue) -> Update | None:
        key = parse(kv.key)
        if key is None:
            return None
        self._known[kv.key] = kv.mod_revision
        self._deleted.pop(kv.key, None)
        try:
            return Update(key, self._decode(key, kv.value, kv.mod_revision), kv.mod_revision)
        except DecodeError as err:
            return Update(key, None, kv.mod_revision, err)
        except InvalidInput:
            del self._known[kv.key]  # one of the layout's keys whose values nobody here reads
            return None

    def _forget(self, path: str, revision: int) -> Update | None:
        if self._known.pop(path, None) is None:
            return None
        if self._never_goes_back:
            self._deleted[path] = revision
            if len(self._deleted) > MAX_DELETED:
                del self._deleted[next(iter(self._deleted))]
        key = parse(path)
        return None if key is None else Update(key, None, revision)
