"""Adj-RIB-Out by update group: one log of messages, every peer a cursor in it.

Layer: pure. A Group is what peers with equal GroupKeys hear; a Stream is one peer's place in one
Group. Used by bgp.rib.rib (stage, commit) and, through the peer's outbox, by bgp.speaker (take).

    changes ──stage──► announce/withdraw per Out ──commit──► log of Records ──take──► peers
                                                    │
                        a peer that starts, refreshes or falls behind ──► its own set of pending
                        prefixes, told from `sent` as it is now; empty again ──► back to the log

Invariants (check()):
  I1  peer P holds, once it has taken everything, exactly the prefixes of `sent` whose Out did not
      come from P, with that Out's attributes;
  I2  a prefix is staged at most once per commit, so the order of its messages does not matter;
  I3  a pending set never holds more than the prefixes of the table and those withdrawn meanwhile:
      the bound for a slow peer. The log holds at most MAX_LOG_BYTES: whoever needs older messages
      is moved to a pending set;
  I4  Records are whole messages: a cursor is always between two messages.

A prefix whose Out changes its source needs one addressed message: the new source must forget the
copy it was told. It goes through the log, so it cannot overtake what is not sent yet.

Source: RFC 4271 9.2; RFC 4724 4.1 (End-of-RIB); RFC 7313 (BoRR, EoRR); bgp reference 4.2.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bgp.rib.export import Exporter, GroupKey, Out
from bgp.rib.nlri import Family, Nlri
from bgp.rib.path import LOCAL, Source
from bgp.rib.update import (
    BEGIN_OF_REFRESH,
    END_OF_REFRESH,
    end_of_rib,
    pack_announce,
    pack_withdraw,
    refresh_marker,
)

MAX_LOG_BYTES = 16 << 20
_PENDING_AT_ONCE = 4096  # prefixes told from a pending set per take
_TRIM_AFTER = 256  # records


@dataclass(slots=True)
class Record:
    """One message of the log. `only` addresses it, `exclude` leaves one peer out."""

    data: bytes
    nlris: list[Nlri]
    exclude: Source | None = None
    only: Source | None = None

    def is_for(self, source: Source) -> bool:
        if self.only is not None:
            return self.only is source
        return self.exclude is not source


class Group:
    """The Adj-RIB-Out of all peers with one key."""

    def __init__(self, key: GroupKey) -> None:
        self.key = key
        self.family: Family = key.family
        self.exporter = Exporter(key)
        self.sent: dict[Nlri, Out] = {}
        self.streams: list[Stream] = []
        self.records: list[Record] = []
        self.base = 0  # absolute number of records[0]
        self.log_bytes = 0
        self._announced: dict[Out, list[Nlri]] = {}
        self._withdrawn: dict[Source, list[Nlri]] = {}
        self._addressed: dict[Source, list[Nlri]] = {}
        self._changed: list[Nlri] = []

    @property
    def end(self) -> int:
        return self.base + len(self.records)

    def stage(self, nlri: Nlri, out: Out | None) -> None:
        """The group's view of a prefix is now `out`. At most once per prefix and commit."""
        before = self.sent.get(nlri)
        if before is out:
            return
        self._changed.append(nlri)
        if out is None:
            assert before is not None, "both None is the same object"
            del self.sent[nlri]
            self._withdrawn.setdefault(before.source, []).append(nlri)
            return
        self.sent[nlri] = out
        found = self._announced.get(out)
        if found is None:
            self._announced[out] = [nlri]
        else:
            found.append(nlri)
        if before is not None and before.source is not out.source and out.source is not LOCAL:
            self._addressed.setdefault(out.source, []).append(nlri)

    def commit(self) -> bool:
        """Turn what was staged into messages. Returns whether anything was."""
        if not self._changed:
            return False
        streaming = False
        for stream in self.streams:
            if stream.cursor is None:
                stream.pending.update(dict.fromkeys(self._changed))
            else:
                streaming = True
        if streaming:
            self.trim()
            self._write_log()
        self._changed.clear()
        self._announced.clear()
        self._withdrawn.clear()
        self._addressed.clear()
        self._bound_log()
        return True

    def _write_log(self) -> None:
        for source, nlris in self._withdrawn.items():
            for data, part in pack_withdraw(self.family, nlris):
                self._append(Record(data, part, exclude=source))
        members = {stream.source for stream in self.streams}
        for source, nlris in self._addressed.items():
            if source in members:
                for data, part in pack_withdraw(self.family, nlris):
                    self._append(Record(data, part, only=source))
        for out, nlris in self._announced.items():
            for data, part in pack_announce(self.family, out.encoded, out.next_hop, nlris):
                self._append(Record(data, part, exclude=out.source))

    def _append(self, record: Record) -> None:
        self.records.append(record)
        self.log_bytes += len(record.data)

    def _bound_log(self) -> None:
        self.trim()
        while self.log_bytes > MAX_LOG_BYTES:
            slowest = min(s.cursor for s in self.streams if s.cursor is not None)
            for stream in self.streams:
                if stream.cursor == slowest:
                    stream.fall_behind()
            self.trim()

    def trim(self) -> None:
        """Forget what every cursor has passed. Called before the log grows and now and then."""
        cursors = [stream.cursor for stream in self.streams if stream.cursor is not None]
        passed = min(cursors, default=self.end) - self.base
        if passed == len(self.records) or passed >= _TRIM_AFTER:
            self.log_bytes -= sum(len(record.data) for record in self.records[:passed])
            del self.records[:passed]
            self.base += passed

    def check(self) -> None:
        assert not self._changed, "a commit is missing"
        assert self.log_bytes == sum(len(record.data) for record in self.records)
        assert self.log_bytes <= MAX_LOG_BYTES, "I3"
        for stream in self.streams:
            assert stream.group is self
            assert stream.cursor is None or self.base <= stream.cursor <= self.end, "I4"


