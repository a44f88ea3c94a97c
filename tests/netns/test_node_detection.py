"""calicoctl.node.interfaces and .autodetect in a namespace with the interfaces of a real node."""

from __future__ import annotations

import pytest

from calicoctl.node import interfaces
from calicoctl.node.autodetect import HostInterface, detect, parse_method
from tests.support.netns import Namespace, NamespaceSet, add_addresses, add_bridge, connect


@pytest.fixture
def host(netns: NamespaceSet) -> Namespace:
    """eth0 and eth1 to other machines, a bridge, a workload interface, a service address."""
    node, left, right, pod = (netns.make(label) for label in ("node", "left", "right", "pod"))
    connect(node, "eth0", left, "up")
    connect(node, "eth1", right, "up")
    connect(node, "cali12345678901", pod, "eth0")
    add_bridge(node, "br0")
    add_addresses(node, "eth0", "192.0.2.11/24", "192.0.2.200/32", "2001:db8::11/64")
    add_addresses(node, "eth1", "198.51.100.11/24", "2001:db8:1::11/64")
    add_addresses(node, "br0", "10.9.0.1/24")
    add_addresses(node, "cali12345678901", "203.0.113.1/24")
    node.run("ip", "route", "add", "100.65.0.0/16", "via", "192.0.2.1")
    return node


def found(host: Namespace, method: str, version: int = 4) -> str | None:
    def work() -> str | None:
        chosen = detect(
            interfaces.host_interfaces(),
            parse_method(method, version),
            version,
            interfaces.source_for,
        )
        return None if chosen is None else f"{chosen[0]} {chosen[1]}"

    return host.call(work)


def test_the_kernels_interfaces_are_read_with_kind_state_and_addresses(host: Namespace):
    read: list[HostInterface] = host.call(interfaces.host_interfaces)
    by_name = {interface.name: interface for interface in read}
    assert by_name["br0"].kind == "bridge"
    assert by_name["eth0"].kind == "veth"
    assert by_name["eth0"].is_up
    addresses = [str(address) for address in by_name["eth0"].addresses]
    assert "192.0.2.11/24" in addresses
    assert "2001:db8::11/64" in addresses


def test_first_found_is_the_youngest_real_interface(host: Namespace):
    assert found(host, "first-found") == "198.51.100.11/24 eth1"
    assert found(host, "first-found", 6) == "2001:db8:1::11/64 eth1"


def test_an_interface_that_is_down_is_passed_over(host: Namespace):
    host.run("ip", "link", "set", "eth1", "down")
    assert found(host, "first-found") == "192.0.2.11/24 eth0"


def test_named_and_skipped_interfaces(host: Namespace):
    assert found(host, "interface=eth0") == "192.0.2.11/24 eth0"
    assert found(host, "interface=br.*") == "10.9.0.1/24 br0"
    assert found(host, "skip-interface=eth1", 6) == "2001:db8::11/64 eth0"
    assert found(host, "cidr=192.0.2.0/24") == "192.0.2.11/24 eth0"
    assert found(host, "cidr=203.0.113.0/24") is None


def test_can_reach_follows_the_routing_table(host: Namespace):
    assert found(host, "can-reach=198.51.100.77") == "198.51.100.11/24 eth1"
    assert found(host, "can-reach=192.0.2.77") == "192.0.2.11/24 eth0"
    assert found(host, "can-reach=100.65.1.1") == "192.0.2.11/24 eth0"
    assert found(host, "can-reach=2001:db8:1::77", 6) == "2001:db8:1::11/64 eth1"
    assert found(host, "can-reach=100.64.0.1") is None
