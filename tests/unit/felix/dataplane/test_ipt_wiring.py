"""felix.dataplane.ipt_wiring: the managers of nftables, over iptables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from felix.dataplane.ipt_wiring import script
from felix.intent import DirectionLimits, NatMapping, QosControls, WorkloadEndpointUpdate
from felix.rules.settings import HostAction
from libcalico.testing.fakenft_vm import Packet
from tests.support.iptables import SETTINGS, FakeIptNode, with_settings
from tests.support.nft import allow_all_profile, workload

A = "10.65.0.2"


def pod(**fields: object) -> WorkloadEndpointUpdate:
    return replace(workload("a", "cali1", f"{A}/32", "fd00::2/128"), **fields)  # type: ignore[arg-type]


def test_the_rules_of_a_node_as_text():
    node = FakeIptNode()
    node.tell(allow_all_profile(), pod())
    text = script(node.table.wanted, SETTINGS)
    assert text.startswith("# ipset\ncreate cali40")
    headings = [line for line in text.splitlines() if line.startswith("# ")]
    assert headings == ["# ipset", *["# iptables"] * 3, *["# ip6tables"] * 3]
    assert "-A cali-from-wl-dispatch " in text
    assert "add cali40wl-sources 10.65.0.2,cali1" in text


async def test_a_workload_uses_its_own_addresses():
    node = FakeIptNode()
    await node.push(allow_all_profile(), pod())
    for own, other in ((A, "10.65.0.9"), ("fd00::2", "fd00::9")):
        remote = "8.8.8.8" if "." in own else "2001:db8::8"
        assert node.fake.forward(Packet(own, remote), "cali1", "eth0") == "accept"
        assert node.fake.forward(Packet(other, remote), "cali1", "eth0") == "drop"
    assert node.fake.forward(Packet(A, "8.8.8.8"), "cali9", "eth0") == "drop"


async def test_router_advertisements_go_nowhere_and_neighbours_are_heard():
    node = FakeIptNode()
    await node.push(allow_all_profile(), pod())
    for kind, verdict in ((134, "drop"), (135, "accept"), (133, "accept"), (128, "drop")):
        packet = Packet("fe80::1", "ff02::1", "icmpv6", icmp_type=kind)
        assert node.fake.deliver(packet, "cali1") == verdict, kind


@pytest.mark.parametrize(
    ("action", "verdict"),
    [(HostAction.DROP, "drop"), (HostAction.ACCEPT, "accept"), (HostAction.RETURN, "drop")],
)
async def test_a_workload_and_its_host(action: HostAction, verdict: str):
    """RETURN leaves it to the host's own rules, which drop here."""
    node = FakeIptNode(with_settings(endpoint_to_host=action))
    node.fake.table("filter")["INPUT"].append("-j DROP")
    await node.push(allow_all_profile(), pod())
    assert node.fake.deliver(Packet(A, "192.0.2.1"), "cali1") == verdict


async def test_established_packets_pass_and_invalid_ones_do_not():
    node = FakeIptNode()
    await node.push(pod(profiles=()))
    for state, verdict in (("new", "drop"), ("established", "accept"), ("related", "accept")):
        assert node.fake.forward(Packet("8.8.8.8", A, state=state), "eth0", "cali1") == verdict
    await node.push(allow_all_profile(), pod())
    invalid = Packet("8.8.8.8", A, state="invalid")
    assert node.fake.forward(invalid, "eth0", "cali1") == "drop"


async def test_a_packet_between_two_workloads_needs_both_to_agree():
    node = FakeIptNode()
    b = workload("b", "cali2", "10.65.0.3/32", profiles=())
    await node.push(allow_all_profile(), pod(), b)
    assert node.fake.forward(Packet(A, "10.65.0.3"), "cali1", "cali2") == "drop"
    assert node.fake.forward(Packet("10.65.0.3", A), "cali2", "cali1") == "drop"
    await node.push(workload("b", "cali2", "10.65.0.3/32"))
    assert node.fake.forward(Packet(A, "10.65.0.3"), "cali1", "cali2") == "accept"


async def test_other_traffic_of_the_host_is_not_ours():
    node = FakeIptNode()
    await node.push(allow_all_profile(), pod())
    node.fake.table("filter")["FORWARD"].append("-j DROP")
    assert node.fake.forward(Packet("1.1.1.1", "2.2.2.2"), "eth0", "eth1") == "drop"
    assert node.fake.forward(Packet("1.1.1.1", A), "eth0", "cali1") == "accept"


async def test_qos_controls_are_rules_of_iptables():
    qos = QosControls(
        DirectionLimits(packets_per_s=10, packet_burst=5, connections=3), DirectionLimits(), dscp=46
    )
    node = FakeIptNode()
    await node.push(allow_all_profile(), pod(qos=qos))
    assert node.fake.forward(Packet(A, "8.8.8.8"), "cali1", "eth0") == "accept"
    assert "DSCP 0x2e" in node.fake.effects
    node.fake.over_limit = True
    directions = {
        node.fake.forward(Packet(A, "8.8.8.8"), "cali1", "eth0"),
        node.fake.forward(Packet("8.8.8.8", A), "eth0", "cali1"),
    }
    assert directions == {"accept", "drop"}
    await node.push(pod())
    assert "cali-FORWARD" not in node.fake.table("mangle")


async def test_floating_addresses():
    node = FakeIptNode(with_settings(translates_floating_ips=True))
    await node.push(allow_all_profile(), pod(nats=(NatMapping(A, "1.2.3.4"),)))
    node.fake.forward(Packet("8.8.8.8", "1.2.3.4"), "eth0", "cali1")
    assert node.fake.effects == [f"DNAT {A}"]
    node.fake.forward(Packet(A, A), "cali1", "cali1")
    assert node.fake.effects[-1] == "SNAT 1.2.3.4"
