"""bgp.rib.rib: the front door, one behaviour at a time (the property test covers the mixtures)."""

from __future__ import annotations

import msgspec
import pytest

from bgp.rib.attributes import PathAttributes, encode
from bgp.rib.nlri import FAMILIES, IPV4, IPV6, parse
from bgp.rib.path import LocalRoute
from bgp.rib.peer import GracefulRestart
from bgp.rib.rib import Rib
from bgp.rib.update import HEADER_BYTES, end_of_rib
from libcalico.errors import ConfigError, WireError
from libcalico.model.bgp_filter import BGPFilterRuleV4
from libcalico.model.speaker import Filter, LocalBlock
from tests.unit.bgp.builders import Wire, bodies, config, options, packed, route, sequence, speaker

CLIENT = {"rr_client": True, "cluster_id": "9.9.9.9"}
REJECT_ALL = Filter(name="none", import_v4=(BGPFilterRuleV4(action="Reject"),))
RESTART = GracefulRestart(60, frozenset(FAMILIES), frozenset(FAMILIES))
V4, V6 = "10.65.1.0/26", "fd65::100/122"


def selected(rib: Rib, cidr: str) -> list[str]:
    family, nlri = parse(cidr)
    return [path.source.name for path in rib.tables[family].selected.get(nlri, ())]


def settle(rib: Rib, *wires: Wire) -> None:
    rib.flush()
    for wire in wires:
        wire.listen()
    rib.check()


# -- a node in a mesh


def test_blocks_are_announced_with_our_next_hop_and_calicos_preference():
    rib, (wire,) = speaker(options("10.0.0.2"), blocks=(LocalBlock(cidr=V4), LocalBlock(cidr=V6)))
    settle(rib, wire)
    assert wire.holds == {
        V4: PathAttributes(next_hop=packed("10.0.0.1"), local_pref=2**31 - 1 - 1024),
        V6: PathAttributes(next_hop=packed("fd00::1"), local_pref=2**31 - 1 - 1024),
    }
    assert sorted(wire.ends) == ["ipv4", "ipv6"]


def test_a_mesh_is_not_reflected():
    rib, (one, two) = speaker(options("10.0.0.2"), options("10.0.0.3"))
    one.announce(V4)
    settle(rib, one, two)
    assert selected(rib, V4) == ["p10.0.0.2"]
    assert two.holds == {}


def test_workloads_inside_our_blocks_are_covered_and_borrowed_ones_announced():
    rib, (wire,) = speaker(options("10.0.0.2"), blocks=(LocalBlock(cidr=V4),))
    for cidr in ("10.65.1.5/32", "10.65.9.9/32", "10.77.0.1/32"):
        rib.set_local(*parse(cidr), LocalRoute("workload", interface="cali1"))
    settle(rib, wire)
    assert set(wire.holds) == {V4, "10.65.9.9/32"}
    rib.set_local(*parse("10.65.9.9/32"), None)
    rib.set_local(*parse("10.65.1.5/32"), LocalRoute("workload", metric=512, interface="cali1"))
    settle(rib, wire)
    assert set(wire.holds) == {V4, "10.65.1.5/32"}
    assert wire.holds["10.65.1.5/32"].local_pref == 2**31 - 1 - 512


def test_a_block_of_one_address_is_the_workload_once_there_is_one():
    rib, (wire,) = speaker(options("10.0.0.2"), blocks=(LocalBlock(cidr="10.65.1.5/32"),))
    key = parse("10.65.1.5/32")
    settle(rib, wire)
    rib.set_local(*key, LocalRoute("workload", interface="cali1"))
    rib.flush()
    (path,) = rib.tables[IPV4].selected[key[1]]
    assert path.local == LocalRoute("workload", interface="cali1")
    rib.set_local(*key, None)
    settle(rib, wire)
    assert set(wire.holds) == {"10.65.1.5/32"}


# -- reflection


