"""The operator's side of IPAM on a real etcd: datamodel 6.8-6.10, as typed at a shell."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from pathlib import Path
from typing import TypeVar

import pytest
from msgspec.structs import replace

from ipam import blocks
from ipam.blocks import BlockDraft, Holder
from ipam.client import IpamClient
from ipam.requests import WORKLOAD, AssignIP, Release
from libcalico.datastore.etcd import EtcdDatastore
from libcalico.datastore.etcd_link import EtcdConfig
from libcalico.model import codec
from libcalico.model.ipam import Block, BlockAffinity, Handle
from libcalico.model.keys import BlockAffinityKey, BlockKey, HandleKey, Key, path_of
from libcalico.runtime.version import VERSION
from libcalico.testing.etcd import EtcdCluster
from tests.support.calicoctl import Ctl
from tests.support.etcd import ClusterFactory

pytestmark = pytest.mark.etcd
T = TypeVar("T")

CLUSTER = """\
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: pool-a, labels: {zone: east}}
spec: {cidr: 10.10.0.0/24, blockSize: 29, natOutgoing: true}
---
apiVersion: projectcalico.org/v3
kind: Node
metadata: {name: n1}
spec: {ipv6VXLANTunnelAddr: "fd00::1"}
---
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: pool-v6}
spec: {cidr: "fd00::/120", blockSize: 125}
"""


def act(etcd: EtcdCluster, work: Callable[[IpamClient], Awaitable[T]]) -> T:
    """Something an agent does."""

    async def run() -> T:
        store = EtcdDatastore(EtcdConfig(etcd.endpoints))
        try:
            return await work(IpamClient(store))
        finally:
            await store.close()

    return asyncio.run(run())


def assign(etcd: EtcdCluster, text: str, pod: str, node: str = "n1") -> None:
    async def work(ipam: IpamClient) -> None:
        attributes = {"node": node, "pod": pod, "namespace": "prod", "timestamp": "then"}
        await ipam.assign_ip(
            AssignIP(address=ip_address(text), host=node, use=WORKLOAD, handle_id=f"net.{pod}",
                     attributes=attributes)
        )  # fmt: skip

    act(etcd, work)


def give_back(etcd: EtcdCluster, text: str) -> None:
    act(etcd, lambda ipam: ipam.release_ips([Release(address=ip_address(text))]))


def put(etcd: EtcdCluster, key: Key, value: Block | BlockAffinity | Handle) -> int:
    """By hand, as nobody should; returns the revision."""
    said = etcd.ctl("put", path_of(key), codec.encode(value).decode(), "-w", "json")
    return int(json.loads(said)["header"]["revision"])


def block_of(etcd: EtcdCluster, cidr: str) -> Block:
    raw = etcd.ctl("get", "--print-value-only", path_of(BlockKey(cidr)))
    return codec.decode_as(Block, BlockKey(cidr), raw.encode(), 0)


def sequence_of(etcd: EtcdCluster, cidr: str, ordinal: int) -> int:
    return block_of(etcd, cidr).sequence_number_for_allocation[str(ordinal)]


def revision_of(etcd: EtcdCluster) -> int:
    return int(json.loads(etcd.ctl("get", "x", "-w", "json"))["header"]["revision"])


WEP = """\
apiVersion: projectcalico.org/v3
kind: WorkloadEndpoint
metadata: {name: n1-k8s-%(pod)s-eth0, namespace: prod}
spec: {node: n1, orchestrator: k8s, pod: %(pod)s, endpoint: eth0, interfaceName: cali%(pod)s,
       ipNetworks: [%(address)s/32]}
"""


@pytest.fixture
def cluster(ctl: Ctl, etcd: EtcdCluster) -> EtcdCluster:
    """n1 with a v6 tunnel, pod `lives` (10.10.0.1) and `left` (10.10.0.2), whose DEL never came."""
    ctl("apply", "-f", ctl.file(CLUSTER))
    assign(etcd, "10.10.0.1", "lives")
    assign(etcd, "10.10.0.2", "left")

    async def tunnel(ipam: IpamClient) -> None:
        attributes = {"node": "n1", "type": "vxlanV6TunnelAddress"}
        await ipam.assign_ip(
            AssignIP(address=ip_address("fd00::1"), host="n1", handle_id="vxlan-v6-tunnel-addr-n1",
                     attributes=attributes)
        )  # fmt: skip

    act(etcd, tunnel)
    ctl("apply", "-f", ctl.file(WEP % {"pod": "lives", "address": "10.10.0.1"}))
    return etcd


# With every address: a pod, a leak, one that rests, and a tunnel address of IPv6.
CHECKED = """\
Checking IPAM for inconsistencies...

