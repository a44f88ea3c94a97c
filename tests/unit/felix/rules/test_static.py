"""felix.rules.static: the stages a packet of a workload goes through (datamodel 5.1, 5.4, 7)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from felix.rules.settings import DenyAction, HostAction, RuleSettings
from libcalico.testing.fakenft import FakeNft, Packet
from tests.support.nft import DENY, FakeNode, allow_all_profile, policy, tier, workload

A, B, HOST = "10.65.0.2", "10.65.0.3", "192.0.2.1"
A6, B6, HOST6 = "fd00::2", "fd00::3", "2001:db8::1"
LINK_LOCAL = "fe80::1234"


async def make(settings: RuleSettings | None = None, **more: object) -> FakeNode:
    node = FakeNode(settings)
    await node.push(
        allow_all_profile(),
        policy("deny", [DENY], [DENY]),
        workload("a", "cali1", f"{A}/32", f"{A6}/128", **more),  # type: ignore[arg-type]
        workload("b", "cali2", f"{B}/32", f"{B6}/128"),
        workload("shut", "cali3", "10.65.0.4/32", "fd00::4/128", tiers=(tier("deny"),)),
    )
    return node


@pytest.fixture
async def fake() -> FakeNft:
    return (await make()).fake


# ------------------------------------------------------------------- directions and two stages


@pytest.mark.parametrize(("src", "dst"), [(A, B), (A6, B6)])
def test_local_to_local_passes_both_policies(fake: FakeNft, src: str, dst: str):
    assert fake.forward(Packet(src, dst), "cali1", "cali2") == "accept"


@pytest.mark.parametrize(("src", "dst"), [(A, "10.65.0.4"), (A6, "fd00::4")])
def test_the_senders_accept_does_not_spare_the_receivers_policy(fake: FakeNft, src: str, dst: str):
    assert fake.forward(Packet(src, dst), "cali1", "cali3") == "drop"


@pytest.mark.parametrize(("src", "dst"), [("10.65.0.4", B), ("fd00::4", B6)])
def test_the_receivers_accept_does_not_make_up_for_the_senders_policy(
    fake: FakeNft, src: str, dst: str
):
    assert fake.forward(Packet(src, dst), "cali3", "cali2") == "drop"


@pytest.mark.parametrize(("src", "dst"), [(A, "198.51.100.7"), (A6, "2001:db8::7")])
def test_local_to_remote_and_back(fake: FakeNft, src: str, dst: str):
    assert fake.forward(Packet(src, dst), "cali1", "eth0") == "accept"
    assert fake.forward(Packet(dst, src), "eth0", "cali1") == "accept"
    assert fake.forward(Packet(dst, "10.65.0.4" if "." in dst else "fd00::4"), "eth0", "cali3") == (
        "drop"
    )


@pytest.mark.parametrize(("src", "dst"), [(HOST, "10.65.0.4"), (HOST6, "fd00::4")])
def test_the_host_to_its_own_workloads_is_not_policed(fake: FakeNft, src: str, dst: str):
    assert fake.originate(Packet(src, dst), "cali3") == "accept"


@pytest.mark.parametrize("state", ["new", "invalid", "untracked"])
def test_traffic_without_workloads_is_none_of_ours(fake: FakeNft, state: str):
    packet = Packet("198.51.100.7", "203.0.113.9", state=state)
    assert fake.forward(packet, "eth0", "docker0") == "accept"
    assert fake.deliver(packet, "eth0") == "accept"
    assert fake.originate(packet, "eth0") == "accept"


# --------------------------------------------------------------------------------- conntrack


@pytest.mark.parametrize("state", ["established", "related"])
def test_established_and_related_pass_before_policy(fake: FakeNft, state: str):
    for src, dst in (("10.65.0.4", A), ("fd00::4", A6)):
        assert fake.forward(Packet(src, dst, state=state), "cali3", "cali1") == "accept"
        assert fake.deliver(Packet(src, HOST, state=state), "cali3") == "accept"


async def test_invalid_is_dropped_unless_switched_off():
    packet = Packet(A, B, state="invalid")
    assert (await make()).fake.forward(packet, "cali1", "cali2") == "drop"
    tolerant = await make(RuleSettings(drops_invalid=False))
    assert tolerant.fake.forward(packet, "cali1", "cali2") == "accept"


# -------------------------------------------------------------------------------- antispoof


@pytest.mark.parametrize(
    ("src", "dst"), [(B, "198.51.100.7"), ("8.8.8.8", B), (B6, A6), ("2001:db8::66", B6)]
)
@pytest.mark.parametrize("state", ["new", "established"])
def test_a_stolen_source_is_dropped_even_within_a_connection(
    fake: FakeNft, src: str, dst: str, state: str
):
    assert fake.forward(Packet(src, dst, state=state), "cali1", "eth0") == "drop"
    assert fake.deliver(Packet(src, dst, state=state), "cali1") == "drop"


def test_anybody_else_may_use_any_source(fake: FakeNft):
    assert fake.forward(Packet("10.65.9.9", A), "eth0", "cali1") == "accept"


async def test_allowed_source_prefixes_count_when_spoofing_is_allowed():
    prefixes = ("172.16.0.0/12", "fd77::/16")
    for settings, expected in (
        (RuleSettings(allows_source_prefixes=True), "accept"),
        (RuleSettings(), "drop"),
    ):
        node = FakeNode(settings)
        endpoint = workload("a", "cali1", f"{A}/32", f"{A6}/128")
        await node.push(allow_all_profile(), replace(endpoint, allowed_source_prefixes=prefixes))
        for src, dst in (("172.16.5.5", "198.51.100.7"), ("fd77::5", "2001:db8::7")):
            assert node.fake.forward(Packet(src, dst), "cali1", "eth0") == expected
            assert node.fake.forward(Packet(src, dst), "cali9", "eth0") == "drop"


def test_an_unknown_workload_interface_is_closed_both_ways(fake: FakeNft):
    assert fake.forward(Packet(A, "198.51.100.7"), "cali9", "eth0") == "drop"
    assert fake.forward(Packet("198.51.100.7", A), "eth0", "cali9") == "drop"
    assert fake.forward(Packet("2001:db8::7", A6), "eth0", "cali9") == "drop"
    assert fake.deliver(Packet(A, HOST), "cali9") == "drop"


async def test_every_interface_prefix_is_policed():
    node = await make(RuleSettings(interface_prefixes=("cali", "tap")))
    assert node.fake.forward(Packet("198.51.100.7", A), "eth0", "tap7") == "drop"
    assert node.fake.forward(Packet("198.51.100.7", A), "eth0", "tun7") == "accept"


# ------------------------------------------------------------------------- workload to host


@pytest.mark.parametrize(
    ("action", "expected"),
    [(HostAction.DROP, "drop"), (HostAction.ACCEPT, "accept"), (HostAction.RETURN, "accept")],
)
async def test_the_default_endpoint_to_host_action_comes_after_egress_policy(
    action: HostAction, expected: str
):
    node = await make(RuleSettings(endpoint_to_host=action))
    for src, shut, dst in ((A, "10.65.0.4", HOST), (A6, "fd00::4", HOST6)):
        assert node.fake.deliver(Packet(src, dst), "cali1") == expected
        assert node.fake.deliver(Packet(shut, dst), "cali3") == "drop"


def icmpv6(src: str, kind: int, dst: str = "ff02::1") -> Packet:
    return Packet(src, dst, "icmpv6", icmp_type=kind, state="untracked")


@pytest.mark.parametrize("kind", [130, 131, 132, 133, 135, 136])
@pytest.mark.parametrize("src", [LINK_LOCAL, "fd00::4"])
def test_neighbour_discovery_reaches_the_host_before_policy(fake: FakeNft, kind: int, src: str):
    assert fake.deliver(icmpv6(src, kind), "cali3") == "accept"


def test_duplicate_address_detection_has_no_source_yet(fake: FakeNft):
    assert fake.deliver(icmpv6("::", 135), "cali3") == "accept"
    assert fake.deliver(icmpv6("::", 128), "cali3") == "drop"
    assert fake.deliver(Packet("::", HOST6, "udp"), "cali1") == "drop"


@pytest.mark.parametrize("kind", [134, 137])
@pytest.mark.parametrize("src", [LINK_LOCAL, A6])
async def test_router_advertisements_and_redirects_of_workloads_are_dropped(kind: int, src: str):
    open_host = await make(RuleSettings(endpoint_to_host=HostAction.ACCEPT))
    assert open_host.fake.deliver(icmpv6(src, 128), "cali1") == "accept"
    assert open_host.fake.deliver(icmpv6(src, kind), "cali1") == "drop"
    assert open_host.fake.forward(icmpv6(src, kind), "cali1", "cali2") == "drop"
    assert open_host.fake.deliver(icmpv6(src, kind), "eth0") == "accept"


def test_other_icmpv6_to_the_host_is_policed(fake: FakeNft):
    assert fake.deliver(icmpv6(LINK_LOCAL, 128), "cali1") == "drop"


async def test_dhcp_to_the_host_only_when_asked_for():
    dhcp = Packet("0.0.0.0", "255.255.255.255", "udp", sport=68, dport=67)
    dhcp6 = Packet(LINK_LOCAL, "ff02::1:2", "udp", sport=546, dport=547)
    without, with_dhcp = await make(), await make(RuleSettings(allows_dhcp_to_host=True))
    for packet in (dhcp, dhcp6):
        assert without.fake.deliver(packet, "cali3") == "drop"
        assert with_dhcp.fake.deliver(packet, "cali3") == "accept"
    stolen = Packet("0.0.0.0", "255.255.255.255", "udp", sport=68, dport=53)
    assert with_dhcp.fake.deliver(stolen, "cali1") == "drop"


# -------------------------------------------------------------------------------- tunnels


@pytest.mark.parametrize(
    "packet",
    [
        Packet(A, "198.51.100.7", "udp", dport=4789),
        Packet(A6, "2001:db8::7", "udp", dport=4789),
        Packet(A, "198.51.100.7", "ipip"),
    ],
)
async def test_tunnel_packets_of_workloads_are_dropped_unless_allowed(packet: Packet):
    node = await make()
    assert node.fake.forward(packet, "cali1", "eth0") == "drop"
    assert node.fake.deliver(packet, "cali1") == "drop"
    allowing = RuleSettings(allows_vxlan_from_workloads=True, allows_ipip_from_workloads=True)
    node = await make(allowing)
    assert node.fake.forward(packet, "cali1", "eth0") == "accept"


async def test_the_vxlan_port_is_configured():
    node = await make(RuleSettings(vxlan_port=8472))
    assert node.fake.forward(Packet(A, B, "udp", dport=8472), "cali1", "cali2") == "drop"
    assert node.fake.forward(Packet(A, B, "udp", dport=4789), "cali1", "cali2") == "accept"


# ---------------------------------------------------------------------------------- reject


async def test_denied_packets_are_rejected_when_configured():
    node = await make(RuleSettings(deny_action=DenyAction.REJECT))
    assert node.fake.forward(Packet(A, "10.65.0.4"), "cali1", "cali3") == "reject"
    assert node.fake.deliver(Packet(A, HOST), "cali1") == "reject"
    # A spoofed packet gets no answer: it would go to the one whose address was stolen.
    assert node.fake.forward(Packet(B, "10.65.0.4"), "cali1", "cali3") == "drop"
