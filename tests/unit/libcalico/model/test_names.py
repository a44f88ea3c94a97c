"""Names: workload endpoints, host interfaces, status files, handles."""

from __future__ import annotations

import pytest

from libcalico.errors import InvalidInput, ValidationError
from libcalico.model import WorkloadEndpointSpec, names
from libcalico.model.names import EndpointIds, FelixEndpointId

K8S = EndpointIds(node="worker-1", orchestrator="k8s", pod="web-0", endpoint="eth0")

EXAMPLES = [
    (K8S, "worker--1-k8s-web--0-eth0"),
    (
        EndpointIds(node="n", orchestrator="cni", container_id="7f3e", endpoint="eth0"),
        "n-cni-7f3e-eth0",
    ),
    (
        EndpointIds(node="n", orchestrator="libnetwork", endpoint="e-1"),
        "n-libnetwork-libnetwork-e--1",
    ),
    (
        EndpointIds(node="host1", orchestrator="openstack", workload="9a1f-4", endpoint="b7-c2"),
        "host1-openstack-9a1f--4-b7--c2",
    ),
    (
        EndpointIds(node="a--b", orchestrator="k8s", pod="c---d", endpoint="e"),
        "a----b-k8s-c------d-e",
    ),
]


@pytest.mark.parametrize(("ids", "name"), EXAMPLES)
def test_a_name_and_its_identity_lead_to_each_other(ids: EndpointIds, name: str) -> None:
    assert names.endpoint_name(ids) == name
    assert names.parse_endpoint_name(name) == ids
    assert ids.matches(name)


