"""felix.rules.ipt_names: names short enough for iptables and ipset, one for each thing."""

from __future__ import annotations

import pytest

from felix.rules import ipt_names, names

LONG = "a-policy-with-quite-a-long-name-of-its-own"
CHAINS = [
    names.policy_chain("in", "NetworkPolicy", "ns", LONG),
    names.policy_chain("out", "NetworkPolicy", "ns", LONG),
    names.policy_chain("in", "NetworkPolicy", "other", LONG),
    names.policy_chain("in", "NetworkPolicy", "ns", f"in-{LONG}"),
    names.profile_chain("in", LONG),
    names.profile_chain("out", LONG),
    names.tier_chain("in", "default", "a", "b"),
    names.tier_chain("out", "default", "a", "b"),
    names.endpoint_chain("in", "a"),
    names.endpoint_chain("out", "a"),
    names.interface_chain("packet-rate", "in", "cali12345678901"),
    names.interface_chain("connections", "out", "cali12345678901"),
    "something-else-whose-name-does-not-fit",
    "from-workload",
    "nat-outgoing",
]


def test_every_chain_has_a_name_of_its_own_that_iptables_takes():
    made = [ipt_names.chain_name(name) for name in CHAINS]
    assert len(set(made)) == len(CHAINS)
    assert all(len(name) <= 28 and ipt_names.is_our_chain(name) for name in made)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("from-workload", "cali-from-wl"),
        ("dispatch-egress", "cali-from-wl-dispatch"),
        ("dispatch-ingress", "cali-to-wl-dispatch"),
        ("workload-to-host", "cali-wl-to-host"),
        ("nat-outgoing", "cali-nat-outgoing"),
    ],
)
def test_well_known_chains_are_named_as_calico_names_them(name: str, expected: str):
    assert ipt_names.chain_name(name) == expected


def test_a_policy_chain_says_its_direction_and_keeps_the_whole_hash():
    name = names.policy_chain("in", "NetworkPolicy", "ns", "web")
    assert ipt_names.chain_name(name) == f"cali-pi-{name[-20:]}"


@pytest.mark.parametrize(
    ("name", "version", "expected"),
    [
        ("set-s.abc-4", 4, "cali40s:abc"),
        ("set-n.abc-6", 6, "cali60n:abc"),
        ("all-pools-4", 4, "cali40all-ipam-pools"),
        ("nat-pools-6", 6, "cali60masq-ipam-pools"),
        ("sources-4", 4, "cali40wl-sources"),
    ],
)
def test_sets_are_named_by_family_and_id(name: str, version: int, expected: str):
    assert ipt_names.set_name(name, version) == expected


def test_long_set_ids_are_hashed_and_stay_apart():
    ids = ["s:" + "x" * 38, "s:" + "x" * 37 + "y", "n:" + "x" * 38, "s/odd id that is quite long"]
    made = [ipt_names.set_name(names.address_set(one, v), v) for one in ids for v in (4, 6)]
    assert len(set(made)) == len(made)
    assert all(len(name) <= 31 and ipt_names.is_our_set(name) for name in made)
    beside = {ipt_names.temporary_set_name(name) for name in made}
    assert len(beside) == len(made)
    assert all(ipt_names.is_temporary_set(name) and len(name) <= 31 for name in beside)


def test_what_is_not_ours_is_not_taken_for_ours():
    assert not ipt_names.is_our_chain("KUBE-SERVICES")
    assert not any(map(ipt_names.is_our_set, ("cali", "calico-mine", "cali5", "foo")))
