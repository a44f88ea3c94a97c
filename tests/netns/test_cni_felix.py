"""The CNI plugin with the real felix, a real etcd and packets: annotations, IPAM plugins, chains.

One node for the module; every test leaves it as it found it, and that is checked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest

from tests.support.cni_list import NetworkList, PluginFailed
from tests.support.cni_node import POD_CIDRS, CniNode, pool
from tests.support.netns import (
    Namespace,
    NamespaceSet,
    add_addresses,
    can_ping,
    connect,
    eventually,
    why_unavailable,
)

IPAM = {"type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true"}
CONF: dict[str, Any] = {"cniVersion": "1.0.0", "name": "net", "type": "calico", "ipam": IPAM}
POD_ARGS = "IgnoreUnknown=1;K8S_POD_NAMESPACE=prod;K8S_POD_NAME=web"
RESOURCES = "/calico/resources/v3/projectcalico.org/"
ANNOTATIONS = "io.kubernetes.cri.pod-annotations"


@pytest.fixture(scope="module")
def module_netns() -> Iterator[NamespaceSet]:
    reason = why_unavailable("veth", "nft")
    if reason:
        pytest.skip(reason)
    with NamespaceSet() as made:
        yield made


@pytest.fixture(scope="module")
def shared(module_netns: NamespaceSet, tmp_path_factory: pytest.TempPathFactory) -> CniNode:
    node = CniNode(module_netns, tmp_path_factory.mktemp("cninode"))
    node.store(pool("other", "10.66.0.0/26", node_selector="!all()"))
    node.start_felix(FELIX_WORKLOADSOURCESPOOFING="Any", FELIX_MTUIFACEPATTERN="^up0$")
    node.wait_ready()
    return node


@pytest.fixture
def node(shared: CniNode) -> Iterator[CniNode]:
    yield shared
    assert eventually(lambda: shared.leftovers() == []), shared.leftovers()


@pytest.fixture
def pod(netns: NamespaceSet) -> Namespace:
    return netns.make("pod")


def with_annotations(conf: dict[str, Any] = CONF, **annotations: object) -> dict[str, Any]:
    """Names with "_" for "/" and "." would be unreadable: given as Calico's short names."""
    given = {
        f"cni.projectcalico.org/{name}": value if isinstance(value, str) else json.dumps(value)
        for name, value in annotations.items()
    }
    return {**conf, "runtimeConfig": {ANNOTATIONS: given}}


def add(node: CniNode, pod: Namespace, conf: dict[str, Any], **environ: str) -> dict[str, Any]:
    code, result = node.cni("ADD", pod.path, conf=conf, **{"CNI_ARGS": POD_ARGS, **environ})
    assert code == 0, result
    return result


def refused(node: CniNode, pod: Namespace, conf: dict[str, Any], **environ: str) -> dict[str, Any]:
    code, result = node.cni("ADD", pod.path, conf=conf, **{"CNI_ARGS": POD_ARGS, **environ})
    assert code == 1, result
    return result


def remove(node: CniNode, pod: Namespace, conf: dict[str, Any], **environ: str) -> None:
    answer = node.cni("DEL", pod.path, conf=conf, **{"CNI_ARGS": POD_ARGS, **environ})
    assert answer == (0, {})


def addresses(result: dict[str, Any]) -> list[str]:
    return [ip["address"].partition("/")[0] for ip in result["ips"]]


def test_a_pod_reaches_and_is_reached_over_both_families_and_check_agrees(node, pod, netns):
    other = netns.make("other")
    args = {"CNI_ARGS": "K8S_POD_NAMESPACE=prod;K8S_POD_NAME=db", "CNI_CONTAINERID": "c2"}
    others = addresses(add(node, other, CONF, **args))
    result = add(node, pod, CONF)
    assert [("." in a, ":" in a) for a in addresses(result)] == [(True, False), (False, True)]
    for address in addresses(result):
        assert can_ping(node.ns, address)
    assert [can_ping(pod, address) for address in others] == [True, True]
    check = {**CONF, "prevResult": result}
    assert node.cni("CHECK", pod.path, conf=check, CNI_ARGS=POD_ARGS) == (0, {})
    assert add(node, pod, CONF) == result, "the same container asks again"
    remove(node, other, CONF, **args)
    remove(node, pod, CONF)


