"""Policy through a whole felix, on fakes: what stays, what goes, and what is not touched."""

from __future__ import annotations

import pytest

from libcalico.testing.fakenft_state import FakeChain
from libcalico.testing.fakenft_vm import Packet
from tests.support import calc
from tests.support.calc import rule
from tests.support.felix import FelixWorld, workload

A, B = "10.65.0.1/32", "10.65.0.2/32"
HTTP, OTHER = Packet("10.65.0.1", "10.65.0.2"), Packet("10.65.0.1", "10.65.0.2", dport=81)
DENY_TO_B = calc.np("no", selector="app == 'b'", ingress=(rule("Deny"),), types=("Ingress",))
MANY, FEW_RULES = 10_000, 50


@pytest.fixture
def world(tmp_path) -> FelixWorld:
    made = FelixWorld(tmp_path)
    for pod, address in (("a", A), ("b", B)):
        made.wire(pod)
        made.store(workload(pod, address, labels={"app": pod}))
    return made


def passes(world: FelixWorld, packet: Packet = HTTP) -> bool:
    return world.nft.forward(packet, "calia", "calib") == "accept"


def chains(world: FelixWorld) -> dict[str, FakeChain]:
    return {
        name: chain for table in world.nft.tables.values() for name, chain in table.chains.items()
    }


def handles(world: FelixWorld) -> dict[str, list[int]]:
    return {name: [rule.handle for rule in c.rules] for name, c in chains(world).items()}


# -- policies deleted while the datastore is away -------------------------------------------------


async def test_a_policy_deleted_while_the_datastore_is_away_stands_until_it_is_back(world):
    world.store(DENY_TO_B)
    async with world.running():
        assert not passes(world)
        world.datastore.partition()
        world.erase(DENY_TO_B)
        await world.settled()
        assert not passes(world), "nobody has said so yet"
        world.datastore.heal()
        await world.until(lambda: passes(world))


async def test_a_policy_deleted_while_felix_was_away_too_goes_after_in_sync_and_not_before(
    world, caplog
):
    world.store(DENY_TO_B)
    async with world.running():
        assert not passes(world)
    world.erase(DENY_TO_B)
    world.datastore.partition()
    async with world.running(in_sync=False):
        await world.until(lambda: "waiting for the datastore" in caplog.text)
        assert not passes(world)
        world.datastore.heal()
        await world.until(lambda: passes(world))
        assert not [name for name in chains(world) if "policy" in name]


async def test_a_policy_that_a_list_no_longer_shows_goes(world):
    world.store(DENY_TO_B)
    async with world.running():
        await world.list_again(lambda: world.erase(DENY_TO_B))
        await world.until(lambda: passes(world))


# -- many policies --------------------------------------------------------------------------------


async def test_ten_thousand_policies_of_nobody_here_are_few_rules(tmp_path):
    """Without a local endpoint fewer than 50 rules are in the kernel, and no set of theirs."""
    world = FelixWorld(tmp_path)
    allow = rule(source={"selector": "has(role)"}, destination={"nets": ("10.0.0.0/8",)})
    world.store(
        *(calc.np(f"p{n}", selector=f"app == 'a{n}'", ingress=(allow,)) for n in range(MANY)),
        *(calc.wep(f"w{n}", f"10.9.0.{n}", node="elsewhere", labels={"app": f"a{n}"})
          for n in range(100)),
    )  # fmt: skip
    async with world.running():
        await world.settled()
        found = chains(world)
        assert sum(len(chain.rules) for chain in found.values()) < FEW_RULES
        assert not [name for name in found if "policy" in name]
        assert world.felix.graph.dump()["handed_out"]["policies"] == 0
        assert world.felix.graph.dump()["sets"]["owners"] == 0
        world.wire("a")
        world.store(workload("a", A, labels={"app": "a7"}))
        await world.until(lambda: [name for name in chains(world) if "policy" in name])


# -- edits in place -------------------------------------------------------------------------------


def only(port: int, *, selector: str = "app == 'b'"):
    allow = rule(protocol="TCP", destination={"ports": (port,)})
    return calc.np("only", selector=selector, types=("Ingress",), ingress=(allow,))


async def test_an_edited_port_converges_in_its_own_chain(world):
    world.store(only(80))
    async with world.running():
        assert (passes(world, HTTP), passes(world, OTHER)) == (True, False)
        before = handles(world)
        world.store(only(81))
        await world.until(lambda: passes(world, OTHER))
        assert not passes(world, HTTP)
        after = handles(world)
    changed = {name for name in before if before[name] != after.get(name)}
    assert before.keys() == after.keys(), "no chain was renamed"
    assert len(changed) == 1
    assert "policy" in changed.pop()


async def test_an_edited_selector_moves_the_policy_to_whom_it_selects_now(world):
    world.store(only(80))
    async with world.running():
        assert not passes(world, OTHER)
        (name,) = [name for name in chains(world) if name.startswith("policy-in")]
        to_a = Packet("10.65.0.2", "10.65.0.1", dport=81)
        assert world.nft.forward(to_a, "calib", "calia") == "accept"
        rules = handles(world)[name]
        world.store(only(80, selector="app == 'a'"))
        await world.until(lambda: passes(world, OTHER))
        assert world.nft.forward(to_a, "calib", "calia") == "drop"
        assert handles(world)[name] == rules, "its own rules are the same, and were not touched"


async def test_an_edited_selector_of_a_rule_is_another_set_in_the_same_chain(world):
    def only_from(selector: str):
        allow = rule(source={"selector": selector})
        return calc.np("only", selector="app == 'b'", types=("Ingress",), ingress=(allow,))

    world.store(only_from("app == 'a'"))
    async with world.running():
        assert passes(world)
        before = handles(world)
        world.store(only_from("app == 'c'"))
        await world.until(lambda: not passes(world))
        assert handles(world).keys() == before.keys()
        world.store(workload("a", A, labels={"app": "c"}))
        await world.until(lambda: passes(world))
