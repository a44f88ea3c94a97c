"""What callers of IPAM hand in and get back.

Layer: ipam, pure data. Used by cni, calicoctl, felix (tunnel addresses), the controllers and
`ipam.client`. Names follow Calico's AutoAssignArgs, AssignIPArgs, ReleaseOptions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from libcalico.errors import PoolExhausted, SuiteError
from libcalico.net import Address, Interface, Network

WORKLOAD: Final = "Workload"
TUNNEL: Final = "Tunnel"
LOAD_BALANCER_USE: Final = "LoadBalancer"

#: Attribute of addresses that another CNI plugin's pods have by calico-ipam: they have no endpoint,
#: and are given back by that plugin's DEL (or GC) or with their node.
PLUGIN_ATTRIBUTE: Final = "plugin"

NO_ATTRIBUTES: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReserved:
    """Ordinals a host keeps for itself at both ends of every block it makes."""

    start_of_block: int
    end_of_block: int
    handle_id: str
    note: str

    @property
    def count(self) -> int:
        return self.start_of_block + self.end_of_block


WINDOWS_RESERVED_HANDLE: Final = "windows-reserved-ipam-handle"
WINDOWS_RESERVED: Final = HostReserved(
    start_of_block=3, end_of_block=1, handle_id=WINDOWS_RESERVED_HANDLE, note="windows host rsvd"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoAssign:
    """Ask for any addresses.

    `use` is mandatory: WORKLOAD, TUNNEL or LOAD_BALANCER_USE. `pools_v4`/`pools_v6` name enabled
    pools by CIDR and then override assignmentMode and selectors (resolve names with
    `ipam.pools.resolve`). `namespace_labels` None means: no namespace context.
    `max_blocks_per_host` 0 means: as configured. `max_alloc` 0 means: a handle may hold any number
    of addresses of a family. `foresee` is told all the addresses as soon as the write that makes
    them the holder's is on its way (again, when that write lost): likely ones, not certain ones. It
    must be quick and not raise.
    """

    host: str
    use: str
    handle_id: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    num_v4: int = 0
    num_v6: int = 0
    pools_v4: tuple[Network, ...] = ()
    pools_v6: tuple[Network, ...] = ()
    namespace_labels: Mapping[str, str] | None = None
    max_blocks_per_host: int = 0
    reserved_v4: HostReserved | None = None
    reserved_v6: HostReserved | None = None
    max_alloc: int = 0
    foresee: Callable[[tuple[Interface, ...]], None] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignments:
    """What one family got. Addresses carry the BLOCK's prefix length (10.10.3.65/26)."""

    version: int
    requested: int
    addresses: tuple[Interface, ...] = ()
    messages: tuple[str, ...] = ()
    reserved: HostReserved | None = None

    def partial_error(self) -> PoolExhausted | None:
        """The error a caller that needs all of them raises; None when there are enough."""
        if len(self.addresses) >= self.requested:
            return None
        text = (
            f"Assigned {len(self.addresses)} out of {self.requested} "
            f"requested IPv{self.version} addresses"
        )
        for message in self.messages:
            text += f"; {message}"
        if self.reserved is not None:
            text += f"; HostReservedAttr: {self.reserved.handle_id}"
        return PoolExhausted((), text)


@dataclass(frozen=True, slots=True)
class AutoAssigned:
    """None for a family that was not asked for."""

    v4: Assignments | None = None
    v6: Assignments | None = None

    @property
    def addresses(self) -> tuple[Interface, ...]:
        return tuple(a for part in (self.v4, self.v6) if part for a in part.addresses)

    def partial_error(self) -> PoolExhausted | None:
        for part in (self.v4, self.v6):
            error = part.partial_error() if part else None
            if error is not None:
                return error
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignIP:
    """Ask for one particular address. `use` "" skips the check against the pool's allowedUses."""

    address: Address
    host: str
    use: str = ""
    handle_id: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    reserved: HostReserved | None = None
    max_alloc: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Give one address back. A handle or sequence number that does not fit refuses the release."""

    address: Address
    handle_id: str = ""
    sequence_number: int | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """One request of several that was refused, and why."""

    request: Release
    error: SuiteError


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """`unallocated` were free already. One failing block does not stop the others: look at
    `failed`, or call `raise_failed`."""

    released: tuple[Release, ...] = ()
    unallocated: tuple[Address, ...] = ()
    failed: tuple[Failure, ...] = ()

    def raise_failed(self) -> None:
        """Raise the first failure, if there was one."""
        if self.failed:
            raise self.failed[0].error


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Who holds an address. `handle_id` None: assigned without one."""

    address: Address
    handle_id: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    alternate_attributes: Mapping[str, str] = field(default_factory=dict)
    sequence_number: int = 0


@dataclass(frozen=True, slots=True)
class Claimed:
    """Blocks that are the owner's now, and blocks that belong to others."""

    claimed: tuple[Network, ...] = field(default=())
    failed: tuple[Network, ...] = field(default=())
