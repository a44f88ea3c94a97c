"""Every JSON member that datamodel §1.9 documents is a member of its class, in that spelling.

The tables are typed from the document, not from the code.
"""

from __future__ import annotations

import pytest

from libcalico import model
from libcalico.model.schema import Free, Listing, Mapping, Record, Scalar, record_of

# "?" marks members that are left out when zero; the others are always stored.
TABLES: dict[str, str] = {
    "ObjectMeta": "name namespace uid creationTimestamp labels annotations generateName"
    " ownerReferences finalizers generation resourceVersion selfLink managedFields"
    " deletionTimestamp deletionGracePeriodSeconds",
    "IPPoolSpec": "cidr vxlanMode? ipipMode? natOutgoing? disabled? disableBGPExport? blockSize?"
    " nodeSelector? namespaceSelector? allowedUses? assignmentMode?",
    "IPPoolStatus": "conditions?",
    "IPReservationSpec": "reservedCIDRs?",
    "IPAMConfigurationSpec": "strictAffinity autoAllocateBlocks maxBlocksPerHost?"
    " kubeVirtVMAddressPersistence? ipCooldownSeconds?",
    "IPAMConfigSpec": "strictAffinity autoAllocateBlocks maxBlocksPerHost?"
    " kubeVirtVMAddressPersistence? ipCooldownSeconds?",
    "BlockAffinitySpec": "state node type? cidr deleted",
    "BGPConfigurationSpec": "logSeverityScreen? nodeToNodeMeshEnabled? asNumber?"
    " serviceLoadBalancerIPs? serviceExternalIPs? serviceClusterIPs?"
    " serviceLoadBalancerAggregation? communities? prefixAdvertisements? listenPort?"
    " nodeMeshPassword? nodeMeshMaxRestartTime? bindMode? ignoredInterfaces?"
    " localWorkloadPeeringIPV4? localWorkloadPeeringIPV6? programClusterRoutes?"
    " ipv4NormalRoutePriority? ipv6NormalRoutePriority?",
    "Community": "name? value?",
    "PrefixAdvertisement": "cidr? communities?",
    "BGPPassword": "secretKeyRef?",
    "SecretKeySelector": "name? key optional?",
    "BGPPeerSpec": "node? nodeSelector? peerIP? asNumber? localASNumber? peerSelector?"
    " keepOriginalNextHop? nextHopMode? password? sourceAddress? maxRestartTime? keepaliveTime?"
    " numAllowedLocalASNumbers? ttlSecurity? reachableBy? filters? localWorkloadSelector?"
    " reversePeering?",
    "BGPFilterSpec": "exportV4? importV4? exportV6? importV6?",
    "BGPFilterRuleV4": "cidr? matchOperator? prefixLength? source? interface? peerType?"
    " communities? asPathPrefix? priority? action operations?",
    "BGPFilterRuleV6": "cidr? matchOperator? prefixLength? source? interface? peerType?"
    " communities? asPathPrefix? priority? action operations?",
    "BGPFilterPrefixLengthV4": "min? max?",
    "BGPFilterPrefixLengthV6": "min? max?",
    "BGPFilterCommunityMatch": "values",
    "BGPFilterOperation": "addCommunity? prependASPath? setPriority?",
    "BGPFilterAddCommunity": "value",
    "BGPFilterPrependASPath": "prefix",
    "BGPFilterSetPriority": "value",
    "TierSpec": "order? defaultAction?",
    "TierStatus": "conditions?",
    "NetworkPolicySpec": "tier? order? ingress? egress? selector? types? serviceAccountSelector?"
    " performanceHints?",
    "GlobalNetworkPolicySpec": "tier? order? ingress? egress? selector? types?"
    " serviceAccountSelector? namespaceSelector? doNotTrack? preDNAT? applyOnForward?"
    " performanceHints?",
    "StagedNetworkPolicySpec": "stagedAction? tier? order? ingress? egress? selector? types?"
    " serviceAccountSelector? performanceHints?",
    "StagedGlobalNetworkPolicySpec": "stagedAction? tier? order? ingress? egress? selector? types?"
    " serviceAccountSelector? namespaceSelector? doNotTrack? preDNAT? applyOnForward?"
    " performanceHints?",
    "StagedKubernetesNetworkPolicySpec": "stagedAction? podSelector ingress? egress? policyTypes?",
    "Rule": "action ipVersion? protocol? notProtocol? icmp? notICMP? source? destination? http?"
    " metadata?",
    "ICMPFields": "type? code?",
    "HTTPMatch": "methods? paths?",
    "HTTPPath": "exact? prefix?",
    "RuleMetadata": "annotations?",
    "EntityRule": "nets? notNets? selector? notSelector? namespaceSelector? services? ports?"
    " notPorts? serviceAccounts?",
    "ServiceMatch": "name? namespace?",
    "ServiceAccountMatch": "names? selector?",
    "NetworkSetSpec": "nets?",
    "GlobalNetworkSetSpec": "nets?",
    "ProfileSpec": "ingress? egress? labelsToApply?",
    "HostEndpointSpec": "node? interfaceName? expectedIPs? profiles? ports?",
    "EndpointPort": "name protocol port",
    "WorkloadEndpointSpec": "orchestrator? workload? node? containerID? pod? endpoint?"
    " serviceAccountName? ipNetworks? ipNATs? ipv4Gateway? ipv6Gateway? profiles? interfaceName?"
    " mac? ports? allowSpoofedSourcePrefixes? qosControls?",
    "IPNAT": "internalIP externalIP",
    "WorkloadEndpointPort": "name protocol port hostPort hostIP",
    "QoSControls": "ingressBandwidth? egressBandwidth? ingressBurst? egressBurst?"
    " ingressPeakrate? egressPeakrate? ingressMinburst? egressMinburst? ingressPacketRate?"
    " egressPacketRate? ingressPacketBurst? egressPacketBurst? ingressMaxConnections?"
    " egressMaxConnections? dscp?",
    "LiveMigrationSpec": "source? target?",
    "LiveMigrationSource": "workload? workloadEndpoint?",
    "LiveMigrationTarget": "selector? workloadEndpoint?",
    "LiveMigrationWorkload": "hostname? orchestratorID? workloadID?",
    "LiveMigrationWorkloadEndpoint": "hostname? orchestratorID? workloadID? endpointID?",
    "NodeSpec": "bgp? ipv4VXLANTunnelAddr? vxlanTunnelMACAddr? ipv6VXLANTunnelAddr?"
    " vxlanTunnelMACAddrV6? orchRefs? wireguard? addresses? interfaces?",
    "NodeBGPSpec": "asNumber? ipv4Address? ipv6Address? ipv4IPIPTunnelAddr?"
    " routeReflectorClusterID?",
    "OrchRef": "nodeName? orchestrator",
    "NodeWireguardSpec": "interfaceIPv4Address? interfaceIPv6Address?",
    "NodeAddress": "address type?",
    "NodeInterface": "name? addresses?",
    "NodeStatus": "wireguardPublicKey? wireguardPublicKeyV6? podCIDRs?",
    "ClusterInformationSpec": "clusterGUID? clusterType? calicoVersion? datastoreReady? variant?",
    "KubeControllersConfigurationSpec": "logSeverityScreen? healthChecks? etcdV3CompactionPeriod?"
    " prometheusMetricsPort? debugProfilePort? controllers",
    "ControllersConfig": "node? policy? workloadEndpoint? serviceAccount? namespace? loadBalancer?"
    " migration?",
    "NodeControllerConfig": "reconcilerPeriod? syncLabels? leakGracePeriod? hostEndpoint?",
    "AutoHostEndpointConfig": "autoCreate? createDefaultHostEndpoint? templates?",
    "Template": "generateName? interfaceCIDRs? interfacePattern? labels? annotations?"
    " nodeSelector?",
    "PolicyControllerConfig": "reconcilerPeriod?",
    "WorkloadEndpointControllerConfig": "reconcilerPeriod?",
    "ServiceAccountControllerConfig": "reconcilerPeriod?",
    "NamespaceControllerConfig": "reconcilerPeriod?",
    "LoadBalancerControllerConfig": "assignIPs?",
    "MigrationControllerConfig": "policyNameMigrator?",
    "KubeControllersConfigurationStatus": "runningConfig? environmentVars?",
    "CalicoNodeStatusSpec": "node? classes? updatePeriodSeconds?",
    "CalicoNodeStatusStatus": "lastUpdated agent bgp routes",
    "CalicoNodeAgentStatus": "birdV4 birdV6",
    "BGPDaemonStatus": "state? version? routerID? lastBootTime? lastReconfigurationTime?",
    "CalicoNodeBGPStatus": "numberEstablishedV4 numberNotEstablishedV4 numberEstablishedV6"
    " numberNotEstablishedV6 peersV4? peersV6?",
    "CalicoNodePeer": "peerIP? type? state? since?",
    "CalicoNodeBGPRouteStatus": "routesV4? routesV6?",
    "CalicoNodeRoute": "type? destination? gateway? interface? learnedFrom",
    "CalicoNodeRouteLearnedFrom": "sourceType? peerIP?",
    "ProtoPort": "net? protocol port",
    "BPFConntrackTimeouts": "creationGracePeriod? tcpSynSent? tcpEstablished? tcpFinsSeen?"
    " tcpResetSeen? udpTimeout? genericTimeout? icmpTimeout?",
    "HealthTimeoutOverride": "name timeout",
    "RouteTableRange": "min max",
    "RouteTableIDRange": "min max",
}

