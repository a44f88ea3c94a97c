"""Handles by themselves: reading several at once, and counting one down after the block.

Layer: ipam edge. Used by `ipam.client.lane`. Nearly all handle writes happen together with their
block; what is here serves releases of more handles than fit into one transaction.
"""

from __future__ import annotations

from collections.abc import Iterable

from ipam import handles
from ipam.affinity import Versioned
from ipam.client.fanout import for_each
from ipam.client.records import Change, Records
from ipam.errors import HandleMismatch
from libcalico.errors import DatastoreUnavailable
from libcalico.model.ipam import Handle
from libcalico.model.keys import HandleKey
from libcalico.runtime import log

LOG = log.get(__name__)
_MAX_CONFLICTS = 100


async def read_handles(records: Records, handle_ids: Iterable[str]) -> dict[str, Versioned[Handle]]:
    """Handles as they are now; a missing one is an empty Versioned."""
    wanted = list(handle_ids)
    return dict(zip(wanted, await for_each(records.handle, wanted), strict=True))


async def count_down(records: Records, handle_id: str, block: str, count: int) -> None:
    """Take `count` addresses of `block` off a handle. Failures are logged, as the addresses are
    free already and a handle may over-count (H1, datamodel §2.6.5)."""
    try:
        for _ in range(_MAX_CONFLICTS):
            found = await records.handle(handle_id)
            after = handles.decrement(found.value, handle_id, block, count)
            change = Change(HandleKey(handle_id), found.mod_revision, after)
            if (await records.commit([change])).succeeded:
                return
    except (HandleMismatch, DatastoreUnavailable) as err:
        LOG.warning("ipam handle not decremented", key=handle_id, error=err)
