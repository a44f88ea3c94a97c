"""confd.peers: each row of Calico's session rules (reference/bgp.md 6), v4 and v6."""

from __future__ import annotations

import pytest

from confd.peers import PeerCalculator, Session, split_peer_ip
from confd.view import DatastoreView
from libcalico.model import BGPConfiguration, BGPPeer, Node
from libcalico.model.bgp import (
    BGPConfigurationSpec,
    BGPPassword,
    BGPPeerSpec,
    SecretKeySelector,
)
from libcalico.model.keys import key_of
from libcalico.model.meta import ObjectMeta, Resource
from libcalico.model.node import NodeBGPSpec, NodeSpec
from libcalico.syncer.api import Update


def node(
    name: str, ipv4: str | None = None, *, labels: dict[str, str] | None = None, **bgp
) -> Node:
    spec = NodeBGPSpec(ipv4_address=ipv4, **bgp)
    return Node(metadata=ObjectMeta(name=name, labels=labels or {}), spec=NodeSpec(bgp=spec))


def config(name: str = "default", **spec) -> BGPConfiguration:
    return BGPConfiguration(metadata=ObjectMeta(name=name), spec=BGPConfigurationSpec(**spec))


def peer(name: str, **spec) -> BGPPeer:
    return BGPPeer(metadata=ObjectMeta(name=name), spec=BGPPeerSpec(**spec))


def view_of(*resources: Resource) -> DatastoreView:
    view = DatastoreView()
    view.on_updates([Update(key_of(resource), resource, 1) for resource in resources])
    return view


def sessions(me: str, *resources: Resource, secrets=lambda name, key: None) -> dict[str, Session]:
    found = PeerCalculator(view_of(*resources), me, secrets).sessions()
    return {session.name: session for session in found}


THREE = (
    node("a", "192.0.2.9/24", ipv6_address="2001:db8::9/64"),
    node("b", "192.0.2.10/24", ipv6_address="2001:db8::a/64"),
    node("c", "192.0.2.11/24", labels={"rr": "yes"}),
)


def test_the_mesh_has_every_other_node_in_every_common_family():
    found = sessions("a", *THREE)
    assert sorted(found) == ["Mesh_192_0_2_10", "Mesh_192_0_2_11", "Mesh_2001_db8__a"]
    session = found["Mesh_2001_db8__a"]
    assert (session.local_address, session.version) == ("2001:db8::9", 6)
    assert (session.remote_as, session.local_as, session.port) == (64512, 64512, 179)


def test_the_address_smaller_as_text_connects():
    # "192.0.2.9" > "192.0.2.10" as strings: Calico compares text, so we must as well.
    assert not sessions("a", *THREE)["Mesh_192_0_2_10"].passive
    assert sessions("b", *THREE)["Mesh_192_0_2_9"].passive


def test_exactly_one_side_of_every_mesh_session_connects():
    for one, other in (("a", "b"), ("b", "c"), ("a", "c")):
        by_address = {s.address: s for s in sessions(one, *THREE).values()}
        back = {s.address: s for s in sessions(other, *THREE).values()}
        for address, session in by_address.items():
            if session.local_address in back and address in {
                s.local_address for s in back.values()
            }:
                assert session.passive != back[session.local_address].passive


def test_the_mesh_can_be_switched_off():
    assert sessions("a", *THREE, config(node_to_node_mesh_enabled=False)) == {}


def test_a_route_reflector_takes_no_part_in_the_mesh():
    reflector = node("rr", "192.0.2.99/24", route_reflector_cluster_id="244.0.0.1")
    assert "Mesh_192_0_2_99" not in sessions("a", *THREE, reflector)
    assert sessions("rr", *THREE, reflector) == {}


def test_as_numbers_and_ports_come_from_the_node_and_then_the_cluster():
    far = node("d", "192.0.2.12/24", as_number=65001)
    settings = config(as_number=64999, listen_port=1179)
    own = config("node.d", listen_port=2179)
    found = sessions("a", *THREE, far, settings, own)
    assert (found["Mesh_192_0_2_12"].remote_as, found["Mesh_192_0_2_12"].port) == (65001, 2179)
    assert (found["Mesh_192_0_2_10"].remote_as, found["Mesh_192_0_2_10"].port) == (64999, 1179)


def test_a_node_without_bgp_has_no_sessions_and_gets_none():
    bare = Node(metadata=ObjectMeta(name="bare"))
    assert sessions("bare", *THREE, bare) == {}
    assert len(sessions("a", *THREE, bare)) == 3
    assert sessions("unknown", *THREE) == {}


