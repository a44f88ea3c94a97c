"""A CNI agent without felix for tests: real wires and IPAM, a programmer that records.

Used by tests/netns/test_cni_agent.py. The agent's blocking work (asyncio.to_thread) runs in threads
that live in the node's namespace, so one test process holds agent, datastore and kernel.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cni import install
from cni.addresses import Addresses
from cni.agent import Agent, OnNode
from cni.endpoints import EndpointStore
from cni.facts import ClusterFacts
from cni.ports import HostSettings
from cni.wirer import ThreadWirer, Wirer
from ipam.client import IpamClient
from libcalico.errors import ProgrammingFailed
from libcalico.model import IPPool, Node, WorkloadEndpoint
from libcalico.model.codec import encode
from libcalico.model.defaults import initial_cluster_information, with_defaults
from libcalico.model.ippool import IPPoolSpec
from libcalico.model.keys import IpamConfigKey, ResourceKey, key_of, path_of, prefix_of
from libcalico.model.meta import ObjectMeta
from libcalico.netlink import device_route, replace_route
from libcalico.netlink.namespace import _set_namespace
from libcalico.syncer.api import SyncStatus, Update
from libcalico.syncer.watcher import WatchSyncer
from libcalico.testing.datastore import MemoryDatastore
from tests.support.netns import Namespace

NODE = "node-1"
_KINDS = ("WorkloadEndpoint", "IPPool", "IPReservation", "Node", "Profile", "ClusterInformation")
SYNCED = [*map(prefix_of, _KINDS), path_of(IpamConfigKey())]
CONF: dict[str, Any] = {
    "cniVersion": "1.0.0",
    "name": "net",
    "type": "calico",
    "ipam": {"type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true"},
}


class RecordingProgrammer:
    """Satisfies cni.ports; keeps what is programmed, and fails or hangs on request."""

    def __init__(
        self, node: Namespace | None = None, name: str = NODE, prefix: str = "cali"
    ) -> None:
        """Without a node there is no kernel behind it."""
        self._node, self._name, self._prefix = node, name, prefix
        self.programmed: dict[ResourceKey, WorkloadEndpoint] = {}
        self.confirmed: dict[ResourceKey, int] = {}
        self.ready = True
        self.said_trouble = ""
        self.refuse_next = False
        self.refuse_retract = False
        self.hold: asyncio.Event | None = None
        self.entered = asyncio.Event()
        self.hold_retract: asyncio.Event | None = None
        self.retracting = asyncio.Event()
        # What was asked, in order: each request begins with "settings".
        self.log: list[str] = []

    def settings(self) -> HostSettings:
        self.log.append("settings")
        return HostSettings(self._name, self._prefix, 1450, True)

    def is_ready(self) -> bool:
        return self.ready

    def remember(self, key: ResourceKey, endpoint: WorkloadEndpoint) -> None:
        self.programmed[key] = endpoint

    async def program(self, key: ResourceKey, endpoint: WorkloadEndpoint) -> None:
        # As felix: what fails or is cancelled from here on stands until it is retracted.
        self.programmed[key] = endpoint
        self.entered.set()
        if self.hold is not None:
            await self.hold.wait()
        if self.refuse_next:
            self.refuse_next = False
            raise ProgrammingFailed("program endpoint", key.name, 22, "refused by the test")
        if self._node is not None:
            await asyncio.to_thread(self._connect, self._node, endpoint)

    def _connect(self, node: Namespace, endpoint: WorkloadEndpoint) -> None:
        """What felix adds to a wire: routes, and the settings without which nothing comes in."""
        name = endpoint.spec.interface_name or ""
        for setting in ("ipv4/conf/{}/proxy_arp", "ipv4/conf/{}/forwarding"):
            node.sysctl(f"net/{setting.format(name)}", "1")
        for setting in ("proxy_ndp", "forwarding"):
            node.sysctl(f"net/ipv6/conf/{name}/{setting}", "1")
        ifindex = node.link(name).ifindex
        for cidr in endpoint.spec.ip_networks:
            node.socket.execute(replace_route(device_route(cidr, ifindex, protocol=3)))

    def trouble(self) -> str:
        return self.said_trouble

    async def confirm(self, key: ResourceKey, revision: int) -> None:
        self.confirmed[key] = revision

    async def settled(self, key: ResourceKey) -> None:
        assert key in self.confirmed

    async def retract(self, key: ResourceKey) -> None:
        self.log.append("retract")
        self.retracting.set()
        if self.hold_retract is not None:
            await self.hold_retract.wait()
        self.programmed.pop(key, None)
        if self.refuse_retract:
            raise ProgrammingFailed("retract endpoint", key.name, 22, "refused by the test")
        self.log.append("retracted")

    def endpoint_in_dataplane(self, key: ResourceKey) -> bool:
        return key in self.programmed


def cluster(*nodes: str, v4: str = "10.65.0.0/24") -> dict[str, bytes]:
    """Initialised, with these nodes and a small pool of each family."""
    resources: list[Any] = [
        initial_cluster_information("0" * 32),
        *(Node(metadata=ObjectMeta(name=name)) for name in nodes),
        with_defaults(IPPool(metadata=ObjectMeta(name="v4"), spec=IPPoolSpec(cidr=v4))),
        with_defaults(IPPool(metadata=ObjectMeta(name="v6"), spec=IPPoolSpec(cidr="fd65::/112"))),
    ]
    return {path_of(key_of(resource)): encode(resource) for resource in resources}


def seeded_datastore() -> MemoryDatastore:
    datastore = MemoryDatastore()
    datastore.seed(cluster(NODE))
    return datastore


@dataclass(frozen=True)
class Site:
    """Which node of which cluster; `datastore` None: its own, in memory. Two nodes may share a
    namespace when their interface prefixes differ."""

    name: str = NODE
    prefix: str = "cali"
    datastore: Any = None


class AgentNode:
    """One node: run plugins with `call`, look at `datastore` and `programmer`."""

    def __init__(
        self,
        node: Namespace,
        folder: Path,
        facts: ClusterFacts | None,
        site: Site,
        wirer: Wirer,
    ) -> None:
        self.node, self.wirer = node, wirer
        self.facts = facts
        self.socket_path = folder / "cni.sock"
        self.bin_dir = folder / "bin"
        self.datastore = site.datastore or seeded_datastore()
        self.programmer = RecordingProgrammer(node, site.name, site.prefix)
        self.lib_dir = folder / "lib"
        self.ipam = IpamClient(self.datastore)
        self.agent = Agent(
            self.programmer,
            EndpointStore(self.datastore, facts),
            Addresses(self.ipam),
            on_node=OnNode(self.lib_dir, wirer),
        )
        install.install(
            self.bin_dir,
            None,
            socket_path=self.socket_path,
            lib_dir=folder / "lib",
            conflist=b"",
        )

    async def start(
        self,
        verb: str,
        *,
        plugin: str = "calico",
        conf: dict[str, Any] | None = None,
        **environ: str,
    ) -> asyncio.subprocess.Process:
        """Execute the installed client as a runtime does, in the node's namespace."""
        variables = {
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": "c1",
            "CNI_IFNAME": "eth0",
            "CNI_PATH": f"{self.bin_dir}:/usr/lib/cni",
            **environ,
        }
        process = await asyncio.create_subprocess_exec(
            "nsenter",
            f"--net={self.node.path}",
            str(self.bin_dir / plugin),
            env=variables,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(CONF if conf is None else conf).encode())
        process.stdin.close()
        return process

    async def call(self, verb: str, **arguments: Any) -> tuple[int, dict[str, Any]]:
        """Returns exit code and the decoded standard output ({} for none)."""
        process = await self.start(verb, **arguments)
        assert process.stdout is not None
        stdout, stderr = await asyncio.gather(process.stdout.read(), process.stderr.read())
        code = await process.wait()
        assert b"Traceback" not in stderr, stderr.decode()
        return code, json.loads(stdout) if stdout.strip() else {}

    def leftovers(self) -> list[str]:
        """What a pod could have left: endpoints, handles, assigned addresses, host interfaces."""
        left = [k for k in self.datastore.contents() if "/workloadendpoints/" in k]
        left += [k for k in self.datastore.contents() if "/ipam/v2/handle/" in k]
        shown = self.node.run("ip", "-o", "link", "show")
        left += [line for line in shown.splitlines() if ": cali" in line]
        return left + [key.name for key in self.programmer.programmed]


