"""The registry of v3 kinds: one table, from which keys, codec, defaults and the CLI read.

Layer: libcalico.model, pure. Used by keys, codec, documents, defaults and calicoctl.
A kind missing here does not exist for us; the order is that of datamodel §1.1 (alphabetical).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from libcalico.model.bgp import BGPConfiguration, BGPPeer
from libcalico.model.bgp_filter import BGPFilter
from libcalico.model.cluster import ClusterInformation, KubeControllersConfiguration
from libcalico.model.endpoints import HostEndpoint, LiveMigration, WorkloadEndpoint
from libcalico.model.felix_config import FelixConfiguration
from libcalico.model.ippool import (
    BlockAffinity,
    IPAMConfig,
    IPAMConfiguration,
    IPPool,
    IPReservation,
)
from libcalico.model.meta import Resource
from libcalico.model.node import CalicoNodeStatus, Node
from libcalico.model.policy import (
    GlobalNetworkPolicy,
    GlobalNetworkSet,
    NetworkPolicy,
    NetworkSet,
    Profile,
    StagedGlobalNetworkPolicy,
    StagedKubernetesNetworkPolicy,
    StagedNetworkPolicy,
    Tier,
)


class NameRule(Enum):
    """Which object names a kind can have, beyond the general syntax."""

    ANY = "any"
    DEFAULT_ONLY = "default"  # one object, named `default`
    DEFAULT_OR_NODE = "default or node.<name>"


@dataclass(frozen=True, slots=True)
class KindInfo:
    """What there is to know about a kind before looking at an object of it."""

    kind: str
    plural: str
    namespaced: bool
    resource: type[Resource]
    name_rule: NameRule = NameRule.ANY

    @property
    def list_kind(self) -> str:
        return self.kind + "List"

    def accepts_name(self, name: str) -> bool:
        if self.name_rule is NameRule.ANY:
            return True
        if self.name_rule is NameRule.DEFAULT_OR_NODE and re.match(r"node\..", name):
            return True
        return name == "default"


def _info(
    resource: type[Resource],
    plural: str,
    *,
    namespaced: bool = False,
    names: NameRule = NameRule.ANY,
) -> KindInfo:
    return KindInfo(resource.kind, plural, namespaced, resource, names)


KINDS: tuple[KindInfo, ...] = (
    _info(BGPConfiguration, "bgpconfigurations", names=NameRule.DEFAULT_OR_NODE),
    _info(BGPFilter, "bgpfilters"),
    _info(BGPPeer, "bgppeers"),
    _info(BlockAffinity, "blockaffinities"),
    _info(CalicoNodeStatus, "caliconodestatuses"),
    _info(ClusterInformation, "clusterinformations", names=NameRule.DEFAULT_ONLY),
    _info(FelixConfiguration, "felixconfigurations"),
    _info(GlobalNetworkPolicy, "globalnetworkpolicies"),
    _info(GlobalNetworkSet, "globalnetworksets"),
    _info(HostEndpoint, "hostendpoints"),
    _info(IPAMConfig, "ipamconfigs"),
    _info(IPAMConfiguration, "ipamconfigurations", names=NameRule.DEFAULT_ONLY),
    _info(IPPool, "ippools"),
    _info(IPReservation, "ipreservations"),
    _info(
        KubeControllersConfiguration, "kubecontrollersconfigurations", names=NameRule.DEFAULT_ONLY
    ),
    _info(LiveMigration, "livemigrations", namespaced=True),
    _info(NetworkPolicy, "networkpolicies", namespaced=True),
    _info(NetworkSet, "networksets", namespaced=True),
    _info(Node, "nodes"),
    _info(Profile, "profiles"),
    _info(StagedGlobalNetworkPolicy, "stagedglobalnetworkpolicies"),
    _info(StagedKubernetesNetworkPolicy, "stagedkubernetesnetworkpolicies", namespaced=True),
    _info(StagedNetworkPolicy, "stagednetworkpolicies", namespaced=True),
    _info(Tier, "tiers"),
    _info(WorkloadEndpoint, "workloadendpoints", namespaced=True),
)

KIND_BY_NAME: dict[str, KindInfo] = {info.kind: info for info in KINDS}
KIND_BY_PLURAL: dict[str, KindInfo] = {info.plural: info for info in KINDS}

# The four kinds stored under the user's name with a bookkeeping annotation (datamodel §0.3).
TIERED_POLICY_KINDS = frozenset(
    {
        "NetworkPolicy",
        "GlobalNetworkPolicy",
        "StagedNetworkPolicy",
        "StagedGlobalNetworkPolicy",
    }
)
