"""What IPAM refuses beyond the shared error tree, with Calico's texts.

Layer: ipam, pure. Raised by the pure parts and by `ipam.client`; caught by cni, calicoctl and the
controllers, which need only the classes of `libcalico.errors` these derive from.
Source: Calico libcalico-go/lib/ipam/{ipam.go,ipam_block.go}, lib/errors/errors.go.
"""

from __future__ import annotations

from libcalico.errors import Conflict, Exhausted, InvalidInput, NotFound, Stale


class UseRequired(InvalidInput):
    """A request did not say what the address is for."""

    def __str__(self) -> str:
        return "must specify the intended use when assigning an IP"


class PoolRefused(InvalidInput):
    """A pool or address named in the request may not be used. The reason is the whole text."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class NoPools(Exhausted):
    """No pool is left after selection. The reason is the whole text."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class NoFreeBlocks(Exhausted):
    """Every block of every usable pool exists and belongs to somebody."""

    def __str__(self) -> str:
        return "No Free Blocks"


class BlockNotFound(Exhausted):
    """Blocks may not be made automatically and none of the host's has room."""

    def __str__(self) -> str:
        return "failed to find or claim a block"


class RetriesExhausted(Conflict):
    """Others kept writing first."""

    def __str__(self) -> str:
        return "Max retries hit - excessive concurrent IPAM requests"


class BadHandle(Stale):
    """A release names another handle than the one that holds the address."""

    def __init__(self, address: str, given: str, stored: str) -> None:
        super().__init__(address, given, stored)
        self.address, self.given, self.stored = address, given, stored

    def __str__(self) -> str:
        return f"update conflict: {self.address}"


class HandleMismatch(Stale):
    """A handle does not count what is to be taken off it. Logged, never fatal (§2.6.5)."""

    def __init__(self, handle_id: str, reason: str) -> None:
        super().__init__(handle_id, reason)
        self.handle_id, self.reason = handle_id, reason

    def __str__(self) -> str:
        return self.reason


class HandleLimitReached(Exhausted):
    """The handle already holds as many addresses as it may (KubeVirt: one a family)."""

    def __init__(self, handle_id: str, held: int, limit: int) -> None:
        super().__init__(handle_id, held, limit)
        self.handle_id, self.held, self.limit = handle_id, held, limit

    def __str__(self) -> str:
        return (
            f"handle {self.handle_id} already has {self.held} allocation(s), "
            f"cannot allocate more (maxAlloc={self.limit})"
        )


class NotReserved(Stale):
    """An address to be handed over is not in the node's reserve (any more)."""

    def __init__(self, address: str, node: str, holder: str) -> None:
        super().__init__(address, node, holder)
        self.address, self.node, self.holder = address, node, holder

    def __str__(self) -> str:
        return f"{self.address} is not in the reserve of {self.node}: {self.holder} holds it"


class ClaimGone(Stale):
    """A sticky claim is not held any more: it was released while somebody was about to use it."""

    def __init__(self, address: str, handle_id: str) -> None:
        super().__init__(address, handle_id)
        self.address, self.handle_id = address, handle_id

    def __str__(self) -> str:
        return f"{self.address} is not held by {self.handle_id} any more"


class ClaimTaken(Conflict):
    """Another container of the same identity used a sticky claim after us."""

    def __init__(self, handle_id: str) -> None:
        super().__init__(handle_id)
        self.handle_id = handle_id

    def __str__(self) -> str:
        return f"another container uses {self.handle_id} now"


class AddressUnassigned(NotFound):
    """Nobody holds the address."""

    def __init__(self, address: str) -> None:
        super().__init__(address, "IP is unassigned")


class AddressInCooldown(Stale):
    """The address was released and must rest before it is assigned again."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.address = address

    def __str__(self) -> str:
        return f"address {self.address} is in cooldown"


class MalformedBlock(InvalidInput):
    """A stored block contradicts itself; nothing is assigned from or released into it."""

    def __init__(self, cidr: str, problems: tuple[str, ...]) -> None:
        super().__init__(cidr, problems)
        self.cidr, self.problems = cidr, problems

    def __str__(self) -> str:
        return f"IPAM block {self.cidr} is malformed: " + "; ".join(self.problems)
