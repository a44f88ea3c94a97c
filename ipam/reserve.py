"""The offline reserve of a node: addresses set aside while the datastore can be asked.

Layer: ipam, pure. Used by `ipam.blocks`, `.audit`, `.leaks`, and `ipam.client.reserve`.

A node that is cut off from the datastore may hand out only what nobody else can: addresses that are
assigned already, to itself. They stand in ordinary blocks under the node's reserve handle, so to
everybody else, Calico included, they are in use.

  O1  an attribute is a reserve's exactly when its handle, type and node agree;
  O2  a reserved address goes to a workload of the same node in one write. That is no change of
      hands: the holder, the node, stays, and says now for which of its pods. In two writes there
      would be a revision at which a running pod's address is free for anybody.
"""

from __future__ import annotations

from libcalico.model.ipam import AllocationAttribute
from libcalico.model.names import normal_handle_id

RESERVE_TYPE = "offlineReserve"
_PREFIX = "offline-reserve-"


def handle_of(node: str) -> str:
    return _PREFIX + node


def attributes_of(node: str) -> dict[str, str]:
    return {"node": node, "type": RESERVE_TYPE}


def node_of(attribute: AllocationAttribute) -> str | None:
    """Whose reserve an attribute stands for (O1); None: nobody's."""
    node = attribute.secondary.get("node")
    if node is None or attribute.secondary.get("type") != RESERVE_TYPE:
        return None
    held_by = normal_handle_id(attribute.handle_id or "")
    return node if held_by == normal_handle_id(handle_of(node)) else None


def is_handover(before: AllocationAttribute, after: AllocationAttribute) -> bool:
    """O2: from a node's reserve to a handle of that node."""
    node = node_of(before)
    return node is not None and bool(after.handle_id) and after.secondary.get("node") == node