# All 188 members of FelixConfiguration.spec with their documented types.
FELIX = """
nodeSelector:str useInternalDataplaneDriver:bool dataplaneDriver:str dataplaneWatchdogTimeout:dur
ipv6Support:bool routeRefreshInterval:dur interfaceRefreshInterval:dur iptablesRefreshInterval:dur
iptablesPostWriteCheckInterval:dur iptablesLockProbeInterval:dur featureDetectOverride:str
featureGates:str ipsetsRefreshInterval:dur maxIpsetSize:int iptablesBackend:enum
xdpRefreshInterval:dur netlinkTimeout:dur metadataAddr:str metadataPort:int openstackRegion:str
interfacePrefix:str interfaceExclude:str chainInsertMode:str defaultEndpointToHostAction:str
iptablesFilterAllowAction:str iptablesMangleAllowAction:str iptablesFilterDenyAction:str
logPrefix:str logActionRateLimit:str logActionRateLimitBurst:int logFilePath:str
logSeverityFile:str logSeverityScreen:str logSeveritySys:str logDebugFilenameRegex:str
ipipEnabled:bool ipipMTU:int vxlanEnabled:bool vxlanMTU:int vxlanMTUV6:int vxlanPort:int
vxlanVNI:int allowVXLANPacketsFromWorkloads:bool allowIPIPPacketsFromWorkloads:bool
reportingInterval:dur reportingTTL:dur endpointReportingEnabled:bool endpointReportingDelay:dur
endpointStatusPathPrefix:str iptablesMarkMask:int disableConntrackInvalidCheck:bool
healthEnabled:bool healthHost:str healthPort:int healthTimeoutOverrides:[{name,timeout}]
prometheusMetricsEnabled:bool prometheusMetricsHost:str prometheusMetricsPort:int
prometheusGoMetricsEnabled:bool prometheusProcessMetricsEnabled:bool
prometheusWireGuardMetricsEnabled:bool prometheusMetricsCAFile:str prometheusMetricsCertFile:str
prometheusMetricsKeyFile:str prometheusMetricsClientAuth:enum failsafeInboundHostPorts:[ProtoPort]
failsafeOutboundHostPorts:[ProtoPort] kubeNodePortRanges:[port] policySyncPathPrefix:str
usageReportingEnabled:bool usageReportingInitialDelay:dur usageReportingInterval:dur
natPortRange:port natOutgoingAddress:str natOutgoingExclusions:enum deviceRouteSourceAddress:str
deviceRouteSourceAddressIPv6:str deviceRouteProtocol:int removeExternalRoutes:bool
programClusterRoutes:str ipForwarding:str externalNodesList:[str] debugMemoryProfilePath:str
debugDisableLogDropping:bool debugSimulateCalcGraphHangAfter:dur
debugSimulateDataplaneHangAfter:dur debugSimulateDataplaneApplyDelay:dur debugHost:str
debugPort:int iptablesNATOutgoingInterfaceFilter:str sidecarAccelerationEnabled:bool
xdpEnabled:bool genericXDPEnabled:bool nftablesMode:enum nftablesFlowTableOffload:enum
nftablesFlowTableDataIfacePattern:str nftablesRefreshInterval:dur nftablesFilterAllowAction:str
nftablesMangleAllowAction:str nftablesFilterDenyAction:str nftablesMarkMask:int bpfEnabled:bool
bpfOverlayHostSourceIP:enum bpfDisableUnprivileged:bool bpfJITHardening:enum bpfLogLevel:str
bpfConntrackLogLevel:str bpfConntrackMode:enum bpfConntrackTimeouts:obj bpfIPFragTimeout:dur
bpfLogFilters:map bpfCTLBLogFilter:str bpfDataIfacePattern:str bpfL3IfacePattern:str
bpfConnectTimeLoadBalancingEnabled:bool bpfConnectTimeLoadBalancing:enum
bpfHostNetworkedNATWithoutCTLB:enum bpfExternalServiceMode:str bpfDSROptoutCIDRs:[str]
bpfExtToServiceConnmark:int bpfKubeProxyIptablesCleanupEnabled:bool bpfKubeProxyMinSyncPeriod:dur
bpfKubeProxyHealthzPort:int bpfPSNATPorts:port bpfMapSizeNATFrontend:int bpfMapSizeNATBackend:int
bpfMapSizeNATAffinity:int bpfMapSizeRoute:int bpfMapSizeConntrack:int
bpfMapSizePerCpuConntrack:int bpfMapSizeConntrackScaling:str bpfMapSizeConntrackCleanupQueue:int
bpfMapSizeIPSets:int bpfMapSizeIfState:int bpfHostConntrackBypass:bool
bpfIPFragmentReassemblyEnabled:bool bpfEnforceRPF:str bpfPolicyDebugEnabled:bool
bpfForceTrackPacketsFromIfaces:[str] bpfDisableGROForIfaces:str bpfExcludeCIDRsFromNAT:[str]
bpfExportBufferSizeMB:int istioAmbientMode:enum istioDSCPMark:dscp cgroupV2Path:str
flowLogsPolicyEvaluationMode:enum bpfRedirectToPeer:str bpfAttachType:enum
flowLogsFlushInterval:dur flowLogsCollectorDebugTrace:bool flowLogsGoldmaneServer:str
flowLogsLocalReporter:str bpfProfiling:str routeSource:str routeTableRanges:[{min,max}]
routeTableRange:{min,max} routeSyncDisabled:bool ipv4NormalRoutePriority:int
ipv4ElevatedRoutePriority:int ipv6NormalRoutePriority:int ipv6ElevatedRoutePriority:int
liveMigrationRouteConvergenceTime:dur wireguardEnabled:bool wireguardEnabledV6:bool
wireguardThreadingEnabled:bool wireguardListeningPort:int wireguardListeningPortV6:int
wireguardRoutingRulePriority:int wireguardInterfaceName:str wireguardInterfaceNameV6:str
wireguardMTU:int wireguardMTUV6:int wireguardHostEncryptionEnabled:bool wireguardKeepAlive:dur
awsSrcDstCheck:enum serviceLoopPrevention:str workloadSourceSpoofing:str mtuIfacePattern:str
floatingIPs:enum localSubnetL2Reachability:enum localSubnetL2ReachabilityRefreshInterval:dur
windowsManageFirewallRules:enum goGCThreshold:int goMemoryLimitMB:int goMaxProcs:int
requireMTUFile:bool bpfMaglevMaxEndpointsPerService:int bpfMaglevMaxServices:int
"""

