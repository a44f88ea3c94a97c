"""IP pools, reservations and the v3 IPAM settings objects.

Layer: libcalico.model, pure. Used by ipam, felix, confd and the CLI. The data IPAM itself keeps
(blocks, affinities, handles, config) is in `libcalico.model.ipam`, not here (datamodel §0.4, §0.6).
Source: datamodel §1.9; Calico api/.../v3/{ippool,ipreservation,ipamconfig,blockaffinity}.go.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import field

from libcalico.model.meta import Condition, Model, Resource
from libcalico.model.scalars import BoolString


class IPPoolSpec(Model, frozen=True, kw_only=True):
    """`cidr` and `blockSize` cannot change after creation."""

    ALWAYS: ClassVar[tuple[str, ...]] = ("cidr",)

    cidr: str = ""
    vxlan_mode: str | None = field(default=None, name="vxlanMode")
    ipip_mode: str | None = field(default=None, name="ipipMode")
    nat_outgoing: bool = field(default=False, name="natOutgoing")
    disabled: bool = False
    disable_bgp_export: bool = field(default=False, name="disableBGPExport")
    block_size: int | None = field(default=None, name="blockSize")
    node_selector: str | None = field(default=None, name="nodeSelector")
    namespace_selector: str | None = field(default=None, name="namespaceSelector")
    allowed_uses: tuple[str, ...] = field(default=(), name="allowedUses")
    assignment_mode: str | None = field(default=None, name="assignmentMode")


class IPPoolStatus(Model, frozen=True, kw_only=True):
    """Conditions; `Allocatable` is honoured by IPAM."""

    conditions: tuple[Condition, ...] = ()


class IPPool(Resource, frozen=True, kw_only=True, tag="IPPool"):
    """A range that addresses are assigned from."""

    kind: ClassVar[str] = "IPPool"

    spec: IPPoolSpec = field(default_factory=IPPoolSpec)
    status: IPPoolStatus | None = None


class IPReservationSpec(Model, frozen=True, kw_only=True):
    """Host bits are tolerated and masked when used."""

    reserved_cidrs: tuple[str, ...] = field(default=(), name="reservedCIDRs")


class IPReservation(Resource, frozen=True, kw_only=True, tag="IPReservation"):
    """Addresses IPAM must not assign by itself."""

    kind: ClassVar[str] = "IPReservation"

    spec: IPReservationSpec = field(default_factory=IPReservationSpec)


class IPAMConfigurationSpec(Model, frozen=True, kw_only=True):
    """Not what IPAM reads in etcd: that is `ipam.IpamConfig`. Blocks are made unless False."""

    strict_affinity: bool | None = field(default=None, name="strictAffinity")
    auto_allocate_blocks: bool | None = field(default=None, name="autoAllocateBlocks")
    max_blocks_per_host: int | None = field(default=None, name="maxBlocksPerHost")
    kube_virt_vm_address_persistence: str | None = field(
        default=None, name="kubeVirtVMAddressPersistence"
    )
    ip_cooldown_seconds: int | None = field(default=None, name="ipCooldownSeconds")


class IPAMConfiguration(Resource, frozen=True, kw_only=True, tag="IPAMConfiguration"):
    """The v3 face of the IPAM settings."""

    kind: ClassVar[str] = "IPAMConfiguration"

    spec: IPAMConfigurationSpec = field(default_factory=IPAMConfigurationSpec)


class IPAMConfigSpec(IPAMConfigurationSpec, frozen=True, kw_only=True):
    """The same members; its rules allow wider limits."""


class IPAMConfig(Resource, frozen=True, kw_only=True, tag="IPAMConfig"):
    """Internal twin of IPAMConfiguration, used with the Kubernetes datastore only."""

    kind: ClassVar[str] = "IPAMConfig"

    spec: IPAMConfigSpec = field(default_factory=IPAMConfigSpec)


class BlockAffinitySpec(Model, frozen=True, kw_only=True):
    """`deleted` is stored as a string in etcd."""

    ALWAYS: ClassVar[tuple[str, ...]] = (
        "state",
        "node",
        "cidr",
        "deleted",
    )

    state: str = ""
    node: str = ""
    type: str | None = None
    cidr: str = ""
    deleted: BoolString = ""


class BlockAffinity(Resource, frozen=True, kw_only=True, tag="BlockAffinity"):
    """Informational in etcd; IPAM uses its own keys."""

    kind: ClassVar[str] = "BlockAffinity"

    spec: BlockAffinitySpec = field(default_factory=BlockAffinitySpec)