def test_check_sees_what_was_changed_behind_felixs_back(node, pod):
    result = add(node, pod, CONF)
    host = result["interfaces"][0]["name"]
    node.ns.run("sysctl", "-qw", f"net.ipv4.conf.{host}.proxy_arp=0")
    check = {**CONF, "prevResult": result}
    code, error = node.cni("CHECK", pod.path, conf=check, CNI_ARGS=POD_ARGS)
    assert (code, error["code"]) == (1, 100)
    assert f"net/ipv4/conf/{host}/proxy_arp is 0, not 1" in error["msg"]
    remove(node, pod, CONF)


@pytest.mark.parametrize("family", [4, 6])
def test_a_pod_with_one_family_works(node, pod, family):
    ipam = {
        **IPAM,
        "assign_ipv4": str(family == 4).lower(),
        "assign_ipv6": str(family == 6).lower(),
    }
    conf = {**CONF, "ipam": ipam}
    result = add(node, pod, conf)
    (address,) = addresses(result)
    assert (":" in address) == (family == 6)
    assert can_ping(node.ns, address)
    if family == 6:
        assert pod.run("ip", "-4", "route") == ""
    remove(node, pod, conf)


def test_annotations_choose_addresses_pools_families_and_mac(node, pod):
    asked = {"ipAddrs": ["10.65.0.33", "fd65::21"], "hwAddr": "1c:0c:0a:c0:ff:ee"}
    conf = with_annotations(**asked)
    result = add(node, pod, conf)
    assert addresses(result) == ["10.65.0.33", "fd65::21"]
    assert result["interfaces"][1]["mac"] == "1c:0c:0a:c0:ff:ee"
    assert "1c:0c:0a:c0:ff:ee" in pod.run("ip", "link", "show", "eth0")
    remove(node, pod, conf)
    for wanted in ("other", "10.66.0.0/26"):
        conf = with_annotations(ipv4pools=[wanted], ipFamilies=["IPv4"])
        (address,) = addresses(add(node, pod, conf))
        assert address.startswith("10.66.0."), "though the pool's node selector is for nobody"
        remove(node, pod, conf)


def test_a_pod_with_a_fixed_address_starts_anew_before_its_old_container_is_gone(node, netns):
    old, new = netns.make("old"), netns.make("new")
    conf = with_annotations(ipAddrs=["10.65.0.34"], ipFamilies=["IPv4"])
    add(node, old, conf, CNI_CONTAINERID="c1")
    assert addresses(add(node, new, conf, CNI_CONTAINERID="c2")) == ["10.65.0.34"]
    remove(node, old, conf, CNI_CONTAINERID="c1")
    assert can_ping(node.ns, "10.65.0.34")
    remove(node, new, conf, CNI_CONTAINERID="c2")


@pytest.mark.parametrize("args", [POD_ARGS, "IgnoreUnknown=1;K8S_POD_NAME=db_1"])
def test_a_sticky_address_moves_to_the_next_container_with_its_route(node, netns, args):
    """Without Kubernetes the two endpoints have different names: felix knows both for a moment."""
    old, new, third = (netns.make(name) for name in ("old", "new", "third"))
    conf = with_annotations(stickyIPs="true")
    first = addresses(add(node, old, conf, CNI_CONTAINERID="c1", CNI_ARGS=args))
    assert all(can_ping(node.ns, address) for address in first)
    assert addresses(add(node, new, conf, CNI_CONTAINERID="c2", CNI_ARGS=args)) == first
    (spec,) = node.endpoint_specs().values()
    assert spec["containerID"] == "c2"
    wire = spec["interfaceName"]
    assert all(f"dev {wire} " in node.ns.run("ip", "route", "get", a) for a in first)
    remove(node, old, conf, CNI_CONTAINERID="c1", CNI_ARGS=args)
    assert all(can_ping(node.ns, address) for address in first)
    remove(node, new, conf, CNI_CONTAINERID="c2", CNI_ARGS=args)
    assert node.endpoints() == {}
    assert addresses(add(node, third, conf, CNI_CONTAINERID="c3", CNI_ARGS=args)) == first
    assert all(can_ping(node.ns, address) for address in first)
    remove(node, third, conf, CNI_CONTAINERID="c3", CNI_ARGS=args)
    for address in first:
        node.calicoctl("ipam", "release", f"--ip={address}")


