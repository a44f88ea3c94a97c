"""The sample objects of the data model document, field by field, there and back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from libcalico.model import codec
from libcalico.model.keys import (
    BlockAffinityKey,
    BlockKey,
    HandleKey,
    IpamConfigKey,
    Key,
    ResourceKey,
)

IP_POOL = r"""
{"kind":"IPPool","apiVersion":"projectcalico.org/v3",
 "metadata":{"name":"pool-a","uid":"1c7a0e3e-6a0e-4d0b-9a0a-3b8b2f3a4d10",
  "creationTimestamp":"2026-08-22T09:15:00Z",
             "labels":{"team":"net"},"annotations":{"note":"x"}},
 "spec":{"cidr":"10.10.0.0/16","vxlanMode":"Never","ipipMode":"CrossSubnet","natOutgoing":true,
  "blockSize":26,
         "nodeSelector":"all()","allowedUses":["Workload","Tunnel"],"assignmentMode":"Automatic"}}
"""
NETWORK_POLICY = r"""
{"kind":"NetworkPolicy","apiVersion":"projectcalico.org/v3",
 "metadata":{"name":"allow-web","namespace":"prod","uid":"0f0c",
  "creationTimestamp":"2026-08-22T10:11:12Z",
  "labels":{"projectcalico.org/tier":"default"},
  "annotations":{"projectcalico.org/metadata":"{\"name\":\"allow-web\"}"}},
 "spec":{"tier":"default","order":100,
  "ingress":[{"action":"Allow","protocol":"TCP",
    "source":{"selector":"role == 'fe' \u0026\u0026 zone != 'x'","namespaceSelector":"all()"},
    "destination":{"ports":[80,"8000:8080","http-alt"]}}],
  "selector":"app == 'web'","types":["Ingress"]}}
"""
WORKLOAD_ENDPOINT = r"""
{"kind":"WorkloadEndpoint","apiVersion":"projectcalico.org/v3",
 "metadata":{"name":"worker--1-k8s-web--0-eth0","generateName":"web-","namespace":"prod","uid":"u",
  "creationTimestamp":"2026-08-22T10:11:12Z",
  "labels":{"app":"web","projectcalico.org/namespace":"prod",
  "projectcalico.org/orchestrator":"k8s","projectcalico.org/serviceaccount":"default"}},
 "spec":{"orchestrator":"k8s","node":"worker-1","containerID":"7f3e","pod":"web-0",
  "endpoint":"eth0","serviceAccountName":"default",
  "ipNetworks":["10.10.3.65/32"],"profiles":["kns.prod","ksa.prod.default"],
  "interfaceName":"cali5a1b2c3d4e5","mac":"ee:ee:ee:ee:ee:ee",
  "ports":[{"name":"http","protocol":"TCP","port":8080,"hostPort":0,"hostIP":""}]}}
"""
NODE = r"""
{"kind":"Node","apiVersion":"projectcalico.org/v3","metadata":{"name":"worker-1","uid":"u",
  "creationTimestamp":"2026-08-22T10:11:12Z","labels":{"kubernetes.io/hostname":"worker-1"}},
 "spec":{"bgp":{"ipv4Address":"192.0.2.11/24","ipv4IPIPTunnelAddr":"10.10.3.64"},
  "orchRefs":[{"nodeName":"worker-1","orchestrator":"k8s"}],
 "addresses":[{"address":"192.0.2.11/24","type":"CalicoNodeIP"},{"address":"192.0.2.11",
  "type":"InternalIP"}]},"status":{}}
"""
# The document shortens the two lists of 64; here they are written out.
_ALLOCATIONS = [0, 1, None, 2] + [None] * 60
_UNALLOCATED = [2, *range(4, 64)]
BLOCK = r"""
{"cidr":"10.10.3.64/26","affinity":"host:worker-1","affinity_claim_time":"2026-08-22T09:20:01Z",
 "allocations":ALLOCATIONS,
 "unallocated":UNALLOCATED,
 "attributes":[
   {"handle_id":"ipip-tunnel-addr-worker-1",
     "secondary":{"node":"worker-1","type":"ipipTunnelAddress"}},
   {"handle_id":"k8s-pod-network.7f3e",
     "secondary":{"namespace":"prod","node":"worker-1","pod":"web-0",
       "timestamp":"2026-08-22 09:21:13.123456789 +0000 UTC"}},
   {"releasedAt":"2026-08-22T09:30:00Z"}],
 "sequenceNumber":1787476801123456793,
 "sequenceNumberForAllocation":{"0":1787476801123456789,"1":1787476801123456790,
  "3":1787476801123456792},
 "deleted":false}