class Stream:
    """One peer's place in one group. `source` is the peer, for exclusion."""

    def __init__(self, group: Group, source: Source) -> None:
        self.source = source
        self.group = group
        self.cursor: int | None = None
        self.pending: dict[Nlri, None] = {}
        self.eor_is_owed = True
        self.eor_is_held = False
        self._before: list[bytes] = []
        self._after: list[bytes] = []
        group.streams.append(self)
        # What came from this peer it never had from us: no withdrawals in a fresh session.
        sent = group.sent
        self.pending = {nlri: None for nlri, out in sent.items() if out.source is not source}

    def close(self) -> None:
        self.group.streams.remove(self)
        self.group.trim()

    def refresh(self, *, enhanced: bool) -> None:
        """Tell everything again (RFC 2918), between markers when both sides know them."""
        self._pend(self.group.sent)
        if enhanced:
            self._before.append(refresh_marker(self.group.family, BEGIN_OF_REFRESH))
            self._after = [refresh_marker(self.group.family, END_OF_REFRESH)]

    def move(self, group: Group) -> None:
        """Change the group in a running session: a refresh, not a reset."""
        old = self.group
        self._pend(old.sent)
        self.close()
        self.group = group
        group.streams.append(self)
        self._pend(group.sent)

    def fall_behind(self) -> None:
        """Too slow for the log: remember only which prefixes are out of date (I3)."""
        assert self.cursor is not None, "already behind"
        group, source = self.group, self.source
        for record in group.records[self.cursor - group.base :]:
            if record.is_for(source):
                self.pending.update(dict.fromkeys(record.nlris))
        self.cursor = None

    def _pend(self, nlris: Iterable[Nlri]) -> None:
        if self.cursor is not None:
            self.fall_behind()
        self.pending.update(dict.fromkeys(nlris))

    def has_output(self) -> bool:
        if self.cursor is not None:
            return self.cursor < self.group.end
        return True

    def take(self, limit: int) -> list[bytes]:
        """Whole messages, about `limit` bytes of them; they are the caller's to deliver."""
        if self.cursor is not None:
            return self._take_log(limit)
        taken = self._before
        self._before = []
        if self.pending:
            taken += self._take_pending()
        if not self.pending:
            taken += self._after
            self._after = []
            self.cursor = self.group.end
        return taken

    def take_end_of_rib(self) -> list[bytes]:
        """The End-of-RIB, once, when the initial dump is out and nobody holds it back."""
        if not self.eor_is_owed or self.eor_is_held or self.cursor is None:
            return []
        if self.cursor < self.group.end:
            return []
        self.eor_is_owed = False
        return [end_of_rib(self.group.family)]

    def owes_end_of_rib(self) -> bool:
        return self.eor_is_owed and not self.eor_is_held

    def _take_log(self, limit: int) -> list[bytes]:
        group, source = self.group, self.source
        assert self.cursor is not None, "the caller looked"
        start, records = self.cursor - group.base, group.records
        taken: list[bytes] = []
        size = 0
        while start < len(records) and size < limit:
            record = records[start]
            start += 1
            if record.is_for(source):
                taken.append(record.data)
                size += len(record.data)
        self.cursor = group.base + start
        return taken

    def _take_pending(self) -> list[bytes]:
        sent, source, pending = self.group.sent, self.source, self.pending
        announced: dict[Out, list[Nlri]] = {}
        withdrawn: list[Nlri] = []
        for _ in range(min(_PENDING_AT_ONCE, len(pending))):
            nlri, _ = pending.popitem()
            out = sent.get(nlri)
            if out is None or out.source is source:
                withdrawn.append(nlri)
            else:
                announced.setdefault(out, []).append(nlri)
        family = self.group.family
        taken = [data for data, _ in pack_withdraw(family, withdrawn)]
        for out, nlris in announced.items():
            taken += [data for data, _ in pack_announce(family, out.encoded, out.next_hop, nlris)]
        return taken