def connections(node: CniNode) -> str:
    return node.ns.run("conntrack", "-L")


def open_connection(node: CniNode, address: str, port: int) -> str:
    """As conntrack shows it."""
    ends = ("-s", "10.99.0.9", "-d", address, "--sport", str(port), "--dport", "80")
    state = ("--state", "ESTABLISHED", "--timeout", "600")
    node.ns.run("conntrack", "-I", "-p", "tcp", *ends, *state)
    shown = f"dst={address} sport={port}"
    assert shown in connections(node)
    return shown


def test_an_address_used_again_at_once_has_no_old_connections_and_keeps_its_own(node, netns):
    conf = {**CONF, "runtimeConfig": {"ips": ["10.65.0.40"]}}
    old, new, last = (netns.make(name) for name in ("old", "new", "last"))
    add(node, old, conf, CNI_CONTAINERID="c1", CNI_ARGS="")
    former = open_connection(node, "10.65.0.40", 1001)
    remove(node, old, conf, CNI_CONTAINERID="c1", CNI_ARGS="")
    add(node, new, conf, CNI_CONTAINERID="c2", CNI_ARGS="")
    assert former not in connections(node)
    own = open_connection(node, "10.65.0.40", 1002)
    # Another address's turn: whatever was to be forgotten before it is, when its connection is.
    other = {**CONF, "runtimeConfig": {"ips": ["10.65.0.41"]}}
    add(node, last, other, CNI_CONTAINERID="c3", CNI_ARGS="")
    others = open_connection(node, "10.65.0.41", 1003)
    remove(node, last, other, CNI_CONTAINERID="c3", CNI_ARGS="")
    assert eventually(lambda: others not in connections(node))
    assert own in connections(node)
    remove(node, new, conf, CNI_CONTAINERID="c2", CNI_ARGS="")
    assert eventually(lambda: own not in connections(node))


def test_addresses_without_ipam_and_floating_ones_need_their_feature(node, pod):
    no_ipam = with_annotations(ipAddrsNoIpam=["10.99.0.1"])
    assert "ip_addrs_no_ipam" in refused(node, pod, no_ipam)["msg"]
    floating = with_annotations(floatingIPs=["203.0.113.9"])
    assert "floating_ips" in refused(node, pod, floating)["msg"]
    features = {"ip_addrs_no_ipam": True, "floating_ips": True}
    both = with_annotations(
        {**CONF, "feature_control": features},
        ipAddrsNoIpam=["10.99.0.1"],
        floatingIPs=["203.0.113.9"],
    )
    assert addresses(add(node, pod, both)) == ["10.99.0.1"]
    (spec,) = node.endpoint_specs().values()
    nat = {"internalIP": "10.99.0.1", "externalIP": "203.0.113.9"}
    assert spec["ipNATs"] == [nat]
    assert node.stored("/calico/ipam/v2/handle/") == {}
    remove(node, pod, both)
    without_target = with_annotations(
        {**CONF, "feature_control": features}, ipAddrsNoIpam=["10.99.0.1"], floatingIPs=["fd99::1"]
    )
    assert "no address for fd99::1" in refused(node, pod, without_target)["msg"]
    plain = {**CONF, "feature_control": features}
    said = refused(node, pod, plain, CNI_ARGS="IgnoreUnknown=1")["msg"]
    assert "not supported for this runtime" in said


