"""IP pools and nodes into the sets that NAT outgoing looks up.

Layer: felix.dataplane, a manager. Pushes into the nft driver's wanted ruleset.

The rule itself is fixed (felix.rules.nat): pools that come and go are members of sets. Pools may
nest (a pool being split, a wider one beside it), hence FlatNets.
"""

from __future__ import annotations

from felix.dataplane.nft_wanted import WantedRuleset
from felix.intent import HostRemove, HostUpdate, Intent, PoolRemove, PoolUpdate
from felix.rules.nat import ALL_HOSTS, ALL_POOLS, NAT_POOLS
from felix.rules.sets import outermost, parse_net

VERSIONS = (4, 6)


class MasqManager:
    """Manager. There are few pools and at most some thousand nodes: the sets are made anew."""

    def __init__(self, wanted: WantedRuleset) -> None:
        self._wanted = wanted
        self._pools: dict[str, PoolUpdate] = {}
        self._hosts: dict[str, HostUpdate] = {}
        self._pools_changed = self._hosts_changed = False

    def on_intent(self, intent: Intent) -> None:
        if isinstance(intent, PoolUpdate):
            self._pools[intent.cidr] = intent
            self._pools_changed = True
        elif isinstance(intent, PoolRemove):
            self._pools.pop(intent.cidr, None)
            self._pools_changed = True
        elif isinstance(intent, HostUpdate):
            self._hosts[intent.node] = intent
            self._hosts_changed = True
        elif isinstance(intent, HostRemove):
            self._hosts.pop(intent.node, None)
            self._hosts_changed = True

    def complete_deferred_work(self) -> None:
        if self._pools_changed:
            everywhere = list(self._pools)
            translated = [cidr for cidr, pool in self._pools.items() if pool.nat_outgoing]
            for version in VERSIONS:
                self._put(ALL_POOLS[version].name, version, everywhere)
                self._put(NAT_POOLS[version].name, version, translated)
        if self._hosts_changed:
            addresses = [
                address
                for host in self._hosts.values()
                for address in (host.ipv4, host.ipv6)
                if address is not None
            ]
            for version in VERSIONS:
                self._put(ALL_HOSTS[version].name, version, addresses)
        self._pools_changed = self._hosts_changed = False

    def _put(self, name: str, version: int, nets: list[str]) -> None:
        parsed = [net[1:] for net in map(parse_net, nets) if net[0] == version]
        self._wanted.replace_members(name, frozenset(outermost(version, parsed)))
