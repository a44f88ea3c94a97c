"""The streams that typha serves: which part of the datastore each kind of client follows.

Layer: syncer; pure. Used by typha (what to watch, for whom) and by `libcalico.syncer.typha`.
A client may follow less than its stream; it never gets more than its stream.
"""

from __future__ import annotations

from libcalico.model.keys import (
    HOST_AFFINITIES_PREFIX,
    IpamConfigKey,
    path_of,
    prefix_of,
)

#: Of the felix stream what concerns the node (typha/spans_feed.py), in steps. Served by a typha
#: that computes spans.
SPANS = "felix-spans"
FELIX, BGP, TUNNELS, NODE_STATUS = "felix", "bgp", "tunnel-ip-allocation", "node-status"

_FELIX_KINDS = (
    "WorkloadEndpoint",
    "HostEndpoint",
    "NetworkSet",
    "GlobalNetworkSet",
    "Profile",
    "Tier",
    "NetworkPolicy",
    "GlobalNetworkPolicy",
    "StagedNetworkPolicy",
    "StagedGlobalNetworkPolicy",
    "StagedKubernetesNetworkPolicy",
    "IPPool",
    "Node",
    "IPReservation",
    "ClusterInformation",
    "FelixConfiguration",
)
_BGP_KINDS = ("Node", "BGPConfiguration", "BGPPeer", "BGPFilter", "IPPool")
_TUNNEL_KINDS = ("Node", "IPPool")
_NODE_STATUS_KINDS = ("CalicoNodeStatus",)


def _prefixes(*kinds: str) -> tuple[str, ...]:
    return tuple(prefix_of(kind) for kind in kinds)


#: Stream: the key prefixes of it. None of a stream covers another of the same stream.
STREAMS: dict[str, tuple[str, ...]] = {
    FELIX: (*_prefixes(*_FELIX_KINDS), path_of(IpamConfigKey())),
    BGP: (*_prefixes(*_BGP_KINDS), HOST_AFFINITIES_PREFIX),
    TUNNELS: _prefixes(*_TUNNEL_KINDS),
    NODE_STATUS: _prefixes(*_NODE_STATUS_KINDS),
}


def prefixes_of(stream: str) -> tuple[str, ...]:
    """What a stream is made from. Errors: KeyError."""
    return STREAMS[FELIX if stream == SPANS else stream]


def covers(stream: str, prefix: str) -> bool:
    """Whether the stream carries everything below `prefix` (of the spans stream: what concerns)."""
    return any(prefix.startswith(wide) for wide in prefixes_of(stream))