Loading all IPAM blocks...
Found 2 IPAM blocks.
 IPAM block 10.10.0.0/29 affinity=host:n1:
  10.10.0.1 allocated; attrs Main:net.lives Extra:namespace=prod,node=n1,pod=lives,timestamp=then
  10.10.0.2 allocated; attrs Main:net.left Extra:namespace=prod,node=n1,pod=left,timestamp=then
  10.10.0.3 allocated; attrs Main:<none> Extra:
 IPAM block fd00::/125 affinity=host:n1:
  fd00::1 allocated; attrs Main:vxlan-v6-tunnel-addr-n1 Extra:node=n1,type=vxlanV6TunnelAddress
IPAM blocks record 4 allocations.

Loading all IPAM pools...
  10.10.0.0/24
  fd00::/120
Found 2 active IP pools.

Loading all nodes.
  fd00::1 belongs to Node(n1)
Found 1 node tunnel IPs.

Loading all service load balancer IPs.
Found 0 service load balancer(s).

Loading all workload endpoints.
  10.10.0.1 belongs to Workload(prod/n1-k8s-lives-eth0)
Found 1 workload IPs.
Workloads and nodes are using 2 IPs.

Loading all handles
Looking for top (up to 20) nodes by allocations...
  n1 has 4 allocations
Node with most allocations has 4; median is 4

Scanning for IPs that are allocated but not actually in use...
  10.10.0.2 leaked; attrs Main:net.left Extra:namespace=prod,node=n1,pod=left,timestamp=then
Found 1 IPs that are allocated in IPAM but not actually in use.
Scanning for IPs that are in use by a workload or node but not allocated in IPAM...
Found 0 in-use IPs that are not in active IP pools.
Found 0 in-use IPs that are in active IP pools but have no corresponding IPAM allocation.

