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
        ({"mtu": 70000}, "mtu"),
        ({"num_queues": 5000}, "num_queues"),
        ({"nodename": 7}, "nodename"),
        ({"nodename": "\ud800"}, "nodename"),
        ({"nodename_file": []}, "nodename_file"),
        ({"nodename_file_optional": 1}, "nodename_file_optional"),
        ({"require_mtu_file": "maybe"}, "require_mtu_file"),
        ({"datastore_type": 1}, "datastore_type"),
        ({"etcd_endpoints": ["http://e"]}, "etcd_endpoints"),
        ({"etcd_key_file": 1}, "etcd_key_file"),
        ({"log_level": 3}, "log_level"),
        ({"log_file_path": {}}, "log_file_path"),
        ({"log_file_max_size": "big"}, "log_file_max_size"),
        ({"log_file_max_age": -1}, "log_file_max_age"),
        ({"log_file_max_count": 1.5}, "log_file_max_count"),
        ({"policy": "k8s"}, "policy"),
        ({"policy": {"type": 1}}, "policy.type"),
        ({"policy": {"k8s_auth_token": 1}}, "policy.k8s_auth_token"),
        ({"kubernetes": {"kubeconfig": 1}}, "kubernetes.kubeconfig"),
        ({"feature_control": {"floating_ips": "no"}}, "feature_control.floating_ips"),
        ({"feature_control": {"ip_addrs_no_ipam": 2}}, "feature_control.ip_addrs_no_ipam"),
        ({"container_settings": []}, "container_settings"),
        ({"dataplane_options": "linux"}, "dataplane_options"),
        ({"readiness_gates": "http://x"}, "readiness_gates"),
        ({"readiness_gates": ["http://x", "x"]}, "readiness_gates[1]"),
        ({"policy_setup_timeout_seconds": -1}, "policy_setup_timeout_seconds"),
        ({"endpoint_status_dir": 1}, "endpoint_status_dir"),
        ({"ipam": {"routes": {}}}, "ipam.routes"),
        ({"ipam": {"routes": [{"dst": "x"}]}}, "ipam.routes[0].dst"),
        ({"runtimeConfig": {"mac": "x"}}, "runtimeConfig.mac"),
        ({"runtimeConfig": {"ips": ["x"]}}, "runtimeConfig.ips"),
        ({"runtimeConfig": {"ips": ["10.0.0.1/8", "10.0.0.2/8"]}}, "runtimeConfig.ips"),
        (
            {"runtimeConfig": {"bandwidth": {"ingressRate": "1M"}}},
            "runtimeConfig.bandwidth.ingressRate",
        ),
        ({"runtimeConfig": {"dns": {"servers": "x"}}}, "runtimeConfig.dns.servers"),
        ({"args": {"org.apache.mesos": 1}}, "args.org.apache.mesos"),
    ],
)
def test_a_member_of_the_wrong_type_is_code_7_and_named(conf, member):
    with pytest.raises(CniError) as caught:
        parse(conf)
    assert caught.value.code == 7
    assert caught.value.msg.startswith(f"{member}:")


@pytest.mark.parametrize(
    ("conf", "member"),
    [
        ({"device_type": "netkit"}, "device_type"),
        ({"dataplane_options": {"type": "grpc"}}, "dataplane_options.type"),
    ],
)
def test_a_value_that_nothing_here_can_do_is_code_2(conf, member):
    with pytest.raises(CniError) as caught:
        parse(conf)
    assert (caught.value.code, caught.value.msg.startswith(f"{member}:")) == (2, True)


def test_a_configuration_with_every_member_of_calico_is_accepted():
    conf = parse(
        {
            "mode": "", "vxlan_vni": 1, "qps": 5, "burst": 10, "num_queues": 0, "mtu": 0,
            "nodename": " here ", "nodename_file": "/f", "nodename_file_optional": True,
            "hostname": "h", "ipam_lock_file": "/l", "datastore_type": "etcdv3",
            "etcd_endpoints": "http://e", "etcd_scheme": "http", "etcd_authority": "e",
            "etcd_discovery_srv": "d", "etcd_key_file": "k", "etcd_cert_file": "c",
            "etcd_ca_cert_file": "a", "log_level": "debug", "log_file_path": "/l",
            "log_file_max_size": 1, "log_file_max_age": 2, "log_file_max_count": 3,
            "policy": {"type": "k8s", "k8s_api_root": "x"}, "kubernetes": {"kubeconfig": "k"},
            "feature_control": {"ip_addrs_no_ipam": True, "floating_ips": True},
            "container_settings": {"allow_ip_forwarding": True}, "dataplane_options": {"type": ""},
            "device_type": "veth", "readiness_gates": ["https://localhost:9099/readiness"],
            "policy_setup_timeout_seconds": 5, "endpoint_status_dir": "/s",
            "calico_api_group": "g", "windows_use_single_network": True, "somebody_elses": [None],
            "runtimeConfig": {"Bandwidth": {"IngressRate": 1, "IngressBurst": 4294967295}},
        }
    )  # fmt: skip
    assert (conf.node.name, conf.node.name_file, conf.node.num_queues) == ("here", "/f", 1)
    assert conf.node.readiness_gates == ("https://localhost:9099/readiness",)
    assert conf.is_kubernetes_policy
    assert conf.features.floating_ips
    assert conf.allow_ip_forwarding


def test_the_routes_of_a_pod_are_the_configurations_and_defaults_only_if_wanted():
    ipam = {"type": "host-local", "routes": [{"dst": "10.0.0.9/8", "gw": "10.0.0.1"}, {}]}
    assert parse({"ipam": ipam}).routes == ("10.0.0.0/8",)
    both = parse({"ipam": ipam, "include_default_routes": True}).routes
    assert both == ("0.0.0.0/0", "::/0", "10.0.0.0/8")


def test_mesos_labels_are_made_valid_and_choose_the_namespace():
    labels = [
        {"key": "rack", "value": "a b"},
        {"key": "projectcalico.org/namespace", "value": "prod"},
    ]
    args = {"org.apache.mesos": {"network_info": {"labels": {"labels": labels}}}}
    conf = parse({"args": args})
    assert (conf.labels, conf.namespace) == ({"rack": "a-b"}, "prod")
    assert identity(conf={"args": args}).key.namespace == "prod"


def test_a_del_is_not_refused_for_what_made_the_add_fail():
    bad = {"mtu": "x", "runtimeConfig": {"mac": 7}, "readiness_gates": 1}
    asked = request({**bad, "nodename": "here"})
    with pytest.raises(CniError):
        netconf.parse(asked)
    conf = netconf.parse_for_delete(asked)
    assert (conf.ipam.type, conf.node.name) == ("calico-ipam", "here")


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


@pytest.mark.parametrize(
    "args",
    ["K8S_POD_NAMESPACE=a/b;K8S_POD_NAME=web", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=w/b"],
)
def test_a_name_that_could_leave_its_place_in_a_key_is_code_4(args):
    with pytest.raises(CniError) as caught:
        identity(args)
    assert (caught.value.code, "not a valid name" in caught.value.msg) == (4, True)
