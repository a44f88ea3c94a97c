"""bgp.rib.export: who may hear a route, and how it is changed on the way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bgp.rib.attributes import (
    CONFED_SEQUENCE,
    GRACEFUL_SHUTDOWN,
    NO_ADVERTISE,
    NO_EXPORT,
    PathAttributes,
    Segment,
    UnknownAttribute,
)
from bgp.rib.export import Exporter, GroupKey, may_hear, transform
from bgp.rib.nlri import IPV4, IPV6, parse
from bgp.rib.path import LOCAL, LocalRoute, Path, Source
from bgp.rib.policy import Policy
from libcalico.model.speaker import Drain
from tests.unit.bgp.builders import config, packed, sequence

OWN = packed("10.0.0.1")
IBGP = GroupKey(IPV4, True, False, 64512, True, OWN, cluster_id=packed("9.9.9.9"))
CLIENTS = replace(IBGP, is_client=True)
EBGP = replace(IBGP, is_ibgp=False)


def source(*, external: bool = False, client: bool = False) -> Source:
    made = Source("p", packed("10.0.0.2"), local_as=64512, remote_as=65001 if external else 64512)
    made.is_client = client
    made.router_id = packed("2.2.2.2")
    return made


def path(made: Source | None = None, **attributes) -> Path:
    attributes.setdefault("next_hop", packed("10.0.0.2"))
    return Path(made or source(), PathAttributes(**attributes))


OURS = Path(LOCAL, PathAttributes(local_pref=2147482623), local=LocalRoute("block"))

HEARERS = {
    "from a non-client": (path(source()), (False, True, True)),
    "from a client": (path(source(client=True)), (True, True, True)),
    "from outside": (path(source(external=True)), (True, True, True)),
    "our own": (OURS, (True, True, True)),
    "no-export": (path(source(client=True), communities=(NO_EXPORT,)), (True, True, False)),
    "no-advertise": (path(source(client=True), communities=(NO_ADVERTISE,)), (False,) * 3),
}


@pytest.mark.parametrize(("route", "expected"), HEARERS.values(), ids=HEARERS.keys())
def test_who_hears(route, expected):
    assert tuple(may_hear(key, route) for key in (IBGP, CLIENTS, EBGP)) == expected


def test_reflection_leaves_the_route_as_it_is_but_for_the_traces():
    route = path(source(client=True), local_pref=200, med=5, as_path=sequence(1))
    assert transform(IBGP, route, route.attributes) == replace(
        route.attributes, originator_id=packed("2.2.2.2"), cluster_list=(packed("9.9.9.9"),)
    )


def test_reflection_of_a_reflected_route_keeps_the_originator():
    route = path(originator_id=packed("7.7.7.7"), cluster_list=(packed("8.8.8.8"),))
    found = transform(CLIENTS, route, route.attributes)
    assert found is not None
    assert found.originator_id == packed("7.7.7.7")
    assert found.cluster_list == (packed("9.9.9.9"), packed("8.8.8.8"))


def test_an_external_route_inside_keeps_its_next_hop_and_gets_a_preference():
    route = path(source(external=True), med=5, as_path=sequence(65001))
    found = transform(IBGP, route, route.attributes)
    assert found == replace(route.attributes, local_pref=100)


def test_an_internal_route_outside():
    confederation = Segment(CONFED_SEQUENCE, (65100,))
    unknown = (UnknownAttribute(0xE0, 200, b"x"),)
    route = path(
        local_pref=200,
        med=5,
        as_path=(confederation, *sequence(65001)),
        originator_id=packed("7.7.7.7"),
        cluster_list=(packed("8.8.8.8"),),
        communities=(1,),
        unknown=unknown,
    )
    assert transform(EBGP, route, route.attributes) == PathAttributes(
        next_hop=OWN, as_path=sequence(64512, 65001), communities=(1,), unknown=unknown
    )


def test_our_own_route_leaves_with_our_address():
    inside, outside = (transform(key, OURS, OURS.attributes) for key in (IBGP, EBGP))
    assert inside == replace(OURS.attributes, next_hop=OWN)
    assert outside == PathAttributes(next_hop=OWN, as_path=sequence(64512))


NEXT_HOPS = [
    (IBGP, "Auto", "10.0.0.2"),
    (IBGP, "Self", "10.0.0.1"),
    (IBGP, "Keep", "10.0.0.2"),
    (EBGP, "Auto", "10.0.0.1"),
    (EBGP, "Self", "10.0.0.1"),
    (EBGP, "Keep", "10.0.0.2"),
]


@pytest.mark.parametrize(("key", "mode", "expected"), NEXT_HOPS)
def test_next_hop_modes(key, mode, expected):
    route = path(source(client=True))
    found = transform(replace(key, next_hop_mode=mode), route, route.attributes)
    assert found is not None
    assert found.next_hop == packed(expected)


def test_without_an_address_of_the_family_nothing_is_told():
    key = replace(IBGP, family=IPV6, own_address=b"")
    assert transform(key, OURS, OURS.attributes) is None


def test_a_version_6_next_hop_needs_the_extension():
    route = path(next_hop=packed("fd00::2"))
    assert transform(CLIENTS, route, route.attributes) is None
    extended = replace(CLIENTS, extended_next_hop=True)
    assert transform(extended, route, route.attributes) is not None


def export(exporter: Exporter, route: Path, cidr: str = "10.65.0.0/26", policy: Policy = None):
    family, nlri = parse(cidr)
    of = (policy or Policy(config())).families[family]
    return exporter.export(of, route, of.classifier.classify(nlri))


def test_equal_outcomes_are_one_object():
    exporter, made = Exporter(CLIENTS), source(client=True)
    policy = Policy(config())
    one, other = path(made, med=1), path(made, med=1)
    found = export(exporter, one, policy=policy)
    assert export(exporter, other, "10.65.9.0/26", policy) is found
    assert export(Exporter(CLIENTS), one, policy=policy) is not found


def test_the_same_bytes_from_two_peers_stay_apart():
    exporter, policy = Exporter(replace(EBGP, next_hop_mode="Self")), Policy(config())
    one, other = export(exporter, path(), policy=policy), export(exporter, path(), policy=policy)
    assert one.encoded == other.encoded
    assert one is not other


def test_a_new_policy_is_asked_again():
    exporter, route = Exporter(CLIENTS), path()
    assert export(exporter, route) is not None
    assert export(exporter, route, policy=Policy(config(pools=()))) is None


def test_attributes_that_fill_a_message_are_not_told():
    assert export(Exporter(CLIENTS), path(communities=tuple(range(1020)))) is None
    assert export(Exporter(CLIENTS), path(communities=tuple(range(900)))) is not None


def drained(drain: Drain, key: GroupKey = IBGP, route: Path | None = None) -> PathAttributes | None:
    policy = Policy(config(drain=drain)).families[IPV4]
    mask = policy.classifier.classify(parse("10.65.1.0/26")[1])
    out = Exporter(key).export(policy, route or path(source(client=True), local_pref=7), mask)
    return out.attributes if out else None


def test_a_node_that_shuts_down_marks_what_it_says_and_is_the_last_resort_for_internal_peers():
    inside, outside = drained(Drain.GRACEFUL_SHUTDOWN), drained(Drain.GRACEFUL_SHUTDOWN, EBGP)
    assert inside is not None
    assert outside is not None
    assert (inside.communities, inside.local_pref) == ((GRACEFUL_SHUTDOWN,), 0)
    assert (outside.communities, outside.local_pref) == ((GRACEFUL_SHUTDOWN,), None)


def test_a_drained_node_says_nothing_and_another_says_it_as_it_is():
    assert drained(Drain.WITHDRAWN) is drained(Drain.WITHDRAWN, EBGP) is None
    plain = drained(Drain.NONE)
    assert plain is not None
    assert (plain.communities, plain.local_pref) == ((), 7)