# Which of the unmarked members are written in any case is stated where each class is tested
# (test_codec); these have nothing to be left out of because a pointer is always set on write.
_SET_BY_DEFAULTS = {"strictAffinity", "autoAllocateBlocks"}
_META = {"ObjectMeta"}


@pytest.mark.parametrize("name", TABLES)
def test_the_members_are_those_documented(name: str) -> None:
    members = record_of(getattr(model, name)).members
    assert set(members) == {word.rstrip("?") for word in TABLES[name].split()}


@pytest.mark.parametrize("name", sorted(TABLES.keys() - _META))
def test_the_members_without_a_question_mark_are_always_stored(name: str) -> None:
    required = {word for word in TABLES[name].split() if not word.endswith("?")}
    assert record_of(getattr(model, name)).always == required - _SET_BY_DEFAULTS


def test_every_class_of_the_package_is_in_a_table() -> None:
    tested = set(TABLES) | {"FelixConfigurationSpec"}
    base = {"Model", "Resource", "ListMeta", "Condition", "OwnerReference", "ObjectMeta"}
    classes = {
        name
        for name in model.__all__
        if isinstance(getattr(model, name), type) and not getattr(getattr(model, name), "kind", "")
    }
    same_as_another = {
        "ServiceLoadBalancerIPBlock",
        "ServiceExternalIPBlock",
        "ServiceClusterIPBlock",
    }
    assert classes - base - same_as_another - tested == set()


