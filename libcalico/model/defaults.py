"""Defaults that are persisted, and the objects every new datastore starts with.

Layer: libcalico.model, pure. Used by whatever creates or updates objects: the CLI, node start-up,
controllers, cni.

  DF1  `with_defaults` is idempotent and never changes a member the user set, but for the forced
       ones of datamodel §1.5 (canonical pool CIDR, tier label, endpoint name and labels, BPF pair);
  DF2  it runs before validation, on create and on update; decoding applies no defaults.

Defaults that are effective but not stored (nodeToNodeMeshEnabled and others) are the reader's.
Source: datamodel §1.5, §5.3, §5.7, §0.8, §0.9; Calico LCG/clientv3, LCG/validator/v3/crd_*.go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from msgspec.structs import replace

from libcalico import net
from libcalico.errors import ValidationError
from libcalico.model.bgp import BGPConfiguration
from libcalico.model.cluster import (
    ClusterInformation,
    ClusterInformationSpec,
    ControllersConfig,
    KubeControllersConfiguration,
)
from libcalico.model.endpoints import WorkloadEndpoint
from libcalico.model.felix_config import FelixConfiguration, FelixConfigurationSpec
from libcalico.model.ippool import BlockAffinity, IPAMConfiguration, IPPool
from libcalico.model.meta import (
    NAMESPACE_LABEL,
    ORCHESTRATOR_LABEL,
    TIER_LABEL,
    ObjectMeta,
    Resource,
)
from libcalico.model.names import DEFAULT_ALLOW_PROFILE, endpoint_ids, endpoint_name
from libcalico.model.policy import (
    GlobalNetworkPolicy,
    NetworkPolicy,
    Profile,
    ProfileSpec,
    Rule,
    StagedGlobalNetworkPolicy,
    StagedKubernetesNetworkPolicy,
    StagedNetworkPolicy,
    Tier,
    TierSpec,
)

DEFAULT_TIER = "default"
DEFAULT_TIER_ORDER = 1_000_000.0
KUBE_ADMIN_TIER = "kube-admin"
KUBE_ADMIN_TIER_ORDER = 1_000.0
KUBE_BASELINE_TIER = "kube-baseline"
KUBE_BASELINE_TIER_ORDER = 10_000_000.0
BUILT_IN_TIERS: dict[str, tuple[float, str]] = {
    DEFAULT_TIER: (DEFAULT_TIER_ORDER, "Deny"),
    KUBE_ADMIN_TIER: (KUBE_ADMIN_TIER_ORDER, "Pass"),
    KUBE_BASELINE_TIER: (KUBE_BASELINE_TIER_ORDER, "Pass"),
}

DEFAULT_BLOCK_SIZE = {4: 26, 6: 122}
DEFAULT_ALLOWED_USES = ("Workload", "Tunnel")
DEFAULT_AS_NUMBER = 64512

_R = TypeVar("_R", bound=Resource)


def with_defaults(resource: _R) -> _R:
    """The object as it is persisted. Errors: ValidationError when a forced value cannot be made."""
    apply = _DEFAULTS.get(type(resource))
    return resource if apply is None else apply(resource)


def _with_spec(resource: Any, **unset: Any) -> Any:
    """Set the given spec members where they are None, "" or empty."""
    spec = resource.spec
    changes = {
        name: value
        for name, value in unset.items()
        if getattr(spec, name) in (None, "", ()) and value is not None
    }
    return replace(resource, spec=replace(spec, **changes)) if changes else resource


def _ip_pool(pool: IPPool) -> IPPool:
    try:
        network = net.parse_strict_cidr(pool.spec.cidr)
    except net.AddressError:
        # Validation refuses it, and says more than we could here.
        return pool_with_read_defaults(pool)
    pool = replace(pool, spec=replace(pool.spec, cidr=str(network)))
    return pool_with_read_defaults(pool)


def pool_with_read_defaults(pool: IPPool) -> IPPool:
    """The defaults that also apply when a stored pool is read (foreign writers leave them out)."""
    version = 6 if ":" in pool.spec.cidr else 4
    filled: IPPool = _with_spec(
        pool,
        node_selector="all()",
        assignment_mode="Automatic",
        block_size=DEFAULT_BLOCK_SIZE[version],
        allowed_uses=DEFAULT_ALLOWED_USES,
        ipip_mode="Never",
        vxlan_mode="Never",
    )
    if filled.spec.block_size == 0:
        size = DEFAULT_BLOCK_SIZE[version]
        filled = replace(filled, spec=replace(filled.spec, block_size=size))
    return filled


def infer_types(ingress: tuple[Rule, ...], egress: tuple[Rule, ...]) -> tuple[str, ...]:
    """Which directions a policy without `types` governs (datamodel §5.3)."""
    if not egress:
        return ("Ingress",)
    return ("Ingress", "Egress") if ingress else ("Egress",)


def _policy(policy: Any) -> Any:
    spec = policy.spec
    policy = _with_spec(policy, tier=DEFAULT_TIER, types=infer_types(spec.ingress, spec.egress))
    labels = {**policy.metadata.labels, TIER_LABEL: policy.spec.tier}
    return replace(policy, metadata=replace(policy.metadata, labels=labels))


def _staged_policy(policy: Any) -> Any:
    if policy.spec.staged_action == "Delete":
        # A staged deletion says nothing but its tier (datamodel §4.4): types would be one field
        # too many.
        policy = _with_spec(policy, tier=DEFAULT_TIER)
        labels = {**policy.metadata.labels, TIER_LABEL: policy.spec.tier}
        return replace(policy, metadata=replace(policy.metadata, labels=labels))
    return _with_spec(_policy(policy), staged_action="Set")


def _felix(config: FelixConfiguration) -> FelixConfiguration:
    config = _with_spec(
        config,
        nftables_mode="Auto",
        nftables_flow_table_offload="Disabled",
        floating_ips="Disabled",
    )
    return replace(config, spec=_bpf_load_balancing(config.spec))


def _bpf_load_balancing(spec: FelixConfigurationSpec) -> FelixConfigurationSpec:
    """The old boolean, when set, decides over the two newer members."""
    if spec.bpf_connect_time_load_balancing_enabled is None:
        return replace(
            spec,
            bpf_connect_time_load_balancing=spec.bpf_connect_time_load_balancing or "TCP",
            bpf_host_networked_nat_without_ctlb=(
                spec.bpf_host_networked_nat_without_ctlb or "Enabled"
            ),
        )
    enabled = spec.bpf_connect_time_load_balancing_enabled
    return replace(
        spec,
        bpf_connect_time_load_balancing="Enabled" if enabled else "Disabled",
        bpf_host_networked_nat_without_ctlb="Disabled",
    )


def _kube_controllers(config: KubeControllersConfiguration) -> KubeControllersConfiguration:
    config = _with_spec(config, health_checks="Enabled", prometheus_metrics_port=9094)
    controllers = _controllers(config.spec.controllers)
    return replace(config, spec=replace(config.spec, controllers=controllers))


def _controllers(config: ControllersConfig) -> ControllersConfig:
    """Only what is present gets defaults: an absent controller is a disabled one."""
    node, balancer, migration = config.node, config.load_balancer, config.migration
    if node is not None and not node.leak_grace_period:
        node = replace(node, leak_grace_period="15m0s")
    if balancer is not None and not balancer.assign_ips:
        balancer = replace(balancer, assign_ips="AllServices")
    if migration is not None and not migration.policy_name_migrator:
        migration = replace(migration, policy_name_migrator="Enabled")
    return replace(config, node=node, load_balancer=balancer, migration=migration)


def _tier(tier: Tier) -> Tier:
    order, _ = BUILT_IN_TIERS.get(tier.metadata.name, (None, ""))
    # Also kube-admin and kube-baseline default to Deny here; validation then asks for Pass.
    filled: Tier = _with_spec(tier, default_action="Deny", order=order)
    return filled


def _workload_endpoint(endpoint: WorkloadEndpoint) -> WorkloadEndpoint:
    metadata, spec = endpoint.metadata, endpoint.spec
    expected = endpoint_name(endpoint_ids(spec))
    if metadata.name and metadata.name != expected:
        raise ValidationError.of(
            "Name",
            metadata.name,
            "the WorkloadEndpoint name does not match the primary identifiers assigned in the"
            f" Spec: expected name {expected}",
        )
    labels = {
        **metadata.labels,
        NAMESPACE_LABEL: metadata.namespace,
        ORCHESTRATOR_LABEL: spec.orchestrator or "",
    }
    return replace(endpoint, metadata=replace(metadata, name=expected, labels=labels))


_DEFAULTS: dict[type[Resource], Callable[[Any], Any]] = {
    BGPConfiguration: lambda config: _with_spec(
        config, log_severity_screen="Info", service_load_balancer_aggregation="Enabled"
    ),
    BlockAffinity: lambda affinity: _with_spec(affinity, deleted="false"),
    FelixConfiguration: _felix,
    GlobalNetworkPolicy: _policy,
    IPAMConfiguration: lambda config: _with_spec(
        config, strict_affinity=False, auto_allocate_blocks=True, max_blocks_per_host=0
    ),
    IPPool: _ip_pool,
    KubeControllersConfiguration: _kube_controllers,
    NetworkPolicy: _policy,
    StagedGlobalNetworkPolicy: _staged_policy,
    StagedKubernetesNetworkPolicy: lambda policy: _with_spec(policy, staged_action="Set"),
    StagedNetworkPolicy: _staged_policy,
    Tier: _tier,
    WorkloadEndpoint: _workload_endpoint,
}


def initial_cluster_information(
    cluster_guid: str, *, calico_version: str = "", cluster_type: str = ""
) -> ClusterInformation:
    """The object that marks a datastore as initialised. `cluster_guid`: 32 hex digits."""
    return ClusterInformation(
        metadata=ObjectMeta(name="default"),
        spec=ClusterInformationSpec(
            cluster_guid=cluster_guid,
            cluster_type=cluster_type or None,
            calico_version=calico_version or None,
            datastore_ready=True,
        ),
    )


def updated_cluster_information(
    stored: ClusterInformation,
    *,
    cluster_guid: str = "",
    calico_version: str = "",
    cluster_type: str = "",
) -> ClusterInformation:
    """What a start-up makes of the stored object: gaps filled, version set, types merged."""
    spec = stored.spec
    return replace(
        stored,
        spec=replace(
            spec,
            cluster_guid=spec.cluster_guid or cluster_guid or None,
            calico_version=calico_version or spec.calico_version,
            cluster_type=merge_cluster_types(spec.cluster_type or "", cluster_type) or None,
            datastore_ready=True if spec.datastore_ready is None else spec.datastore_ready,
        ),
    )


def merge_cluster_types(stored: str, added: str) -> str:
    """Comma-separated values, each once, in order of appearance."""
    values: Iterable[str] = [*stored.split(","), *added.split(",")]
    return ",".join(dict.fromkeys(value for value in values if value))


def initial_tiers() -> tuple[Tier, ...]:
    """The three built-in tiers."""
    return tuple(
        Tier(metadata=ObjectMeta(name=name), spec=TierSpec(order=order, default_action=action))
        for name, (order, action) in BUILT_IN_TIERS.items()
    )


def default_allow_profile() -> Profile:
    """The synthetic profile: always there, never stored, revision "1" (datamodel §0.9)."""
    allow = (Rule(action="Allow"),)
    return Profile(
        metadata=ObjectMeta(name=DEFAULT_ALLOW_PROFILE, resource_version="1"),
        spec=ProfileSpec(ingress=allow, egress=allow),
    )
