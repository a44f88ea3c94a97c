"""felix.calc.active_rules: what concerns this node, and which endpoints must be looked at again."""

from __future__ import annotations

import pytest

from felix.calc.active_rules import ActiveRules, Activity
from libcalico.compute import policies
from libcalico.compute.policies import Policy
from libcalico.model.keys import ResourceKey
from tests.support.calc import ALLOW, DENY, NAMESPACE_LABEL, gnp, np

E1, E2 = (
    ResourceKey("WorkloadEndpoint", "e1", "prod"),
    ResourceKey("WorkloadEndpoint", "e2", "prod"),
)
P = ResourceKey("GlobalNetworkPolicy", "p")


def policy(name: str = "p", **spec) -> Policy:
    found = policies.of_resource(*gnp(name, **spec), 1)
    assert found is not None
    return found


@pytest.fixture
def active():
    rules = ActiveRules()
    rules.update_endpoint(E1, {"app": "a"}, ("shared",))
    rules.update_endpoint(E2, {"app": "b"}, ("shared", "own"))
    rules.flush()
    yield rules
    rules.check()


def put(rules: ActiveRules, name: str = "p", **spec) -> Activity:
    found = policy(name, **spec)
    rules.update_policy(found.key, found)
    return rules.flush()


def test_a_policy_is_active_while_it_selects_a_local_endpoint(active):
    """P1."""
    put(active, selector="app == 'c'")
    assert active.active_policy(P) is None
    active.update_endpoint(E1, {"app": "c"}, ())
    assert P in active.flush().dirty_policies
    assert active.active_policy(P) == policy(selector="app == 'c'")
    active.delete_endpoint(E1)
    assert P in active.flush().dirty_policies
    assert active.active_policy(P) is None


def test_a_second_endpoint_does_not_make_the_policy_dirty(active):
    put(active, selector="has(app)")
    active.delete_endpoint(E1)
    assert active.flush() == Activity(frozenset(), frozenset(), frozenset({E1}))


def test_endpoints_that_gain_or_lose_a_policy_are_dirty(active):
    """P2."""
    assert put(active, selector="app == 'a'").dirty_endpoints == {E1}
    assert put(active, selector="app == 'b'").dirty_endpoints == {E1, E2}
    active.update_policy(P, None)
    assert active.flush().dirty_endpoints == {E2}


def test_a_policy_that_leaves_a_selector_others_share_still_dirties_its_endpoints(active):
    put(active, "other", selector="app == 'a'")
    put(active, selector="app == 'a'")
    assert put(active, selector="app == 'nobody'").dirty_endpoints == {E1}
    assert [item.key.name for item in active.policies_of(active.selectors_of(E1))] == ["other"]


def test_new_rules_touch_the_policy_only_but_a_new_order_its_endpoints(active):
    put(active, selector="app == 'a'", ingress=ALLOW)
    changed = put(active, selector="app == 'a'", ingress=DENY)
    assert (changed.dirty_policies, changed.dirty_endpoints) == ({P}, frozenset())
    changed = put(active, selector="app == 'a'", ingress=DENY, order=5)
    assert (changed.dirty_policies, changed.dirty_endpoints) == ({P}, {E1})
    for spec in ({"types": ("Egress",)}, {"tier": "t"}, {"do_not_track": True}):
        assert put(active, selector="app == 'a'", **spec).dirty_endpoints == {E1}


def test_the_same_policy_again_is_nothing(active):
    put(active, selector="app == 'a'")
    assert put(active, selector="app == 'a'") == Activity(frozenset(), frozenset(), frozenset())


def test_a_tier_touches_the_endpoints_of_its_policies(active):
    put(active, "x", selector="app == 'a'", tier="t")
    put(active, "y", selector="app == 'b'", tier="u")
    active.touch_tier("t")
    active.touch_tier("unknown")
    assert active.flush().dirty_endpoints == {E1}


def test_profiles_are_active_while_listed(active):
    """P1."""
    assert active.is_profile_active("shared")
    active.delete_endpoint(E1)
    assert active.flush().dirty_profiles == frozenset()
    active.update_endpoint(E2, {"app": "b"}, ("new",))
    assert active.flush().dirty_profiles == {"shared", "own", "new"}
    assert not active.is_profile_active("shared")


def test_a_profile_nobody_lists_is_never_dirty(active):
    active.update_profile("idle", {"x": "1"})
    active.update_profile("shared", {"x": "1"})
    assert active.flush().dirty_profiles == {"shared"}
    active.update_profile("shared", None)
    assert active.flush().dirty_profiles == {"shared"}


def test_deleting_what_is_not_there_is_nothing(active):
    active.delete_endpoint(ResourceKey("WorkloadEndpoint", "never", "prod"))
    active.update_policy(P, None)
    assert active.flush() == Activity(frozenset(), frozenset(), frozenset())
    assert list(active.endpoints_of(P)) == []


def test_dump_counts(active):
    put(active, selector="app == 'a'")
    put(active, "idle", selector="app == 'nobody'")
    assert active.dump() == {
        "policies": 2,
        "policies_asleep": 0,
        "active_policies": 1,
        "local_endpoints": 2,
        "active_profiles": ["own", "shared"],
    }


def namespaced(name: str, namespace: str, **spec) -> Policy:
    found = policies.of_resource(*np(name, namespace=namespace, **spec), 1)
    assert found is not None
    return found


def test_policies_of_namespaces_without_local_endpoints_sleep_until_one_comes(active):
    sleeper, gone = namespaced("p", "dev"), namespaced("q", "dev")
    for found in (sleeper, gone):
        active.update_policy(found.key, found)
    active.update_policy(gone.key, None)
    assert active.flush() == Activity(frozenset(), frozenset(), frozenset())
    assert active.dump()["policies_asleep"] == 1
    active.update_endpoint(E1, {NAMESPACE_LABEL: "dev"}, ())
    assert active.flush().dirty_policies == {sleeper.key}
    assert active.active_policy(sleeper.key) == sleeper
    active.delete_endpoint(E1)
    assert active.flush().dirty_policies == {sleeper.key}
    active.update_policy(sleeper.key, None)
    active.flush()
    assert active.dump()["policies_asleep"] == active.dump()["policies"] == 0


def test_a_profile_that_hands_down_a_namespace_wakes_it_too(active):
    found = namespaced("p", "dev")
    active.update_policy(found.key, found)
    active.update_profile("shared", {NAMESPACE_LABEL: "dev"})
    assert active.flush().dirty_endpoints == {E1, E2}
    assert active.active_policy(found.key) == found