def test_felix_configuration_has_all_188_members() -> None:
    documented = [word.partition(":")[0] for word in FELIX.split()]
    assert len(documented) == 188
    assert list(record_of(model.FelixConfigurationSpec).members) == documented


_SHAPE_BY_TYPE = {
    "str": "str",
    "enum": "str",
    "dur": "duration",
    "bool": "bool",
    "int": "int",
    "port": "port",
    "dscp": "dscp",
}


@pytest.mark.parametrize("word", FELIX.split())
def test_felix_members_have_the_documented_type_and_none_when_unset(word: str) -> None:
    name, _, kind = word.partition(":")
    member = record_of(model.FelixConfigurationSpec).members[name]
    shape = member.shape
    if kind in _SHAPE_BY_TYPE:
        assert isinstance(shape, Scalar)
        assert shape.name == _SHAPE_BY_TYPE[kind]
    elif kind == "map":
        assert isinstance(shape, Mapping)
    elif kind in ("obj", "{min,max}"):
        assert isinstance(shape, Record)
    else:
        assert isinstance(shape, Listing)
        assert not isinstance(shape.item, Free)
    # An unset member must leave the decision to a lower layer. (Two Go fields are plain values.)
    if name not in ("bpfLogLevel", "healthTimeoutOverrides"):
        assert member.nullable
        assert member.zero is None


def test_attribute_names_follow_the_rule() -> None:
    for struct, attribute in (
        (model.BGPPeerSpec, "peer_ip"),
        (model.BGPPeerSpec, "num_allowed_local_as_numbers"),
        (model.BGPPeerSpec, "local_as_number"),
        (model.Rule, "not_icmp"),
        (model.GlobalNetworkPolicySpec, "pre_dnat"),
        (model.HostEndpointSpec, "expected_ips"),
        (model.WorkloadEndpointSpec, "ip_nats"),
        (model.WorkloadEndpointSpec, "container_id"),
        (model.BGPFilterSpec, "export_v4"),
        (model.ClusterInformationSpec, "cluster_guid"),
        (model.BGPConfigurationSpec, "node_to_node_mesh_enabled"),
        (model.BGPConfigurationSpec, "service_load_balancer_ips"),
        (model.BGPConfigurationSpec, "local_workload_peering_ipv4"),
        (model.IPPoolSpec, "disable_bgp_export"),
        (model.NodeSpec, "vxlan_tunnel_mac_addr"),
        (model.NodeBGPSpec, "ipv4_address"),
    ):
        assert attribute in struct.__struct_fields__
