"""The data IPAM keeps: blocks, block affinities, handles, settings. Data only.

Layer: libcalico.model, pure. Used by ipam (which owns every algorithm), felix, bgp, confd and the
CLI. Decoded and encoded by `libcalico.model.codec` like everything else.

  I1  sequence numbers are exact 64-bit integers;
  I2  an ordinal is assigned when its entry in `allocations` is not None and the attribute it points
      to has no `released_at` (that one is in cooldown, datamodel §0.12);
  I3  old and foreign forms are read: `attributes` null or [], an empty affinity value (confirmed),
      a missing sequence map; what we write is Calico's form.

Source: datamodel §2.1, §2.2; Calico libcalico-go/lib/backend/model/{block,block_affinity,
ipam_handle,ipam_config}.go.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import field

from libcalico.model.meta import Model

AFFINITY_PENDING = "pending"
AFFINITY_CONFIRMED = "confirmed"
AFFINITY_PENDING_DELETION = "pendingDeletion"

# Who may own a block without being a host: the service load balancer controller.
LOAD_BALANCER_AFFINITY = "virtual:load-balancer"


class AllocationAttribute(Model, frozen=True, kw_only=True):
    """Who holds addresses. `secondary` is the active owner, `released_at` means in cooldown."""

    handle_id: str | None = None
    secondary: dict[str, str] = field(default_factory=dict)
    alternate_owner_attrs: dict[str, str] = field(default_factory=dict, name="alternateOwnerAttrs")
    released_at: str | None = field(default=None, name="releasedAt")


class Block(Model, frozen=True, kw_only=True):
    """A block of addresses. Ordinal i is `cidr`'s i-th address.

    `attributes` is None in a brand-new block and () after the last allocation was collected; both
    mean empty. `affinity` is "host:<node>", "virtual:load-balancer" or None.
    """

    ALWAYS: ClassVar[tuple[str, ...]] = (
        "cidr",
        "affinity",
        "allocations",
        "unallocated",
        "attributes",
        "sequenceNumber",
        "sequenceNumberForAllocation",
        "deleted",
    )
    NEVER: ClassVar[tuple[str, ...]] = ("hostAffinity",)

    cidr: str
    affinity: str | None = None
    affinity_claim_time: str | None = None
    allocations: tuple[int | None, ...] = ()
    unallocated: tuple[int, ...] = ()
    attributes: tuple[AllocationAttribute, ...] | None = None
    sequence_number: int = field(default=0, name="sequenceNumber")
    sequence_number_for_allocation: dict[str, int] = field(
        default_factory=dict, name="sequenceNumberForAllocation"
    )
    deleted: bool = False
    # Deprecated, see NEVER.
    host_affinity: str | None = field(default=None, name="hostAffinity")

    @property
    def size(self) -> int:
        return len(self.allocations)

    @property
    def host(self) -> str | None:
        """The host the block is affine to."""
        if self.affinity and self.affinity.startswith("host:"):
            return self.affinity[len("host:") :]
        return None

    def attribute_of(self, ordinal: int) -> AllocationAttribute | None:
        """The attribute an ordinal points to, None when it is free (or points to nothing)."""
        if ordinal >= len(self.allocations) or self.attributes is None:
            return None
        index = self.allocations[ordinal]
        if index is None or not 0 <= index < len(self.attributes):
            return None
        return self.attributes[index]


class BlockAffinity(Model, frozen=True, kw_only=True):
    """The value of an affinity key. An empty state is an old confirmed one."""

    ALWAYS: ClassVar[tuple[str, ...]] = ("state", "deleted")

    state: str = ""
    deleted: bool = False

    @property
    def effective_state(self) -> str:
        return self.state or AFFINITY_CONFIRMED


class Handle(Model, frozen=True, kw_only=True):
    """How many addresses a handle asked for, by block CIDR (with "/"). May over-count."""

    ALWAYS: ClassVar[tuple[str, ...]] = ("block", "deleted")

    block: dict[str, int] = field(default_factory=dict)
    deleted: bool = False


class IpamConfig(Model, frozen=True, kw_only=True):
    """IPAM's settings as stored: every false or zero member is left out.

    A *missing* key means `MISSING_IPAM_CONFIG` (blocks are made automatically); a stored `{}`
    decodes to `IpamConfig()`, in which they are not. Keep the two apart.
    """

    strict_affinity: bool = False
    auto_allocate_blocks: bool = False
    max_blocks_per_host: int = field(default=0, name="maxBlocksPerHost")
    kube_virt_vm_address_persistence: str | None = field(
        default=None, name="kubeVirtVMAddressPersistence"
    )
    ip_cooldown_seconds: int = field(default=0, name="ipCooldownSeconds")


MISSING_IPAM_CONFIG = IpamConfig(auto_allocate_blocks=True)


class HostMarker(Model, frozen=True, kw_only=True):
    """The legacy host marker: an empty value."""


class FelixStatus(Model, frozen=True, kw_only=True):
    """Felix's liveness report."""

    ALWAYS: ClassVar[tuple[str, ...]] = ("time", "uptime", "first_update")

    time: str = ""
    uptime: float = 0.0
    first_update: bool = False


class EndpointStatus(Model, frozen=True, kw_only=True):
    """up, down or error."""

    ALWAYS: ClassVar[tuple[str, ...]] = ("status",)

    status: str = ""