def test_limits_and_spoofed_prefixes_are_recorded(node, pod):
    conf = with_annotations(allowedSourcePrefixes=["198.51.100.7/24"])
    given = conf["runtimeConfig"][ANNOTATIONS]
    given["qos.projectcalico.org/ingressBandwidth"] = "10M"
    given["qos.projectcalico.org/dscp"] = "EF"
    conf["runtimeConfig"]["bandwidth"] = {"EgressRate": 5_000_000, "EgressBurst": 4294967295}
    add(node, pod, conf)
    (spec,) = node.endpoint_specs().values()
    assert spec["allowSpoofedSourcePrefixes"] == ["198.51.100.0/24"]
    assert spec["qosControls"] == {
        "ingressBandwidth": 10_000_000,
        "ingressBurst": 2**32,
        "egressBandwidth": 5_000_000,
        "egressBurst": 4294967295,
        "dscp": "EF",
    }
    remove(node, pod, conf)


def host_local(tmp_path: Path, **ipam: object) -> dict[str, Any]:
    return {**CONF, "ipam": {"type": "host-local", "dataDir": str(tmp_path / "hl"), **ipam}}


def test_host_local_gets_the_nodes_pod_cidrs_and_custom_routes(node, pod, tmp_path):
    conf = host_local(
        tmp_path,
        ranges=[[{"subnet": "usePodCidr"}], [{"subnet": "usePodCidrIPv6"}]],
        routes=[{"dst": "198.51.100.0/24"}],
    )
    result = add(node, pod, conf)
    assert addresses(result) == ["10.88.0.2", "fd88::2"]
    assert result["routes"] == [{"dst": "198.51.100.0/24"}]
    assert "198.51.100.0/24 via 169.254.1.1" in pod.run("ip", "route")
    assert "default" not in pod.run("ip", "route")
    check = {**conf, "prevResult": result}
    assert node.cni("CHECK", pod.path, conf=check, CNI_ARGS=POD_ARGS) == (0, {})
    remove(node, pod, conf)
    assert not (tmp_path / "hl/net/10.88.0.2").exists()
    with_default = {**conf, "include_default_routes": True}
    add(node, pod, with_default)
    assert "default via 169.254.1.1" in pod.run("ip", "route")
    remove(node, pod, with_default)


def test_without_pod_cidrs_of_the_family_the_error_says_so(node, pod, tmp_path):
    key = "/calico/resources/v3/projectcalico.org/nodes/node-1"
    before = node.stored(key)[key]
    stored = json.loads(before)
    stored["status"] = {"podCIDRs": [POD_CIDRS[0]]}
    node.ns.run("etcdctl", "put", key, json.dumps(stored))
    error = refused(node, pod, host_local(tmp_path, subnet="usePodCidrIPv6"))
    assert error["code"] == 7
    assert "usePodCidrIPv6 found, but Node node-1 has no IPv6 pod CIDR" in error["msg"]
    node.ns.run("etcdctl", "put", key, before)


def test_an_ipam_plugin_is_run_with_del_when_the_add_fails(node, pod, tmp_path):
    pod.run("ip", "link", "add", "eth0", "type", "bridge")
    conf = host_local(tmp_path, subnet="10.77.0.0/24")
    error = refused(node, pod, conf)
    assert "container veth name (eth0) already exists" in error["msg"]
    assert not list((tmp_path / "hl").glob("net/10.*"))


def test_names_that_collide_are_told_apart(node, netns):
    one, two = netns.make("one"), netns.make("two")
    ids = {"one": "0123456789abcdef", "two": "0123456789axxxxx"}
    plain = {"CNI_ARGS": "IgnoreUnknown=1"}
    first = add(node, one, CONF, CNI_CONTAINERID=ids["one"], **plain)
    second = add(node, two, CONF, CNI_CONTAINERID=ids["two"], **plain)
    names = [result["interfaces"][0]["name"] for result in (first, second)]
    assert names[0] == "cali0123456789a"
    assert names[1].startswith("cali")
    assert names[1] != names[0]
    for result in (first, second):
        assert can_ping(node.ns, addresses(result)[0])
    remove(node, one, CONF, CNI_CONTAINERID=ids["one"], **plain)
    assert can_ping(node.ns, addresses(second)[0])
    remove(node, two, CONF, CNI_CONTAINERID=ids["two"], **plain)


