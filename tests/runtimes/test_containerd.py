"""containerd runs the plugin for pods as a kubelet has them run; judged by packets and by what is
left: every test ends with nothing of its pods anywhere (tests/runtimes/conftest.py)."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import grpc
import pytest

from tests.runtimes.containerd import Containerd
from tests.runtimes.host import HOST_V4, OUTSIDE_V4, OUTSIDE_V6, frozen
from tests.support.cri import CriError, Pod
from tests.support.netns import can_ping, eventually

AT_ONCE = 20
ONLY_WEB = {
    "apiVersion": "projectcalico.org/v3",
    "kind": "NetworkPolicy",
    "metadata": {"name": "only-web", "namespace": "prod"},
    "spec": {
        "selector": "all()",
        "types": ["Ingress"],
        "ingress": [{"action": "Allow", "protocol": "TCP", "destination": {"ports": [80]}}],
    },
}


@pytest.fixture
def only_web(containerd):
    """A policy for every pod of the namespace: port 80 and nothing else."""
    containerd.host.apply(ONLY_WEB)
    yield
    with suppress(AssertionError):
        containerd.host.calicoctl("delete", "networkpolicy", "only-web", "-n", "prod")


def test_a_pod_has_its_addresses_and_routes_when_the_call_returns(containerd):
    host = containerd.host
    sandbox, status = containerd.start(Pod("web"))
    v4, v6 = status.addresses
    # No waiting from here on: the answer comes after route and policy.
    assert can_ping(host.outside, v4)
    assert can_ping(host.outside, v6)
    for address in (OUTSIDE_V4, OUTSIDE_V6):
        assert host.in_namespace(status.netns, "ping", "-n", "-c1", "-W1", address).returncode == 0
    (network,) = status.cni_result["Interfaces"]["eth0"]["IPConfigs"][:1]
    assert network["IP"] in (v4, v6)
    shown = host.calicoctl("get", "workloadendpoints", "-n", "prod", "-o", "yaml")
    assert f"containerID: {sandbox}" in shown


def test_a_policy_that_exists_holds_from_the_first_packet(containerd, only_web):
    host = containerd.host
    _, status = containerd.start(Pod("web"))
    v4, v6 = status.addresses
    assert not can_ping(host.outside, v4)
    assert not can_ping(host.outside, v6)
    containerd.serve(status, 80)
    containerd.serve(status, 81)
    assert host.fetches(v4, 80)
    assert host.fetches(v6, 80)
    assert not host.fetches(v4, 81)
    assert not host.fetches(v6, 81)


def test_a_policy_that_comes_and_goes_blocks_and_frees_a_running_pod(containerd, request):
    host = containerd.host
    _, status = containerd.start(Pod("web"))
    assert all(can_ping(host.outside, address) for address in status.addresses)
    request.getfixturevalue("only_web")
    assert eventually(lambda: not any(can_ping(host.outside, a) for a in status.addresses))
    host.calicoctl("delete", "networkpolicy", "only-web", "-n", "prod")
    assert eventually(lambda: all(can_ping(host.outside, a) for a in status.addresses))


def test_stop_and_remove_may_be_repeated(containerd):
    host = containerd.host
    sandbox, _ = containerd.start(Pod("web"))
    before = host.deletes()
    containerd.cri.stop(sandbox)
    assert host.leftovers() == [], "the first DEL does it all"
    containerd.cri.stop(sandbox)
    containerd.cri.stop(sandbox)
    containerd.cri.remove(sandbox)
    containerd.cri.remove(sandbox)
    # containerd runs DEL each time, and without a namespace from the second on.
    assert host.deletes() - before >= 3


def test_a_new_sandbox_of_a_pod_survives_the_late_end_of_the_old_one(containerd):
    pod = Pod("web")
    old, before = containerd.start(pod)
    new, status = containerd.start(Pod("web", uid=pod.uid, attempt=1))
    assert not set(status.addresses) & set(before.addresses)
    containerd.cri.stop(old)
    containerd.cri.remove(old)
    assert all(can_ping(containerd.host.outside, address) for address in status.addresses)
    assert containerd.cri.sandboxes() == {new: "web"}


@pytest.mark.parametrize("stalled", ["calico-felix", "etcd"])
def test_a_deadline_that_kills_the_plugin_in_the_middle_leaves_nothing(containerd, stalled):
    """SIGKILL for the plugin and DEL at once, while felix cannot answer or waits for etcd."""
    with frozen(containerd.machine, stalled):
        with pytest.raises(CriError) as caught:
            containerd.cri.run(Pod("web"), deadline_s=1.0)
        assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
    _clean_up_as_a_kubelet(containerd)
    assert eventually(lambda: containerd.left() == [], timeout_s=20), containerd.left()
    _, status = containerd.start(Pod("web"))
    assert all(can_ping(containerd.host.outside, address) for address in status.addresses)


def test_deadlines_of_any_length_leave_nothing(containerd):
    """From before the plugin starts until after it has answered."""
    outcomes = set()
    for step in range(12):
        try:
            containerd.cri.run(Pod(f"p{step}"), deadline_s=0.02 + 0.03 * step)
            outcomes.add("made")
        except CriError:
            outcomes.add("killed")
    _clean_up_as_a_kubelet(containerd)
    assert eventually(lambda: containerd.left() == [], timeout_s=20), containerd.left()
    assert "killed" in outcomes


def _clean_up_as_a_kubelet(containerd: Containerd) -> None:
    """It stops and removes what it finds, again and again until that works."""

    def is_clean() -> bool:
        with suppress(CriError):
            containerd.remove_all()
        return not containerd.cri.sandboxes()

    assert eventually(is_clean, timeout_s=60, interval_s=0.1)


def test_a_mapped_port_leads_to_the_pod_as_long_as_it_lives(containerd):
    host = containerd.host
    sandbox, status = containerd.start(Pod("web", ports=((8080, 80),)))
    containerd.serve(status, 80)
    assert host.fetches(HOST_V4, 8080)
    containerd.cri.stop(sandbox)
    assert not host.fetches(HOST_V4, 8080)
    assert "8080" not in host.netns.run("iptables", "-t", "nat", "-S")


def test_annotations_of_a_pod_decide_its_addresses_and_mac(containerd):
    annotations = {
        "cni.projectcalico.org/ipAddrs": '["10.65.77.7", "fd65::77:7"]',
        "cni.projectcalico.org/hwAddr": "02:00:00:77:07:07",
    }
    _, status = containerd.start(Pod("web", annotations=annotations))
    assert set(status.addresses) == {"10.65.77.7", "fd65::77:7"}
    shown = containerd.host.in_namespace(status.netns, "ip", "link", "show", "eth0").stdout
    assert "02:00:00:77:07:07" in shown
    assert all(can_ping(containerd.host.outside, address) for address in status.addresses)


def test_a_wrong_annotation_is_told_to_the_kubelet_and_leaves_nothing(containerd):
    annotations = {"cni.projectcalico.org/ipAddrs": '["10.65.77.300"]'}
    with pytest.raises(CriError, match=r"ipAddrs.*10\.65\.77\.300"):
        containerd.cri.run(Pod("web", annotations=annotations))
    _clean_up_as_a_kubelet(containerd)
    assert containerd.host.leftovers() == []


def test_a_pod_that_ends_while_etcd_is_away_leaves_nothing_once_it_is_back(containerd):
    host = containerd.host
    sandbox, status = containerd.start(Pod("web"))
    host.stop_etcd()
    try:
        containerd.end(sandbox)
        assert not any(can_ping(host.outside, address) for address in status.addresses)
    finally:
        host.start_etcd()
    assert eventually(lambda: host.leftovers() == [], timeout_s=30), host.leftovers()


def test_a_pod_that_ends_while_felix_is_down_leaves_nothing(containerd):
    host = containerd.host
    sandbox, status = containerd.start(Pod("web"))
    _, other = containerd.start(Pod("other"))
    host.stop_node()
    try:
        assert all(can_ping(host.outside, address) for address in other.addresses)
        containerd.cri.stop(sandbox)
        containerd.cri.remove(sandbox)
        assert not any(can_ping(host.outside, address) for address in status.addresses)
        assert len(host.keys("/calico/ipam/v2/handle/")) == 1, "the other pod's"
        assert sum(host.assigned().values()) == len(other.addresses)
        with pytest.raises(CriError, match="try again later"):
            containerd.cri.run(Pod("late"))
    finally:
        host.start_node()
        host.wait_ready()
    assert all(can_ping(host.outside, address) for address in other.addresses)


def test_many_pods_at_once_get_distinct_addresses_and_leave_none(containerd):
    with ThreadPoolExecutor(AT_ONCE) as pool:
        made = list(pool.map(containerd.start, [Pod(f"p{i}") for i in range(AT_ONCE)]))
        addresses = [address for _, status in made for address in status.addresses]
        assert len(set(addresses)) == 2 * AT_ONCE
        assert sum(containerd.host.assigned().values()) == 2 * AT_ONCE
        reached = list(pool.map(lambda a: can_ping(containerd.host.outside, a), addresses))
        assert all(reached)
        list(pool.map(containerd.end, [sandbox for sandbox, _ in made]))
    assert containerd.host.leftovers() == []


def test_pods_outlive_a_killed_containerd(containerd):
    host = containerd.host
    sandbox, status = containerd.start(Pod("web"))
    containerd.restart(signal.SIGKILL)
    assert all(can_ping(host.outside, address) for address in status.addresses)
    assert containerd.cri.status(sandbox).addresses == status.addresses
    containerd.end(sandbox)
    assert host.leftovers() == []


def test_the_installed_configuration_is_taken_up_without_a_restart(containerd):
    conflist = "/etc/cni/net.d/10-calico.conflist"
    containerd.machine.run("rm", conflist)
    assert eventually(lambda: "not initialized" in containerd.cri.network_problem())
    assert conflist in containerd.host.install_cni()
    assert eventually(lambda: containerd.cri.network_problem() == "")
    containerd.start(Pod("web"))
