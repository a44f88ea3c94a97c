"""cni.veth on the real kernel: the pair in two steps, and its removal."""

from __future__ import annotations

import dataclasses
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from cni import teardown, veth, wirecheck
from cni.skel import CniError, Code
from libcalico.errors import ProgrammingFailed
from libcalico.netlink import NetlinkSocket, VethEnd, create_veth, get_link
from tests.support.netns import Namespace, NamespaceSet

WIRE = veth.PodWire("cali0", "eth0", "", ("10.65.0.2", "fd65::2"), 1400, "02:00:00:00:00:02")


def wire_to(pod: Namespace) -> veth.PodWire:
    return dataclasses.replace(WIRE, netns=pod.path)


def problems(node: Namespace, wire: veth.PodWire) -> tuple[str, ...]:
    return node.call(lambda: wirecheck.wire(wire).problems)


def links(namespace: Namespace) -> set[str]:
    shown = namespace.run("ip", "-br", "link")
    return {line.split()[0].partition("@")[0] for line in shown.splitlines()} - {"lo"}


@pytest.fixture
def pod(netns: NamespaceSet) -> Namespace:
    return netns.make("pod")


@pytest.mark.parametrize("families", [("10.65.0.2", "fd65::2"), ("10.65.0.2",), ("fd65::2",)])
def test_an_attempt_makes_the_whole_wire(node, pod, families):
    wire = dataclasses.replace(wire_to(pod), addresses=families)
    made = node.call(lambda: veth.attempt(wire))
    assert made == veth.MadeWire(WIRE.mac, 1400)
    assert problems(node, wire) == ()
    if wire.has_ipv6:
        assert "tentative" not in pod.run("ip", "addr", "show", "eth0")


def test_without_a_wanted_mac_the_kernels_choice_is_told(node, pod):
    made = node.call(lambda: veth.attempt(dataclasses.replace(wire_to(pod), mac="")))
    assert made is not None
    assert made.mac in pod.run("ip", "link", "show", "eth0")


def test_an_attempt_leaves_a_taken_host_name_which_creating_replaces(node, pod, netns):
    """A refused ADD must not cost the predecessor its wire."""
    before = netns.make("before")
    node.call(lambda: veth.create(wire_to(before)))
    assert node.call(lambda: veth.attempt(wire_to(pod))) is None
    assert problems(node, wire_to(before)) == ()
    assert links(pod) == set()
    node.call(lambda: veth.create(wire_to(pod)))
    assert problems(node, wire_to(pod)) == ()
    assert links(before) == set()


def test_an_attempt_where_the_pods_name_is_taken_leaves_nothing_on_the_host(node, pod):
    pod.socket.execute(create_veth(VethEnd("eth0"), VethEnd("eth0-peer")))
    with pytest.raises(CniError) as refused:
        node.call(lambda: veth.attempt(wire_to(pod)))
    assert refused.value.code == Code.NETWORKING_FAILED
    assert links(node) == set()
    assert links(pod) == {"eth0", "eth0-peer"}


def test_a_wire_that_is_refused_half_way_is_removed(node, pod):
    wire = dataclasses.replace(wire_to(pod), addresses=("10.65.0.2", "ff02::1"))
    with pytest.raises(CniError):
        node.call(lambda: veth.attempt(wire))
    assert links(node) == set()


@pytest.mark.parametrize("side", ["pod", "host"])
def test_after_a_removal_both_ends_are_gone_and_their_names_are_free_at_once(node, pod, side):
    wire = wire_to(pod)
    for _ in range(5):
        node.call(lambda: veth.create(wire))
        if side == "pod":
            assert node.call(lambda: teardown.delete_in_pod(pod.path, "eth0"))
        else:
            assert node.call(lambda: teardown.delete_on_host("cali0"))
        for where, name in ((node, "cali0"), (pod, "eth0")):
            with NetlinkSocket.in_namespace(where.path) as sock, pytest.raises(ProgrammingFailed):
                sock.query_one(get_link(name))
    assert not node.call(lambda: teardown.delete_in_pod(pod.path, "eth0"))
    assert not node.call(lambda: teardown.delete_on_host("cali0"))


