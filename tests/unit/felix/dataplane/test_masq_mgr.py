"""felix.dataplane.masq_mgr: pools and nodes into sets."""

from __future__ import annotations

from felix.dataplane.masq_mgr import MasqManager
from felix.dataplane.nft_wanted import WantedRuleset
from felix.intent import HostRemove, HostUpdate, Intent, PoolRemove, PoolUpdate
from felix.rules.nat import ALL_HOSTS, ALL_POOLS, NAT_POOLS, OUTGOING_SETS
from felix.rules.sets import net_element, parse_net


class Rig:
    def __init__(self) -> None:
        self.wanted = WantedRuleset()
        for spec in OUTGOING_SETS:
            self.wanted.want_set(spec)
        self.manager = MasqManager(self.wanted)

    def send(self, *intents: Intent) -> None:
        for intent in intents:
            self.manager.on_intent(intent)
        self.manager.complete_deferred_work()

    def holds(self, name: str, *nets: str) -> bool:
        return self.wanted.members[name].wanted == {net_element(*parse_net(net)) for net in nets}


def test_pools_are_sorted_by_family_and_by_nat():
    rig = Rig()
    rig.send(PoolUpdate("10.65.0.0/16", True), PoolUpdate("10.66.0.0/16", False))
    rig.send(PoolUpdate("fd00::/64", True))
    assert rig.holds(ALL_POOLS[4].name, "10.65.0.0/16", "10.66.0.0/16")
    assert rig.holds(NAT_POOLS[4].name, "10.65.0.0/16")
    assert rig.holds(ALL_POOLS[6].name, "fd00::/64")


def test_a_pool_inside_another_is_covered_by_it():
    rig = Rig()
    rig.send(PoolUpdate("10.65.0.0/16", False), PoolUpdate("10.65.7.0/24", True))
    assert rig.holds(ALL_POOLS[4].name, "10.65.0.0/16")
    assert rig.holds(NAT_POOLS[4].name, "10.65.7.0/24")
    rig.send(PoolRemove("10.65.0.0/16"))
    assert rig.holds(ALL_POOLS[4].name, "10.65.7.0/24")


def test_a_pool_may_change_its_mind():
    rig = Rig()
    rig.send(PoolUpdate("10.65.0.0/16", True))
    rig.send(PoolUpdate("10.65.0.0/16", False))
    assert rig.holds(NAT_POOLS[4].name)
    rig.send(PoolRemove("10.65.0.0/16"), PoolRemove("10.99.0.0/16"))
    assert rig.holds(ALL_POOLS[4].name)


def test_nodes_have_addresses_of_either_family():
    rig = Rig()
    rig.send(HostUpdate("a", "192.0.2.1", "2001:db8::1"), HostUpdate("b", None, None))
    assert rig.holds(ALL_HOSTS[4].name, "192.0.2.1/32")
    assert rig.holds(ALL_HOSTS[6].name, "2001:db8::1/128")
    rig.send(HostUpdate("a", "192.0.2.9", None))
    assert rig.holds(ALL_HOSTS[4].name, "192.0.2.9/32")
    assert rig.holds(ALL_HOSTS[6].name)
    rig.send(HostRemove("a"))
    assert rig.holds(ALL_HOSTS[4].name)