Scanning for IPAM handles with no matching IPs...
Found 0 handles with no matching IPs (and 3 handles with matches).
"""


def test_6_9_a_check_of_a_cluster_with_a_leak_and_its_report_to_the_byte(
    ctl: Ctl, cluster: EtcdCluster, tmp_path: Path
):
    ctl("ipam", "configure", "--ip-cooldown-seconds=600")
    assign(cluster, "10.10.0.3", "rests")
    give_back(cluster, "10.10.0.3")
    file = tmp_path / "report.json"
    said = ctl("ipam", "check", "--show-all-ips", "-o", str(file))
    assert said == CHECKED + (
        "Scanning for IPs with missing handle...\n"
        "Found 0 handles mentioned in blocks with no matching handle resource.\n"
        "Validating IPAMBlock structures...\n"
        "Found 0 invalid IPAMBlocks.\n"
        "Check complete; found 1 problems.\n"
    )
    assert ctl.err == ""
    information = json.loads(ctl("get", "clusterinformation", "default", "-o", "json"))
    number = [sequence_of(cluster, "10.10.0.0/29", i) for i in range(1, 4)]
    v6_number = sequence_of(cluster, "fd00::/125", 1)
    assert (
        file.read_text()
        == f"""\
{{
  "version": "{VERSION}",
  "clusterGUID": "{information["spec"]["clusterGUID"]}",
  "datastoreLocked": false,
  "clusterInformationRevision": "{information["metadata"]["resourceVersion"]}",
  "clusterType": "",
  "allocations": {{
    "10.10.0.1": [
      {{
        "ip": "10.10.0.1",
        "handle": "net.lives",
        "sequenceNumber": {number[0]},
        "pod": "lives",
        "namespace": "prod",
        "node": "n1",
        "creationTimestamp": "then",
        "inUse": true,
        "owners": [
          "Workload(prod/n1-k8s-lives-eth0)"
        ]
      }}
    ],
    "10.10.0.2": [
      {{
        "ip": "10.10.0.2",
        "handle": "net.left",
        "sequenceNumber": {number[1]},
        "pod": "left",
        "namespace": "prod",
        "node": "n1",
        "creationTimestamp": "then",
        "inUse": false,
        "owners": null
      }}
    ],
    "10.10.0.3": [
      {{
        "ip": "10.10.0.3",
        "sequenceNumber": {number[2]},
        "node": "n1",
        "inUse": false,
        "coolingDown": true,
        "owners": null
      }}
    ],
    "fd00::1": [
      {{
        "ip": "fd00::1",
        "handle": "vxlan-v6-tunnel-addr-n1",
        "sequenceNumber": {v6_number},
        "node": "n1",
        "type": "vxlanV6TunnelAddress",
        "inUse": true,
        "owners": [
          "Node(n1)"
        ]
      }}
    ]
  }}
}}"""
    )


def test_6_8_one_address_is_shown_released_and_rests(ctl: Ctl, cluster: EtcdCluster):
    assert ctl("ipam", "show", "--ip=10.10.0.2") == (
        "IP 10.10.0.2 is in use\nHandle ID: net.left\nActive Owner Attributes:\n"
        "  namespace: prod\n  node: n1\n  pod: left\n  timestamp: then\n"
    )
    released = "Successfully released IP address 10.10.0.2\n"
    assert ctl("ipam", "release", "--ip=10.10.0.2") == released
    ctl("ipam", "release", "--ip=10.10.0.2", code=1)
    assert ctl.err == "IP address 10.10.0.2 is not assigned\n"
    ctl("ipam", "configure", "--ip-cooldown-seconds=600")
    ctl("ipam", "release", "--ip=10.10.0.1")
    ctl("ipam", "show", "--ip=10.10.0.1", code=1)
    assert ctl.err == "address 10.10.0.1 is in cooldown\n"


def test_ipam_show_says_which_blocks_it_cannot_read(ctl: Ctl, cluster: EtcdCluster):
    whole = ctl("ipam", "show", "--show-blocks")
    assert (ctl.err, "10.10.0.0/29" in whole) == ("", True)
    cluster.ctl("put", path_of(BlockKey("10.10.0.0/29")), "{")
    for option in ("--show-blocks", "--show-borrowed"):
        assert "10.10.0.0/29" not in ctl("ipam", "show", option)
        assert ctl.err == (
            "warning: IPAM blocks that do not parse are left out (see ipam check): 10.10.0.0/29\n"
        )


def test_6_8_settings_are_set_together_or_not_at_all(ctl: Ctl, etcd: EtcdCluster):
    ctl("apply", "-f", ctl.file(CLUSTER))
    ctl("ipam", "configure", "--max-blocks-per-host=4", code=1)
    assert ctl.err == "error: MaxBlocksPerHost requires StrictAffinity to be enabled\n"
    assert etcd.ctl("get", "/calico/ipam/v2/config") == ""
    said = ctl("ipam", "configure", "--strictaffinity=1", "--max-blocks-per-host=4",
               "--kubevirt-ip-persistence=Enabled", "--ip-cooldown-seconds=30")  # fmt: skip
    assert said == (
        "Successfully set StrictAffinity to: true\n"
        "Successfully set MaxBlocksPerHost to: 4\n"
        "Successfully set KubeVirtVMAddressPersistence to: Enabled\n"
        "Successfully set IPCooldownSeconds to: 30\n"
    )
    assert json.loads(etcd.ctl("get", "--print-value-only", "/calico/ipam/v2/config")) == {
        "strict_affinity": True, "auto_allocate_blocks": True, "maxBlocksPerHost": 4,
        "kubeVirtVMAddressPersistence": "Enabled", "ipCooldownSeconds": 30,
    }  # fmt: skip


def report(ctl: Ctl, folder: Path, name: str = "report.json") -> str:
    file = str(folder / name)
    ctl("ipam", "check", "-o", file)
    return file


def test_6_8_what_a_report_calls_leaked_goes_and_nothing_else(
    ctl: Ctl, cluster: EtcdCluster, tmp_path: Path
):
    assert ctl("datastore", "migrate", "lock") == "Datastore locked.\n"
    put(cluster, HandleKey("net.idle"), Handle(block={"10.10.0.8/29": 1}))
    put(cluster, HandleKey("net.moves"), Handle(block={"10.10.0.8/29": 1}))
    file = report(ctl, tmp_path)
    put(cluster, HandleKey("net.moves"), Handle(block={"10.10.0.8/29": 2}))
    said = ctl("ipam", "release", f"--from-report={file}")
    marks = said.splitlines()[4]
    assert sorted(marks) == [".", "x"]
    assert (
        said.replace(marks, "<marks>", 1)
        if False
        else said
        == (
            "Releasing 1 old IPs...\n"
            "Released 1 IPs successfully\n"
            "Deleting 2 handles...\n"
            "Key: '.' = Deleted OK; 'x' = skip, handle missing/changed.\n"
            f"{marks}\n"
            "Released 1 handles; 1 skipped; 0 errors.\n"
            "You may now unlock the data store.\n"
        )
    )
    assert ctl("ipam", "show", "--ip=10.10.0.2") == "10.10.0.2 is not assigned\n"
    assert "IP 10.10.0.1 is in use" in ctl("ipam", "show", "--ip=10.10.0.1")
    again = ctl("ipam", "release", f"--from-report={file}")
    assert again.startswith(
        "Releasing 1 old IPs...\n"
        "Released 0 IPs successfully\n"
        "1 addresses marked as leaked in the report had already been cleaned up.\n"
    )
    fresh = report(ctl, tmp_path, "fresh.json")
    both = ctl("ipam", "release", f"--from-report={file},{fresh}")
    assert both == (
        "Report didn't contain any leaked IPs to clean up.\n"
        "Report didn't contain any handles to clean up.\n"
        "You may now unlock the data store.\n"
    )
    assert ctl("datastore", "migrate", "unlock") == "Datastore unlocked.\n"
    assert "problems" in ctl("ipam", "check")


def test_6_8_an_address_assigned_again_since_the_report_is_left_alone(
    ctl: Ctl, cluster: EtcdCluster, tmp_path: Path
):
    assign(cluster, "10.10.0.4", "gone-too")
    ctl("datastore", "migrate", "lock")
    file = report(ctl, tmp_path)
    give_back(cluster, "10.10.0.2")
    assign(cluster, "10.10.0.2", "left")  # the same pod came back: only the number tells
    said = ctl("ipam", "release", "--from-report", file)
    assert said.splitlines()[:3] == [
        "Releasing 2 old IPs...",
        "An error occurred while releasing some IPs: update conflict: 10.10.0.2.  Problems are "
        "often caused by an out-of-date IPAM report.  Try regenerating the IPAM report and retry.",
        "Released 1 IPs successfully",
    ]
    assert "IP 10.10.0.2 is in use" in ctl("ipam", "show", "--ip=10.10.0.2")
    assert ctl("ipam", "show", "--ip=10.10.0.4") == "10.10.0.4 is not assigned\n"


def test_6_8_a_handle_that_a_block_names_by_now_is_skipped_though_it_has_not_changed(
    ctl: Ctl, cluster: EtcdCluster, tmp_path: Path
):
    """A Calico writer counts the handle up before it writes the block: here it is in between."""
    ctl("datastore", "migrate", "lock")
    put(cluster, HandleKey("net.slow"), Handle(block={"10.10.0.8/29": 1}))
    file = report(ctl, tmp_path)
    draft = BlockDraft(blocks.new_block("10.10.0.8/29", 5))
    draft.assign(1, Holder("net.slow", {"pod": "slow"}))
    put(cluster, BlockKey("10.10.0.8/29"), draft.finish())
    said = ctl("ipam", "release", "--from-report", file)
    assert "\nx\nReleased 0 handles; 1 skipped; 0 errors.\n" in said
    assert "net.slow" in cluster.ctl("get", "--keys-only", path_of(HandleKey("net.slow")))


def test_6_8_a_report_is_refused_when_it_may_not_be_about_this_state(
    ctl: Ctl, cluster: EtcdCluster, tmp_path: Path
):
    file = report(ctl, tmp_path)
    ctl("ipam", "release", f"--from-report={file}", code=1)
    assert ctl.err == (
        "data store is not locked. Either lock the data store, or re-run with --force\n"
    )
    ctl("datastore", "migrate", "lock")
    ctl("ipam", "release", f"--from-report={file}", "--force", code=1)
    assert ctl.err == (
        "the provided reports are all stale - at least one should be up-to-date. "
        "Please generate a new report while the data store is locked and try again\n"
    )
    current = report(ctl, tmp_path, "current.json")
    other = json.loads(Path(current).read_text())
    foreign = ctl.file(json.dumps({**other, "clusterGUID": "ff"}), "foreign.json")
    ctl("ipam", "release", "--from-report", current, "--from-report", foreign, "--force", code=1)
    assert ctl.err == (
        f"cluster does not match the provided report ({foreign}): "
        "mismatched cluster GUID. Refusing to release\n"
    )
    older = ctl.file(json.dumps({**other, "version": "v3.0"}), "older.json")
    ctl("ipam", "release", "--from-report", older, code=1)
    assert ctl.err == (
        f"the provided report ({older}) was produced using a different version (v3.0) of "
        "calicoctl. Refusing to release\n"
    )
    assert "IP 10.10.0.2 is in use" in ctl("ipam", "show", "--ip=10.10.0.2")
    ctl("datastore", "migrate", "unlock")
    unlocked = json.loads(Path(report(ctl, tmp_path, "unlocked.json")).read_text())
    older = ctl.file(json.dumps({**unlocked, "version": "v3.0"}), "older.json")
    said = ctl("ipam", "release", "--from-report", older, "--force")
    assert said.splitlines()[:4] == [
        "WARNING: Report was produced using a different version of calicoctl. "
        "Ignoring due to --force option",
        "WARNING: Data store is not locked. Ignoring due to --force option",
        "Releasing 1 old IPs...",
        "Released 1 IPs successfully",
    ]


def test_6_9_a_malformed_block_is_named_and_the_others_are_checked(
    ctl: Ctl, cluster: EtcdCluster, tmp_path: Path
):
    bad = replace(block_of(cluster, "fd00::/125"), unallocated=(1, 1, 9), cidr="10.10.0.16/29")
    put(cluster, BlockKey("10.10.0.16/29"), bad)
    cluster.ctl("put", path_of(BlockKey("10.10.0.24/29")), '{"cidr": [')
    put(cluster, HandleKey("net.hidden"), Handle(block={"10.10.0.24/29": 1}))
    said = ctl("ipam", "check", "--show-problem-ips", "-o", str(tmp_path / "report.json"))
    assert "Found 4 IPAM blocks.\n" in said
    assert "  10.10.0.2 leaked; attrs Main:net.left" in said
    invalid = said[said.index("Validating") :].splitlines()
    assert invalid[1].startswith("  IPAMBlock BlockKey(cidr=10.10.0.16/29) is invalid: ")
    assert "an ordinal is unallocated twice" in invalid[1]
    assert invalid[2].startswith("  IPAMBlock BlockKey(cidr=10.10.0.24/29) is invalid: ")
    assert invalid[3:] == ["Found 2 invalid IPAMBlocks.", "Check complete; found 4 problems."]
    assert "leakedHandles" not in json.loads((tmp_path / "report.json").read_text())
    assert "10.10.0.0/29" in ctl("ipam", "show", "--show-blocks")
    ctl("ipam", "show", "--show-borrowed")
    ctl("ipam", "show", "--ip=10.10.0.25", code=1)
    assert "failed to parse datastore entry" in ctl.err


def test_6_9_an_endpoint_that_cannot_be_read_forbids_the_report(
    ctl: Ctl, cluster: EtcdCluster, tmp_path: Path
):
    prefix = "/calico/resources/v3/projectcalico.org/workloadendpoints/prod/"
    cluster.ctl("put", prefix + "broken", '{"spec": [')
    file = tmp_path / "report.json"
    said = ctl("ipam", "check", "-o", str(file), code=1)
    assert "  WorkloadEndpoint(prod/broken) cannot be read: " in said
    assert "Check complete; found 2 problems." in said
    assert ctl.err.startswith("the report is not written, ")
    assert len(ctl.err.splitlines()) == 1
    assert not file.exists()


# There is no newline after the first sentence, in Calico neither.
SPLIT = """\
IP Pool pool-a was successfully split into 4 smaller pools.\
Created split-pool-a-0 with CIDR 10.10.0.0/26.
Created split-pool-a-1 with CIDR 10.10.0.64/26.
Created split-pool-a-2 with CIDR 10.10.0.128/26.
Created split-pool-a-3 with CIDR 10.10.0.192/26.
Please refer to the documentation for final steps."""


def test_6_8_a_pool_is_split_while_locked_and_pods_go_on(ctl: Ctl, cluster: EtcdCluster):
    ctl("ipam", "split", "4", "--name=pool-a", code=1)
    assert ctl.err == (
        "datastore is not locked. Run the `calicoctl datastore migrate lock` command "
        "in order split the IP pools\n"
    )
    ctl("datastore", "migrate", "lock")
    ipam_before = cluster.ctl("get", "--prefix", "/calico/ipam/v2/")
    old = json.loads(ctl("get", "pool", "pool-a", "-o", "json"))
    assert ctl("ipam", "split", "4", "--cidr=10.10.0.0/24") == SPLIT
    assert cluster.ctl("get", "--prefix", "/calico/ipam/v2/") == ipam_before
    listed = json.loads(ctl("get", "pools", "-o", "json"))["items"]
    parts = [pool for pool in listed if pool["metadata"]["name"] != "pool-v6"]
    assert [pool["spec"] for pool in parts] == [
        {**old["spec"], "cidr": f"10.10.0.{64 * i}/26"} for i in range(4)
    ]
    assert all(pool["metadata"]["labels"] == {"zone": "east"} for pool in parts)
    assert len({pool["metadata"]["uid"] for pool in listed}) == 5
    assert len({pool["metadata"]["resourceVersion"] for pool in parts}) == 1
    ctl("datastore", "migrate", "unlock")
    assert "| Block    | 10.10.0.0/29 " in ctl("ipam", "show", "--show-blocks")
    assign(cluster, "10.10.0.5", "new")
    act(cluster, lambda ipam: ipam.release_by_handle("net.lives"))
    assert ctl("ipam", "show", "--ip=10.10.0.1") == "10.10.0.1 is not assigned\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("4",), "no name or CIDR provided. Provide a name or CIDR to denote the IP pool to split"),
        (("x", "--name=pool-a"), "error reading number to split IP pools into. x is not a valid "
         'number: strconv.Atoi: parsing "x": invalid syntax'),
        (("3", "--name=pool-a"), "error splitting the CIDR 10.10.0.0/24 into 3 CIDRs: number to "
         "split CIDR into is not a valid power of 2: 3"),
        (("512", "--name=pool-a"), "error splitting the CIDR 10.10.0.0/24 into 512 CIDRs: the CIDR "
         "10.10.0.0/24 is not large enough to be split into 512 parts"),
        (("2", "--name=none"), "unable to find IP pool with name none: "
         "resource does not exist: IPPool(none) with error: <nil>"),
        (("2", "--cidr=10.9.0.0/16"),
         "unable to find IP pool  covering the specified CIDR 10.9.0.0/16"),
    ],
)  # fmt: skip
def test_6_8_a_split_that_cannot_be_writes_nothing(
    ctl: Ctl, cluster: EtcdCluster, arguments: tuple[str, ...], message: str
):
    ctl("datastore", "migrate", "lock")
    before = revision_of(cluster)
    ctl("ipam", "split", *arguments, code=1)
    assert ctl.err == message + "\n"
    assert revision_of(cluster) == before


def test_a_part_smaller_than_a_block_is_refused_and_nothing_written(ctl: Ctl, cluster: EtcdCluster):
    ctl("datastore", "migrate", "lock")
    before = revision_of(cluster)
    ctl("ipam", "split", "64", "--name=pool-a", code=1)
    assert ctl.err.startswith(
        "error using unsafe create to make split pool with cidr 10.10.0.0/30: "
    )
    assert revision_of(cluster) == before


def test_6_10_locking_is_datastore_ready_and_may_be_repeated(ctl: Ctl, etcd: EtcdCluster):
    def ready() -> object:
        shown = json.loads(ctl("get", "clusterinformation", "default", "-o", "json"))
        return shown["spec"]["datastoreReady"]

    ctl("datastore", "migrate", "unlock", code=1)
    assert ctl.err == (
        "error retrieving ClusterInformation for unlocking: "
        "resource does not exist: ClusterInformation(default) with error: <nil>\n"
    )
    for _ in range(2):
        assert ctl("datastore", "migrate", "lock") == "Datastore locked.\n"
        assert ready() is False
    for _ in range(2):
        assert ctl("datastore", "migrate", "unlock") == "Datastore unlocked.\n"
        assert ready() is True


# ---- audit ---------------------------------------------------------------------------------------


def test_an_audit_of_what_agents_did_finds_nothing(ctl: Ctl, cluster: EtcdCluster):
    start = revision_of(cluster)
    assign(cluster, "10.10.0.3", "x")
    give_back(cluster, "10.10.0.3")
    assign(cluster, "10.10.0.3", "y")
    end = revision_of(cluster)
    assert ctl("ipam", "audit", "--from", str(start), "--to", str(end)) == (
        f"Audited revisions {start} to {end}: {end - start} with changes of IPAM or endpoints, "
        "2 blocks, 4 addresses; no violation\n"
    )
    assert "; no violation" in ctl("ipam", "audit", "--from", str(start))


def test_an_audit_finds_a_double_holder_written_by_hand_at_its_revision(
    ctl: Ctl, cluster: EtcdCluster
):
    start = revision_of(cluster)
    cluster.ctl("put", "not-of-calico", "x")
    draft = BlockDraft(blocks.new_block("10.10.0.0/30", 5))
    for pod in ("x", "thief"):
        draft.assign(1, Holder(f"net.{pod}", {}))
    bad = put(cluster, BlockKey("10.10.0.0/30"), draft.finish())
    second = put(cluster, BlockAffinityKey("n2", "10.10.0.0/29"), BlockAffinity(state="confirmed"))
    cluster.ctl("del", path_of(BlockKey("10.10.0.0/30")))
    cluster.ctl("put", "not-of-calico", "x")
    said = ctl("ipam", "audit", "--from", str(start), code=1).splitlines()
    assert said[:3] == [
        f"revision {bad}: overlap: 10.10.0.1: net.lives in 10.10.0.0/29, net.thief in 10.10.0.0/30",
        f"revision {second}: owners: 10.10.0.0/29: confirmed for host:n1, host:n2",
        f"revision {second}: owners: 10.10.0.0/29: confirmed for host:n2, the block says host:n1",
    ]
    end = second + 2
    assert said[3].startswith(f"Audited revisions {start} to {end}: 3 with changes")
    assert said[3].endswith("; 3 violations")
    assert "; no violation" in ctl("ipam", "audit", "--from", str(start), "--to", str(bad - 1))
    lines = ctl("ipam", "audit", "--from", str(bad), "-o", "json", code=1).splitlines()
    assert json.loads(lines[0]) == {
        "revision": bad, "kind": "overlap", "subject": "10.10.0.1",
        "detail": "net.lives in 10.10.0.0/29, net.thief in 10.10.0.0/30",
    }  # fmt: skip
    assert json.loads(lines[-1]) == {
        "from": bad, "to": end, "revisions": 2, "blocks": 3, "addresses": 4, "violations": 3,
    }  # fmt: skip


def test_a_compacted_start_is_one_line_that_names_the_oldest_revision(
    ctl: Ctl, cluster: EtcdCluster
):
    start = revision_of(cluster)
    assign(cluster, "10.10.0.3", "x")
    oldest = revision_of(cluster)
    assign(cluster, "10.10.0.4", "y")
    end = revision_of(cluster)
    cluster.ctl("compaction", str(oldest))
    ctl("ipam", "audit", "--from", str(start), code=1)
    assert ctl.err == (
        f"revision {start} has been compacted: "
        f"the oldest revision that can be replayed is {oldest}\n"
    )
    said = ctl("ipam", "audit")
    assert said.startswith(f"Audited revisions {oldest} to {end}: {end - oldest} with changes")
    ctl("ipam", "audit", "--to", str(start), code=1)
    assert f"oldest revision that can be replayed is {oldest}" in ctl.err
    ctl("ipam", "audit", "--from", str(end + 1), code=1)
    assert ctl.err == (
        f"--from: revision {end + 1} is in the future: the datastore stands at {end}\n"
    )
    ctl("ipam", "audit", "--from", str(end), "--to", str(oldest), code=1)
    assert ctl.err == f"--from {end} is after --to {oldest}\n"


def test_watching_tells_of_a_violation_when_it_happens_and_sums_up_when_interrupted(
    ctl: Ctl, cluster: EtcdCluster
):
    start = revision_of(cluster)
    arguments = ["ipam", "audit", "--watch", "--from", str(start)]
    bad = put(cluster, BlockAffinityKey("n2", "10.10.0.0/29"), BlockAffinity(state="confirmed"))
    with subprocess.Popen(
        [sys.executable, "-m", "calicoctl.main", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ.copy(),
    ) as process:  # fmt: skip
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        assert all(line.startswith(f"revision {bad}: owners: 10.10.0.0/29: ") for line in lines)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    assert rest.endswith("; 2 violations\n")
    assert rest.startswith(f"Audited revisions {start} to {bad}: ")
    assert (errors, process.returncode) == ("", 1)


def test_who_may_read_only_calicos_keys_can_audit_them(
    ctl: Ctl, etcd_cluster_factory: ClusterFactory, monkeypatch: pytest.MonkeyPatch
):
    """The end of the range is seen with the next write below /calico/."""
    etcd = etcd_cluster_factory()
    etcd.ctl("role", "add", "calico")
    etcd.ctl("role", "grant-permission", "calico", "readwrite", "/calico/", "--prefix")
    etcd.ctl("user", "add", "calico:secret")
    etcd.ctl("user", "grant-role", "calico", "calico")
    bad = put(etcd, BlockAffinityKey("n1", "10.10.0.0/29"), BlockAffinity(state="confirmed"))
    end = put(etcd, HandleKey("net.x"), Handle())
    etcd.enable_auth("root")
    monkeypatch.setenv("ETCD_ENDPOINTS", etcd.endpoints[0])
    monkeypatch.setenv("ETCD_USERNAME", "calico")
    monkeypatch.setenv("ETCD_PASSWORD", "secret")
    with subprocess.Popen(
        [sys.executable, "-m", "calicoctl.main", "ipam", "audit", "--from", "1", "--to", str(end)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ.copy(),
    ) as process:  # fmt: skip
        for _ in range(200):
            etcd.ctl("put", "/calico/alive", "x", user="root:root")
            if process.poll() is not None:
                break
        said, errors = process.communicate(timeout=60)
    assert errors == ""
    assert said.splitlines()[0].startswith(f"revision {bad}: owners: 10.10.0.0/29: ")
    assert said.splitlines()[1].startswith(f"Audited revisions 1 to {end}: 2 with changes")


def test_wrong_words_to_audit(ctl: Ctl):
    ctl("ipam", "audit", "--watch", "--to", "5", code=1)
    assert "[to watch] were all set" in ctl.err
    ctl("ipam", "audit", "-o", "yaml", code=1)
    assert ctl.err == "unrecognized output format 'yaml'\n"
    ctl("ipam", "audit", "--from", "0", code=1)
    assert "--from" in ctl.err


def test_an_audit_of_an_empty_store_ends(ctl: Ctl, etcd_cluster_factory: ClusterFactory,
                                         monkeypatch: pytest.MonkeyPatch):  # fmt: skip
    monkeypatch.setenv("ETCD_ENDPOINTS", etcd_cluster_factory().endpoints[0])
    assert ctl("ipam", "audit") == (
        "Audited revisions 1 to 1: 0 with changes of IPAM or endpoints, 0 blocks, 0 addresses; "
        "no violation\n"
    )


def test_a_check_needs_no_kubernetes_and_says_so(ctl: Ctl, cluster: EtcdCluster):
    said = ctl("ipam", "check", "--kubeconfig=/nowhere")
    assert said.endswith("Check complete; found 1 problems.\n")
    assert ctl.err == "--kubeconfig is not used: no Kubernetes API is asked\n"


def test_a_report_goes_into_what_is_no_regular_file_and_leaves_it_there(
    ctl: Ctl, cluster: EtcdCluster, tmp_path: Path
):
    """`-o /dev/null` must not make a file of it, nor `-o /dev/stdout` of the link."""
    pipe, link, target = tmp_path / "pipe", tmp_path / "link", tmp_path / "target"
    os.mkfifo(pipe)
    link.symlink_to(target)
    reader = os.open(pipe, os.O_RDWR)
    try:
        ctl("ipam", "check", "-o", str(pipe))
        assert json.loads(os.read(reader, 65536))["version"] == VERSION
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    ctl("ipam", "check", "-o", str(link))
    assert link.is_symlink()
    assert "10.10.0.2" in json.loads(target.read_text())["allocations"]


def test_a_report_that_cannot_be_written_is_one_line(ctl: Ctl, cluster: EtcdCluster):
    ctl("ipam", "check", "-o", "/proc/report.json", code=1)
    assert ctl.err.startswith("cannot write the report /proc/report.json: ")
    assert len(ctl.err.splitlines()) == 1


def test_6_9_a_check_before_anything_was_initialised(ctl: Ctl, etcd: EtcdCluster):
    ctl("ipam", "check", code=1)
    assert ctl.err == "resource does not exist: ClusterInformation(default) with error: <nil>\n"