def test_a_reflector_tells_clients_and_others():
    rib, (one, two, other) = speaker(
        options("10.0.0.2", **CLIENT), options("10.0.0.3", **CLIENT), options("10.0.0.9")
    )
    one.announce(V4)
    one.announce(V6, next_hop="fd00::2")
    other.announce("10.65.9.0/26")
    settle(rib, one, two, other)
    told = PathAttributes(
        next_hop=packed("10.0.0.2"),
        local_pref=100,
        originator_id=packed("10.0.0.2"),
        cluster_list=(packed("9.9.9.9"),),
    )
    assert two.holds[V4] == other.holds[V4] == told
    assert set(two.holds) == {V4, V6, "10.65.9.0/26"}
    assert set(one.holds) == {"10.65.9.0/26"}
    assert set(other.holds) == {V4, V6}


def test_the_better_path_moves_and_the_winner_forgets_its_copy():
    rib, (one, two, three) = speaker(*(options(f"10.0.0.{n}", **CLIENT) for n in (2, 3, 4)))
    one.announce(V4)
    settle(rib, one, two, three)
    two.announce(V4, local_pref=200)
    settle(rib, one, two, three)
    assert one.holds[V4].next_hop == packed("10.0.0.3")
    assert two.holds == {}
    assert three.holds[V4].next_hop == packed("10.0.0.3")
    two.withdraw(V4)
    settle(rib, one, two, three)
    assert one.holds == {}
    assert two.holds[V4].next_hop == three.holds[V4].next_hop == packed("10.0.0.2")


def test_a_dead_client_is_withdrawn_everywhere():
    rib, (one, two) = speaker(options("10.0.0.2", **CLIENT), options("10.0.0.3", **CLIENT))
    one.announce(*(f"10.65.{n}.0/26" for n in range(200)))
    settle(rib, one, two)
    assert len(two.holds) == 200
    rib.session_down(one.peer, may_restart=True, now=1)
    settle(rib, two)
    assert two.holds == {}


def test_single_prefix_updates_leave_in_full_messages():
    rib, (one, two) = speaker(options("10.0.0.2", **CLIENT), options("10.0.0.3", **CLIENT))
    settle(rib, one, two)
    two.messages.clear()
    for n in range(200):
        one.announce(f"10.65.{n}.0/26")
    settle(rib, one, two)
    assert len(two.holds) == 200
    assert len(two.messages) == 1


LOOPS = {
    "our own AS": {"as_path": sequence(65001, 64512)},
    "our originator id": {"originator_id": packed("10.0.0.1")},
    "our cluster": {"cluster_list": (packed("9.9.9.9"),)},
    "our next hop": {"next_hop": "10.0.0.1"},
    "no next hop": {"next_hop": "0.0.0.0"},
    "a group as next hop": {"next_hop": "224.0.0.1"},
}


@pytest.mark.parametrize("changes", LOOPS.values(), ids=LOOPS.keys())
def test_what_comes_back_to_us_is_ignored_and_the_session_stays(changes):
    rib, (one, two) = speaker(options("10.0.0.2", **CLIENT), options("10.0.0.3", **CLIENT))
    one.announce(V4)
    settle(rib, one, two)
    one.announce(V4, **changes)  # replaces the good one
    settle(rib, one, two)
    assert selected(rib, V4) == []
    assert two.holds == {}
    assert one.peer.received() == 1


def test_our_as_may_be_allowed():
    rib, (one,) = speaker(options("10.0.0.2", allowed_local_as=1))
    one.announce(V4, as_path=sequence(64512))
    one.announce("10.65.2.0/26", as_path=sequence(64512, 64512))
    settle(rib, one)
    assert selected(rib, V4) == ["p10.0.0.2"]
    assert selected(rib, "10.65.2.0/26") == []


# -- external peers


def test_what_an_external_peer_may_not_say_is_not_heard():
    rib, (outside, inside) = speaker(options("10.0.0.2", remote_as=65001), options("10.0.0.3"))
    outside.announce(
        V4,
        as_path=sequence(65001),
        local_pref=900,
        originator_id=packed("10.0.0.1"),
        cluster_list=(packed("9.9.9.9"),),
    )
    settle(rib, outside, inside)
    assert inside.holds[V4] == route(as_path=sequence(65001))


def test_equal_paths_share_the_load():
    rib, wires = speaker(options("10.0.0.2"), options("10.0.0.3"))
    for wire in wires:
        wire.announce(V4)
    settle(rib, *wires)
    assert selected(rib, V4) == ["p10.0.0.2", "p10.0.0.3"]


