"""The wire of one ADD, begun before it is certain which addresses the pod gets.

Layer: edge. Used by cni.add. IPAM tells its choice while the write that makes it the pod's is on
its way; the pair and the pod's side take as long as that write, so both are done at once. Nothing
but the pod's own namespace sees the choice before it is certain (W5): route, policy and record come
after.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import TypeVar

from cni.threads import to_the_end
from cni.veth import MadeWire, PodWire
from cni.wirer import Wirer, WirerEnded

T = TypeVar("T")


class PendingWire:
    """`foresee` as often as IPAM likes, then `make`, or `undo` at any time."""

    def __init__(self, wire: PodWire, wirer: Wirer) -> None:
        self._wire, self._wirer = wire, wirer
        self._early: asyncio.Task[MadeWire | None] | None = None
        self._foreseen: tuple[str, ...] = ()
        # Whether there is a wire of ours, as far as we know.
        self._is_made = False

    def foresee(self, addresses: tuple[str, ...]) -> None:
        """Begin with these. Later choices wait for `make`: the first one is nearly always right."""
        if self._early is None:
            self._foreseen = addresses
            self._early = asyncio.ensure_future(self._attempt(addresses))

    async def make(self, addresses: tuple[str, ...]) -> MadeWire:
        """The wire with these addresses, which are the pod's now. Errors: CniError."""
        early = None if self._early is None else await self._early
        if early is not None:
            if self._foreseen == addresses:
                return early
            await self._remove()
        return await self._ordered(self._wirer.make(replace(self._wire, addresses=addresses)))

    async def undo(self) -> None:
        """Only a wire that we made is ours to remove: the name may be somebody else's interface."""
        if self._early is not None:
            self._early.cancel()
            await to_the_end(asyncio.wait({self._early}))
            if not self._early.cancelled():
                self._early.exception()  # seen
        if self._is_made:
            await self._remove()

    async def _attempt(self, addresses: tuple[str, ...]) -> MadeWire | None:
        await asyncio.sleep(0)  # the write goes first
        return await self._ordered(self._wirer.attempt(replace(self._wire, addresses=addresses)))

    async def _ordered(self, order: Awaitable[T]) -> T:
        """What the order made, None for nothing."""
        try:
            made = await order
        except (WirerEnded, asyncio.CancelledError):
            self._is_made = True  # perhaps
            raise
        self._is_made = made is not None
        return made

    async def _remove(self) -> None:
        await self._wirer.delete_in_pod(self._wire.netns, self._wire.pod_name)
        self._is_made = False
