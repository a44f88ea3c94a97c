"""libcalico.policy.staged: a cluster with its staged policies enforced."""

from __future__ import annotations

from msgspec.structs import replace

from libcalico.model import (
    ObjectMeta,
    Resource,
    StagedKubernetesNetworkPolicy,
    StagedKubernetesNetworkPolicySpec,
)
from libcalico.policy.staged import with_staged
from tests.support import calc
from tests.support.calc import ALLOW, DENY

NOW = calc.np("p", ingress=ALLOW)[1]
OTHER = calc.tier("default", 1)[1]


def enforced(*objects: Resource) -> list[tuple[str, str, object]]:
    return [
        (item.kind, item.metadata.name, getattr(item.spec, "ingress", None))  # type: ignore[attr-defined]
        for item in with_staged(objects)
    ]


def test_what_is_set_takes_the_place_of_what_is_enforced():
    staged = calc.snp("p", ingress=DENY, order=3.0, selector="has(a)", types=("Ingress",))[1]
    assert enforced(NOW, OTHER, staged) == [
        ("NetworkPolicy", "p", DENY),
        ("Tier", "default", None),
    ]
    (found,) = with_staged([staged])
    assert found == calc.np("p", ingress=DENY, order=3.0, selector="has(a)", types=("Ingress",))[1]


def test_policies_of_another_name_or_namespace_stay():
    staged = calc.snp("p", ingress=DENY, namespace="dev")[1]
    assert enforced(NOW, staged) == [("NetworkPolicy", "p", ALLOW), ("NetworkPolicy", "p", DENY)]


def test_a_global_one_keeps_its_flags():
    staged = calc.sgnp("g", ingress=DENY, apply_on_forward=True, namespace_selector="all()")[1]
    assert with_staged([staged]) == [
        calc.gnp("g", ingress=DENY, apply_on_forward=True, namespace_selector="all()")[1]
    ]


def test_delete_takes_away_and_the_other_words_say_nothing():
    for action, left in (("Delete", []), ("Learn", [NOW]), ("Ignore", [NOW])):
        staged = calc.snp("p", staged_action=action)[1]
        assert with_staged([NOW, staged]) == left
    assert with_staged([calc.snp("q", staged_action="Delete")[1]]) == []


def test_a_kubernetes_one_is_what_it_would_become():
    staged = StagedKubernetesNetworkPolicy(
        metadata=ObjectMeta(name="k", namespace="prod"),
        spec=StagedKubernetesNetworkPolicySpec(policy_types=("Ingress",)),
    )
    (found,) = with_staged([staged])
    assert (found.kind, found.metadata.name) == ("NetworkPolicy", "knp.default.k")
    assert found.spec.types == ("Ingress",)  # type: ignore[attr-defined]
    gone = replace(staged, spec=StagedKubernetesNetworkPolicySpec(staged_action="Delete"))
    assert with_staged([found, gone]) == []