def test_an_unreachable_next_hop_is_passed_over_until_it_is_back():
    rib, (one, two) = speaker(options("10.0.0.2"), options("10.0.0.3"))
    one.announce(V4, local_pref=200)
    two.announce(V4)
    assert set(rib.next_hops.take_fresh()) == {packed("10.0.0.2"), packed("10.0.0.3")}
    assert rib.next_hops.take_fresh() == []
    rib.set_reachable(packed("10.0.0.2"), reachable=False)
    settle(rib, one, two)
    assert selected(rib, V4) == ["p10.0.0.3"]
    rib.set_reachable(packed("10.0.0.2"), reachable=True)
    (change,) = rib.flush()
    assert [path.source.name for path in change.paths] == ["p10.0.0.2"]


# -- bad messages


def test_rfc_7606_treat_as_withdraw_keeps_session_and_other_routes():
    rib, (one,) = speaker(options("10.0.0.2"))
    one.announce(V4, "10.65.2.0/26")
    settle(rib, one)
    (good,) = bodies([V4], route())
    broken = good.replace(bytes.fromhex("40010100"), bytes.fromhex("40010109"))
    rib.receive(one.peer, broken)
    settle(rib, one)
    assert selected(rib, V4) == []
    assert selected(rib, "10.65.2.0/26") == ["p10.0.0.2"]
    assert one.peer.counters.malformed == 1
    assert "ORIGIN" in one.peer.counters.last_malformed


MISSING = {
    "ORIGIN": "40010100",
    "AS_PATH": "400200",
    "NEXT_HOP": "4003040a000002",
    "LOCAL_PREF": "40050400000064",
}


@pytest.mark.parametrize("name", MISSING)
def test_a_route_without_a_mandatory_attribute_is_withdrawn(name):
    rib, (one,) = speaker(options("10.0.0.2"))
    section = encode(route(), asn4=True, with_next_hop=True)
    less = section.replace(bytes.fromhex(MISSING[name]), b"")
    assert len(less) < len(section)
    one.announce(V4)
    rib.receive(one.peer, b"\0\0" + len(less).to_bytes(2, "big") + less + parse(V4)[1])
    settle(rib, one)
    assert selected(rib, V4) == []
    assert name in one.peer.counters.last_malformed


def test_an_unreadable_message_resets_the_session():
    rib, (one,) = speaker(options("10.0.0.2"))
    with pytest.raises(WireError):
        rib.receive(one.peer, b"\0\0\0\0\x21")


def test_martians_are_counted_and_ignored():
    rib, (one,) = speaker(options("10.0.0.2"))
    one.announce("127.0.0.0/8", "224.1.0.0/16", V4)
    settle(rib, one)
    assert one.peer.received() == 1
    assert one.peer.counters.martians == 2


def test_a_family_that_was_not_negotiated_is_not_heard():
    rib = Rib(config(options("10.0.0.2")), now=0)
    wire = Wire(rib, "10.0.0.2").up(families=(IPV4,))
    wire.announce(V6, next_hop="fd00::2")
    settle(rib, wire)
    assert selected(rib, V6) == []


def test_version_4_over_a_version_6_next_hop():
    """RFC 8950, both ways."""
    rib = Rib(config(options("fd00::2", **CLIENT), options("fd00::3", **CLIENT)), now=0)
    one, two = (Wire(rib, a).up(extended_next_hop=True) for a in ("fd00::2", "fd00::3"))
    for body in bodies([V4], route("fd00::2")):
        rib.receive(one.peer, body)
    settle(rib, one, two)
    assert two.holds[V4].next_hop == packed("fd00::2")


# -- graceful restart


def restarting(**changes) -> tuple[Rib, Wire, Wire]:
    peers = options("10.0.0.2", **CLIENT, **changes), options("10.0.0.3", **CLIENT)
    rib = Rib(config(*peers), now=0)
    one = Wire(rib, "10.0.0.2").up(restart=RESTART)
    two = Wire(rib, "10.0.0.3").up()
    one.announce(V4, "10.65.2.0/26")
    settle(rib, one, two)
    return rib, one, two


