"""Persisted defaults (datamodel §1.5), type inference (§5.3), initial objects (§0.8, §0.9)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from libcalico import model
from libcalico.errors import ValidationError
from libcalico.model import defaults
from libcalico.model.defaults import with_defaults
from libcalico.model.kinds import KINDS

ALLOW = model.Rule(action="Allow")
META = model.ObjectMeta(name="a", namespace="ns")


def test_a_pool_gets_everything_a_user_leaves_out() -> None:
    pool = with_defaults(model.IPPool(spec=model.IPPoolSpec(cidr="10.10.0.0/16")))
    assert pool.spec == model.IPPoolSpec(
        cidr="10.10.0.0/16",
        vxlan_mode="Never",
        ipip_mode="Never",
        block_size=26,
        node_selector="all()",
        allowed_uses=("Workload", "Tunnel"),
        assignment_mode="Automatic",
    )
    six = with_defaults(model.IPPool(spec=model.IPPoolSpec(cidr="FD00:0:0::/48", block_size=0)))
    assert (six.spec.cidr, six.spec.block_size) == ("fd00::/48", 122)


def test_a_pool_keeps_what_the_user_set() -> None:
    spec = model.IPPoolSpec(
        cidr="10.0.0.0/8",
        vxlan_mode="Always",
        ipip_mode="Never",
        block_size=28,
        node_selector="has(x)",
        allowed_uses=("LoadBalancer",),
        assignment_mode="Manual",
        disabled=True,
    )
    assert with_defaults(model.IPPool(spec=spec)).spec == spec


@pytest.mark.parametrize("cidr", ["", "x", "10.0.0.1/8", "10.0.0.0"])
def test_a_bad_pool_cidr_is_left_for_validation(cidr: str) -> None:
    assert with_defaults(model.IPPool(spec=model.IPPoolSpec(cidr=cidr))).spec.cidr == cidr


@pytest.mark.parametrize(
    ("ingress", "egress", "types"),
    [
        ((), (), ("Ingress",)),
        ((ALLOW,), (), ("Ingress",)),
        ((), (ALLOW,), ("Egress",)),
        ((ALLOW,), (ALLOW,), ("Ingress", "Egress")),
    ],
)
def test_types_are_inferred_from_the_rules(
    ingress: tuple[model.Rule, ...], egress: tuple[model.Rule, ...], types: tuple[str, ...]
) -> None:
    assert defaults.infer_types(ingress, egress) == types
    for kind, spec in (
        (model.NetworkPolicy, model.NetworkPolicySpec),
        (model.GlobalNetworkPolicy, model.GlobalNetworkPolicySpec),
        (model.StagedNetworkPolicy, model.StagedNetworkPolicySpec),
        (model.StagedGlobalNetworkPolicy, model.StagedGlobalNetworkPolicySpec),
    ):
        policy: Any = with_defaults(kind(metadata=META, spec=spec(ingress=ingress, egress=egress)))  # type: ignore[call-arg]
        assert policy.spec.types == types
        assert policy.spec.tier == "default"
        assert policy.metadata.labels == {"projectcalico.org/tier": "default"}


def test_types_and_tier_of_the_user_stay_and_the_label_follows_the_tier() -> None:
    policy = model.NetworkPolicy(
        metadata=replace(META, labels={"x": "1", "projectcalico.org/tier": "wrong"}),
        spec=model.NetworkPolicySpec(tier="sec", types=("Egress",), ingress=(ALLOW,)),
    )
    filled = with_defaults(policy)
    assert filled.spec == policy.spec
    assert filled.metadata.labels == {"x": "1", "projectcalico.org/tier": "sec"}


def test_staged_policies_are_staged_to_be_set() -> None:
    policy = with_defaults(model.StagedNetworkPolicy(metadata=META))
    assert policy.spec.staged_action == "Set"
    ignored = model.StagedNetworkPolicySpec(staged_action="Ignore")
    assert with_defaults(model.StagedNetworkPolicy(spec=ignored)).spec.staged_action == "Ignore"
    k8s = with_defaults(model.StagedKubernetesNetworkPolicy(metadata=META))
    assert k8s.spec == model.StagedKubernetesNetworkPolicySpec(staged_action="Set")
    assert k8s.metadata == META, "no tier label"


def test_a_staged_deletion_says_nothing_but_its_tier() -> None:
    spec = model.StagedGlobalNetworkPolicySpec(staged_action="Delete")
    policy = with_defaults(model.StagedGlobalNetworkPolicy(metadata=META, spec=spec))
    assert policy.spec == replace(spec, tier="default")


def test_felix_configuration() -> None:
    config = with_defaults(model.FelixConfiguration())
    assert config.spec == model.FelixConfigurationSpec(
        nftables_mode="Auto",
        nftables_flow_table_offload="Disabled",
        floating_ips="Disabled",
        bpf_connect_time_load_balancing="TCP",
        bpf_host_networked_nat_without_ctlb="Enabled",
    )


@pytest.mark.parametrize(("enabled", "text"), [(True, "Enabled"), (False, "Disabled")])
def test_the_old_bpf_boolean_decides_over_the_new_members(enabled: bool, text: str) -> None:
    spec = model.FelixConfigurationSpec(
        bpf_connect_time_load_balancing_enabled=enabled,
        bpf_connect_time_load_balancing="TCP",
        bpf_host_networked_nat_without_ctlb="Enabled",
    )
    filled = with_defaults(model.FelixConfiguration(spec=spec)).spec
    assert filled.bpf_connect_time_load_balancing == text
    assert filled.bpf_host_networked_nat_without_ctlb == "Disabled"
    assert filled.bpf_connect_time_load_balancing_enabled is enabled


def test_bgp_and_ipam_configuration_and_block_affinity() -> None:
    bgp = with_defaults(model.BGPConfiguration())
    assert bgp.spec == model.BGPConfigurationSpec(
        log_severity_screen="Info", service_load_balancer_aggregation="Enabled"
    )
    ipam = with_defaults(model.IPAMConfiguration())
    assert ipam.spec == model.IPAMConfigurationSpec(
        strict_affinity=False, auto_allocate_blocks=True, max_blocks_per_host=0
    )
    off = model.IPAMConfigurationSpec(auto_allocate_blocks=False, strict_affinity=True)
    kept = with_defaults(model.IPAMConfiguration(spec=off)).spec
    assert (kept.auto_allocate_blocks, kept.strict_affinity) == (False, True)
    assert with_defaults(model.BlockAffinity()).spec.deleted == "false"


def test_only_controllers_that_are_present_get_defaults() -> None:
    config = with_defaults(model.KubeControllersConfiguration())
    assert config.spec == model.KubeControllersConfigurationSpec(
        health_checks="Enabled", prometheus_metrics_port=9094
    )
    controllers = model.ControllersConfig(
        node=model.NodeControllerConfig(),
        load_balancer=model.LoadBalancerControllerConfig(),
        migration=model.MigrationControllerConfig(),
        policy=model.PolicyControllerConfig(),
    )
    spec = model.KubeControllersConfigurationSpec(
        controllers=controllers, prometheus_metrics_port=0
    )
    filled = with_defaults(model.KubeControllersConfiguration(spec=spec)).spec
    assert filled.prometheus_metrics_port == 0, "0 switches it off and is not unset"
    assert filled.controllers == model.ControllersConfig(
        node=model.NodeControllerConfig(leak_grace_period="15m0s"),
        load_balancer=model.LoadBalancerControllerConfig(assign_ips="AllServices"),
        migration=model.MigrationControllerConfig(policy_name_migrator="Enabled"),
        policy=model.PolicyControllerConfig(),
    )


@pytest.mark.parametrize(
    ("name", "order"),
    [("default", 1e6), ("kube-admin", 1e3), ("kube-baseline", 1e7), ("mine", None)],
)
def test_only_the_built_in_tiers_have_a_default_order(name: str, order: float | None) -> None:
    tier = with_defaults(model.Tier(metadata=model.ObjectMeta(name=name)))
    assert (tier.spec.order, tier.spec.default_action) == (order, "Deny")
    given = model.Tier(metadata=tier.metadata, spec=model.TierSpec(order=0.0))
    assert with_defaults(given).spec.order == 0.0


def _endpoint(name: str = "", **labels: str) -> model.WorkloadEndpoint:
    return model.WorkloadEndpoint(
        metadata=model.ObjectMeta(name=name, namespace="prod", labels=labels),
        spec=model.WorkloadEndpointSpec(
            node="worker-1", orchestrator="k8s", pod="web-0", endpoint="eth0"
        ),
    )


def test_an_endpoint_gets_its_name_and_its_labels() -> None:
    endpoint = with_defaults(_endpoint(app="web", **{"projectcalico.org/namespace": "other"}))
    assert endpoint.metadata.name == "worker--1-k8s-web--0-eth0"
    assert endpoint.metadata.labels == {
        "app": "web",
        "projectcalico.org/namespace": "prod",
        "projectcalico.org/orchestrator": "k8s",
    }
    assert with_defaults(_endpoint("worker--1-k8s-web--0-eth0")) == with_defaults(_endpoint())


def test_an_endpoint_with_another_name_is_refused() -> None:
    with pytest.raises(ValidationError) as caught:
        with_defaults(_endpoint("other"))
    error = caught.value.errors[0]
    assert (error.field, error.value) == ("Name", "other")
    assert error.reason == (
        "the WorkloadEndpoint name does not match the primary identifiers assigned in the Spec:"
        " expected name worker--1-k8s-web--0-eth0"
    )


@pytest.mark.parametrize("info", KINDS, ids=lambda info: info.kind)
def test_defaults_are_idempotent(info: Any) -> None:
    resource = info.resource(metadata=META)
    if info.kind == "WorkloadEndpoint":
        resource = _endpoint()
    filled = with_defaults(resource)
    assert with_defaults(filled) == filled
    assert type(filled) is info.resource


@pytest.mark.parametrize("kind", [model.Node, model.Profile, model.LiveMigration, model.NetworkSet])
def test_kinds_without_defaults_are_returned_as_they_are(kind: Any) -> None:
    resource = kind(metadata=META)
    assert with_defaults(resource) is resource


def test_the_initial_tiers() -> None:
    assert [
        (tier.metadata.name, tier.spec.order, tier.spec.default_action)
        for tier in defaults.initial_tiers()
    ] == [
        ("default", 1_000_000.0, "Deny"),
        ("kube-admin", 1_000.0, "Pass"),
        ("kube-baseline", 10_000_000.0, "Pass"),
    ]


def test_the_initial_cluster_information() -> None:
    info = defaults.initial_cluster_information("ab" * 16, cluster_type="bgp")
    assert info.metadata.name == "default"
    assert info.spec == model.ClusterInformationSpec(
        cluster_guid="ab" * 16, datastore_ready=True, cluster_type="bgp"
    )


def test_cluster_information_is_filled_up_but_not_unlocked() -> None:
    stored = defaults.initial_cluster_information("ab" * 16, cluster_type="typha,bgp")
    stored = replace(stored, spec=replace(stored.spec, datastore_ready=False))
    updated = defaults.updated_cluster_information(
        stored, cluster_guid="cd" * 16, calico_version="v2", cluster_type="bgp,k8s"
    )
    assert updated.spec == model.ClusterInformationSpec(
        cluster_guid="ab" * 16,
        cluster_type="typha,bgp,k8s",
        calico_version="v2",
        datastore_ready=False,
    )
    empty = defaults.updated_cluster_information(model.ClusterInformation(), cluster_guid="x")
    assert empty.spec == model.ClusterInformationSpec(cluster_guid="x", datastore_ready=True)


def test_the_synthetic_profile() -> None:
    profile = defaults.default_allow_profile()
    assert profile.metadata.name == "projectcalico-default-allow"
    assert profile.metadata.resource_version == "1"
    assert profile.spec == model.ProfileSpec(ingress=(ALLOW,), egress=(ALLOW,))
