"""validate_stored: readers refuse what Calico's felix refuses, not what only writers must not."""

from __future__ import annotations

import pytest

from libcalico.errors import ValidationError
from libcalico.model import GlobalNetworkPolicy, NetworkPolicy
from libcalico.model.meta import ObjectMeta
from libcalico.model.policy import EntityRule, GlobalNetworkPolicySpec, NetworkPolicySpec, Rule
from libcalico.model.validation import validate, validate_stored


def policy(rule: Rule, selector: str = "all()") -> NetworkPolicy:
    spec = NetworkPolicySpec(tier="default", ingress=(rule,), selector=selector, types=("Ingress",))
    return NetworkPolicy(metadata=ObjectMeta(name="p", namespace="n"), spec=spec)


def test_a_deny_that_only_the_schema_refuses_is_still_enforced():
    # The schema allows 256 nets.
    crowd = tuple(f"{10 + i // 256}.{i % 256}.0.0/16" for i in range(257))
    stored = policy(Rule(action="Deny", source=EntityRule(nets=crowd)))
    with pytest.raises(ValidationError):
        validate(stored)
    validate_stored(stored)


def test_what_nobody_can_understand_is_refused_by_readers_too():
    with pytest.raises(ValidationError, match="selector"):
        validate_stored(policy(Rule(action="Deny"), selector="this is (not a selector"))
    with pytest.raises(ValidationError, match="invalid CIDR"):
        validate_stored(policy(Rule(action="Deny", source=EntityRule(nets=("nonsense",)))))


@pytest.mark.parametrize(
    "metadata",
    [
        ObjectMeta(name="Not_A-name"),
        ObjectMeta(name="n" * 300),
        ObjectMeta(name="p", labels={"bad key!": "x"}),
        ObjectMeta(name="p", labels={"k": "v" * 100}),
        ObjectMeta(name="p", annotations={"a": "x" * 300_000}),
    ],
    ids=("name", "long-name", "label-key", "label-value", "annotations"),
)
def test_a_reader_does_not_judge_names_labels_and_annotations(metadata: ObjectMeta) -> None:
    """Calico's felix has no metadata checks: such a deny policy must stay in force."""
    stored = GlobalNetworkPolicy(
        metadata=metadata,
        spec=GlobalNetworkPolicySpec(ingress=(Rule(action="Deny"),), types=("Ingress",)),
    )
    with pytest.raises(ValidationError):
        validate(stored)
    validate_stored(stored)
