"""bgp.queries: what the control socket says; the schema is a contract (bgp/DESIGN.md)."""

from __future__ import annotations

import json

import pytest

from bgp import queries
from bgp.kernel.decision import Spec
from bgp.kernel.writer import RouteWriter
from bgp.rib.nlri import FAMILIES, parse
from bgp.rib.path import LocalRoute
from bgp.rib.peer import GracefulRestart
from bgp.rib.rib import Rib
from bgp.speaker.engine import SessionState
from libcalico.errors import NotFound, ValidationError
from libcalico.model.bgp_filter import BGPFilterRuleV4
from libcalico.model.speaker import Drain, Filter, LocalBlock
from libcalico.netlink import NextHop
from tests.unit.bgp.builders import Wire, config, options, packed, sequence, speaker

V4 = "10.65.2.0/26"
REJECT = Filter(name="reject", import_v4=(BGPFilterRuleV4(action="Reject"),))


@pytest.fixture
def rib() -> Rib:
    rib, (one, two) = speaker(
        options("10.0.0.2"),
        options("10.0.0.3", remote_as=65001, kind="global"),
        blocks=(LocalBlock(cidr="10.65.1.0/26"),),
    )
    one.announce(V4, "10.65.3.0/26", communities=(100 << 16 | 1,), large_communities=((1, 2, 3),))
    two.announce(V4, as_path=sequence(65001), med=5)
    rib.set_local(*parse("10.65.9.9/32"), LocalRoute("workload", interface="cali1"))
    rib.flush()
    for wire in (one, two):
        wire.listen()
    return rib


def test_peers(rib: Rib):
    states = {"10.0.0.2": SessionState("ESTABLISHED", 1000.5, 90)}
    one, two = queries.peers(rib, states)["peers"]
    assert one == {
        "address": "10.0.0.2",
        "name": "p10.0.0.2",
        "kind": "mesh",
        "state": "Established",
        "since": 1000.5,
        "remote_as": 64512,
        "local_as": 64512,
        "hold_time_s": 90,
        "last_error": "",
        "received": 2,
        "sent": 2,
        "stale": 0,
        "families": ["ipv4", "ipv6"],
        "router_id": "10.0.0.2",
        "graceful_restart_s": 0,
        "rr_client": False,
        "updates_received": 1,
        "updates_malformed": 0,
        "last_malformed": "",
    }
    assert (two["kind"], two["state"], two["remote_as"]) == ("global", "Idle", 65001)


def test_a_peer_that_restarts():
    rib = Rib(config(options("10.0.0.2")), now=0)
    wire = Wire(rib, "10.0.0.2").up(restart=GracefulRestart(60, frozenset(FAMILIES)))
    wire.announce(V4)
    assert queries.peers(rib, {})["peers"][0]["graceful_restart_s"] == 60
    rib.session_down(wire.peer, may_restart=True, now=1)
    (peer,) = queries.peers(rib, {})["peers"]
    assert (peer["received"], peer["stale"], peer["sent"]) == (1, 1, 0)


def test_routes(rib: Rib):
    found = queries.routes(rib)
    assert (found["total"], found["truncated"]) == (4, False)
    by_cidr = {route["cidr"]: route["paths"] for route in found["routes"]}
    assert by_cidr["10.65.1.0/26"][0]["local"] == "block"
    assert by_cidr["10.65.9.9/32"][0]["interface"] == "cali1"
    assert by_cidr["10.65.3.0/26"] == [
        {
            "from": "p10.0.0.2",
            "peer": "10.0.0.2",
            "next_hop": "10.0.0.2",
            "as_path": "",
            "origin": "IGP",
            "local_pref": 100,
            "med": None,
            "communities": ["100:1"],
            "large_communities": ["1:2:3"],
            "originator_id": "",
            "cluster_list": [],
        }
    ]
    some = queries.routes(rib, limit=1)
    assert (len(some["routes"]), some["total"], some["truncated"]) == (1, 4, True)
    assert queries.routes(rib, family="ipv6")["total"] == 0
    with pytest.raises(ValidationError):
        queries.routes(rib, family="ipx")


def test_one_route_and_why(rib: Rib):
    writer = RouteWriter(None, table=254, protocol=186)  # type: ignore[arg-type]
    writer.installed[parse(V4)] = Spec(1024, (NextHop(2, "10.0.0.2"),))
    found = queries.route(rib, writer, V4)
    assert [(p["from"], p["best"], p["selected"]) for p in found["paths"]] == [
        ("p10.0.0.2", True, True),
        ("p10.0.0.3", False, False),
    ]
    assert found["kernel"] == {
        "type": "unicast",
        "metric": 1024,
        "next_hops": [{"gateway": "10.0.0.2", "ifindex": 2, "onlink": False}],
    }
    rib.set_reachable(packed("10.0.0.2"), reachable=False)
    rib.flush()
    found = queries.route(rib, None, "10.65.2.7/26")
    assert [(p["from"], p["reachable"], p["best"]) for p in found["paths"]] == [
        ("p10.0.0.3", True, True),
        ("p10.0.0.2", False, False),
    ]
    assert found["kernel"] is None


