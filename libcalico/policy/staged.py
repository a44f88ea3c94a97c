"""What a cluster's objects would be if its staged policies were enforced.

Layer: pure, beside policy.world. User: `calicoctl policy explain --staged`.

  Set     the staged policy takes the place of the enforced one of its name
  Delete  the enforced policy of its name is gone
  other   (Learn, Ignore) says nothing about traffic

A StagedKubernetesNetworkPolicy stands for the NetworkPolicy that a Kubernetes NetworkPolicy of its
name would become.

Source: datamodel 1.9 (staged variants), 5.5.
"""

from __future__ import annotations

from collections.abc import Iterable

from libcalico.model import (
    GlobalNetworkPolicy,
    GlobalNetworkPolicySpec,
    NetworkPolicy,
    NetworkPolicySpec,
    ObjectMeta,
    Resource,
    StagedGlobalNetworkPolicy,
    StagedKubernetesNetworkPolicy,
    StagedNetworkPolicy,
    conversion,
)
from libcalico.model.keys import ResourceKey

_SET, _DELETE = "Set", "Delete"
Staged = StagedNetworkPolicy | StagedGlobalNetworkPolicy | StagedKubernetesNetworkPolicy


def with_staged(resources: Iterable[Resource]) -> list[Resource]:
    """The objects after all staged policies have come into force; nothing staged is left.

    Errors: InvalidInput (a podSelector that cannot be expressed)."""
    staged: list[Staged] = []
    found: dict[ResourceKey, Resource] = {}
    for resource in resources:
        if isinstance(resource, Staged):
            staged.append(resource)
        else:
            found[_key(resource)] = resource
    for policy in staged:
        enforced = _enforced(policy)
        action = policy.spec.staged_action or _SET
        if action == _SET:
            found[_key(enforced)] = enforced
        elif action == _DELETE:
            found.pop(_key(enforced), None)
    return list(found.values())


def _key(resource: Resource) -> ResourceKey:
    metadata = resource.metadata
    return ResourceKey(resource.kind, metadata.name, metadata.namespace)


def _enforced(staged: Staged) -> Resource:
    if isinstance(staged, StagedKubernetesNetworkPolicy):
        return _of_kubernetes(staged)
    metadata = ObjectMeta(name=staged.metadata.name, namespace=staged.metadata.namespace)
    if isinstance(staged, StagedNetworkPolicy):
        members = NetworkPolicySpec.__struct_fields__
        spec = NetworkPolicySpec(**{name: getattr(staged.spec, name) for name in members})
        return NetworkPolicy(metadata=metadata, spec=spec)
    members = GlobalNetworkPolicySpec.__struct_fields__
    return GlobalNetworkPolicy(
        metadata=metadata,
        spec=GlobalNetworkPolicySpec(**{name: getattr(staged.spec, name) for name in members}),
    )


def _of_kubernetes(staged: StagedKubernetesNetworkPolicy) -> NetworkPolicy:
    spec, metadata = staged.spec, staged.metadata
    converted = conversion.network_policy(
        {
            "metadata": {"name": metadata.name, "namespace": metadata.namespace},
            "spec": {
                "podSelector": spec.pod_selector,
                "ingress": list(spec.ingress),
                "egress": list(spec.egress),
                "policyTypes": list(spec.policy_types),
            },
        }
    )
    return converted.resource
