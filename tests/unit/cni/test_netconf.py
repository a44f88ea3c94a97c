"""cni.netconf and cni.identity: what a configuration says, and who a request is about."""

from __future__ import annotations

import json

import pytest

from cni import netconf, skel
from cni.identity import identify
from cni.skel import CniError, Invocation
from libcalico.model.keys import ResourceKey

BASE = {"cniVersion": "1.0.0", "name": "net", "ipam": {"type": "calico-ipam"}}


def request(conf=None, args="", **environ):
    variables = {
        "CNI_COMMAND": "ADD",
        "CNI_CONTAINERID": "0123456789abcdef",
        "CNI_NETNS": "/n",
        "CNI_IFNAME": "eth0",
        "CNI_PATH": "/p",
        "CNI_ARGS": args,
        **environ,
    }
    body = json.dumps({**BASE, **(conf or {})}).encode()
    return skel.parse(Invocation("calico", variables, body))


def parse(conf=None, args=""):
    return netconf.parse(request(conf, args))


def test_defaults():
    conf = parse()
    assert (conf.ipam.assign_ipv4, conf.ipam.assign_ipv6) == (True, False)
    assert (conf.node.mtu_bytes, conf.node.num_queues, conf.allow_ip_forwarding) == (0, 1, False)
    assert conf.routes == ("0.0.0.0/0", "::/0")


def test_booleans_may_be_strings_as_calico_writes_them():
    ipam = {"type": "calico-ipam", "assign_ipv4": "false", "assign_ipv6": "true"}
    conf = parse({"ipam": ipam, "container_settings": {"allow_ip_forwarding": True}})
    assert (conf.ipam.assign_ipv4, conf.ipam.assign_ipv6) == (False, True)
    assert conf.allow_ip_forwarding


def test_member_names_match_without_case():
    conf = parse({"MTU": 1400, "runtimeconfig": {"IPs": ["10.0.0.1/24"], "Mac": "02:0:0:0:0:1"}})
    assert conf.node.mtu_bytes == 1400
    assert conf.addresses == ("10.0.0.1",)
    assert conf.mac == "02:00:00:00:00:01"


def test_addresses_and_labels_in_every_place_a_runtime_puts_them():
    cni_args = {"ips": ["fd00::1/64"], "labels": [{"key": "app", "value": "web"}]}
    conf = parse({"args": {"cni": cni_args}}, "IP=10.0.0.7;MAC=02:00:00:00:00:07")
    assert conf.addresses == ("10.0.0.7", "fd00::1")
    assert (conf.labels, conf.mac) == ({"app": "web"}, "02:00:00:00:00:07")


@pytest.mark.parametrize(
    ("conf", "member"),
    [
        ({"mtu": "big"}, "mtu"),
        ({"mtu": -1}, "mtu"),
        ({"mtu": True}, "mtu"),
        ({"ipam": []}, "ipam"),
        ({"ipam": {"type": 7}}, "ipam.type"),
        ({"ipam": {"assign_ipv4": "perhaps"}}, "ipam.assign_ipv4"),
        ({"ipam": {"ipv4_pools": "10.0.0.0/8"}}, "ipam.ipv4_pools"),
        ({"ipam": {"ipv4_pools": [7]}}, "ipam.ipv4_pools"),
        ({"args": {"cni": {"labels": ["x"]}}}, "args.cni.labels"),
        ({"runtimeConfig": 1}, "runtimeConfig"),
        ({"include_default_routes": "x"}, "include_default_routes"),
    ],
)
def test_a_member_of_the_wrong_type_is_code_7_and_named(conf, member):
    with pytest.raises(CniError) as caught:
        parse(conf)
    assert caught.value.code == 7
    assert caught.value.msg.startswith(f"{member}:")


def identity(args="", conf=None, **environ):
    asked = request(conf, args, **environ)
    return identify(asked, netconf.parse(asked), node="node-1", prefix="cali")


def test_a_kubernetes_pod_is_named_after_node_and_pod():
    found = identity("IgnoreUnknown=1;K8S_POD_NAMESPACE=prod;K8S_POD_NAME=web-0")
    assert found.key == ResourceKey("WorkloadEndpoint", "node--1-k8s-web--0-eth0", "prod")
    # printf prod.web-0 | sha1sum
    assert found.interface == "caliaa960f0d82e"
    assert found.handle_id == "net.0123456789abcdef"
    assert found.is_same_workload("node--1-k8s-web--0-net1")
    assert not found.is_same_workload("node--1-k8s-web--0--1-eth0")


def test_without_both_names_it_is_a_plain_container():
    found = identity("IgnoreUnknown=1;K8S_POD_NAME=ctr")
    assert found.key.namespace == "default"
    assert found.key.name == "node--1-cni-0123456789abcdef-eth0"
    assert found.interface == "cali0123456789a"


def test_the_configuration_may_name_the_node():
    assert identity(conf={"nodename": "other"}).ids.node == "other"


def test_a_name_that_cannot_be_part_of_an_endpoint_name_is_code_4():
    with pytest.raises(CniError) as caught:
        identity("K8S_POD_NAMESPACE=a;K8S_POD_NAME=web-")
    assert caught.value.code == 4
