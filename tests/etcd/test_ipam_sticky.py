"""A sticky claim without a pod, as the operator sees it: shown, not a leak, released by hand."""

from __future__ import annotations

import asyncio

import pytest

from ipam.client import IpamClient
from ipam.requests import WORKLOAD, AutoAssign
from ipam.sticky import Identity
from libcalico.datastore.etcd import EtcdDatastore
from libcalico.datastore.etcd_link import EtcdConfig
from libcalico.testing.etcd import EtcdCluster
from tests.support.calicoctl import Ctl

pytestmark = pytest.mark.etcd
WEB = Identity("net", "prod", "web-0", "eth0")
CLUSTER = """\
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: pool-a}
spec: {cidr: 10.10.0.0/24, blockSize: 29}
---
apiVersion: projectcalico.org/v3
kind: Node
metadata: {name: n1}
spec: {}
"""


@pytest.fixture
def address(ctl: Ctl, etcd: EtcdCluster) -> str:
    ctl("apply", "-f", ctl.file(CLUSTER))

    async def claim() -> str:
        store = EtcdDatastore(EtcdConfig(etcd.endpoints))
        try:
            wish = AutoAssign(
                host="n1", use=WORKLOAD, handle_id=WEB.handle_id,
                attributes=WEB.attributes("n1", "c1"), num_v4=1,
            )  # fmt: skip
            (found,) = (await IpamClient(store).claims.bind(wish)).addresses
            return str(found)
        finally:
            await store.close()

    return asyncio.run(claim())


def test_it_is_shown_with_its_handle_and_whose_it_is(ctl: Ctl, address: str):
    said = ctl("ipam", "show", f"--ip={address}")
    assert f"Handle ID: {WEB.handle_id}" in said
    assert "claim: net/prod/web-0/eth0" in said


def test_a_check_calls_it_in_use_also_when_its_node_is_gone(ctl: Ctl, address: str):
    for _ in range(2):
        said = ctl("ipam", "check", "--show-problem-ips")
        assert "Found 0 IPs that are allocated in IPAM but not actually in use" in said
        assert f"{address} leaked" not in said
        ctl("delete", "node", "n1", "--skip-not-exists")
    assert f"IP {address} is in use" in ctl("ipam", "show", f"--ip={address}")


def test_a_release_by_hand_ends_it(ctl: Ctl, address: str, etcd: EtcdCluster):
    ctl("ipam", "release", f"--ip={address}")
    assert ctl("ipam", "show", f"--ip={address}") == f"{address} is not assigned\n"
    assert etcd.ctl("get", "/calico/ipam/v2/handle/", "--prefix", "--keys-only").strip() == ""
