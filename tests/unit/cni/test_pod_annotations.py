"""cni.pod_annotations and what cni.netconf makes of them."""

from __future__ import annotations

import json

import pytest

from cni import netconf, skel
from cni.pod_annotations import checked_mac, one_per_family, parse
from cni.qos import Bandwidth
from cni.skel import CniError, Invocation

BASE = {"cniVersion": "1.0.0", "name": "net", "ipam": {"type": "calico-ipam"}}


def wishes(**annotations):
    given = {
        f"cni.projectcalico.org/{name}": value if isinstance(value, str) else json.dumps(value)
        for name, value in annotations.items()
    }
    return parse(given, Bandwidth())


def conf(members=None, args="", **annotations):
    given = {
        f"cni.projectcalico.org/{name}": json.dumps(value) if isinstance(value, list) else value
        for name, value in annotations.items()
    }
    runtime = {"io.kubernetes.cri.pod-annotations": given, **(members or {}).pop("runtime", {})}
    body = {**BASE, "runtimeConfig": runtime, **(members or {})}
    environ = {
        "CNI_COMMAND": "ADD",
        "CNI_CONTAINERID": "c1",
        "CNI_NETNS": "/n",
        "CNI_IFNAME": "eth0",
        "CNI_PATH": "/p",
        "CNI_ARGS": args,
    }
    return netconf.parse(skel.parse(Invocation("calico", environ, json.dumps(body).encode())))


def test_every_annotation_is_read():
    found = wishes(
        ipAddrs=["fd00::1", "10.0.0.1"],
        ipv4pools=["pool", "10.0.0.0/8"],
        ipv6pools=["six"],
        ipFamilies=["IPv6"],
        hwAddr="1C-0C-0A-C0-FF-EE",
        floatingIPs=["203.0.113.1", "203.0.113.2"],
        allowedSourcePrefixes=["198.51.100.7/24"],
    )
    assert found.addresses == ("10.0.0.1", "fd00::1")
    assert (found.ipv4_pools, found.ipv6_pools) == (("pool", "10.0.0.0/8"), ("six",))
    assert found.families == {6}
    assert found.mac == "1c:0c:0a:c0:ff:ee"
    assert found.floating_ips == ("203.0.113.1", "203.0.113.2")
    assert found.allowed_source_prefixes == ("198.51.100.0/24",)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ipAddrs", "10.0.0.1", "must be a JSON list"),
        ("ipAddrs", "[1]", "must be a JSON list"),
        ("ipAddrs", "[" * 3000, "must be a JSON list"),
        ("ipAddrs", "[]", "the list is empty"),
        ("ipAddrs", ["10.0.0"], "invalid IP address"),
        ("ipAddrs", ["10.0.0.1/32"], "invalid IP address"),
        ("ipAddrs", ["10.0.0.1", "10.0.0.2"], "at most one address per family"),
        ("ipAddrsNoIpam", ["fd00::1", "fd00::2"], "at most one address per family"),
        ("ipv4pools", "pool", "must be a JSON list"),
        ("ipFamilies", ["IPv5"], "must be IPv4 or IPv6"),
        ("floatingIPs", ["host"], "invalid IP address"),
        ("allowedSourcePrefixes", ["10.0.0.0/33"], "10.0.0.0/33"),
        ("hwAddr", "1c:0c:0a:c0:ff", "must be a MAC address"),
        ("hwAddr", "01:00:5e:00:00:01", "must be a unicast address"),
    ],
)
def test_a_wrong_annotation_is_code_7_with_its_name(name, value, said):
    with pytest.raises(CniError) as caught:
        wishes(**{name: value})
    assert caught.value.code == 7
    assert caught.value.msg.startswith(f"annotation cni.projectcalico.org/{name}: ")
    assert said in caught.value.msg


def test_the_fault_of_an_address_is_said_once():
    with pytest.raises(CniError) as caught:
        wishes(ipAddrs=["10.0.0"])
    assert str(caught.value) == (
        "annotation cni.projectcalico.org/ipAddrs: invalid IP address: 10.0.0"
    )


def test_both_ways_of_choosing_addresses_exclude_each_other():
    with pytest.raises(CniError, match="at the same time"):
        wishes(ipAddrs=["10.0.0.1"], ipAddrsNoIpam=["10.0.0.2"])


def test_the_annotations_go_before_the_configuration_and_the_runtime():
    members = {"runtime": {"ips": ["10.0.0.9/24"], "mac": "02:00:00:00:00:09"}}
    found = conf(
        members,
        ipAddrs=["10.0.0.1"],
        hwAddr="02:00:00:00:00:01",
        ipv4pools=["mine"],
        ipFamilies=["IPv6", "IPv4"],
    )
    assert (found.addresses, found.mac) == (("10.0.0.1",), "02:00:00:00:00:01")
    assert found.ipam.ipv4_pools == ("mine",)
    assert (found.ipam.assign_ipv4, found.ipam.assign_ipv6) == (True, True)
    plain = conf(
        {"runtime": {"ips": ["10.0.0.9/24"]}, "ipam": {**BASE["ipam"], "ipv4_pools": ["x"]}}
    )
    assert (plain.addresses, plain.ipam.ipv4_pools) == (("10.0.0.9",), ("x",))


@pytest.mark.parametrize("name", ["ipAddrs", "ipAddrsNoIpam"])
def test_chosen_addresses_need_our_ipam(name):
    with pytest.raises(
        CniError, match=f"{name} is not compatible with configured IPAM: host-local"
    ):
        conf({"ipam": {"type": "host-local"}}, **{name: ["10.0.0.1"]})


def test_features_are_allowed_by_the_configuration():
    with pytest.raises(CniError, match="ip_addrs_no_ipam"):
        conf(ipAddrsNoIpam=["10.0.0.1"])
    with pytest.raises(CniError, match="floating_ips"):
        conf(floatingIPs=["10.0.0.1"])
    allowed = {"feature_control": {"ip_addrs_no_ipam": True, "floating_ips": True}}
    found = conf(allowed, ipAddrsNoIpam=["10.0.0.1"], floatingIPs=["10.0.0.2"])
    assert found.pod.addresses_no_ipam == ("10.0.0.1",)


@pytest.mark.parametrize("value", [1, ["x"], "\ud800"])
def test_an_annotation_is_a_string(value):
    with pytest.raises(CniError) as caught:
        conf({"runtime": {"io.kubernetes.cri.pod-annotations": {"a": value}}})
    assert caught.value.code == 7
    assert "io.kubernetes.cri.pod-annotations" in caught.value.msg


def test_one_address_of_each_family_in_their_order():
    assert one_per_family(("fd00::1", "10.0.0.1", "fd00::1"), "x") == ("10.0.0.1", "fd00::1")
    assert one_per_family((), "x") == ()
    for several in (
        ("10.0.0.1", "10.0.0.2"),
        ("fd00::1", "fd00::2"),
        ("10.0.0.1",) * 1 + ("1.1.1.1", "::1"),
    ):
        with pytest.raises(CniError):
            one_per_family(several, "x")


@pytest.mark.parametrize("text", ["0:1:2:3:4:5", "0A:0b:0c:0d:0e:0f"])
def test_a_mac_becomes_canonical(text):
    assert checked_mac(text, "x") == bytes(int(o, 16) for o in text.split(":")).hex(":")


@pytest.mark.parametrize(
    "text", ["x", "1:2:3:4:5:g", "1:2:3:4:5:+1", "00:00:00:00:00:00", "1:2:3:4:5:6:7"]
)
def test_what_is_no_mac_is_refused(text):
    with pytest.raises(CniError):
        checked_mac(text, "x")
