"""What typha knows of one stream: every path's stored bytes, and pages of them made once.

Layer: typha, pure. Used by `fanout`. The oracle of its tests is a dict.

  C1  a path is what its update of the largest revision said; older updates change nothing;
  C2  items live in *pages* of up to PAGE_ITEMS. A page keeps the frames made of it until one of its
      items changes: a snapshot costs the pages that changed since the last one, and all clients
      that join share the same bytes;
  C3  a snapshot is the state of one moment: `snapshot` takes the frames of all pages at once, and
      never changes afterwards;
  C4  a page that falls below a quarter is emptied into others, so that a store that shrank is not
      sent as thousands of small frames.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from libcalico.wire import messages
from libcalico.wire.framing import Packer
from libcalico.wire.messages import Change, Item, Kind, Page

PAGE_ITEMS = 1024
# Values of a kind may be large (a network set of thousands): a page is full by size, too.
PAGE_BYTES = 1024 * 1024
_SPARSE = PAGE_ITEMS // 4


@dataclass(slots=True)
class _PageOfItems:
    """`frames`: compressed and plain, made when asked for."""

    items: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    value_bytes: int = 0
    frames: dict[bool, bytes] = field(default_factory=dict)

    @property
    def is_full(self) -> bool:
        return len(self.items) >= PAGE_ITEMS or self.value_bytes >= PAGE_BYTES


@dataclass(frozen=True, slots=True)
class SnapshotFrames:
    """The frames of all pages at one moment, and how many items they hold."""

    frames: tuple[bytes, ...]
    count: int


class StreamCache:
    """The present state of one stream."""

    def __init__(self) -> None:
        self._page_by_path: dict[str, _PageOfItems] = {}
        self._pages: dict[int, _PageOfItems] = {}
        self._open: _PageOfItems | None = None
        self._dirty: dict[bool, dict[int, _PageOfItems]] = {False: {}, True: {}}
        self._packer = Packer()
        #: Bytes of all values.
        self.value_bytes = 0

    def __len__(self) -> int:
        return len(self._page_by_path)

    def get(self, path: str) -> tuple[bytes, int] | None:
        """Value and revision."""
        page = self._page_by_path.get(path)
        return None if page is None else page.items[path]

    def count_below(self, prefix: str) -> int:
        """How many paths begin with `prefix`: looks at all."""
        return sum(path.startswith(prefix) for path in self._page_by_path)

    def apply(self, changes: Iterable[Change]) -> list[Change]:
        """Take over what is news and return it (C1)."""
        return [change for change in changes if self._apply(*change)]

    def dirty_pages(self, *, is_compressed: bool) -> int:
        return len(self._dirty[is_compressed])

    def make_frames(self, limit: int, *, is_compressed: bool) -> None:
        """Make the frames of up to `limit` pages that have none: a large store takes steps."""
        dirty = self._dirty[is_compressed]
        for number in list(dirty)[:limit]:
            page = dirty.pop(number)
            page.frames[is_compressed] = self._frame(page, is_compressed)

    def snapshot(self, *, is_compressed: bool) -> SnapshotFrames:
        """The state now (C3)."""
        self.make_frames(len(self._pages), is_compressed=is_compressed)
        frames = tuple(page.frames[is_compressed] for page in self._pages.values())
        return SnapshotFrames(frames, len(self))

    def _apply(self, path: str, value: bytes | None, revision: int) -> bool:
        page = self._page_by_path.get(path)
        if page is not None and page.items[path][1] >= revision:
            return False
        if value is None:
            if page is None:
                return False
            self._remove(page, path)
            self._shrink(page)
            return True
        if page is None:
            page = self._page_for_new()
            self._page_by_path[path] = page
        else:
            self._count(page, -len(page.items[path][0]))
        page.items[path] = (value, revision)
        self._count(page, len(value))
        self._spoil(page)
        return True

    def _remove(self, page: _PageOfItems, path: str) -> None:
        value, _ = page.items.pop(path)
        del self._page_by_path[path]
        self._count(page, -len(value))
        self._spoil(page)

    def _shrink(self, page: _PageOfItems) -> None:
        """C4. The open page is filled by others anyway."""
        if page is self._open or len(page.items) >= _SPARSE or page.value_bytes >= PAGE_BYTES // 4:
            return
        for path, (value, revision) in list(page.items.items()):
            self._remove(page, path)
            self._apply(path, value, revision)
        self._pages.pop(id(page))
        for dirty in self._dirty.values():
            dirty.pop(id(page), None)

    def _page_for_new(self) -> _PageOfItems:
        if self._open is None or self._open.is_full:
            self._open = _PageOfItems()
            self._pages[id(self._open)] = self._open
        return self._open

    def _count(self, page: _PageOfItems, value_bytes: int) -> None:
        page.value_bytes += value_bytes
        self.value_bytes += value_bytes

    def _spoil(self, page: _PageOfItems) -> None:
        page.frames.clear()
        for dirty in self._dirty.values():
            dirty[id(page)] = page

    def _frame(self, page: _PageOfItems, is_compressed: bool) -> bytes:
        items: list[Item] = [(path, *item) for path, item in page.items.items()]
        payload = messages.encode(Page(items))
        return self._packer.frame(Kind.PAGE, payload, compress=is_compressed)


def merged(batches: Sequence[Sequence[Change]]) -> list[Change]:
    """Several batches as one: the last change of each path, in the order of those."""
    last: dict[str, Change] = {}
    for batch in batches:
        for change in batch:
            # Taken out first, so that it moves to the end: the order is that of the last changes.
            last.pop(change[0], None)
            last[change[0]] = change
    return list(last.values())