def test_a_stale_veth_is_replaced_and_a_foreign_interface_is_not(node, pod):
    plain = {"CNI_ARGS": "IgnoreUnknown=1", "CNI_CONTAINERID": "stale"}
    mac = ("address", "ee:ee:ee:ee:ee:ee")
    node.ns.run("ip", "link", "add", "calistale", *mac, "type", "veth", "peer", "name", "gone")
    add(node, pod, CONF, **plain)
    assert "gone" not in node.ns.run("ip", "-o", "link")
    remove(node, pod, CONF, **plain)
    node.ns.run("ip", "link", "add", "calistale", "type", "bridge")
    error = refused(node, pod, CONF, **plain)
    assert "calistale already exists and is no pod's (kind bridge" in error["msg"]
    assert "bridge" in node.ns.run("ip", "-d", "link", "show", "calistale")
    node.ns.run("ip", "link", "del", "calistale")


def test_a_stale_route_is_replaced_and_a_foreign_one_is_named(node, pod):
    conf = with_annotations(ipAddrs=["10.65.0.40"], ipFamilies=["IPv4"])
    route = ("10.65.0.40/32", "dev", "up0", "metric", "1024")
    node.ns.run("ip", "route", "add", *route, "proto", "static")
    error = refused(node, pod, conf)
    assert "10.65.0.40" in error["msg"] + error.get("details", "")
    assert "10.65.0.40 dev up0" in node.ns.run("ip", "route"), "not ours, not touched"
    node.ns.run("ip", "route", "del", *route)
    add(node, pod, conf)
    remove(node, pod, conf)


def test_the_hosts_own_namespace_is_never_wired_nor_cleaned(node):
    node.ns.run("ip", "link", "add", "eth0", "type", "bridge")
    for verb in ("ADD", "DEL"):
        for extra in ({}, {"CNI_NETNS_OVERRIDE": "1"}):
            code, error = node.cni(verb, node.ns.path, conf=CONF, CNI_ARGS=POD_ARGS, **extra)
            assert (code, error["code"]) == (1, 8)
    assert "eth0" in node.ns.run("ip", "-o", "link")
    node.ns.run("ip", "link", "del", "eth0")


def test_the_mtu_is_the_configurations_or_the_files(node, pod):
    result = add(node, pod, {**CONF, "cniVersion": "1.1.0", "mtu": 1333})
    assert [entry["mtu"] for entry in result["interfaces"]] == [1333, 1333]
    remove(node, pod, CONF)
    assert eventually((node.lib_dir / "mtu").exists), "felix writes it"
    conf = {**CONF, "cniVersion": "1.1.0", "require_mtu_file": True, "num_queues": 2}
    written = int((node.lib_dir / "mtu").read_text())
    assert add(node, pod, conf)["interfaces"][1]["mtu"] == written
    assert "numtxqueues 2" in pod.run("ip", "-d", "link", "show", "eth0")
    remove(node, pod, CONF)


def test_a_node_name_that_is_not_felixs_is_refused(node, pod, tmp_path):
    error = refused(node, pod, {**CONF, "nodename": "other"})
    assert (error["code"], "nodename" in error["msg"]) == (7, True)
    named = tmp_path / "nodename"
    assert "does not exist" in refused(node, pod, {**CONF, "nodename_file": str(named)})["msg"]
    named.write_text("node-1\n")
    add(node, pod, {**CONF, "nodename_file": str(named)})
    remove(node, pod, CONF)
    named.write_text("other")
    assert "nodename_file" in refused(node, pod, {**CONF, "nodename_file": str(named)})["msg"]


def test_version_and_connection_test_of_the_executable(node):
    for plugin in ("calico", "calico-ipam"):
        shown = node.execute(plugin, "-v", env={})
        assert (shown.returncode, shown.stderr) == (0, b"")
        assert shown.stdout.strip()
    conf = {**CONF, "etcd_endpoints": "http://127.0.0.1:2379"}
    tested = node.execute("calico", "-t", env={}, stdin=json.dumps(conf).encode())
    assert (tested.returncode, tested.stdout) == (0, b"")
    conf["etcd_endpoints"] = "http://127.0.0.1:1"
    tested = node.execute("calico", "-t", env={}, stdin=json.dumps(conf).encode())
    answer = json.loads(tested.stdout)
    assert (tested.returncode, answer["code"]) == (1, 100)
    assert answer["msg"] == "data store connection failed"
    assert node.execute("calico", "-x", env={}).returncode == 2