""".replace("UNALLOCATED", json.dumps(_UNALLOCATED)).replace(
    "ALLOCATIONS", json.dumps(_ALLOCATIONS)
)
AFFINITY = '{"state":"confirmed","deleted":false}'
HANDLE = '{"block":{"10.10.3.64/26":1},"deleted":false}'
CONFIG = (
    '{"strict_affinity":true,"auto_allocate_blocks":true,"maxBlocksPerHost":4,'
    '"ipCooldownSeconds":30}'
)

SAMPLES: list[tuple[Key, str]] = [
    (ResourceKey("IPPool", "pool-a"), IP_POOL),
    (ResourceKey("NetworkPolicy", "allow-web", "prod"), NETWORK_POLICY),
    (ResourceKey("WorkloadEndpoint", "worker--1-k8s-web--0-eth0", "prod"), WORKLOAD_ENDPOINT),
    (ResourceKey("Node", "worker-1"), NODE),
    (BlockKey("10.10.3.64/26"), BLOCK),
    (BlockAffinityKey("worker-1", "10.10.3.64/26"), AFFINITY),
    (HandleKey("k8s-pod-network.7f3e"), HANDLE),
    (IpamConfigKey(), CONFIG),
]
_IDS = [type(key).__name__ + getattr(key, "kind", "") for key, _ in SAMPLES]


@pytest.mark.parametrize(("key", "text"), SAMPLES, ids=_IDS)
def test_a_sample_survives_unchanged_and_in_order(key: Key, text: str) -> None:
    obj, unknown = codec.decode_preserving(key, text.encode(), 7)
    assert not unknown
    # Comparing texts also compares the order of members, at every level.
    assert json.dumps(json.loads(codec.encode(obj))) == json.dumps(json.loads(text))


def _decode(index: int) -> Any:
    key, text = SAMPLES[index]
    return codec.decode(key, text.encode(), 7)


def test_the_pool_sample_field_by_field() -> None:
    pool = _decode(0)
    assert pool.metadata.name == "pool-a"
    assert pool.metadata.namespace == ""
    assert pool.metadata.uid == "1c7a0e3e-6a0e-4d0b-9a0a-3b8b2f3a4d10"
    assert pool.metadata.creation_timestamp == "2026-08-22T09:15:00Z"
    assert pool.metadata.labels == {"team": "net"}
    assert pool.metadata.annotations == {"note": "x"}
    assert pool.metadata.resource_version == "7"
    assert pool.spec.cidr == "10.10.0.0/16"
    assert (pool.spec.vxlan_mode, pool.spec.ipip_mode) == ("Never", "CrossSubnet")
    assert pool.spec.nat_outgoing is True
    assert pool.spec.disabled is False
    assert pool.spec.block_size == 26
    assert pool.spec.allowed_uses == ("Workload", "Tunnel")
    assert (pool.spec.node_selector, pool.spec.namespace_selector) == ("all()", None)
    assert pool.status is None


def test_the_policy_sample_field_by_field() -> None:
    policy = _decode(1)
    assert (policy.metadata.namespace, policy.metadata.name) == ("prod", "allow-web")
    assert policy.metadata.annotations == {}, "the name annotation is bookkeeping"
    assert policy.metadata.labels == {"projectcalico.org/tier": "default"}
    assert (policy.spec.tier, policy.spec.order) == ("default", 100.0)
    assert policy.spec.types == ("Ingress",)
    (rule,) = policy.spec.ingress
    assert (rule.action, rule.protocol) == ("Allow", "TCP")
    assert rule.source.selector == "role == 'fe' && zone != 'x'"
    assert rule.source.namespace_selector == "all()"
    assert rule.destination.ports == (80, "8000:8080", "http-alt")
    assert policy.spec.egress == ()


def test_the_endpoint_sample_field_by_field() -> None:
    endpoint = _decode(2)
    assert endpoint.metadata.generate_name == "web-"
    spec = endpoint.spec
    assert (spec.orchestrator, spec.node, spec.pod, spec.endpoint) == (
        "k8s",
        "worker-1",
        "web-0",
        "eth0",
    )
    assert (spec.container_id, spec.workload, spec.service_account_name) == (
        "7f3e",
        None,
        "default",
    )
    assert spec.ip_networks == ("10.10.3.65/32",)
    assert spec.profiles == ("kns.prod", "ksa.prod.default")
    assert (spec.interface_name, spec.mac) == ("cali5a1b2c3d4e5", "ee:ee:ee:ee:ee:ee")
    (port,) = spec.ports
    assert (port.name, port.protocol, port.port, port.host_port, port.host_ip) == (
        "http",
        "TCP",
        8080,
        0,
        "",
    )


def test_the_node_sample_field_by_field() -> None:
    node = _decode(3)
    assert node.spec.bgp.ipv4_address == "192.0.2.11/24"
    assert node.spec.bgp.ipv4_ipip_tunnel_addr == "10.10.3.64"
    assert node.spec.bgp.as_number is None
    assert [(ref.node_name, ref.orchestrator) for ref in node.spec.orch_refs] == [
        ("worker-1", "k8s")
    ]
    assert [(a.address, a.type) for a in node.spec.addresses] == [
        ("192.0.2.11/24", "CalicoNodeIP"),
        ("192.0.2.11", "InternalIP"),
    ]
    assert node.status.pod_cidrs == ()


def test_the_block_sample_field_by_field() -> None:
    block = _decode(4)
    assert block.cidr == "10.10.3.64/26"
    assert (block.affinity, block.host) == ("host:worker-1", "worker-1")
    assert block.affinity_claim_time == "2026-08-22T09:20:01Z"
    assert block.size == 64
    assert block.allocations == tuple(_ALLOCATIONS)
    assert block.unallocated == tuple(_UNALLOCATED)
    assert block.sequence_number == 1787476801123456793, "exact to the last digit"
    assert block.sequence_number_for_allocation == {
        "0": 1787476801123456789,
        "1": 1787476801123456790,
        "3": 1787476801123456792,
    }
    assert block.attribute_of(0).handle_id == "ipip-tunnel-addr-worker-1"
    assert block.attribute_of(1).secondary["pod"] == "web-0"
    assert block.attribute_of(2) is None
    assert block.attribute_of(3).released_at == "2026-08-22T09:30:00Z"
    assert block.attribute_of(3).handle_id is None
    assert block.deleted is False


def test_the_small_ipam_samples_field_by_field() -> None:
    affinity, handle, config = _decode(5), _decode(6), _decode(7)
    assert (affinity.state, affinity.deleted) == ("confirmed", False)
    assert (handle.block, handle.deleted) == ({"10.10.3.64/26": 1}, False)
    assert config.strict_affinity is True
    assert config.auto_allocate_blocks is True
    assert (config.max_blocks_per_host, config.ip_cooldown_seconds) == (4, 30)
