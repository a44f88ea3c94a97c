"""cni.nodefiles: the node's name and MTU, from configuration and files."""

from __future__ import annotations

import pytest

from cni.netconf import NodeConfig
from cni.nodefiles import check_node_name, pod_mtu
from cni.skel import CniError


def refusal(call, *arguments) -> CniError:
    with pytest.raises(CniError) as caught:
        call(*arguments)
    return caught.value


def test_the_name_is_felixs_unless_somebody_says_so(tmp_path):
    file = tmp_path / "nodename"
    file.write_text(" here \n")
    check_node_name(NodeConfig(), "here")
    check_node_name(NodeConfig(name="here", name_file="/no/such/file"), "here")
    check_node_name(NodeConfig(name_file=str(file), hostname="there"), "here")
    check_node_name(NodeConfig(hostname="there"), "here")
    optional = NodeConfig(name_file="/no/such/file", name_file_optional=True)
    check_node_name(optional, "here")


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        (NodeConfig(name="there"), 'nodename: "there" is not this node'),
        (NodeConfig(name_file="/no/such/file"), "nodename_file: cannot read /no/such/file"),
        (NodeConfig(name_file="/"), "Is a directory"),
        (
            NodeConfig(name_file="/no/such/file", name_file_optional=True, hostname="there"),
            'hostname: "there" is not this node',
        ),
    ],
)
def test_another_nodes_name_is_refused(conf, said):
    error = refusal(check_node_name, conf, "here")
    assert error.code == 7
    assert said in error.msg


def test_the_configured_mtu_goes_before_felixs_and_this_before_the_file(tmp_path):
    assert pod_mtu(NodeConfig(), tmp_path, 0) == 0
    (tmp_path / "mtu").write_text("1440\n")
    assert pod_mtu(NodeConfig(), tmp_path, 1450) == 1450
    assert pod_mtu(NodeConfig(), tmp_path, 0) == 1440
    assert pod_mtu(NodeConfig(mtu_bytes=1400), tmp_path, 1450) == 1400
    assert pod_mtu(NodeConfig(mtu_bytes=1400, require_mtu_file=True), tmp_path, 1450) == 1400


def test_a_required_file_that_is_missing_is_waited_for(tmp_path):
    error = refusal(pod_mtu, NodeConfig(mtu_bytes=1400, require_mtu_file=True), tmp_path, 1450)
    assert error.code == 11
    assert "require_mtu_file" in error.msg


@pytest.mark.parametrize("text", ["", "big", "-1", "99999999999", "14 50", "١"])
def test_a_file_without_an_mtu_is_an_error(tmp_path, text):
    (tmp_path / "mtu").write_text(text)
    error = refusal(pod_mtu, NodeConfig(require_mtu_file=True), tmp_path, 1450)
    assert error.code == 7
    assert "must hold an MTU" in error.msg