def test_removals_at_once_go_as_groups_and_each_takes_its_own_wire_only(node, netns):
    """T4. Every pod's interface has the same name and the same index; one wire stays."""
    pods = [netns.make(f"pod{i}") for i in range(13)]
    for number, pod in enumerate(pods):
        wire = veth.PodWire(f"cali{number}", "eth0", pod.path, (f"10.65.0.{number + 2}",), 1400)
        node.call(partial(veth.create, wire))
    with ThreadPoolExecutor(12) as threads:
        removed = threads.map(
            lambda pod: node.call(lambda: teardown.delete_in_pod(pod.path, "eth0")), pods[:12]
        )
        assert list(removed) == [True] * 12
    assert links(node) == {"cali12"}
    assert [links(pod) for pod in pods[:12]] == [set()] * 12
    assert links(pods[12]) == {"eth0"}
    assert node.link("cali12").group == 0


def pair_to(pod: Namespace, name: str) -> tuple[VethEnd, VethEnd]:
    """Another plugin's pair: its host end has a MAC of its own."""
    return VethEnd("veth0"), VethEnd(name, netns_fd=os.open(pod.path, os.O_RDONLY))


@pytest.mark.parametrize("kind", ["nothing", "plugin", "lookalike", "host"])
def test_what_is_no_wire_of_ours_stays_and_counts_as_gone(node, pod, netns, kind):
    """T1. The lookalike is a veth within the pod, all of whose indexes are those of a wire of ours
    to another pod: only the namespace of its other end tells them apart."""
    other = netns.make("other")
    # So that the indexes of the wire are free in the pod.
    for where, pads in ((other, 4), (node, 9)):
        for number in range(pads):
            where.run("ip", "link", "add", f"pad{number}", "type", "bridge")
    node.call(lambda: veth.create(dataclasses.replace(WIRE, netns=other.path)))
    where, name = pod, "eth0"
    if kind in ("plugin", "lookalike"):
        near, far = pair_to(pod, "eth0" if kind == "plugin" else "net0")
        node.socket.execute(create_veth(near, far))
        os.close(far.netns_fd or -1)
    if kind == "lookalike":
        inner, outer = other.link("eth0").ifindex, node.link("cali0").ifindex
        words = f"ip link add eth0 index {inner} type veth peer name far index {outer}"
        pod.run(*words.split())
    if kind == "host":
        where, name = node, "cali0"
    assert not node.call(lambda: teardown.delete_in_pod(where.path, name))
    assert "cali0" in links(node)
    if kind != "nothing":
        assert name in links(where)


def test_of_removals_together_each_has_its_own_outcome(node, netns, monkeypatch):
    pods = [netns.make(f"pod{i}") for i in range(3)]
    for number, pod in enumerate(pods):
        node.call(lambda n=number, pod=pod: veth.create(numbered(n, pod)))
    remove = teardown._remove

    def refusing(batch, group):
        remove(batch[1:], group)
        batch[0].error = ProgrammingFailed("delete link", "cali0", 16, "busy")

    monkeypatch.setattr(teardown, "_remove", refusing)
    ends = [teardown.End("eth0", pod.path) for pod in pods]
    ends.insert(1, teardown.End("eth7", pods[0].path))
    refused, absent, second, third = node.call(lambda: teardown.delete_all(ends))
    assert isinstance(refused, CniError)
    assert (absent, second, third) == (False, True, True)
    monkeypatch.undo()
    outcomes = node.call(lambda: teardown.delete_all([teardown.End("cali0")]))
    assert outcomes == [True]


def numbered(number: int, pod: Namespace) -> veth.PodWire:
    return veth.PodWire(f"cali{number}", "eth0", pod.path, (f"10.65.0.{number + 2}",), 1400)
