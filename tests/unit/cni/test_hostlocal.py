"""cni.hostlocal: usePodCidr."""

from __future__ import annotations

import json

import pytest

from cni import hostlocal
from cni.skel import CniError, Request, Verb


def request(**ipam):
    config = {"name": "net", "unknown": [1], "ipam": {"type": "host-local", **ipam}}
    return Request("calico", Verb.ADD, "c1", "/n", "eth0", "/p", {}, config, "1.0.0")


CIDRS = ("10.88.0.0/24", "fd88::/112")


def test_the_words_are_replaced_wherever_they_may_stand():
    asked = request(
        subnet="usepodcidr",
        ranges=[[{"subnet": "usePodCidrIPv6", "rangeStart": "x"}], [{"subnet": "10.0.0.0/8"}]],
    )
    assert hostlocal.needs_pod_cidrs(asked.config)
    changed = hostlocal.with_pod_cidrs(asked, CIDRS, "n")
    ipam = changed.config["ipam"]
    assert ipam["subnet"] == CIDRS[0]
    assert ipam["ranges"] == [
        [{"subnet": CIDRS[1], "rangeStart": "x"}],
        [{"subnet": "10.0.0.0/8"}],
    ]
    assert json.loads(changed.stdin) == changed.config
    assert changed.config["unknown"] == [1]
    assert asked.config["ipam"]["subnet"] == "usepodcidr", "the request itself stays"


@pytest.mark.parametrize(
    ("word", "cidrs"), [("usePodCidr", CIDRS[1:]), ("usePodCidrIPv6", CIDRS[:1])]
)
def test_a_family_without_a_network_is_an_error(word, cidrs):
    with pytest.raises(CniError) as caught:
        hostlocal.with_pod_cidrs(request(subnet=word), cidrs, "n")
    assert caught.value.code == 7
    assert word in caught.value.msg
    assert "Node n has no IPv" in caught.value.msg


@pytest.mark.parametrize("ranges", [None, 7, [7], [[7]], [[{"subnet": 7}]], {"a": 1}])
def test_a_range_of_another_form_is_host_locals_to_refuse(ranges):
    assert not hostlocal.needs_pod_cidrs(request(ranges=ranges).config)


def test_another_plugins_subnet_is_its_own_affair():
    config = {"ipam": {"type": "other", "subnet": "usePodCidr"}}
    assert not hostlocal.needs_pod_cidrs(config)
    assert not hostlocal.needs_pod_cidrs({"ipam": [1]})
