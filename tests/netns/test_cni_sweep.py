"""A node that lost its pods without a DEL, as by a reboot: real felix, etcd and wires."""

from __future__ import annotations

import pytest

from tests.support.cni_node import CniNode
from tests.support.netns import NamespaceSet, can_ping, eventually

SWEEP = {"FELIX_STALEENDPOINTSWEEPINTERVALSECS": "1", "FELIX_STALEENDPOINTGRACESECS": "1"}


@pytest.fixture
def node(cni_node: CniNode) -> CniNode:
    return cni_node


def test_after_a_reboot_what_was_goes_and_what_lives_stays(node: CniNode, netns: NamespaceSet):
    node.start_felix(**SWEEP)
    node.wait_ready()
    kept = netns.make("kept")
    addresses = node.add("kept", kept, "kept")
    gone = [netns.make(f"gone{i}") for i in range(4)]
    for number, pod in enumerate(gone):
        node.add(f"gone{number}", pod, f"gone{number}")
    node.kill_felix()
    for pod in gone:
        pod.remove()
    assert len(node.handles()) == 5
    node.start_felix(**SWEEP)
    node.wait_ready()
    # One of the pods is back meanwhile, in a new container: it keeps name and endpoint.
    again = netns.make("again")
    new = node.add("again", again, "gone0")
    expected = {"net.kept", "net.again"}
    assert eventually(lambda: node.handles() == expected, timeout_s=60, interval_s=0.2), node.log()
    assert set(node.endpoints().values()) == {"kept", "again"}
    assert node.queued() == 0
    for address in (*addresses, *new):
        assert can_ping(node.ns, address)
    assert node.violations() == []


def test_pods_that_come_and_go_lose_nothing_to_an_eager_sweep(node: CniNode, netns: NamespaceSet):
    """The shortest grace there is, and a namespace that dies before each DEL."""
    node.start_felix(**{**SWEEP, "FELIX_STALEENDPOINTGRACESECS": "0.01"})
    node.wait_ready()
    living = {}
    for number in range(6):
        pod = netns.make(f"p{number}")
        living[number] = node.add(f"c{number}", pod, f"p{number}")
        if number % 2:
            pod.remove()
            assert node.call("DEL", f"c{number}", pod.path, f"p{number}") == (0, {})
            del living[number]
    expected = {f"net.c{number}" for number in living}
    assert eventually(lambda: node.handles() == expected, timeout_s=60, interval_s=0.2), node.log()
    for addresses in living.values():
        assert all(can_ping(node.ns, address) for address in addresses)
    assert node.violations() == []
