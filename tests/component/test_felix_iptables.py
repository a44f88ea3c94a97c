"""felix as a whole with iptables as its dataplane, on fakes; and from one dataplane to another."""

from __future__ import annotations

import pytest

from libcalico.testing.fakenft_vm import Packet
from tests.support import calc
from tests.support.felix import FelixWorld, workload

A, B = "10.65.0.1/32", "10.65.0.2/32"
TO_B = Packet("10.65.0.1", "10.65.0.2")
ELSEWHERE = Packet("10.65.0.9", "10.65.0.2")  # nobody's address
DENY_TO_B = calc.np("no", selector="app == 'b'", ingress=(calc.rule("Deny"),), types=("Ingress",))


@pytest.fixture
def world(tmp_path) -> FelixWorld:
    made = FelixWorld(tmp_path, FELIX_NFTABLESMODE="Disabled")
    for pod, address in (("a", A), ("b", B)):
        made.wire(pod)
        made.store(workload(pod, address, labels={"app": pod}))
    return made


def passes(world: FelixWorld, packet: Packet = TO_B) -> bool:
    return world.iptables.forward(packet, "calia", "calib") == "accept"


async def test_policy_is_enforced_followed_and_kept_over_a_restart(world):
    async with world.running():
        assert world.routes() == {A, B}
        assert passes(world)
        assert not passes(world, ELSEWHERE)
        world.store(DENY_TO_B)
        await world.until(lambda: not passes(world))
    assert not passes(world), "a felix that ended leaves policy in place"
    assert world.nft.tables == {}
    world.iptables.scripts.clear()
    async with world.running():
        assert world.iptables.scripts == [], "the successor writes nothing"
        world.erase(DENY_TO_B)
        await world.until(lambda: passes(world))


async def test_a_lock_that_is_held_delays_and_loses_nothing(world):
    async with world.running():
        world.iptables.locked_calls = 2
        world.store(DENY_TO_B)
        await world.until(lambda: not passes(world))
        assert world.iptables.locked_calls == 0


async def test_a_host_endpoint_is_enforced(world):
    world.kernel.add_link("eth9")
    world.store(calc.hep("h", interface_name="eth9"))
    packet = Packet("192.0.2.7", "192.0.2.1", dport=80)
    async with world.running():
        await world.until(lambda: world.iptables.deliver(packet, "eth9") == "drop")
        ssh = Packet("192.0.2.7", "192.0.2.1", dport=22)
        assert world.iptables.deliver(ssh, "eth9") == "accept"


async def test_the_other_dataplane_is_removed_when_this_one_is_in_place(world):
    async with world.running():
        assert passes(world)
    world.environ["FELIX_NFTABLESMODE"] = "Auto"
    async with world.running():
        await world.until(lambda: not world.iptables.sets)
        assert world.nft.forward(TO_B, "calia", "calib") == "accept"
        assert world.nft.forward(ELSEWHERE, "calia", "calib") == "drop"
        chains = [name for table in world.iptables.tables.values() for name in table]
        assert not any(name.startswith("cali-") for name in chains)
        assert passes(world, ELSEWHERE), "nothing of ours is left there"
    world.environ["FELIX_NFTABLESMODE"] = "Disabled"
    async with world.running():
        await world.until(lambda: not world.nft.tables)
        assert passes(world)
        assert not passes(world, ELSEWHERE)
