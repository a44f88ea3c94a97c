"""felix.dataplane.nft_wiring: what is there before any intent."""

from __future__ import annotations

from felix.rules.settings import RuleSettings
from libcalico.testing.fakenft import Packet
from tests.support.nft import FakeNode

BASE_CHAINS = {
    "antispoof", "egress-forward", "ingress-forward", "egress-input", "to-host", "nat-outgoing",
}  # fmt: skip


def base_chains(node: FakeNode) -> set[str]:
    (table,) = node.fake.tables.values()
    return {chain.name for chain in table.chains.values() if chain.hook is not None}


async def test_an_empty_datastore_closes_workload_interfaces_and_nothing_else():
    node = FakeNode()
    await node.push()
    assert base_chains(node) == BASE_CHAINS
    assert node.fake.forward(Packet("10.0.0.1", "10.0.0.2"), "cali1", "eth0") == "drop"
    assert node.fake.forward(Packet("10.0.0.1", "10.0.0.2"), "eth0", "cali1") == "drop"
    assert node.fake.forward(Packet("10.0.0.1", "10.0.0.2"), "eth0", "eth1") == "accept"


async def test_floating_addresses_hang_only_when_switched_on():
    node = FakeNode(RuleSettings(translates_floating_ips=True))
    await node.push()
    assert base_chains(node) - BASE_CHAINS == {"floating-in", "floating-host", "floating-self"}


async def test_without_endpoints_there_are_fewer_than_50_rules():
    node = FakeNode()
    await node.push()
    (table,) = node.fake.tables.values()
    assert sum(len(chain.rules) for chain in table.chains.values()) < 50
