"""Cluster information and the settings of the Kubernetes controllers.

Layer: libcalico.model, pure. Used by every daemon at start (datastoreReady), and by controllers.
Source: datamodel §1.9; Calico api/.../v3/{clusterinfo,kubecontrollersconfig}.go.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import field

from libcalico.model.meta import Model, Resource
from libcalico.model.scalars import Duration, Int32


class ClusterInformationSpec(Model, frozen=True, kw_only=True):
    """`datastoreReady` False locks the datastore: agents must not proceed."""

    cluster_guid: str | None = field(default=None, name="clusterGUID")
    cluster_type: str | None = field(default=None, name="clusterType")
    calico_version: str | None = field(default=None, name="calicoVersion")
    datastore_ready: bool | None = field(default=None, name="datastoreReady")
    variant: str | None = None


class ClusterInformation(Resource, frozen=True, kw_only=True, tag="ClusterInformation"):
    """Facts about the cluster; one object named `default`."""

    kind: ClassVar[str] = "ClusterInformation"

    spec: ClusterInformationSpec = field(default_factory=ClusterInformationSpec)


class Template(Model, frozen=True, kw_only=True):
    """A host endpoint to make for matching interfaces of selected nodes."""

    generate_name: str | None = field(default=None, name="generateName")
    interface_cidrs: tuple[str, ...] = field(default=(), name="interfaceCIDRs")
    interface_pattern: str | None = field(default=None, name="interfacePattern")
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    node_selector: str | None = field(default=None, name="nodeSelector")


class AutoHostEndpointConfig(Model, frozen=True, kw_only=True):
    """Automatic host endpoints."""

    auto_create: str | None = field(default=None, name="autoCreate")
    create_default_host_endpoint: str | None = field(default=None, name="createDefaultHostEndpoint")
    templates: tuple[Template, ...] = ()


class NodeControllerConfig(Model, frozen=True, kw_only=True):
    """The node controller, IPAM garbage collection included."""

    reconciler_period: Duration | None = field(default=None, name="reconcilerPeriod")
    sync_labels: str | None = field(default=None, name="syncLabels")
    host_endpoint: AutoHostEndpointConfig | None = field(default=None, name="hostEndpoint")
    leak_grace_period: Duration | None = field(default=None, name="leakGracePeriod")


class PolicyControllerConfig(Model, frozen=True, kw_only=True):
    """The network policy controller."""

    reconciler_period: Duration | None = field(default=None, name="reconcilerPeriod")


class WorkloadEndpointControllerConfig(Model, frozen=True, kw_only=True):
    """The workload endpoint controller."""

    reconciler_period: Duration | None = field(default=None, name="reconcilerPeriod")


class ServiceAccountControllerConfig(Model, frozen=True, kw_only=True):
    """The service account controller."""

    reconciler_period: Duration | None = field(default=None, name="reconcilerPeriod")


class NamespaceControllerConfig(Model, frozen=True, kw_only=True):
    """The namespace controller."""

    reconciler_period: Duration | None = field(default=None, name="reconcilerPeriod")


class LoadBalancerControllerConfig(Model, frozen=True, kw_only=True):
    """Which Services get addresses."""

    assign_ips: str | None = field(default=None, name="assignIPs")


class MigrationControllerConfig(Model, frozen=True, kw_only=True):
    """Migration of old policy names."""

    policy_name_migrator: str | None = field(default=None, name="policyNameMigrator")


class ControllersConfig(Model, frozen=True, kw_only=True):
    """An absent member disables that controller."""

    node: NodeControllerConfig | None = None
    policy: PolicyControllerConfig | None = None
    workload_endpoint: WorkloadEndpointControllerConfig | None = field(
        default=None, name="workloadEndpoint"
    )
    service_account: ServiceAccountControllerConfig | None = field(
        default=None, name="serviceAccount"
    )
    namespace: NamespaceControllerConfig | None = None
    load_balancer: LoadBalancerControllerConfig | None = field(default=None, name="loadBalancer")
    migration: MigrationControllerConfig | None = None


class KubeControllersConfigurationSpec(Model, frozen=True, kw_only=True):
    """A port of 0 turns the metrics server off."""

    ALWAYS: ClassVar[tuple[str, ...]] = ("controllers",)

    log_severity_screen: str | None = field(default=None, name="logSeverityScreen")
    health_checks: str | None = field(default=None, name="healthChecks")
    etcd_v3_compaction_period: Duration | None = field(default=None, name="etcdV3CompactionPeriod")
    prometheus_metrics_port: int | None = field(default=None, name="prometheusMetricsPort")
    controllers: ControllersConfig = field(default_factory=ControllersConfig)
    debug_profile_port: Int32 | None = field(default=None, name="debugProfilePort")


class KubeControllersConfigurationStatus(Model, frozen=True, kw_only=True):
    """The settings in force, and the environment behind them."""

    running_config: KubeControllersConfigurationSpec | None = field(
        default=None, name="runningConfig"
    )
    environment_vars: dict[str, str] = field(default_factory=dict, name="environmentVars")


class KubeControllersConfiguration(
    Resource, frozen=True, kw_only=True, tag="KubeControllersConfiguration"
):
    """Settings of the Kubernetes controllers; named `default`."""

    ALWAYS: ClassVar[tuple[str, ...]] = ("status",)
    kind: ClassVar[str] = "KubeControllersConfiguration"

    spec: KubeControllersConfigurationSpec = field(default_factory=KubeControllersConfigurationSpec)
    status: KubeControllersConfigurationStatus = field(
        default_factory=KubeControllersConfigurationStatus
    )