# --- chains ------------------------------------------------------------------------------------

CHAIN = {
    "name": "chain",
    "cniVersion": "1.0.0",
    "plugins": [
        {"type": "calico", "ipam": IPAM},
        {"type": "portmap", "snat": True, "capabilities": {"portMappings": True}},
        {"type": "bandwidth", "capabilities": {"bandwidth": True}},
        {"type": "tuning", "sysctl": {"net.core.somaxconn": "501"}, "mac": "02:00:00:00:05:01"},
    ],
}
MAPPING = [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]
BANDWIDTH = {
    "ingressRate": 100_000_000,
    "ingressBurst": 100_000_000,
    "egressRate": 100_000_000,
    "egressBurst": 100_000_000,
}


def serve(pod: Namespace, port: int) -> None:
    """An HTTP server in the pod that answers "hello"."""
    folder = pod.run("mktemp", "-d").strip()
    Path(folder, "index.html").write_text("hello")
    pod.spawn("python3", "-m", "http.server", str(port), "-d", folder, stdout=-3, stderr=-3)
    listening = ("curl", "-sf", "-o", "/dev/null", f"http://localhost:{port}/")
    assert eventually(lambda: pod.succeeds(*listening), timeout_s=15)


async def test_a_chain_with_portmap_bandwidth_and_tuning(node, netns, pod):
    outside = netns.make("outside")
    connect(node.ns, "lan0", outside, "lan0")
    add_addresses(node.ns, "lan0", "198.51.100.1/24")
    add_addresses(outside, "lan0", "198.51.100.2/24")
    chain = NetworkList(node.ns, CHAIN, node.path, portMappings=MAPPING, bandwidth=BANDWIDTH)
    args = {"CNI_ARGS": POD_ARGS}
    result = await chain.add("c1", pod, **args)
    names = [entry["name"] for entry in result["interfaces"]]
    assert "eth0" in names
    assert "02:00:00:00:05:01" in pod.run("ip", "link", "show", "eth0")
    assert "tbf" in node.ns.run("tc", "qdisc", "show", "dev", names[0])
    # portmap 1.1.1 looks for IPv4 rules in the IPv6 table and fails for every pod.
    await chain.check("c1", pod, without=("portmap",), **args)
    serve(pod, 80)
    fetch = ("curl", "-sf", "-m", "5", "http://198.51.100.1:8080/")
    assert outside.run(*fetch) == "hello"
    # What a later plugin made of the pod stays right for CHECK; what nobody made does not.
    pod.run("ip", "link", "set", "eth0", "address", "02:00:00:00:05:02")
    with pytest.raises(PluginFailed) as caught:
        await chain.check("c1", pod, without=("portmap",), **args)
    assert caught.value.plugin == "calico"
    assert "has MAC 02:00:00:00:05:02" in caught.value.answer["msg"]
    await chain.delete("c1", pod.path, **args)
    await chain.delete("c1", "", **args)
    assert not outside.succeeds(*fetch)


async def test_behind_another_plugin_its_result_comes_first(node, pod):
    before = {
        "cniVersion": "1.0.0",
        "interfaces": [{"name": "other0", "sandbox": pod.path}],
        "ips": [{"address": "192.0.2.77/24", "interface": 0}],
        "routes": [{"dst": "192.0.2.0/24"}],
        "dns": {"nameservers": ["192.0.2.53"]},
    }
    result = add(node, pod, {**CONF, "prevResult": before})
    assert [entry["name"] for entry in result["interfaces"]][::2] == ["other0", "eth0"]
    assert [ip["interface"] for ip in result["ips"]] == [0, 2, 2]
    assert result["routes"] == before["routes"]
    assert result["dns"] == before["dns"]
    remove(node, pod, {**CONF, "prevResult": result})


