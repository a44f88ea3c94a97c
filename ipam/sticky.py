"""Sticky claims: an address that belongs to a workload's identity, not to one container of it.

Layer: ipam, pure. Used by `ipam.batch`, `.leaks`, `.garbage`, `.cascade`, and `ipam.client.sticky`.

A claim is an ordinary assignment whose handle is made from the identity instead of a container id.
So everybody, Calico included, sees an address in use, and no DEL, GC or node deletion releases it.

  T1  an attribute is a claim's exactly when its handle and its type say so;
  T2  an identity holds one address per family: the handle is counted in the transaction that
      assigns (`max_alloc` 1), so two requests at once cannot get two;
  T3  whoever uses the claim next writes himself into its attributes (`ipam.batch.Rebind`), and
      rewrites the handle with it. The handle's revision therefore names the last user, and a
      WorkloadEndpoint written only while it stands cannot be a former user's (the fence);
  T4  a claim is used where its pool allows it or nowhere: it is never exchanged silently.

The attributes name neither `pod` nor `namespace`: Calico's collector has then nothing to check the
address by, and leaves it alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ipam.pools import Pool
from ipam.requests import WORKLOAD
from libcalico.model.ipam import AllocationAttribute
from libcalico.model.names import normal_handle_id
from libcalico.net import Address, Network

STICKY_TYPE = "stickyClaim"
CLAIM_ATTRIBUTE = "claim"
# No network's name contains a colon, so no container's handle looks like a claim's.
_PREFIX = "sticky:"


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose claim it is. The interface is part of it: a pod that is attached to one network twice
    needs two addresses."""

    network: str
    namespace: str
    name: str
    interface: str

    @property
    def handle_id(self) -> str:
        parts = (self.network, self.namespace, self.name, self.interface)
        return _PREFIX + ":".join(parts)

    def attributes(self, node: str, container_id: str) -> dict[str, str]:
        """`node` and `container` are those that use the claim now, or used it last."""
        claim = "/".join((self.network, self.namespace, self.name, self.interface))
        return {
            "node": node,
            "type": STICKY_TYPE,
            CLAIM_ATTRIBUTE: claim,
            "container": container_id,
        }


def is_claim(handle_id: str | None, attributes: Mapping[str, str]) -> bool:
    """T1."""
    held_by = normal_handle_id(handle_id or "")
    return held_by.startswith(_PREFIX) and attributes.get("type") == STICKY_TYPE


def claim_of(attribute: AllocationAttribute | None) -> str | None:
    """Whose claim an attribute stands for, as text; None: nobody's."""
    if attribute is None or not is_claim(attribute.handle_id, attribute.secondary):
        return None
    return attribute.secondary.get(CLAIM_ATTRIBUTE, attribute.handle_id)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a claim is to be used; `explicit` are the pools the request names, if it does: they
    override node selectors (datamodel §2.3.4)."""

    node: str
    node_labels: Mapping[str, str]
    explicit: tuple[Network, ...] = ()


def refusal(pool: Pool | None, address: Address, place: Place) -> str:
    """Why a claimed address may not be used there; "" when it may (T4)."""
    subject = f"sticky address {address} cannot be used on node {place.node}"
    if pool is None:
        return f"{subject}: it is in no IP pool"
    name = f'IP pool "{pool.name}" ({pool.cidr})'
    if not pool.enabled:
        return f"{subject}: {name} is disabled"
    if WORKLOAD not in pool.allowed_uses:
        return f'{subject}: {name} is not allowed for use "{WORKLOAD}"'
    if place.explicit:
        if pool.cidr not in place.explicit:
            return f"{subject}: {name} is not among the pools asked for"
    elif not pool.selects_node(place.node_labels):
        return f"{subject}: the nodeSelector of {name} does not select the node"
    return ""
