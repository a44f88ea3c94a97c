"""felix.dataplane.intent_book: what intents add up to (B1, B2)."""

from __future__ import annotations

import pytest

from felix.dataplane.intent_book import IntentBook, addresses_of, owners_of, tightening_uses
from felix.intent import (
    InSync,
    PolicyRemove,
    PolicyUpdate,
    ProfileRemove,
    ProfileUpdate,
    SetDelta,
    SetRemove,
    SetUpdate,
    TierPolicies,
    WorkloadEndpointRemove,
    WorkloadEndpointUpdate,
)
from libcalico import net
from libcalico.compute.rules import Action, CompiledRule, EntityMatch, SetKind
from libcalico.model.keys import ResourceKey

P = ResourceKey("NetworkPolicy", "p", "prod")


def workload(name: str, *nets: str, profiles: tuple[str, ...] = ("kns",)) -> WorkloadEndpointUpdate:
    key = ResourceKey("WorkloadEndpoint", name, "prod")
    tiers = (TierPolicies("default", (P,), ()),)
    return WorkloadEndpointUpdate(key, f"cali{name}", "", nets, profiles, tiers)


def book(*intents) -> IntentBook:
    made = IntentBook()
    for intent in intents:
        made.take(intent)
    return made


NETS = SetUpdate(
    "s", SetKind.NET, frozenset({"10.0.0.0/8", "192.0.2.1/32", "fd00::/16", "fe80::1/128"})
)


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("10.1.2.3", True),
        ("11.0.0.0", False),
        ("192.0.2.1", True),
        ("192.0.2.2", False),
        ("fd00:1::2", True),
        ("fe00::1", False),
    ],
)
def test_a_set_holds_what_its_members_contain(address, found):
    assert book(NETS).holds("s", net.parse_ip(address)) is found


def test_a_set_follows_its_deltas_and_goes():
    made = book(NETS)
    assert not made.holds("s", net.parse_ip("203.0.113.9"))
    made.take(SetDelta("s", frozenset({"203.0.113.0/24"}), frozenset({"10.0.0.0/8"})))
    assert made.holds("s", net.parse_ip("203.0.113.9"))
    assert not made.holds("s", net.parse_ip("10.0.0.1"))
    assert len(made.members("s")) == 4
    made.take(SetRemove("s"))
    assert not made.holds("s", net.parse_ip("192.0.2.1"))
    assert made.members("s") == frozenset()


def test_a_port_set_offers_its_members():
    made = book(SetUpdate("n", SetKind.IP_PORT, frozenset({"10.0.0.1,tcp,80"})))
    assert made.offers("n", "10.0.0.1,tcp,80")
    assert not made.offers("n", "10.0.0.1,tcp,81")
    assert not made.offers("unknown", "10.0.0.1,tcp,80")


def test_a_workload_is_found_by_its_addresses_until_it_goes_or_changes_them():
    one = workload("a", "10.0.0.1/32", "fd00::1/128")
    made = book(one, InSync())
    assert made.at(net.parse_ip("fd00::1")) == one
    assert sorted(made.addresses()) == ["10.0.0.1", "fd00::1"]
    moved = workload("a", "10.0.0.2/32")
    made.take(moved)
    assert made.at(net.parse_ip("10.0.0.1")) is None
    assert made.at(net.parse_ip("10.0.0.2")) == moved
    made.take(WorkloadEndpointRemove(one.key))
    assert made.addresses() == []
    made.take(WorkloadEndpointRemove(one.key))


def test_of_two_that_claim_an_address_the_first_name_has_it():
    """B3."""
    a, b = workload("a", "10.0.0.1/32"), workload("b", "10.0.0.1/32")
    assert book(b, a).at(net.parse_ip("10.0.0.1")) == a
    assert book(a, b, WorkloadEndpointRemove(a.key)).at(net.parse_ip("10.0.0.1")) == b


def test_who_is_governed_by_what():
    rule = CompiledRule(Action.ALLOW, 0, source=EntityMatch(sets=("s",)))
    a, b = workload("a", "10.0.0.1/32"), workload("b", "10.0.0.2/32", profiles=("other",))
    made = book(PolicyUpdate(P, "default", (), ()), ProfileUpdate("kns", (rule,), ()), a, b)
    assert made.governed_by([P]) == {a.key, b.key}
    assert made.governed_by(["kns"]) == {a.key}
    assert made.tightened_by("s", grows=False) == {"kns"}
    made.take(PolicyUpdate(P, "default", (), (rule,)))
    assert made.tightened_by("s", grows=False) == {"kns", P}
    assert made.tightened_by("s", grows=True) == set()
    made.take(PolicyUpdate(P, "default", (), ()))
    assert made.tightened_by("s", grows=False) == {"kns"}
    made.take(PolicyUpdate(P, "default", (rule,), ()))
    made.take(workload("a", "10.0.0.1/32", profiles=()))
    made.take(ProfileRemove("kns"))
    assert (made.governed_by(["kns"]), made.profiles) == (set(), {})
    made.take(PolicyRemove(P))
    assert (made.tightened_by("s", grows=False), made.policies) == (set(), {})


def test_facts_of_one_message():
    one = workload("a", "10.0.0.1/32", "fd00::1/128")
    assert addresses_of(one) == ["10.0.0.1", "fd00::1"]
    assert owners_of(one) == {P, "kns"}


@pytest.mark.parametrize(
    ("action", "wanted", "excluded"),
    [
        (Action.ALLOW, {False}, {True}),
        (Action.DENY, {True}, {False}),
        (Action.PASS, {True, False}, {True, False}),
        (Action.LOG, set(), set()),
    ],
)
@pytest.mark.parametrize("side", ["source", "destination"])
def test_which_changes_of_a_set_tighten(action, wanted, excluded, side):
    """B2."""
    every = EntityMatch(
        sets=("a",),
        named_port_sets=("b",),
        ip_port_sets=("c",),
        not_sets=("x",),
        not_named_port_sets=("y",),
    )
    found = tightening_uses([CompiledRule(action, 0, **{side: every})])
    assert found == {(name, grows) for name in "abc" for grows in wanted} | {
        (name, grows) for name in "xy" for grows in excluded
    }
