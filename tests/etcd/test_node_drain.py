"""calicoctl node drain, undrain against a real etcd: only the annotation changes."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from libcalico.testing.etcd import EtcdCluster
from tests.support.calicoctl import Ctl

KEY = "/calico/resources/v3/projectcalico.org/nodes/n1"
ANNOTATION = "projectcalico.org/BGPDrain"
NODE = {
    "kind": "Node",
    "apiVersion": "projectcalico.org/v3",
    "metadata": {
        "name": "n1",
        "uid": "0e4b7c7c-1c6e-4f4e-9a55-8c5b3a1f9d10",
        "creationTimestamp": "2025-01-02T03:04:05Z",
        "labels": {"rack": "a"},
        "annotations": {"example.org/owner": "them", "another": "1"},
    },
    "spec": {"bgp": {"ipv4Address": "192.0.2.11/24"}, "someField": {"of": ["a", "later", 1.5]}},
    "status": {"wireguardPublicKey": "jlkVyQYooZYzI2wFfNhSZez5eWh44yfq1wKVjLvSXgY="},
}


def stored(etcd: EtcdCluster) -> dict:
    return json.loads(etcd.ctl("get", "--print-value-only", KEY))


@pytest.fixture
def node(etcd: EtcdCluster) -> str:
    etcd.ctl("put", KEY, json.dumps(NODE))
    return etcd.ctl("get", "--print-value-only", KEY)


def test_drain_and_undrain_leave_the_rest_of_the_node_as_it_was(
    etcd: EtcdCluster, ctl: Ctl, node: str
):
    assert ctl("node", "drain", "n1", "--wait", "0") == "Successfully drained node n1\n"
    found = stored(etcd)
    assert found["metadata"]["annotations"].pop(ANNOTATION) == "withdrawn"
    assert found == NODE
    assert ctl("node", "drain", "n1", "--wait", "0") == "Node n1 is drained already\n"
    assert ctl("node", "undrain", "n1") == "Successfully undrained node n1\n"
    assert stored(etcd) == NODE
    assert ctl("node", "undrain", "n1") == "Node n1 is not drained\n"


def test_the_shutdown_is_announced_before_the_routes_go(
    etcd: EtcdCluster, ctl: Ctl, node: str, monkeypatch: pytest.MonkeyPatch
):
    seen = []

    def wait(seconds: float) -> None:
        seen.append((seconds, stored(etcd)["metadata"]["annotations"][ANNOTATION]))

    # The command's clock only: waiting for a child process sleeps, too.
    monkeypatch.setattr("calicoctl.commands.drain.time", SimpleNamespace(sleep=wait))
    ctl("node", "drain", "n1", "--wait", "7")
    assert seen == [(7.0, "graceful-shutdown")]


def test_an_undrain_during_the_wait_is_not_undone(
    etcd: EtcdCluster, ctl: Ctl, node: str, monkeypatch: pytest.MonkeyPatch
):
    undrained = SimpleNamespace(sleep=lambda _: etcd.ctl("put", KEY, json.dumps(NODE)))
    monkeypatch.setattr("calicoctl.commands.drain.time", undrained)
    ctl("node", "drain", "n1", code=1)
    assert "node n1 was undrained meanwhile" in ctl.err
    assert stored(etcd) == NODE


def test_a_node_that_is_not_there(ctl: Ctl):
    for command in ("drain", "undrain"):
        ctl("node", command, "nobody", code=1)
        assert ctl.err == "Node nobody not found\n"