def test_a_global_peer_is_for_every_node_and_wins_over_a_specific_one():
    both = (
        peer("all", peer_ip="198.51.100.1", as_number=65000),
        peer("mine", peer_ip="198.51.100.1", as_number=65009, node="a"),
    )
    for name in ("a", "b"):
        found = sessions(name, *THREE, *both)
        assert found["Global_198_51_100_1"].remote_as == 65000
        assert "Node_198_51_100_1" not in found


def test_a_node_peer_is_for_its_node_only_and_a_selector_for_the_matching():
    one = peer("one", peer_ip="198.51.100.1:1790", as_number=65000, node="a")
    some = peer("some", peer_ip="198.51.100.2", as_number=65000, node_selector="rr == 'yes'")
    assert sessions("a", *THREE, one, some)["Node_198_51_100_1_port_1790"].port == 1790
    assert "Node_198_51_100_2" in sessions("c", *THREE, one, some)
    assert not {"Node_198_51_100_1_port_1790", "Node_198_51_100_2"} & set(
        sessions("b", *THREE, one, some)
    )


def test_a_peer_selector_peers_both_ways_unless_reverse_peering_is_manual():
    mesh_off = config(node_to_node_mesh_enabled=False)
    to_rr = peer("to-rr", node_selector="!has(rr)", peer_selector="has(rr)")
    assert set(sessions("a", *THREE, mesh_off, to_rr)) == {"Node_192_0_2_11"}
    assert set(sessions("c", *THREE, mesh_off, to_rr)) == {"Node_192_0_2_9", "Node_192_0_2_10"}
    manual = peer(
        "to-rr", node_selector="!has(rr)", peer_selector="has(rr)", reverse_peering="Manual"
    )
    assert sessions("c", *THREE, mesh_off, manual) == {}


def test_a_reflector_reflects_to_peers_of_its_as_with_no_or_another_cluster_id():
    mesh_off = config(node_to_node_mesh_enabled=False)
    nodes = (
        node("rr1", "192.0.2.1/24", route_reflector_cluster_id="1.0.0.1", labels={"rr": "1"}),
        node("rr2", "192.0.2.2/24", route_reflector_cluster_id="1.0.0.1", labels={"rr": "1"}),
        node("rr3", "192.0.2.3/24", route_reflector_cluster_id="1.0.0.3", labels={"rr": "1"}),
        node("w", "192.0.2.4/24"),
        node("x", "192.0.2.5/24", as_number=65001),
    )
    everyone = peer("rrs", node_selector="all()", peer_selector="has(rr)")
    found = sessions("rr1", *nodes, mesh_off, everyone)
    reflected = {name: session.rr_client for name, session in found.items()}
    assert reflected == {
        "Node_192_0_2_2": False,
        "Node_192_0_2_3": True,
        "Node_192_0_2_4": True,
        "Node_192_0_2_5": False,
    }
    assert not any(session.rr_client for session in sessions("w", *nodes, everyone).values())


def test_own_addresses_are_never_peers():
    found = sessions("a", *THREE, peer("self", peer_ip="192.0.2.9", as_number=65000))
    assert "Global_192_0_2_9" not in found


def test_timers_and_options_reach_the_session():
    options = peer(
        "x",
        peer_ip="198.51.100.1",
        as_number=65000,
        keepalive_time="20s",
        max_restart_time="1m30s",
        ttl_security=3,
        next_hop_mode="Self",
        local_as_number=65100,
        num_allowed_local_as_numbers=2,
        filters=("f",),
        source_address="None",
    )
    session = sessions("a", *THREE, options)["Global_198_51_100_1"]
    assert (session.hold_s, session.restart_s, session.ttl_security) == (60, 90, 3)
    assert (session.next_hop_mode, session.local_as, session.allowed_local_as) == ("Self", 65100, 2)
    assert (session.filters, session.local_address) == (("f",), "")


def password(*, optional: bool | None = None) -> BGPPassword:
    return BGPPassword(secret_key_ref=SecretKeySelector(name="bgp", key="rack1", optional=optional))


def calculated(me: str, *resources: Resource, secret: str | None = None):
    calculator = PeerCalculator(view_of(*resources), me, lambda name, key: secret)
    return {session.name: session for session in calculator.sessions()}, calculator.warnings


