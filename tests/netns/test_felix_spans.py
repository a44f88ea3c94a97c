"""felix behind a typha that computes spans: real etcd, typha, felix, CNI plugin and kernel."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from libcalico.model.keys import PolicyRealizationKey, path_of
from tests.support import calc
from tests.support.calc import rule
from tests.support.cni_node import CONF, ETCD, NODE, ROOT, CniNode, pod_args
from tests.support.netns import Namespace, NamespaceSet, can_ping, eventually, why_unavailable

PORT = "5473"
SPANS = {"FELIX_TYPHAADDR": f"tcp://127.0.0.1:{PORT}", "FELIX_TYPHAMODE": "spans"}
FROM_A = rule(source={"selector": "app == 'a'"})


class SpansNode(CniNode):
    """With a typha beside etcd."""

    def start_typha(self, mode: str = "spans") -> None:
        environ = {
            "ETCD_ENDPOINTS": ETCD,
            "DATASTORE_TYPE": "etcdv3",
            "TYPHA_SERVERHOST": "127.0.0.1",
            "TYPHA_SERVERPORT": PORT,
            "TYPHA_ALLOWPLAINTEXT": "true",
            "TYPHA_HEALTHENABLED": "false",
            "TYPHA_REGISTRATIONENABLED": "false",
            "TYPHA_SHUTDOWNTIMEOUTSECS": "0.1",
            "TYPHA_MODE": mode,
            "CALICO_RUN_DIR": str(self.directory / "typha-run"),
            "CALICO_LOG_DIR": str(self.directory / "log"),
            "PYTHONPATH": str(ROOT),
        }
        with (self.directory / "typha.log").open("ab") as log:
            self._typha = self.ns.spawn(
                *(sys.executable, "-m", "typha.daemon"), env=os.environ | environ, stderr=log
            )

    def stop_typha(self) -> None:
        self._typha.terminate()
        self._typha.wait(timeout=20)

    def kernel(self) -> tuple[list[str], list[str]]:
        """Rules and routes, without what counts or differs by chance."""
        rules = self.ns.run("nft", "-s", "list", "table", "inet", "calico").splitlines()
        routes = self.ns.run("ip", "-4", "route").splitlines()
        routes += self.ns.run("ip", "-6", "route").splitlines()
        return sorted(map(str.strip, rules)), sorted(routes)

    def realized(self) -> dict[str, int]:
        key = path_of(PolicyRealizationKey(NODE))
        found = self.ns.run("etcdctl", "get", "--print-value-only", key)
        return json.loads(found)["revisions"] if found.strip() else {}

    def revision(self, key: str) -> int:
        answer = json.loads(self.ns.run("etcdctl", "get", "-w", "json", key))
        return int(answer["kvs"][0]["mod_revision"])


def add(node: CniNode, pod: Namespace, name: str, app: str) -> str:
    """The address of a new pod with this label."""
    conf = {**CONF, "args": {"cni": {"labels": [{"key": "app", "value": app}]}}}
    environ = {"CNI_CONTAINERID": f"c-{name}", "CNI_ARGS": pod_args(name)}
    code, result = node.cni("ADD", pod.path, conf=conf, **environ)
    assert code == 0, (result, node.log()[-2000:])
    return str(result["ips"][0]["address"]).partition("/")[0]


@pytest.fixture
def node(netns: NamespaceSet, tmp_path: Path) -> Iterator[SpansNode]:
    reason = why_unavailable("veth", "nft")
    if reason:
        pytest.skip(reason)
    made = SpansNode(netns, tmp_path)
    made.start_typha()
    made.start_felix(**SPANS)
    made.wait_ready()
    yield made
    made.stop_felix()


def test_the_kernel_is_the_same_as_with_the_full_stream(node: SpansNode, netns: NamespaceSet):
    """And a pod is never without the policy that selects it, though nothing on the node was
    selected by it before."""
    policy = calc.np("only-a", selector="app == 'b'", ingress=(FROM_A,), types=("Ingress",))
    elsewhere = calc.np("nobody", selector="app == 'none'", ingress=(FROM_A,))
    node.store(policy, calc.netset("far", "192.0.2.0/24", labels={"app": "a"}))
    a, b, c = netns.make("a"), netns.make("b"), netns.make("c")
    add(node, a, "a", "a")
    add(node, c, "c", "c")
    address = add(node, b, "b", "b")
    assert not can_ping(c, address)
    assert can_ping(a, address)
    node.store(elsewhere)
    wanted = node.revision(path_of(elsewhere[0]))
    assert eventually(lambda: node.realized().get("NetworkPolicy", 0) >= wanted, timeout_s=15)
    in_spans = node.kernel()
    assert any("192.0.2.0/24" in line for line in in_spans[0])
    node.stop_felix()
    node.start_felix()
    node.wait_ready()
    assert eventually(lambda: node.kernel() == in_spans, timeout_s=10), _difference(
        node.kernel()[0], in_spans[0]
    )


def test_without_typha_a_pod_is_refused_and_nothing_is_left(node: SpansNode, netns: NamespaceSet):
    pod = netns.make("pod")
    node.stop_typha()
    environ = {"CNI_CONTAINERID": "c1", "CNI_ARGS": pod_args("web")}
    code, error = node.cni("ADD", pod.path, conf=CONF, **environ)
    assert code == 1
    assert "typha has not told its policy within 10 s" in json.dumps(error)
    assert eventually(lambda: node.leftovers() == []), node.leftovers()
    node.start_typha()
    add(node, pod, "web", "a")


def test_a_typha_that_does_not_compute_spans_says_so(netns: NamespaceSet, tmp_path: Path):
    reason = why_unavailable("veth", "nft")
    if reason:
        pytest.skip(reason)
    node = SpansNode(netns, tmp_path)
    node.start_typha("full")
    node.start_felix(**SPANS)
    said = "there is no stream 'felix-spans' here"
    assert eventually(lambda: said in node.log(), timeout_s=30), node.log()
    node.kill_felix()


def _difference(found: list[str], wanted: list[str]) -> str:
    return f"more: {set(found) - set(wanted)}, missing: {set(wanted) - set(found)}"
