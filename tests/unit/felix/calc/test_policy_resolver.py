"""felix.calc.policy_resolver: tiers and policies in order, per stage."""

from __future__ import annotations

from felix.calc.active_rules import ActiveRules
from felix.calc.endpoints import LocalHost, LocalWorkload
from felix.calc.policy_resolver import PolicyResolver
from felix.intent import HostEndpointUpdate, WorkloadEndpointUpdate
from libcalico.compute import policies
from libcalico.compute.policies import Policy
from libcalico.model.keys import ResourceKey
from tests.support.calc import gnp, sgnp, shown, tier

W = LocalWorkload(
    ResourceKey("WorkloadEndpoint", "w", "prod"), "caliw", "", ("10.0.0.1/32",), ("p",), (), ()
)
H = LocalHost(ResourceKey("HostEndpoint", "h"), "eth0", (), ())


def policy(name: str, **spec) -> Policy:
    found = policies.of_resource(*gnp(name, **spec), 1)
    assert found is not None
    return found


def resolver(*tiers) -> PolicyResolver:
    found = PolicyResolver(ActiveRules())
    for key, value in tiers:
        found.update_tier(key.name, value)
    return found


def test_order_of_tiers_and_policies():
    """V1, V2."""
    found = resolver(tier("b", 2), tier("a", 2, "Pass"), tier("z", 1), tier("unordered"))
    stages = found.stages_of(
        [
            policy("1", tier="missing-2"),
            policy("2", tier="missing-1"),
            policy("3", tier="unordered"),
            policy("4", tier="b", order=2),
            policy("5", tier="b", order=1),
            policy("6", tier="a"),
            policy("7", tier="z"),
        ]
    )
    assert [(name, ingress, deny) for name, ingress, _, deny in shown(stages.normal)] == [
        ("z", ["7"], True),
        ("a", ["6"], False),
        ("b", ["5", "4"], True),
        ("unordered", ["3"], True),
        ("missing-1", ["2"], True),
        ("missing-2", ["1"], True),
    ]


def test_the_result_does_not_depend_on_the_order_of_the_policies():
    found = resolver(tier("a", 1))
    some = [policy(name, tier=name, order=1) for name in "abcab"]
    assert found.stages_of(some) == found.stages_of(some[::-1])


def test_directions_and_staged_policies():
    """V3."""
    staged = policies.of_resource(*sgnp("s", tier="t"), 1)
    assert staged is not None
    stages = resolver(tier("t", 1)).stages_of(
        [staged, policy("in", types=("Ingress",)), policy("out", types=("Egress",))]
    )
    assert shown(stages.normal) == [("default", ["in"], ["out"], True)]


def test_stages():
    """V4, V5."""
    stages = resolver(tier("default", 1)).stages_of(
        [
            policy("n"),
            policy("f", apply_on_forward=True),
            policy("u", do_not_track=True),
            policy("d", pre_dnat=True),
        ]
    )
    assert shown(stages.normal) == [("default", ["f", "n"], ["f", "n"], True)]
    assert shown(stages.forward) == [("default", ["f"], ["f"], True)]
    assert shown(stages.untracked) == [("default", ["u"], ["u"], False)]
    assert shown(stages.pre_dnat) == [("default", ["d"], [], False)]


def test_only_what_changes_the_lists_is_reported():
    found = PolicyResolver(ActiveRules())
    assert found.update_tier("t", tier("t", 1)[1])
    assert not found.update_tier("t", tier("t", 1, "Deny")[1])
    assert found.update_tier("t", tier("t", 2)[1])
    assert found.update_tier("t", tier("t", 2, "Pass")[1])
    assert found.update_tier("t", None)
    assert not found.update_tier("t", None)


def test_endpoints_with_the_same_selectors_share_their_tiers():
    active = ActiveRules()
    other = LocalWorkload(ResourceKey("WorkloadEndpoint", "x", "prod"), "x", "", (), (), (), ())
    for endpoint in (W, other, H):
        active.update_endpoint(endpoint.key, {"app": "a"}, ())
    found = policy("p", selector="has(app)", do_not_track=True)
    active.update_policy(found.key, found)
    active.flush()
    updates = PolicyResolver(active).resolve([W, other, H])
    assert isinstance(updates[W.key], WorkloadEndpointUpdate)
    host = updates[H.key]
    assert isinstance(host, HostEndpointUpdate)
    assert shown(host.untracked_tiers) == [("default", ["p"], ["p"], False)]
    assert updates[W.key].tiers is updates[other.key].tiers


def test_dump_lists_the_tiers_in_order():
    assert list(resolver(tier("b"), tier("a"), tier("z", 5)).dump()) == ["z", "a", "b"]