def test_a_password_is_looked_up_by_secret_and_key():
    secured = peer("x", peer_ip="198.51.100.1", as_number=65000, password=password())
    vault = {("bgp", "rack1"): "s3cret"}
    found = sessions("a", *THREE, secured, secrets=lambda n, k: vault.get((n, k)))
    assert found["Global_198_51_100_1"].password == "s3cret"
    assert found["Mesh_192_0_2_10"].password is None


@pytest.mark.parametrize("secret", [None, ""])
def test_a_session_without_its_password_is_left_out_and_the_others_stay(secret):
    secured = peer("x", peer_ip="198.51.100.1", as_number=65000, password=password())
    plain = peer("y", peer_ip="198.51.100.2", as_number=65000)
    found, warnings = calculated("a", *THREE, secured, plain, secret=secret)
    assert "Global_198_51_100_1" not in found
    assert {"Global_198_51_100_2", "Mesh_192_0_2_10"} <= set(found)
    assert [w for w in warnings if "Global_198_51_100_1" in w and "rack1 of secret bgp" in w]


def test_nothing_without_a_password_takes_the_place_of_a_session_that_lacks_it():
    """The mesh, or a node-specific peer, of the same address would run in the open."""
    own = peer("own", peer_ip="192.0.2.10", as_number=64512, node="a")
    secured = peer("x", peer_ip="192.0.2.10", as_number=64512, password=password())
    found, _ = calculated("a", *THREE, secured, own)
    assert sorted(found) == ["Mesh_192_0_2_11", "Mesh_2001_db8__a"]


def test_an_optional_password_may_be_missing_but_is_used_when_there():
    optional = peer("x", peer_ip="198.51.100.1", password=password(optional=True))
    found, warnings = calculated("a", *THREE, optional)
    assert (found["Global_198_51_100_1"].password, warnings) == (None, [])
    found, _ = calculated("a", *THREE, optional, secret="s3cret")
    assert found["Global_198_51_100_1"].password == "s3cret"
    required = peer("x", peer_ip="198.51.100.1", password=password(optional=False))
    assert "Global_198_51_100_1" not in calculated("a", *THREE, required)[0]


def test_the_mesh_does_not_run_without_its_password():
    settings = config(node_mesh_password=password())
    found, warnings = calculated("a", *THREE, settings)
    assert found == {}
    assert len(warnings) == 3
    found, _ = calculated("a", *THREE, settings, secret="s3cret")
    assert {session.password for session in found.values()} == {"s3cret"}


def test_a_bad_address_or_duration_costs_itself_only():
    broken = node("broken", "192.0.2.300/24", ipv6_address="2001:db8::b/64")
    settings = config(node_mesh_max_restart_time="soon")
    found, warnings = calculated("a", *THREE, broken, settings)
    assert sorted(found) == [
        "Mesh_192_0_2_10",
        "Mesh_192_0_2_11",
        "Mesh_2001_db8__a",
        "Mesh_2001_db8__b",
    ]
    assert {session.restart_s for session in found.values()} == {120}
    assert [warning.partition(":")[0] for warning in warnings] == [
        "Node(broken)",
        "BGPConfiguration(default)",
    ]


def test_a_bad_selector_or_address_costs_only_its_own_peer():
    broken = peer("broken", peer_ip="not-an-address", as_number=1)
    worse = peer("worse", node_selector="==", peer_ip="198.51.100.2", as_number=1)
    good = peer("good", peer_ip="198.51.100.1", as_number=65000)
    timer = peer("timer", peer_ip="198.51.100.3", as_number=1, keepalive_time="often")
    everything = view_of(*THREE, broken, worse, timer, good)
    calculator = PeerCalculator(everything, "a", lambda n, k: None)
    assert "Global_198_51_100_1" in {session.name for session in calculator.sessions()}
    assert [warning.partition(":")[0] for warning in calculator.warnings] == [
        "BGPPeer(broken)",
        "BGPPeer(timer)",
        "BGPPeer(worse)",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("192.0.2.1", ("192.0.2.1", 179)),
        ("192.0.2.1:1179", ("192.0.2.1", 1179)),
        ("2001:DB8::0:1", ("2001:db8::1", 179)),
        ("[2001:db8::1]:1179", ("2001:db8::1", 1179)),
        ("[2001:db8::1]", ("2001:db8::1", 179)),
    ],
)
def test_peer_addresses_are_parsed_in_every_form(text, expected):
    assert split_peer_ip(text) == expected


@pytest.mark.parametrize("text", ["", "192.0.2.1:0", "192.0.2.1:x", "[2001:db8::1", "[::1]x", "a"])
def test_a_bad_peer_address_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        split_peer_ip(text)