class _Fed:
    """A sink in front of the facts that tells when they are complete."""

    def __init__(self, facts: ClusterFacts) -> None:
        self._facts = facts
        self.in_sync = asyncio.Event()

    def on_updates(self, updates: Sequence[Update]) -> None:
        self._facts.on_updates(updates)

    def on_status(self, status: SyncStatus) -> None:
        self._facts.on_status(status)
        if status is SyncStatus.IN_SYNC:
            self.in_sync.set()


@asynccontextmanager
async def agent_node(
    node: Namespace,
    folder: Path,
    *,
    with_facts: bool = True,
    site: Site | None = None,
    wirer: Callable[[], Wirer] = ThreadWirer,
) -> AsyncIterator[AgentNode]:
    """Serve the agent until the block ends; with facts from a syncer, as felix does, or without."""
    site = site or Site()
    fd = os.open(node.path, os.O_RDONLY | os.O_CLOEXEC)
    executor = ThreadPoolExecutor(8, initializer=lambda: _set_namespace(fd, node.path))
    asyncio.get_running_loop().set_default_executor(executor)
    serving = syncing = None
    try:
        facts = ClusterFacts(site.name) if with_facts else None
        made = AgentNode(node, folder, facts, site, wirer())
        if facts is not None:
            fed = _Fed(facts)
            syncing = asyncio.ensure_future(WatchSyncer(made.datastore, SYNCED, fed).run())
            async with asyncio.timeout(5):
                await fed.in_sync.wait()
        serving = asyncio.ensure_future(made.agent.serve(made.socket_path))
        # One turn of the loop binds the socket: serve() does so before its first await.
        await asyncio.sleep(0)
        yield made
    finally:
        running = [task for task in (serving, syncing) if task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        executor.shutdown(wait=True)
        os.close(fd)