def test_a_peer_that_restarts_keeps_its_routes_until_it_has_spoken():
    rib, one, two = restarting()
    rib.session_down(one.peer, may_restart=True, now=10)
    rib.tick(60)
    settle(rib, two)
    assert set(two.holds) == {V4, "10.65.2.0/26"}
    before = len(two.messages)
    one.up(restart=RESTART, now=60)
    one.announce(V4)
    settle(rib, one, two)
    assert set(two.holds) == {V4, "10.65.2.0/26"}
    rib.receive(one.peer, end_of_rib(IPV4)[HEADER_BYTES:])
    settle(rib, one, two)
    assert set(two.holds) == {V4}
    assert len(two.messages) == before + 1  # the withdrawal; the route itself never moved


def test_routes_are_kept_for_the_families_of_the_first_open_whatever_its_flags():
    """A speaker that has not restarted yet announces no preserved forwarding state (BIRD)."""
    rib, one, two = restarting()
    rib.session_down(one.peer, may_restart=False, now=1)
    one.up(restart=GracefulRestart(60, frozenset({IPV4})), now=2)
    one.announce(V4)
    one.announce(V6, next_hop="fd00::2")
    rib.session_down(one.peer, may_restart=True, now=3)
    settle(rib, two)
    assert set(two.holds) == {V4}


def test_the_restart_time_ends_the_wait():
    rib, one, two = restarting()
    rib.session_down(one.peer, may_restart=True, now=10)
    rib.tick(69)
    settle(rib, two)
    assert len(two.holds) == 2
    rib.tick(70)
    settle(rib, two)
    assert two.holds == {}


def test_a_peer_that_never_says_end_of_rib_is_swept_in_the_end():
    rib, one, two = restarting()
    rib.session_down(one.peer, may_restart=True, now=10)
    one.up(restart=RESTART, now=20)
    one.announce(V4)
    rib.tick(139)
    settle(rib, one, two)
    assert len(two.holds) == 2
    rib.tick(140)
    settle(rib, one, two)
    assert set(two.holds) == {V4}


@pytest.mark.parametrize(
    "back",
    [
        None,
        GracefulRestart(60, frozenset(FAMILIES)),
        GracefulRestart(60, frozenset(FAMILIES), frozenset({IPV6})),
    ],
    ids=["without", "forwarding lost", "other family"],
)
def test_a_peer_that_comes_back_without_its_forwarding_state(back):
    rib, one, two = restarting()
    rib.session_down(one.peer, may_restart=True, now=10)
    one.up(restart=back, now=20)
    settle(rib, one, two)
    assert two.holds == {}


def test_a_second_loss_drops_what_was_not_confirmed_since_the_first():
    rib, one, two = restarting()
    rib.session_down(one.peer, may_restart=True, now=10)
    one.up(restart=RESTART, now=20)
    one.announce(V4)
    rib.session_down(one.peer, may_restart=True, now=30)
    settle(rib, two)
    assert set(two.holds) == {V4}


def test_a_notification_ends_it_at_once():
    rib, one, two = restarting()
    rib.session_down(one.peer, may_restart=False, now=10)
    settle(rib, two)
    assert two.holds == {}


def test_graceful_restart_can_be_off():
    rib, one, two = restarting(restart_time_s=0)
    rib.session_down(one.peer, may_restart=True, now=10)
    settle(rib, two)
    assert two.holds == {}


def test_a_reflector_that_restarts_says_end_of_rib_when_all_have_spoken():
    rib = Rib(config(options("10.0.0.2", **CLIENT), options("10.0.0.3", **CLIENT)), now=0)
    one = Wire(rib, "10.0.0.2").up(restart=RESTART)
    one.announce(V4)
    rib.receive(one.peer, end_of_rib(IPV4)[HEADER_BYTES:])
    rib.receive(one.peer, end_of_rib(IPV6)[HEADER_BYTES:])
    two = Wire(rib, "10.0.0.3").up(restart=RESTART)
    rib.tick(1)
    settle(rib, one, two)
    assert set(two.holds) == {V4}  # what is known is told
    assert one.ends == two.ends == []
    for family in FAMILIES:
        rib.receive(two.peer, end_of_rib(family)[HEADER_BYTES:])
    rib.tick(2)
    settle(rib, one, two)
    assert sorted(one.ends) == sorted(two.ends) == ["ipv4", "ipv6"]
    assert not rib.deferral.holds_kernel


