"""The kinds as the command line names them: aliases and table columns (datamodel 6.7).

Layer: pure. Used by calicoctl.commands and calicoctl.output. One row a kind; `KIND` on the command
line is matched against the aliases without case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from calicoctl import cells
from calicoctl.realization import Realization
from libcalico.errors import SuiteError
from libcalico.model.kinds import KIND_BY_NAME, KindInfo

Shown = Mapping[str, Any]
Cell = Callable[[Shown, "Environment"], str]


@dataclass(frozen=True, slots=True)
class Environment:
    """What a cell may need beside its object: the cluster's AS number ("" when unknown), and what
    nodes say of policies (None when that was not asked, or could not be read)."""

    global_as: str = ""
    realization: Realization | None = None


@dataclass(frozen=True, slots=True)
class CliKind:
    """`ps` and `wide` are column headings; `columns` says how each is filled."""

    kind: str
    aliases: tuple[str, ...]
    columns: Mapping[str, Cell]
    ps: tuple[str, ...]
    wide: tuple[str, ...]
    sort_key: Callable[[Shown], Any] | None = None

    @property
    def info(self) -> KindInfo:
        return KIND_BY_NAME[self.kind]


class UnknownResourceType(SuiteError):
    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind

    def __str__(self) -> str:
        return f"resource type '{self.kind}' is not supported"


def find(name: str) -> CliKind:
    """The kind an alias names. Errors: UnknownResourceType."""
    found = BY_ALIAS.get(name.lower())
    if found is None:
        raise UnknownResourceType(name)
    return found


@dataclass(slots=True)
class _Row:
    kind: str
    aliases: str
    ps: str
    wide: str = ""
    custom: str = ""
    cells: dict[str, Cell] = field(default_factory=dict)
    sort_key: Callable[[Shown], Any] | None = None

    def build(self) -> CliKind:
        columns: dict[str, Cell] = {"NAME": cells.name, **self.cells}
        ps = tuple(self.ps.split())
        wide = tuple(self.wide.split()) or ps
        used = {*ps, *wide, *self.custom.split()}
        return CliKind(
            self.kind,
            tuple(self.aliases.split()),
            {heading: cell for heading, cell in columns.items() if heading in used},
            ps,
            wide,
            self.sort_key,
        )


_POLICY_CELLS: dict[str, Cell] = {
    "TIER": cells.tier,
    "ORDER": cells.number("spec", "order"),
    "SELECTOR": cells.text("spec", "selector"),
    "REALIZED": cells.realized,
}
_POLICY_WIDE = "NAME TIER ORDER SELECTOR REALIZED"
# Staged policies are computed by nodes, and never in force.
_STAGED_CELLS = {
    "TIER": _POLICY_CELLS["TIER"],
    "ORDER": _POLICY_CELLS["ORDER"],
    "SELECTOR": _POLICY_CELLS["SELECTOR"],
    "COMPUTED": cells.realized,
}
_STAGED_WIDE = "NAME TIER ORDER SELECTOR COMPUTED"

_ROWS = (
    _Row(
        "BGPConfiguration",
        "bgpconfiguration bgpconfigurations bgpconfig bgpconfigs",
        "NAME LOGSEVERITY MESHENABLED ASNUMBER",
        cells={
            "LOGSEVERITY": cells.text("spec", "logSeverityScreen"),
            "MESHENABLED": cells.or_dash("spec", "nodeToNodeMeshEnabled"),
            "ASNUMBER": cells.or_dash("spec", "asNumber"),
        },
    ),
    _Row(
        "BGPFilter",
        "bgpfilter bgpfilters bgpf bgpfs bf bfs",
        "NAME NUMEXPORTV4 NUMIMPORTV4 NUMEXPORTV6 NUMIMPORTV6",
        cells={
            "NUMEXPORTV4": cells.count("spec", "exportV4"),
            "NUMIMPORTV4": cells.count("spec", "importV4"),
            "NUMEXPORTV6": cells.count("spec", "exportV6"),
            "NUMIMPORTV6": cells.count("spec", "importV6"),
        },
    ),
    _Row(
        "BGPPeer",
        "bgppeer bgppeers bgpp bgpps bp bps",
        "NAME PEERIP NODE ASN",
        cells={
            "PEERIP": cells.text("spec", "peerIP"),
            "NODE": cells.peer_node,
            "ASN": cells.number("spec", "asNumber", absent="0"),
        },
    ),
    _Row(
        "CalicoNodeStatus",
        "caliconodestatus caliconodestatuses nodestatus nodestatuses",
        "NAME NODE",
        "NAME NODE CLASSES",
        cells={"NODE": cells.text("spec", "node"), "CLASSES": cells.joined("spec", "classes")},
    ),
    _Row(
        "ClusterInformation",
        "clusterinformation clusterinformations clusterinfo clusterinfos",
        "NAME CLUSTERGUID CLUSTERTYPE CALICOVERSION DATASTOREREADY",
        cells={
            "CLUSTERGUID": cells.text("spec", "clusterGUID"),
            "CLUSTERTYPE": cells.text("spec", "clusterType"),
            "CALICOVERSION": cells.text("spec", "calicoVersion"),
            "DATASTOREREADY": cells.number("spec", "datastoreReady"),
        },
    ),
    _Row(
        "FelixConfiguration",
        "felixconfiguration felixconfigurations felixconfig felixconfigs",
        "NAME",
    ),
    _Row(
        "GlobalNetworkPolicy",
        "globalnetworkpolicy globalnetworkpolicies gnp gnps",
        "NAME TIER",
        _POLICY_WIDE,
        cells=_POLICY_CELLS,
    ),
    _Row(
        "GlobalNetworkSet",
        "globalnetworkset globalnetworksets gnetsets",
        "NAME",
        "NAME NETS",
        cells={"NETS": cells.joined("spec", "nets", limit=80)},
    ),
    _Row(
        "HostEndpoint",
        "hostendpoint hostendpoints hep heps",
        "NAME NODE",
        "NAME NODE INTERFACE IPS PROFILES",
        cells={
            "NODE": cells.text("spec", "node"),
            "INTERFACE": cells.text("spec", "interfaceName"),
            "IPS": cells.joined("spec", "expectedIPs"),
            "PROFILES": cells.joined("spec", "profiles"),
        },
    ),
    _Row(
        "IPAMConfiguration",
        "ipamconfiguration ipamconfigurations ipamconfig ipamconfigs",
        "NAME STRICTAFFINITY AUTOALLOCATEBLOCKS",
        "NAME STRICTAFFINITY AUTOALLOCATEBLOCKS MAXBLOCKSPERHOST",
        cells={
            "STRICTAFFINITY": cells.boolean("spec", "strictAffinity"),
            "AUTOALLOCATEBLOCKS": cells.boolean("spec", "autoAllocateBlocks"),
            "MAXBLOCKSPERHOST": cells.number("spec", "maxBlocksPerHost", absent="0"),
        },
    ),
    _Row(
        "IPPool",
        "ippool ippools ipp ipps pool pools",
        "NAME CIDR SELECTOR",
        "NAME CIDR NAT IPIPMODE VXLANMODE DISABLED DISABLEBGPEXPORT SELECTOR ASSIGNMENTMODE",
        cells={
            "CIDR": cells.text("spec", "cidr"),
            "NAT": cells.boolean("spec", "natOutgoing"),
            "IPIPMODE": cells.text("spec", "ipipMode"),
            "VXLANMODE": cells.text("spec", "vxlanMode"),
            "DISABLED": cells.boolean("spec", "disabled"),
            "DISABLEBGPEXPORT": cells.boolean("spec", "disableBGPExport"),
            "SELECTOR": cells.text("spec", "nodeSelector"),
            "ASSIGNMENTMODE": cells.text("spec", "assignmentMode"),
        },
    ),
    _Row(
        "IPReservation",
        "ipreservation ipreservations reservation reservations",
        "NAME",
        "NAME CIDRS",
        cells={"CIDRS": cells.joined("spec", "reservedCIDRs")},
    ),
    _Row(
        "KubeControllersConfiguration",
        "kubecontrollersconfiguration kubecontrollersconfigurations"
        " kubecontrollersconfig kubecontrollersconfigs",
        "NAME",
    ),
    _Row(
        "NetworkPolicy",
        "networkpolicy networkpolicies policy policies np nps pol pols",
        "NAME TIER",
        _POLICY_WIDE,
        cells=_POLICY_CELLS,
    ),
    _Row(
        "NetworkSet",
        "networkset networksets netsets",
        "NAME",
        "NAME NETS",
        cells={"NETS": cells.joined("spec", "nets", limit=80)},
    ),
    _Row(
        "Node",
        "node nodes no nos",
        "NAME",
        "NAME ASN IPV4 IPV6",
        cells={
            "ASN": cells.node_as,
            "IPV4": cells.text("spec", "bgp", "ipv4Address"),
            "IPV6": cells.text("spec", "bgp", "ipv6Address"),
        },
    ),
    _Row(
        "Profile",
        "profile profiles pro pros",
        "NAME",
        "NAME LABELS",
        cells={"LABELS": cells.pairs("spec", "labelsToApply")},
    ),
    _Row(
        "StagedGlobalNetworkPolicy",
        "stagedglobalnetworkpolicy stagedglobalnetworkpolicies sgnp sgnps",
        "NAME TIER",
        _STAGED_WIDE,
        cells=_STAGED_CELLS,
    ),
    _Row(
        "StagedKubernetesNetworkPolicy",
        "stagedkubernetesnetworkpolicy stagedkubernetesnetworkpolicies"
        " stagedkubernetespolicy stagedkubernetespolicies sknp sknps skpol skpols",
        "NAME",
        "NAME PODSELECTOR COMPUTED",
        cells={
            "PODSELECTOR": cells.label_selector("spec", "podSelector"),
            "COMPUTED": cells.realized,
        },
    ),
    _Row(
        "StagedNetworkPolicy",
        "stagednetworkpolicy stagednetworkpolicies stagedpolicy stagedpolicies snp snps spol spols",
        "NAME TIER",
        _STAGED_WIDE,
        cells=_STAGED_CELLS,
    ),
    _Row(
        "Tier",
        "tier tiers",
        "NAME ORDER",
        cells={"ORDER": cells.number("spec", "order")},
        sort_key=cells.tier_order,
    ),
    _Row(
        "WorkloadEndpoint",
        "workloadendpoint workloadendpoints wep weps",
        "WORKLOAD NODE NETWORKS INTERFACE",
        "NAME WORKLOAD NODE NETWORKS INTERFACE PROFILES NATS",
        "ORCHESTRATOR",
        cells={
            "WORKLOAD": cells.workload,
            "NODE": cells.text("spec", "node"),
            "NETWORKS": cells.joined("spec", "ipNetworks"),
            "INTERFACE": cells.text("spec", "interfaceName"),
            "PROFILES": cells.joined("spec", "profiles"),
            "NATS": cells.nats,
            "ORCHESTRATOR": cells.text("spec", "orchestrator"),
        },
    ),
)

KINDS: tuple[CliKind, ...] = tuple(row.build() for row in _ROWS)
BY_NAME: dict[str, CliKind] = {kind.kind: kind for kind in KINDS}
BY_ALIAS: dict[str, CliKind] = {alias: kind for kind in KINDS for alias in kind.aliases}
