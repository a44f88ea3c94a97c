"""Hear of changes in folders: an event is set when a file in one of them changes.

Layer: runtime edge. Used by confd (templates) and `calico-node install-cni --watch`.

  F1  only what changes a folder counts (created, modified, moved, deleted), not that a file was
      read: who looks at the files when told must not be told again because of that;
  F2  a folder that is not there is left out; one that goes away meanwhile says so once, then no
      more: enter the block again to watch its successor.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer

# An observer that is stopped while an event arrives calls that an error of its own.
logging.getLogger("watchdog.observers.inotify").setLevel(logging.CRITICAL)
_CHANGES = frozenset({"created", "modified", "moved", "deleted"})


@contextmanager
def watching(folders: Iterable[Path], changed: asyncio.Event) -> Iterator[None]:
    """Set `changed` at every change as long as the block runs; inside a running event loop."""
    handler = _Teller(asyncio.get_running_loop(), changed)
    observer = Observer()
    for folder in sorted({folder for folder in folders if folder.is_dir()}):
        observer.schedule(handler, str(folder))
    observer.start()
    try:
        yield
    finally:
        observer.stop()
        observer.join()


class _Teller(FileSystemEventHandler):
    """watchdog calls from its own thread; the loop is told through call_soon_threadsafe."""

    def __init__(self, loop: asyncio.AbstractEventLoop, changed: asyncio.Event) -> None:
        self._loop = loop
        self._changed = changed

    def on_any_event(self, event: FileSystemEvent) -> None:
        if event.event_type in _CHANGES:
            self._loop.call_soon_threadsafe(self._changed.set)