def test_a_node_of_a_mesh_says_end_of_rib_at_once():
    rib = Rib(config(options("10.0.0.2"), options("10.0.0.3")), now=0)
    one = Wire(rib, "10.0.0.2").up(restart=RESTART)
    settle(rib, one)
    assert sorted(one.ends) == ["ipv4", "ipv6"]
    assert rib.deferral.holds_kernel


# -- changes of configuration


def test_a_new_filter_is_a_refresh_and_not_a_reset():
    rib, (one, two) = speaker(options("10.0.0.2", **CLIENT), options("10.0.0.3", **CLIENT))
    one.announce(V4)
    settle(rib, one, two)
    filtered = options("10.0.0.2", **CLIENT, filters=("none",))
    rib.configure(config(filtered, options("10.0.0.3", **CLIENT), filters=(REJECT_ALL,)))
    settle(rib, one, two)
    assert two.holds == {}
    assert one.peer.received() == 1
    rib.configure(config(options("10.0.0.2", **CLIENT), options("10.0.0.3", **CLIENT)))
    settle(rib, one, two)
    assert set(two.holds) == {V4}


def test_blocks_come_and_go():
    rib, (one,) = speaker(options("10.0.0.2"), blocks=(LocalBlock(cidr=V4),))
    settle(rib, one)
    rib.configure(config(options("10.0.0.2"), blocks=(LocalBlock(cidr=V6),)))
    settle(rib, one)
    assert set(one.holds) == {V6}


def test_becoming_a_client_changes_what_is_told():
    peers = options("10.0.0.2"), options("10.0.0.3")
    rib, (one, two) = speaker(*peers)
    one.announce(V4)
    settle(rib, one, two)
    assert two.holds == {}
    rib.configure(config(options("10.0.0.2", **CLIENT), options("10.0.0.3")))
    settle(rib, one, two)
    assert set(two.holds) == {V4}


def test_our_new_address_makes_old_routes_our_own():
    rib, (one,) = speaker(options("10.0.0.2"))
    one.announce(V4, next_hop="10.0.0.7")
    settle(rib, one)
    rib.configure(config(options("10.0.0.2"), ipv4_address="10.0.0.7/24"))
    settle(rib, one)
    assert selected(rib, V4) == []


def test_a_removed_peer_takes_its_routes_along():
    rib, (one, two) = speaker(options("10.0.0.2", **CLIENT), options("10.0.0.3", **CLIENT))
    one.announce(V4)
    settle(rib, one, two)
    gone = one.peer
    rib.configure(config(options("10.0.0.3", **CLIENT)))
    settle(rib, two)
    assert two.holds == {}
    assert gone.session is None


def test_another_as_makes_it_another_peer():
    rib, (one,) = speaker(options("10.0.0.2"))
    one.announce(V4)
    settle(rib, one)
    rib.configure(config(options("10.0.0.2", remote_as=65001)))
    rib.flush()
    assert selected(rib, V4) == []
    assert one.peer.session is None


BROKEN = {
    "filter": {"filters": (Filter(name="x", export_v4=(BGPFilterRuleV4(action="?"),)),)},
    "pool": {"blocks": (LocalBlock(cidr="nonsense"),)},
    "router id": {"router_id": "nonsense"},
    "peer": {"peers": (options("nonsense"),)},
}


@pytest.mark.parametrize("changes", BROKEN.values(), ids=BROKEN.keys())
def test_a_configuration_that_does_not_compile_changes_nothing(changes):
    rib, (one,) = speaker(options("10.0.0.2"), blocks=(LocalBlock(cidr=V4),))
    settle(rib, one)
    before = rib.config
    with pytest.raises(ConfigError):
        rib.configure(msgspec.structs.replace(before, **changes))
    settle(rib, one)
    assert rib.config is before
    assert set(one.holds) == {V4}


def test_the_same_configuration_again_says_nothing():
    rib, (one,) = speaker(options("10.0.0.2"), blocks=(LocalBlock(cidr=V4),))
    settle(rib, one)
    rib.take_new_output()
    rib.configure(config(options("10.0.0.2"), blocks=(LocalBlock(cidr=V4),)))
    assert rib.flush() == []
    assert not rib.take_new_output()