async def test_behind_a_plugin_that_made_the_interface_it_is_an_error(node, pod):
    address = {"address": "10.9.9.2/24", "gateway": "10.9.9.1"}
    ptp = {
        "name": "late",
        "cniVersion": "1.0.0",
        "plugins": [
            {"type": "ptp", "ipam": {"type": "static", "addresses": [address]}},
            {"type": "calico", "ipam": IPAM},
        ],
    }
    late = NetworkList(node.ns, ptp, node.path)
    with pytest.raises(PluginFailed) as caught:
        await late.add("c1", pod, CNI_ARGS=POD_ARGS)
    assert caught.value.plugin == "calico", caught.value
    assert "container veth name (eth0) already exists" in caught.value.answer["msg"]
    assert "10.9.9.2/24" in pod.run("ip", "addr", "show", "eth0"), "the other plugin's stays"
    # Our part of the DEL does not take the other's interface: it is what ptp's own DEL works on.
    remove(node, pod, {**CONF, "name": "late"})
    assert "10.9.9.2/24" in pod.run("ip", "addr", "show", "eth0")
    await late.delete("c1", pod.path, CNI_ARGS=POD_ARGS)
    assert "eth0" not in pod.run("ip", "-o", "link")


@pytest.fixture
def small_pool(node: CniNode, request: pytest.FixtureRequest) -> Iterator[str]:
    """A pool of eight addresses for those who name it, in blocks of the size of the parameter."""
    block_size: int = request.param
    cidr = f"10.67.{block_size}.0/29"
    key = f"{RESOURCES}ippools/small{block_size}"
    spec = {"cidr": cidr, "blockSize": block_size, "nodeSelector": "!all()"}
    pool = {"kind": "IPPool", "metadata": {"name": f"small{block_size}"}, "spec": spec}
    node.ns.run("etcdctl", "put", key, json.dumps(pool))
    yield cidr
    node.ns.run("etcdctl", "del", key)


def only_from(cidr: str) -> dict[str, Any]:
    return {**CONF, "ipam": {**IPAM, "assign_ipv6": "false", "ipv4_pools": [cidr]}}


def numbered(number: int) -> dict[str, str]:
    args = f"IgnoreUnknown=1;K8S_POD_NAMESPACE=prod;K8S_POD_NAME=small-{number}"
    return {"CNI_CONTAINERID": f"small{number}", "CNI_ARGS": args}


def first_add(node: CniNode, pod: Namespace, conf: dict[str, Any]) -> dict[str, Any]:
    """Number 0, as soon as felix has heard of the pool."""
    said: dict[str, Any] = {}

    def works() -> bool:
        code, answer = node.cni("ADD", pod.path, conf=conf, **numbered(0))
        said.clear()
        said.update(answer)
        return code == 0

    assert eventually(works, timeout_s=30), said
    return said


@pytest.mark.parametrize("small_pool", [31, 30], indirect=True)
def test_the_smallest_blocks_serve_every_address_and_a_full_pool_is_named(node, small_pool, netns):
    conf = only_from(small_pool)
    pods = [netns.make(f"p{number}") for number in range(9)]
    results = [first_add(node, pods[0], conf)]
    results += [add(node, pods[n], conf, **numbered(n)) for n in range(1, 8)]
    given = [address for result in results for address in addresses(result)]
    assert sorted(given, key=ip_address) == [str(a) for a in ip_network(small_pool)]
    assert all(can_ping(node.ns, address) for address in given)
    error = refused(node, pods[8], conf, **numbered(8))
    assert error["code"] == 100
    assert error["msg"] == (
        "failed to request addresses: Assigned 0 out of 1 requested IPv4 addresses; "
        f"No IPs available in pools: [{small_pool}]"
    )
    assert "eth0" not in pods[8].run("ip", "-o", "link")
    # One that ends makes room, though the runtime has no namespace of it any more.
    pods[3].remove()
    assert node.cni("DEL", "", conf=conf, **numbered(3)) == (0, {})
    assert addresses(add(node, pods[8], conf, **numbered(8))) == addresses(results[3])
    assert eventually(lambda: can_ping(node.ns, given[3]))
    for number in (0, 1, 2, 4, 5, 6, 7, 8):
        remove(node, pods[number], conf, **numbered(number))