def test_refused_paths_say_why():
    rib, (one, two) = speaker(
        options("10.0.0.2"), options("10.0.0.3", filters=("reject",)), filters=(REJECT,)
    )
    one.announce(V4, as_path=sequence(64512))
    two.announce(V4)
    rib.flush()
    found = queries.route(rib, None, V4)["paths"]
    assert {p["from"]: p["refused"] for p in found} == {
        "p10.0.0.2": "AS 64512 is in the path",
        "p10.0.0.3": "BGPFilter import rule reject[0] rejects it",
    }


def test_what_a_peer_said_and_hears(rib: Rib):
    said = queries.received(rib, "10.0.0.3")
    assert [(r["cidr"], r["as_path"], r["stale"]) for r in said["routes"]] == [(V4, "65001", False)]
    heard = queries.advertised(rib, "10.0.0.3")
    assert {r["cidr"]: (r["next_hop"], r["as_path"]) for r in heard["routes"]} == {
        "10.65.1.0/26": ("10.0.0.1", "64512"),
        "10.65.9.9/32": ("10.0.0.1", "64512"),
        V4: ("10.0.0.1", "64512"),
        "10.65.3.0/26": ("10.0.0.1", "64512"),
    }


def test_sizes_and_groups(rib: Rib):
    found = queries.tables(rib)
    assert (found["ipv4"]["candidates"], found["ipv4"]["selected"]) == (4, 4)
    groups = {tuple(g["peers"]): g["sent"] for g in found["ipv4"]["groups"]}
    assert groups == {("p10.0.0.2",): 2, ("p10.0.0.3",): 4}


def test_unknown_things_are_errors_of_the_asker(rib: Rib):
    with pytest.raises(NotFound):
        queries.route(rib, None, "192.0.2.0/24")
    with pytest.raises(ValidationError):
        queries.route(rib, None, "nonsense")
    with pytest.raises(NotFound):
        queries.received(rib, "10.9.9.9")
    with pytest.raises(ValidationError):
        queries.advertised(rib, "nonsense")


def test_every_answer_is_json(rib: Rib):
    answers = [
        queries.peers(rib, {}),
        queries.routes(rib),
        queries.route(rib, None, V4),
        queries.tables(rib),
        queries.received(rib, "10.0.0.2"),
        queries.advertised(rib, "10.0.0.2"),
    ]
    assert json.loads(json.dumps(answers)) == answers


def why_told(rib: Rib, cidr: str) -> dict[str, tuple[bool, str]]:
    found = queries.explanation(rib, None, cidr)["peers"]
    return {peer["peer"]: (peer["told"], peer["why"]) for peer in found}


def test_an_explanation_names_the_step_that_decided(rib: Rib):
    found = queries.explanation(rib, None, V4)
    assert {p["from"]: p["outcome"] for p in found["paths"]} == {
        "p10.0.0.2": "best",
        "p10.0.0.3": "longer AS path",
    }
    rib.set_reachable(packed("10.0.0.2"), reachable=False)
    rib.flush()
    found = queries.explanation(rib, None, V4, "10.0.0.3")
    assert {p["from"]: p["outcome"] for p in found["paths"]} == {
        "p10.0.0.3": "best",
        "p10.0.0.2": "the next hop is unreachable",
    }
    assert [p["why"] for p in found["peers"]] == ["the best path came from it"]


def test_an_explanation_names_who_is_told_and_the_rule(rib: Rib):
    assert why_told(rib, "10.65.1.0/26") == {
        "10.0.0.2": (True, "it is a block of this node"),
        "10.0.0.3": (True, "it is a block of this node"),
    }
    assert why_told(rib, "10.65.3.0/26") == {
        "10.0.0.2": (False, "the best path came from it"),
        "10.0.0.3": (True, "it is in an IP pool"),
    }


def test_an_explanation_names_the_filter_or_the_drain():
    rule = BGPFilterRuleV4(action="Reject", cidr="10.65.1.0/26", match_operator="Equal")
    filters = (
        Filter(name="none"),
        Filter(name="mine", export_v4=(BGPFilterRuleV4(action="Accept", interface="none"), rule)),
    )
    block = (LocalBlock(cidr="10.65.1.0/26"),)
    one, two = options("10.0.0.2", filters=("none", "mine")), options("10.0.0.3")
    rib, _ = speaker(one, two, filters=filters, blocks=block)
    rib.flush()
    assert why_told(rib, "10.65.1.0/26")["10.0.0.2"] == (
        False,
        "BGPFilter export rule mine[1] rejects it",
    )
    rib.configure(config(one, two, blocks=block, drain=Drain.WITHDRAWN))
    rib.flush()
    assert why_told(rib, "10.65.1.0/26")["10.0.0.3"] == (False, "this node is drained")
