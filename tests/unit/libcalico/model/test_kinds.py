"""The registry of kinds against the table of datamodel §1.1."""

from __future__ import annotations

import pytest

from libcalico import model
from libcalico.model.kinds import KIND_BY_NAME, KIND_BY_PLURAL, KINDS, TIERED_POLICY_KINDS

TABLE = """
BGPConfiguration bgpconfigurations global
BGPFilter bgpfilters global
BGPPeer bgppeers global
BlockAffinity blockaffinities global
CalicoNodeStatus caliconodestatuses global
ClusterInformation clusterinformations global
FelixConfiguration felixconfigurations global
GlobalNetworkPolicy globalnetworkpolicies global
GlobalNetworkSet globalnetworksets global
HostEndpoint hostendpoints global
IPAMConfiguration ipamconfigurations global
IPPool ippools global
IPReservation ipreservations global
KubeControllersConfiguration kubecontrollersconfigurations global
LiveMigration livemigrations namespaced
NetworkPolicy networkpolicies namespaced
NetworkSet networksets namespaced
Node nodes global
Profile profiles global
StagedGlobalNetworkPolicy stagedglobalnetworkpolicies global
StagedKubernetesNetworkPolicy stagedkubernetesnetworkpolicies namespaced
StagedNetworkPolicy stagednetworkpolicies namespaced
Tier tiers global
WorkloadEndpoint workloadendpoints namespaced
IPAMConfig ipamconfigs global
"""


def test_every_documented_kind_is_registered_and_no_other() -> None:
    documented = {tuple(line.split()) for line in TABLE.split("\n") if line}
    registered = {
        (info.kind, info.plural, "namespaced" if info.namespaced else "global") for info in KINDS
    }
    assert registered == documented


@pytest.mark.parametrize("info", KINDS, ids=lambda info: info.kind)
def test_a_kind_can_be_imported_from_the_package_and_knows_its_name(info) -> None:  # type: ignore[no-untyped-def]
    assert getattr(model, info.kind) is info.resource
    assert info.resource.kind == info.kind
    assert info.resource().kind == info.kind
    assert info.list_kind == info.kind + "List"
    assert KIND_BY_NAME[info.kind] is KIND_BY_PLURAL[info.plural] is info


@pytest.mark.parametrize(
    ("kind", "name", "accepted"),
    [
        ("ClusterInformation", "default", True),
        ("ClusterInformation", "other", False),
        ("IPAMConfiguration", "other", False),
        ("KubeControllersConfiguration", "other", False),
        ("BGPConfiguration", "default", True),
        ("BGPConfiguration", "node.worker-1", True),
        ("BGPConfiguration", "node.", False),
        ("BGPConfiguration", "nodexworker", False),
        ("FelixConfiguration", "anything", True),
        ("IPPool", "anything", True),
    ],
)
def test_names_of_single_objects(kind: str, name: str, accepted: bool) -> None:
    assert KIND_BY_NAME[kind].accepts_name(name) is accepted


def test_the_kinds_with_name_bookkeeping() -> None:
    assert len(TIERED_POLICY_KINDS) == 4
    assert set(KIND_BY_NAME) > TIERED_POLICY_KINDS
    assert "StagedKubernetesNetworkPolicy" not in TIERED_POLICY_KINDS
