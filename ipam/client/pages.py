"""What is stored below a prefix, page by page, as it was at one revision.

Layer: ipam edge. Under `ipam.client.inventory` (what `ipam check` looks at) and
`ipam.client.snapshot` (what a garbage collection looks at).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from libcalico.datastore.api import Datastore, KeyValue
from libcalico.errors import WatchExpired
from libcalico.model.keys import Key, parse

T = TypeVar("T")
# A compaction may end a reading half way; each attempt starts at a younger revision.
ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Pages:
    """The datastore at `revision`; 0: each listing as it is when it begins."""

    datastore: Datastore
    revision: int

    async def objects(
        self, prefix: str, *, keys_only: bool = False
    ) -> AsyncIterator[tuple[Key | None, KeyValue]]:
        """With their keys, None for one that names nothing. Errors: the datastore's, WatchExpired
        when the revision is compacted."""
        pages = self.datastore.list_pages(prefix, revision=self.revision, keys_only=keys_only)
        async with aclosing(pages) as open_pages:
            async for page in open_pages:
                for kv in page.kvs:
                    yield parse(kv.key), kv


async def whole(
    read: Callable[[], Awaitable[T]],
    on_overtaken: Callable[[WatchExpired], object] = lambda err: None,
) -> T:
    """Read again what compaction has overtaken. Errors: WatchExpired, the last time."""
    for _ in range(ATTEMPTS - 1):
        try:
            return await read()
        except WatchExpired as err:
            on_overtaken(err)
    return await read()
