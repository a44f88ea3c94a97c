"""calicoctl.node.autodetect and .settings: which address is the node's, and what is refused."""

from __future__ import annotations

import pytest

from calicoctl.node.autodetect import HostInterface, detect, parse_method, with_length
from calicoctl.node.settings import load
from libcalico.errors import ConfigError
from libcalico.net import parse_interface


def interface(name: str, *addresses: str, **options) -> HostInterface:
    return HostInterface(name, tuple(parse_interface(a) for a in addresses), **options)


HOST = [
    interface("lo", "127.0.0.1/8", "::1/128"),
    interface("docker0", "172.17.0.1/16", kind="bridge"),
    interface("cali123", "169.254.1.1/32"),
    interface("br0", "10.9.0.1/24", kind="bridge"),
    interface("eth9", "198.51.100.9/24", is_up=False),
    interface("eth0", "fe80::1/64", "192.0.2.200/32", "192.0.2.11/24", "2001:db8::b/64"),
    interface("eth1", "203.0.113.5/24", "2001:db8:1::5/64"),
    interface("kube-ipvs0", "10.96.0.1/32"),
]


def found(method: str, version: int = 4, source=lambda host, v: None) -> str | None:
    chosen = detect(HOST, parse_method(method, version), version, source)
    return None if chosen is None else str(chosen[0])


def test_first_found_skips_bridges_virtual_interfaces_and_service_addresses():
    only_eth0 = [interface for interface in HOST if interface.name != "eth1"]
    for version, expected in ((4, "192.0.2.11/24"), (6, "2001:db8::b/64")):
        chosen = detect(only_eth0, parse_method("", version), version, lambda host, v: None)
        assert chosen is not None
        assert (str(chosen[0]), chosen[1]) == (expected, "eth0")


def test_first_found_counts_from_the_youngest_interface_as_calico_does():
    assert found("") == found("first-found") == "203.0.113.5/24"
    assert found("first-found", 6) == "2001:db8:1::5/64"


def test_the_only_interface_of_a_host_in_a_container_is_found():
    for kind in ("veth", "macvlan", "ipvlan", ""):
        only = [interface("lo", "127.0.0.1/8"), interface("eth0", "192.0.2.7/24", kind=kind)]
        chosen = detect(only, parse_method("", 4), 4, lambda host, version: None)
        assert chosen is not None
        assert chosen[1] == "eth0"


def test_interface_takes_the_first_that_matches_even_a_bridge():
    assert found("interface=eth1") == "203.0.113.5/24"
    assert found("interface=^nope$,eth1", 6) == "2001:db8:1::5/64"
    assert found("interface=br0") == "10.9.0.1/24"
    assert found("interface=eth9") is None, "it is down"


def test_skip_interface_is_first_found_without_them():
    assert found("skip-interface=eth1") == "192.0.2.11/24"
    assert found("skip-interface=eth.*") is None


def test_cidr_takes_the_first_address_inside():
    assert found("cidr=203.0.113.0/24,10.0.0.0/8") == "203.0.113.5/24"
    assert found("cidr=2001:db8:1::/48", 6) == "2001:db8:1::5/64"
    assert found("cidr=10.96.0.0/16") is None, "service addresses are nobody's"
    assert found("cidr=10.9.0.0/16") == "10.9.0.1/24", "a bridge, but asked for"


def test_can_reach_takes_the_source_the_kernel_would_use():
    asked = []

    def source(host, version):
        asked.append((host, version))
        return "203.0.113.5"

    assert found("can-reach=www.example.org", 4, source) == "203.0.113.5/24"
    assert asked == [("www.example.org", 4)]
    assert found("can-reach=192.0.2.77") is None


@pytest.mark.parametrize(
    "method",
    ["nonsense", "interface=", "interface=(", "cidr=x", "cidr=2001:db8::/32", "jump=1", "=x"],
)
def test_a_bad_method_is_refused(method):
    with pytest.raises(ValueError, match=r"."):
        parse_method(method, 4)


