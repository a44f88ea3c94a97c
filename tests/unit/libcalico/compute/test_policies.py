"""libcalico.compute.policies: five kinds of policy in one shape."""

from __future__ import annotations

import math

import pytest

from libcalico.compute import policies
from libcalico.compute.policies import Policy, Stage
from libcalico.errors import InvalidInput
from libcalico.model import ObjectMeta, StagedKubernetesNetworkPolicy, Tier
from libcalico.model import StagedKubernetesNetworkPolicySpec as StagedK8sSpec
from libcalico.model.keys import ResourceKey
from libcalico.selector import parse, scope
from tests.support.calc import ALLOW, gnp, np, sgnp, snp, tier


def of(item) -> Policy:
    found = policies.of_resource(*item, 7)
    assert found is not None
    return found


def test_a_policy_as_written_by_a_foreign_hand():
    found = of(np("p"))
    assert (found.tier, found.sort_key[0]) == ("default", math.inf)
    assert found.governs_ingress
    assert found.governs_egress
    assert found.selector.canonical == 'projectcalico.org/namespace == "prod"'
    assert (found.namespace, found.revision, found.staged) == ("prod", 7, False)


def test_selectors_are_scoped():
    """3.4."""
    local = of(np("p", selector="a == 'b'", service_account_selector="has(r)"))
    assert local.selector.canonical == (
        '((a == "b" && projectcalico.org/namespace == "prod") && has(pcsa.r))'
    )
    everywhere = of(gnp("p", namespace_selector="has(x)"))
    assert everywhere.selector.canonical == "has(pcns.x)"
    assert everywhere.namespace == ""


def test_a_selector_that_does_not_parse_is_refused():
    with pytest.raises(InvalidInput):
        policies.of_resource(*np("p", selector="a = b"), 1)


@pytest.mark.parametrize(
    ("flags", "stage", "on_forward"),
    [
        ({}, Stage.NORMAL, False),
        ({"apply_on_forward": True}, Stage.NORMAL, True),
        ({"do_not_track": True, "apply_on_forward": True}, Stage.UNTRACKED, False),
        ({"pre_dnat": True, "apply_on_forward": True}, Stage.PRE_DNAT, False),
    ],
)
def test_stages(flags, stage, on_forward):
    """5.4."""
    found = of(gnp("p", **flags))
    assert (found.stage, found.on_forward) == (stage, on_forward)


def test_a_pre_dnat_policy_never_governs_egress():
    assert not of(gnp("p", pre_dnat=True, types=())).governs_egress


@pytest.mark.parametrize("make", [snp, sgnp])
@pytest.mark.parametrize("action", [None, "Set", "Learn"])
def test_staged_policies_are_like_the_others_but_marked(make, action):
    found = of(make("p", staged_action=action, ingress=ALLOW))
    assert found.staged
    assert found.ingress == ALLOW


@pytest.mark.parametrize("action", ["Delete", "Ignore"])
def test_a_staged_delete_says_nothing_about_traffic(action):
    assert policies.of_resource(*snp("p", staged_action=action), 1) is None
    assert policies.of_resource(*staged_kubernetes(staged_action=action), 1) is None


def staged_kubernetes(**spec):
    value = StagedKubernetesNetworkPolicy(
        metadata=ObjectMeta(name="k", namespace="prod"), spec=StagedK8sSpec(**spec)
    )
    return ResourceKey("StagedKubernetesNetworkPolicy", "k", "prod"), value


def test_a_staged_kubernetes_policy_is_converted():
    """5.5."""
    found = of(
        staged_kubernetes(
            pod_selector={"matchLabels": {"app": "web"}},
            ingress=({"from": [{"podSelector": {}}], "ports": [{"port": 80}]},),
        )
    )
    assert found.staged
    assert found.sort_key[0] == 1000
    assert "app ==" in found.selector.canonical
    assert (found.governs_ingress, found.governs_egress) == (True, False)
    assert found.ingress[0].destination.ports == (80,)


def test_another_kind_is_a_mistake_of_the_caller():
    with pytest.raises(TypeError):
        policies.of_resource(*tier("t"), 1)
    assert Tier.kind not in policies.STAGED_KINDS


def test_old_keys_that_show_the_same_name_still_have_an_order():
    key, value = np("default.p")
    old = policies.of_resource(key, type(value)(metadata=ObjectMeta(name="p"), spec=value.spec), 1)
    new = of(np("p"))
    assert old is not None
    assert old.sort_key[:2] == new.sort_key[:2]
    assert old.sort_key != new.sort_key


@pytest.mark.parametrize("account", ["", "has(r)", "a == 'b' || !has(c)"])
@pytest.mark.parametrize(
    "selector",
    ["", "all()", "a == 'b'", "!has(a)", "a == 'b' && c != 'd'", "a in {'y', 'x'} || !(b == 'c')"],
)
def test_a_namespaced_selector_is_what_scoping_says(selector, account):
    """The short cut around the parser gives the same selector, to the letter."""
    found = of(np("p", selector=selector, service_account_selector=account))
    text = scope.network_policy_selector(selector, "prod", service_account_selector=account)
    assert found.selector == parse(text)


@pytest.mark.parametrize("make", [np, gnp, snp, sgnp])
@pytest.mark.parametrize(
    ("types", "directions"),
    [
        (("Ingress",), (True, False)),
        (("Egress",), (False, True)),
        (("Sideways",), (True, True)),
        (("ingress", "EGRESS"), (True, True)),
        (("Sideways", "Egress"), (False, True)),
    ],
)
def test_types_of_unknown_words_only_govern_both_directions(make, types, directions):
    """Fail closed: a policy that governed nothing would let pass what it denies."""
    found = of(make("p", types=types))
    assert (found.governs_ingress, found.governs_egress) == directions