@pytest.mark.parametrize(
    ("ids", "field", "reason"),
    [
        (
            EndpointIds(orchestrator="k8s", pod="p", endpoint="e"),
            "node",
            "field should be assigned",
        ),
        (EndpointIds(node="n", pod="p", endpoint="e"), "orchestrator", "field should be assigned"),
        (
            EndpointIds(node="n", orchestrator="k8s", endpoint="e"),
            "pod",
            "field should be assigned",
        ),
        (
            EndpointIds(node="n", orchestrator="cni", endpoint="e"),
            "containerID",
            "field should be assigned",
        ),
        (
            EndpointIds(node="n", orchestrator="x", endpoint="e"),
            "workload",
            "field should be assigned",
        ),
        (
            EndpointIds(node="-n", orchestrator="k8s", pod="p", endpoint="e"),
            "node",
            "field must not begin with a '-'",
        ),
        (
            EndpointIds(node="n", orchestrator="k8s", pod="p-", endpoint="e"),
            "pod",
            "field must not end with a '-'",
        ),
        (
            EndpointIds(node="n", orchestrator="k8s", pod="p"),
            "endpoint",
            "field should be assigned",
        ),
    ],
)
def test_an_identity_without_a_name_says_which_field(
    ids: EndpointIds, field: str, reason: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        names.endpoint_name(ids)
    assert (caught.value.errors[0].field, caught.value.errors[0].reason) == (field, reason)


def test_a_prefix_ends_before_the_first_missing_member() -> None:
    assert names.endpoint_name_prefix(EndpointIds(node="worker-1")) == "worker--1-"
    assert (
        names.endpoint_name_prefix(EndpointIds(node="n", orchestrator="k8s", pod="pod"))
        == "n-k8s-pod-"
    )
    assert names.endpoint_name_prefix(K8S) == "worker--1-k8s-web--0-eth0"
    with pytest.raises(ValidationError, match="field should be assigned"):
        names.endpoint_name_prefix(EndpointIds(orchestrator="k8s"))


def test_a_longer_pod_name_has_the_prefix_but_does_not_match() -> None:
    ids = EndpointIds(node="n", orchestrator="k8s", pod="pod")
    other = "n-k8s-pod--1-eth0"
    assert other.startswith(names.endpoint_name_prefix(ids))
    assert not ids.matches(other)
    assert ids.matches("n-k8s-pod-eth0")
    assert ids.matches("n-k8s-pod-eth1")
    assert not ids.matches("m-k8s-pod-eth0")
    assert not ids.matches("n-k8s-pod")
    assert not ids.matches("")


@pytest.mark.parametrize("name", ["", "a", "a-k8s", "a-k8s-p", "a-k8s-p-e-x", "a-k8s-p-", "-"])
def test_what_is_not_an_endpoint_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        names.parse_endpoint_name(name)


def test_the_identity_of_a_spec() -> None:
    spec = WorkloadEndpointSpec(
        node="worker-1", orchestrator="k8s", pod="web-0", endpoint="eth0", container_id="7f"
    )
    assert names.endpoint_ids(spec) == EndpointIds(
        node="worker-1", orchestrator="k8s", pod="web-0", endpoint="eth0", container_id="7f"
    )
    assert names.endpoint_ids(WorkloadEndpointSpec()) == EndpointIds()


def test_the_identity_felix_uses() -> None:
    expected = FelixEndpointId("worker-1", "k8s", "prod/web-0", "eth0")
    assert names.felix_endpoint_id("prod", "worker--1-k8s-web--0-eth0") == expected
    for namespace, name in (("", "a-k8s-p-e"), ("ns", "a-k8s-p")):
        with pytest.raises(InvalidInput, match="not enough information"):
            names.felix_endpoint_id(namespace, name)


@pytest.mark.parametrize(
    ("ids", "file_name"),
    [
        (FelixEndpointId("h", "k8s", "prod/web-0", "eth0"), "k8s prod%2Fweb-0 eth0"),
        (FelixEndpointId("h", "a b", "n/ü;,?", "$&+:=@~_."), "a%20b n%2F%C3%BC%3B%2C%3F $&+:=@~_."),
    ],
)
def test_a_status_file_name(ids: FelixEndpointId, file_name: str) -> None:
    assert names.status_file_name(ids) == file_name
    assert names.parse_status_file_name("h", file_name) == ids


def test_a_foreign_file_is_no_status_file() -> None:
    assert names.parse_status_file_name("h", "README") is None
    assert names.parse_status_file_name("h", "a b c d") is None


def test_host_interface_names() -> None:
    # sha1("default.nginx") and sha1("prod.web-0"), computed with sha1sum.
    assert names.k8s_interface_name("default", "nginx") == "cali" + SHA1_DEFAULT_NGINX[:11]
    assert names.k8s_interface_name("prod", "web-0", prefix="tap") == "tap" + SHA1_PROD_WEB_0[:11]
    assert len(names.k8s_interface_name("a" * 63, "b" * 253)) == 15
    assert names.cni_interface_name("0123456789abcdef") == "cali0123456789a"


SHA1_DEFAULT_NGINX = "c440f455693b69cdd48a37aa5ecd78038f50413d"
SHA1_PROD_WEB_0 = "aa960f0d82e77a30af3332b33c13466f1ff44015"


def test_handles() -> None:
    assert names.cni_handle_id("k8s-pod-network", "7f3e") == "k8s-pod-network.7f3e"
    assert [names.tunnel_handle_id(kind, "w1") for kind in names.TUNNEL_ADDRESS_TYPES] == [
        "ipip-tunnel-addr-w1",
        "vxlan-tunnel-addr-w1",
        "vxlan-v6-tunnel-addr-w1",
        "wireguard-tunnel-addr-w1",
        "wireguard-v6-tunnel-addr-w1",
    ]
    assert names.normal_handle_id("abc\r\ndef") == "abc"
    assert names.normal_handle_id("abc") == "abc"


def test_names_of_generated_objects() -> None:
    assert names.namespace_profile_name("prod") == "kns.prod"
    assert names.service_account_profile_name("prod", "builder") == "ksa.prod.builder"
    assert names.k8s_policy_name("np1") == "knp.default.np1"
    assert names.auto_host_endpoint_name("w1") == "w1-auto-hep"


def test_a_node_is_named_by_its_host_name() -> None:
    assert names.node_name(" Worker-1\n") == "worker-1"