def test_a_single_node_may_have_only_a_host_address():
    only = [interface("eth0", "192.0.2.7/32")]
    chosen = detect(only, parse_method("", 4), 4, lambda host, version: None)
    assert chosen is not None
    assert str(chosen[0]) == "192.0.2.7/32"


def test_a_given_address_takes_the_length_of_its_interface():
    assert str(with_length(parse_interface("192.0.2.11/32"), HOST)) == "192.0.2.11/24"
    assert str(with_length(parse_interface("192.0.2.99/32"), HOST)) == "192.0.2.99/32"


def test_settings_defaults():
    settings = load({}, "n")
    assert (settings.ipv4.keep_stored, settings.ipv4.is_wanted) == (True, True)
    assert not settings.ipv6.is_wanted
    assert [pool.version for pool in settings.pools] == [4]
    assert settings.has_bgp


def test_settings_of_a_dual_stack_node():
    environ = {
        "IP": "192.0.2.1/24",
        "IP6": "autodetect",
        "AS": "1.10",
        "CALICO_IPV4POOL_CIDR": "10.65.0.0/16",
        "CALICO_IPV4POOL_IPIP": "CrossSubnet",
        "CALICO_IPV4POOL_BLOCK_SIZE": "28",
        "CALICO_IPV6POOL_CIDR": "none",
        "CALICO_NETWORKING_BACKEND": "none",
        "DISABLE_NODE_IP_CHECK": "true",
    }
    settings = load(environ, "n")
    assert settings.as_number == 65546
    assert (settings.pools[0].ipip_mode, settings.pools[0].block_size) == ("CrossSubnet", 28)
    assert [pool.is_wanted for pool in settings.pools] == [True, False]
    assert not settings.has_bgp
    assert not settings.check_duplicates
    assert load({"NO_DEFAULT_POOLS": "true"}, "n").pools == ()


def test_a_v6_pool_that_is_asked_for_is_made_without_a_v6_address():
    settings = load({"CALICO_IPV6POOL_CIDR": "fd00:1::/48"}, "n")
    assert [pool.version for pool in settings.pools] == [4, 6]


@pytest.mark.parametrize("variable", ["CALICO_IPV4POOL_CIDR", "CALICO_IPV6POOL_CIDR"])
def test_no_pools_and_a_pool_are_refused(variable):
    with pytest.raises(ConfigError, match="cannot be set beside NO_DEFAULT_POOLS"):
        load({"NO_DEFAULT_POOLS": "true", variable: "none"}, "n")


@pytest.mark.parametrize(
    ("raw", "mode"),
    [("Always", "Always"), ("off", "Never"), ("cross-subnet", "CrossSubnet"), ("", "Never")],
)
def test_encapsulations_may_be_spelled_as_in_older_manifests(raw, mode):
    assert load({"CALICO_IPV4POOL_VXLAN": raw}, "n").pools[0].vxlan_mode == mode


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("IP", "here"),
        ("IP", "2001:db8::1"),
        ("IP6", "192.0.2.1"),
        ("AS", "many"),
        ("AS", "4294967296"),
        ("IP_AUTODETECTION_METHOD", "magic"),
        ("CALICO_IPV4POOL_CIDR", "10.0.0.1/8"),
        ("CALICO_IPV4POOL_CIDR", "fd00::/64"),
        ("CALICO_IPV4POOL_BLOCK_SIZE", "19"),
        ("CALICO_IPV4POOL_IPIP", "Sometimes"),
        ("CALICO_NETWORKING_BACKEND", "ospf"),
        ("NO_DEFAULT_POOLS", "perhaps"),
        ("CALICO_IPV4POOL_NODE_SELECTOR", "a =="),
    ],
)
def test_a_bad_variable_is_named(variable, value):
    with pytest.raises(ConfigError) as caught:
        load({variable: value}, "n")
    assert caught.value.name == variable
    assert value in str(caught.value)


def test_two_encapsulations_are_refused():
    both = {"CALICO_IPV4POOL_IPIP": "Always", "CALICO_IPV4POOL_VXLAN": "Always"}
    with pytest.raises(ConfigError, match="cannot both"):
        load(both, "n")
