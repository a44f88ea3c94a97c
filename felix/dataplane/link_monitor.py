"""The node's interfaces and their addresses, as one coherent view for everybody in the dataplane.

Layer: felix.dataplane, pure state plus one listing through LinkPort. The daemon feeds it
notifications; it tells InterfaceListeners (route tables, endpoint managers) what changed.

Invariants:
  L1  listeners hear of an interface when it first appears, then of changes only, in the order in
      which they happened; a new listener hears of everything known;
  L2  an interface whose number changed (deleted and made again) is first said to be gone;
  L3  after a listing, the view is what the listing said: lost notifications are made up for.
"""

from __future__ import annotations

from felix.dataplane.manager import InterfaceListener, InterfaceState
from felix.dataplane.ports import LinkPort
from libcalico.netlink import Address, AddressEvent, Link, LinkEvent
from libcalico.runtime import log

LOG = log.get(__name__)


class LinkMonitor:
    """Holds the last known state of every interface."""

    def __init__(self, port: LinkPort) -> None:
        self._port = port
        self._link_by_index: dict[int, Link] = {}
        self._index_by_name: dict[str, int] = {}
        self._addresses_by_index: dict[int, set[str]] = {}
        self._told: dict[str, InterfaceState] = {}
        self._listeners: list[InterfaceListener] = []
        self._relist_reason = "start"

    def add_listener(self, listener: InterfaceListener) -> None:
        self._listeners.append(listener)
        for name, state in self._told.items():
            listener.on_interface(name, state)

    def interface(self, name: str) -> InterfaceState | None:
        return self._told.get(name)

    def queue_relist(self, reason: str) -> None:
        self._relist_reason = self._relist_reason or reason

    async def refresh(self) -> None:
        """List everything if that was asked for. A failure stays queued. Errors: SuiteError."""
        if not self._relist_reason:
            return
        links = await self._port.list_links()
        addresses = await self._port.list_addresses()
        if self._relist_reason != "start":
            LOG.info("interfaces listed", reason=self._relist_reason, count=len(links))
        self._relist_reason = ""
        self._replace_all(links, addresses)

    def on_link_event(self, event: LinkEvent) -> bool:
        """Returns whether listeners were told of something."""
        if event.is_removed:
            return self._on_link_gone(event.link.ifindex)
        if event.link == self._link_by_index.get(event.link.ifindex):
            return False  # a statistic, a setting: nothing that we look at
        return self._on_link(event.link)

    def on_address_event(self, event: AddressEvent) -> bool:
        """Returns whether listeners were told of something."""
        ifindex, address = event.address.ifindex, event.address.address
        addresses = self._addresses_by_index.setdefault(ifindex, set())
        (addresses.discard if event.is_removed else addresses.add)(address)
        return self._tell(ifindex)

    def _on_link(self, link: Link) -> bool:
        told = False
        known = self._link_by_index.get(link.ifindex)
        if known is not None and known.name != link.name:
            told = self._announce(known.name, None)
            self._index_by_name.pop(known.name, None)
        holder = self._index_by_name.get(link.name)
        if holder is not None and holder != link.ifindex:
            told |= self._on_link_gone(holder)  # L2
        self._link_by_index[link.ifindex] = link
        self._index_by_name[link.name] = link.ifindex
        return self._tell(link.ifindex) or told

    def _on_link_gone(self, ifindex: int) -> bool:
        self._addresses_by_index.pop(ifindex, None)
        link = self._link_by_index.pop(ifindex, None)
        if link is None or self._index_by_name.get(link.name) != ifindex:
            return False
        del self._index_by_name[link.name]
        return self._announce(link.name, None)

    def _replace_all(self, links: list[Link], addresses: list[Address]) -> None:
        listed = {link.ifindex for link in links}
        for ifindex in [i for i in self._link_by_index if i not in listed]:
            self._on_link_gone(ifindex)
        self._addresses_by_index = {}
        for address in addresses:
            self._addresses_by_index.setdefault(address.ifindex, set()).add(address.address)
        for link in links:
            self._on_link(link)

    def _tell(self, ifindex: int) -> bool:
        link = self._link_by_index.get(ifindex)
        if link is None:
            return False  # an address notification that overtook its link's
        addresses = tuple(sorted(self._addresses_by_index.get(ifindex, ())))
        state = InterfaceState(
            link.name, ifindex, link.is_up, link.is_running, addresses, link.mtu_bytes
        )
        return self._announce(link.name, state)

    def _announce(self, name: str, state: InterfaceState | None) -> bool:
        before = self._told.get(name)
        if before == state:
            return False
        if state is None:
            del self._told[name]
        else:
            self._told[name] = state
        for listener in self._listeners:
            listener.on_interface(name, state)
        return True

    def dump(self) -> dict[str, object]:
        return {
            name: {
                "ifindex": state.ifindex,
                "up": state.is_up,
                "running": state.is_running,
                "mtu": state.mtu_bytes,
                "addresses": list(state.addresses),
            }
            for name, state in sorted(self._told.items())
        }
