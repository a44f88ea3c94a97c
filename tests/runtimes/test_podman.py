"""podman (with CNI networking) runs the plugin for plain containers: no Kubernetes names, the
same container in another namespace after a restart, addresses asked for on the command line."""

from __future__ import annotations

import json

import pytest

from tests.runtimes.host import HOST_V4
from tests.support.netns import can_ping, eventually

ALLOW_WEB = {
    "apiVersion": "projectcalico.org/v3",
    "kind": "GlobalNetworkPolicy",
    "metadata": {"name": "allow-web"},
    "spec": {
        "selector": "projectcalico.org/orchestrator == 'cni'",
        "types": ["Ingress"],
        "ingress": [{"action": "Allow", "protocol": "TCP", "destination": {"ports": [80]}}],
    },
}


@pytest.fixture
def allow_web(podman):
    """Everybody may fetch from containers; without a policy only their own network may."""
    podman.host.apply(ALLOW_WEB)
    yield
    podman.host.calicoctl("delete", "globalnetworkpolicy", "allow-web")


def test_a_container_is_reached_by_its_host_and_its_network_only(podman):
    host = podman.host
    v4 = podman.start("web")
    v6 = podman.network("web")["GlobalIPv6Address"]
    assert can_ping(host.netns, v4)
    assert can_ping(host.netns, v6)
    assert host.machine.run("curl", "-sf", "-m", "2", f"http://{v4}/") == "hello from busybox\n"
    podman.start("client", "--cap-add", "NET_RAW")
    for address in (v4, v6):
        podman.run("exec", "client", "ping", "-c", "1", "-W", "1", address)
        assert not can_ping(host.outside, address)
    shown = podman.run("exec", "web", "cat", "/proc/net/route").splitlines()
    assert any(line.split()[:2] == ["eth0", "00000000"] for line in shown), "a default route"


def test_a_policy_opens_a_container_and_its_published_port(podman, allow_web):
    host = podman.host
    v4 = podman.start("web", "-p", "8080:80")
    v6 = podman.network("web")["GlobalIPv6Address"]
    assert eventually(lambda: host.fetches(v4, 80))
    assert host.fetches(v6, 80)
    assert host.fetches(HOST_V4, 8080)
    assert not can_ping(host.outside, v4)
    podman.run("rm", "-f", "-t", "0", "web")
    assert not host.fetches(HOST_V4, 8080)


def test_a_stopped_container_has_no_network_and_gets_one_again(podman):
    host = podman.host
    podman.start("web")
    before = podman.inspect("web")["NetworkSettings"]["SandboxKey"]
    podman.run("stop", "-t", "0", "web")
    assert host.leftovers() == []
    podman.run("start", "web")
    assert podman.inspect("web")["NetworkSettings"]["SandboxKey"] != before
    assert can_ping(host.netns, podman.address("web"))
    podman.run("restart", "-t", "0", "web")
    assert can_ping(host.netns, podman.address("web"))
    assert len(host.keys("/calico/ipam/v2/handle/")) == 1


def test_a_network_reload_keeps_address_and_mac(podman):
    host = podman.host
    address = podman.start("web")
    before = podman.network("web")
    podman.run("network", "reload", "web")
    after = podman.network("web")
    assert (after["IPAddress"], after["MacAddress"]) == (address, before["MacAddress"])
    assert can_ping(host.netns, address)
    assert host.machine.run("curl", "-sf", "-m", "2", f"http://{address}/")


def test_an_address_and_a_mac_that_were_asked_for(podman):
    wanted = ("--ip", "10.65.77.7", "--mac-address", "02:00:00:77:07:07")
    assert podman.start("web", *wanted) == "10.65.77.7"
    assert podman.network("web")["MacAddress"] == "02:00:00:77:07:07"
    assert can_ping(podman.host.netns, "10.65.77.7")


def test_an_address_that_is_taken_is_refused_and_nothing_is_left(podman):
    podman.start("web", "--ip", "10.65.77.7")
    before = podman.host.leftovers()
    refused = podman.attempt("run", "-d", "--ip", "10.65.77.7", *podman.image, "sleep", "99")
    assert refused.returncode != 0
    assert "10.65.77.7" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert podman.host.leftovers() == before
    assert can_ping(podman.host.netns, "10.65.77.7")


def test_a_container_that_cannot_start_leaves_nothing(podman):
    failed = podman.attempt("run", "-d", "--name", "broken", *podman.image, "/no/such")
    assert failed.returncode != 0
    podman.run("rm", "-f", "broken")
    assert podman.host.leftovers() == []


def test_a_container_joins_a_second_network_and_leaves_it(podman):
    host = podman.host
    first = podman.machine.path("/etc/cni/net.d/10-calico.conflist")
    second = podman.machine.path("/etc/cni/net.d/20-extra.conflist")
    second.write_text(json.dumps({**json.loads(first.read_text()), "name": "extra"}))
    try:
        address = podman.start("web")
        podman.run("network", "connect", "extra", "web")
        assert "eth1" in podman.run("exec", "web", "ip", "addr")
        assert sum(host.assigned().values()) == 4
        assert can_ping(host.netns, address)
        podman.run("network", "disconnect", "extra", "web")
        assert sum(host.assigned().values()) == 2
        assert can_ping(host.netns, address)
    finally:
        podman.remove_all()
        second.unlink()


def test_a_container_that_ends_while_felix_is_down_leaves_nothing(podman):
    host = podman.host
    address = podman.start("web")
    host.stop_node()
    try:
        assert can_ping(host.netns, address)
        podman.run("rm", "-f", "-t", "0", "web")
        assert host.keys("/calico/ipam/v2/handle/") == []
        assert sum(host.assigned().values()) == 0
    finally:
        host.start_node()
        host.wait_ready()
    assert host.leftovers() == []
