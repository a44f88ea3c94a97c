"""A whole felix on a MemoryDatastore, a fake kernel and a fake nf_tables.

    async with FelixWorld(tmp_path).running() as felix:
        felix.wire("a"); felix.store(workload("a", "10.65.0.1/32"))
        await felix.until(lambda: felix.routes())

Everything is the daemon's own wiring (felix.daemon.Felix) on a real clock; only the ports differ.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from felix.daemon import Edges, Felix
from felix.daemon_config import ConfigWatcher, read_local, wait_for_datastore
from felix.daemon_dataplane import IptablesPorts, Ports
from felix.daemon_metrics import FelixHealth
from felix.kernel.iptables import IptablesKernel, Variant
from felix.kernel.nft import NftKernel
from libcalico.model import ClusterInformation, ClusterInformationSpec, ObjectMeta, Rule
from libcalico.model.codec import encode
from libcalico.model.keys import ResourceKey, path_of
from libcalico.runtime.supervise import Process
from libcalico.syncer.api import SyncStatus
from libcalico.testing.datastore import MemoryDatastore
from libcalico.testing.fakeiptables import FakeIptables
from libcalico.testing.fakenft import FakeNft
from libcalico.testing.kernel import FakeKernel
from tests.support import calc
from tests.support.calc import Object
from tests.support.iptables import InlineWorker

NODE = "here"
ALLOW = Rule(action="Allow")


def cluster(*, ready: bool = True) -> Object:
    key = ResourceKey(ClusterInformation.kind, "default")
    spec = ClusterInformationSpec(datastore_ready=ready)
    return key, ClusterInformation(metadata=ObjectMeta(name="default"), spec=spec)


def workload(
    pod: str, *ips: str, labels: Mapping[str, str] | None = None, **spec: object
) -> Object:
    """A pod of this node, as the CNI plugin writes it."""
    return calc.wep(
        f"{NODE}-k8s-{pod}-eth0",
        *ips,
        labels=labels,
        pod=pod,
        endpoint="eth0",
        interface_name=f"cali{pod}",
        profiles=("kns.prod",),
        **spec,
    )


def basics() -> tuple[Object, ...]:
    """What a datastore has once it was set up: ready, the default tier, an allowing namespace."""
    return (
        cluster(),
        calc.tier("default", 1_000_000, "Deny"),
        calc.profile("kns.prod", ingress=(ALLOW,), egress=(ALLOW,)),
    )


class FelixWorld:
    """Datastore and kernel outlive felix: `running` may be entered again and again."""

    def __init__(self, directory: Path, **environ: str) -> None:
        self.directory = directory
        self.environ = {
            "NODENAME": NODE,
            "ETCD_ENDPOINTS": "http://127.0.0.1:1",
            "DATASTORE_TYPE": "etcdv3",
            "CALICO_RUN_DIR": str(directory / "run"),
            "CALICO_LIB_DIR": str(directory / "lib"),
            "CALICO_LOG_DIR": str(directory / "log"),
            "FELIX_ENDPOINTSTATUSPATHPREFIX": str(directory / "run"),
            **environ,
        }
        self.config_file: Path | None = None
        self.datastore, self.kernel, self.nft = MemoryDatastore(), FakeKernel(), FakeNft()
        self.iptables = FakeIptables()
        self.store(*basics())
        self.felix: Felix = None  # type: ignore[assignment]
        self.process: Process = None  # type: ignore[assignment]
        self.exit_code: int | None = None

    def store(self, *objects: Object) -> None:
        self.datastore.seed({path_of(key): encode(value) for key, value in objects})

    def erase(self, *objects: Object) -> None:
        self.datastore.erase(*(path_of(key) for key, _ in objects))

    def wire(self, pod: str) -> int:
        """The veth of a pod."""
        return self.kernel.add_link(f"cali{pod}")

    def is_ready(self) -> bool:
        return self.felix is not None and self.felix.programmer.is_ready()

    def routes(self) -> set[str]:
        return {route.dst for route in self.kernel.routes()}

    @asynccontextmanager
    async def running(self, *, in_sync: bool = True) -> AsyncIterator[FelixWorld]:
        """Run felix; SIGTERM at the end, or whatever ended it before."""
        self.process = Process("calico-felix", environ=self.environ)
        run = asyncio.create_task(self.process.run(self._start))
        try:
            if in_sync:
                await self.until(self.is_ready)
            yield self
        finally:
            self.process.stop()
            self.exit_code = await run
            self.felix = None  # type: ignore[assignment]

    async def _start(self, process: Process) -> None:
        local = read_local(self.environ, self.config_file)
        watcher = ConfigWatcher(local.live, local.node)
        health = FelixHealth(local.live.config, clock=process.clock)
        updates = await wait_for_datastore(self.datastore, local.node, clock=process.clock)
        watcher.preload(updates)
        nft = NftKernel(self.nft)
        kernel = self.kernel
        iptables = self._iptables_ports(local.live.config.nftables_mode)
        ports = Ports(
            nft, kernel, kernel, kernel, kernel, kernel, kernel.shaping, iptables=iptables
        )
        self.felix = Felix(process, local, watcher, Edges(self.datastore, ports, health))
        self.felix.spawn(asyncio.Event())

    def _iptables_ports(self, mode: str) -> IptablesPorts:
        used, other = (
            IptablesKernel(self.iptables, variant, InlineWorker(), which=lambda name: name)
            for variant in Variant
        )
        if mode == "Disabled":
            return IptablesPorts(used, {"legacy": other})
        return IptablesPorts(others={"nft": used, "legacy": other})

    async def until(self, check: Callable[[], object], *, timeout_s: float = 30.0) -> None:
        """Poll with a deadline; AssertionError when it never came true."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not check():
            if asyncio.get_running_loop().time() > deadline:
                raise AssertionError("it never came true")
            await asyncio.sleep(0.005)

    async def list_again(self, change: Callable[[], object]) -> None:
        """Make a change that no watch can tell of: what it had to tell is compacted."""
        syncer = self.felix.syncer
        resyncs = syncer.stats.resyncs
        self.datastore.partition()
        change()
        self.store(cluster())
        self.datastore.compact()
        self.datastore.heal()
        await self.until(lambda: syncer.stats.resyncs > resyncs)
        await self.until(lambda: syncer.status is SyncStatus.IN_SYNC)
        await self.settled()

    async def settled(self) -> None:
        """Everything the watches have announced so far has reached the kernel."""
        await self.until(self.datastore.is_drained)
        self.felix.feed.publish()
        await self.felix.dataplane.loop.flush()
