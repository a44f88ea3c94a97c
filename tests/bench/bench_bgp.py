"""Reflection and kernel export beside BIRD 2 doing the same in the same run (issue: BGP complete).

A reflector in one namespace, its clients in another. Neither programs kernel routes in
the rr-* runs. Limits are ratios to BIRD's time, as the issue sets them.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from bgp.rib.nlri import IPV6
from libcalico.model.bgp_filter import BGPFilterRuleV4
from libcalico.model.speaker import Filter, KernelExport, PoolExport
from libcalico.netlink import set_address
from tests.bench.bgp_load import Load, Shape
from tests.peers.base import BgpNode, Fabric, Neighbour
from tests.peers.bird import Bird
from tests.peers.speaker import CalicoBgp
from tests.support.netns import Namespace, NamespaceSet, eventually

RUNS = 3
SHAPES = {
    "rr-20x500": (Shape(20, 500), 0.5),
    "rr-100x100": (Shape(100, 100), 0.5),
    "rr-500x20": (Shape(500, 20), 0.5),
    "rr-1nlri": (Shape(100, 100, per_update=1), 1.0),
    "rr-filtered": (Shape(100, 100), 1.0),
    "rr-v6": (Shape(100, 100, IPV6), 1.0),
}
NAMES = (
    *SHAPES,
    "rr-single",
    "rr-peerdown",
    "wire-kernel-10k",
    "wire-kernel-100k",
    "bgp-idle-100",
)
FIRST_CLIENT = "10.99.1.0"
POOLS = (PoolExport(cidr="20.0.0.0/6"), PoolExport(cidr="fd20::/16"))
REJECTED = [f"20.{n}.0.0/16" for n in range(200, 220)]
Entry = dict[str, Any]


class OurReflector(CalicoBgp):
    kind = "ours"

    def __init__(self, fabric: Fabric, number: int) -> None:
        super().__init__(fabric, number)
        self.programs = False
        self.filtered = False

    def serve(self, clients: list[str]) -> None:
        mode = "Enabled" if self.programs else "Disabled"
        rules = tuple(
            BGPFilterRuleV4(action="Reject", cidr=cidr, match_operator="In") for cidr in REJECTED
        )
        self.settings = msgspec.structs.replace(
            self.settings,
            pools=POOLS,
            kernel=KernelExport(program_cluster_routes=mode),
            filters=(Filter(name="twenty", export_v4=rules),),
            log_severity="Warning",
        )
        filters = ("twenty",) if self.filtered else ()
        self.configure(
            *(
                Neighbour(a, is_client=True, is_passive=True, restart_s=0, filters=filters)
                for a in clients
            )
        )


class BirdReflector(Bird):
    kind = "birdrr"

    def __init__(self, fabric: Fabric, number: int) -> None:
        super().__init__(fabric, number)
        self.programs = False
        self.filtered = False

    def serve(self, clients: list[str]) -> None:
        tests = " ".join(f"if net ~ {cidr} then reject;" for cidr in REJECTED)
        name = "twenty" if self.filtered else "all_of_it"
        kernel = ""
        if self.programs:
            kernel = "protocol kernel { ipv4 { export all; }; persist; metric 0; }\n"
        text = f"""
log stderr {{ fatal, error }};
router id {self.v4};
protocol device {{ scan time 10; }}
protocol direct {{ ipv4; ipv6; }}
{kernel}
filter all_of_it {{ if source = RTS_BGP then accept; reject; }}
filter twenty {{ {tests} if source = RTS_BGP then accept; reject; }}
template bgp reflected {{
  local {self.v4} as 64512; rr client; passive on; hold time 180; graceful restart off;
  ipv4 {{ import all; export filter {name}; }};
  ipv6 {{ import all; export filter all_of_it; next hop address {self.v6}; }};
}}
"""
        for n, address in enumerate(clients):
            text += f"protocol bgp c{n} from reflected {{ neighbor {address} as 64512; }}\n"
        (self.directory / "bird.conf").write_text(text)


Reflector = OurReflector | BirdReflector


@contextmanager
def reflector(
    kind: type[OurReflector] | type[BirdReflector],
    clients: int,
    prepare: Callable[[Reflector], None] | None = None,
) -> Iterator[tuple[Reflector, Namespace]]:
    """A running reflector and the namespace of its clients."""
    with NamespaceSet() as netns, tempfile.TemporaryDirectory() as scratch:
        fabric = Fabric(netns, Path(scratch))
        made = kind(fabric, 1)
        load = fabric.namespace(2)
        ifindex = load.link("eth0").ifindex
        addresses = [f"10.99.{1 + n // 256}.{n % 256}" for n in range(clients)]
        load.socket.execute(*(set_address(ifindex, f"{a}/16") for a in addresses))
        made.netns.socket.execute(
            set_address(made.netns.link("eth0").ifindex, "10.99.0.1/16"),
            set_address(made.netns.link("eth0").ifindex, "fd88::ffff/64"),
        )
        if prepare is not None:
            prepare(made)
        made.serve(addresses)
        made.start()
        assert eventually(lambda: listens(made), timeout_s=30), made.log()
        try:
            yield made, load
        finally:
            fabric.close()


def listens(node: BgpNode) -> bool:
    return "LISTEN" in node.netns.run("ss", "-Hltn", "sport = 179")


def connected(load: Namespace, shape: Shape) -> Load:
    made = load.call(lambda: Load(shape, "10.99.0.1", FIRST_CLIENT))
    made.establish()
    return made


@dataclass(frozen=True, slots=True)
class Pair:
    """Seconds (or another unit) of ours and BIRD's, one per run."""

    ours: list[float]
    bird: list[float]

    def entry(self, name: str, limit: float | None, *, unit: str = "s", note: str = "") -> Entry:
        value, baseline = statistics.median(self.ours), statistics.median(self.bird)
        ratio = value / baseline if baseline else None
        return {
            "name": name,
            "value": value,
            "unit": unit,
            "baseline": "BIRD 2",
            "baseline_value": baseline,
            "ratio": ratio,
            "limit": limit,
            "ok": None if limit is None or ratio is None else ratio <= limit,
            "spread": [min(self.ours), max(self.ours), min(self.bird), max(self.bird)],
            "note": note,
        }


def both(measure: Callable[[type[OurReflector] | type[BirdReflector]], float], runs: int) -> Pair:
    pairs = [(measure(OurReflector), measure(BirdReflector)) for _ in range(runs)]
    return Pair([ours for ours, _ in pairs], [bird for _, bird in pairs])


def converge(name: str) -> Entry:
    shape, limit = SHAPES[name]

    def measure(kind: type[OurReflector] | type[BirdReflector]) -> float:
        def prepare(made: Reflector) -> None:
            made.filtered = name == "rr-filtered"

        with reflector(kind, shape.clients, prepare) as (_, load):
            clients = connected(load, shape)
            took = clients.release()
            clients.close()
        return took

    return both(measure, RUNS).entry(name, limit)


def single() -> Entry:
    shape = Shape(100, 1)

    def measure(kind: type[OurReflector] | type[BirdReflector]) -> float:
        with reflector(kind, shape.clients) as (_, load):
            clients = connected(load, shape)
            clients.release()
            took = statistics.median(clients.flap(30))
            clients.close()
        return took

    return both(measure, RUNS).entry("rr-single", 2.0, note="p50 of 30")


def peer_down() -> Entry:
    shape = Shape(20, 1)

    def measure(kind: type[OurReflector] | type[BirdReflector]) -> float:
        with reflector(kind, shape.clients) as (_, load):
            clients = connected(load, shape)
            clients.release()
            clients.announce_from_first(Shape(1, 10_000).nlris(10))
            took = clients.lose_first(10_001)
            clients.close()
        return took

    entry = both(measure, RUNS).entry("rr-peerdown", None)
    return {**entry, "limit": 0.2, "ok": entry["value"] <= 0.2, "note": "limit in seconds"}


def wire_to_kernel(name: str, count: int) -> Entry:
    shape = Shape(1, count)

    def measure(kind: type[OurReflector] | type[BirdReflector]) -> float:
        def prepare(made: Reflector) -> None:
            made.programs = True

        with reflector(kind, 1, prepare) as (node, load):
            clients = connected(load, shape)
            payload_sent = time.perf_counter()
            clients.release()  # one client: nobody to wait for
            deadline = time.monotonic() + 60
            while routes(node) < count:
                clients.step(0.002)
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{routes(node)} routes of {count}")
            took = time.perf_counter() - payload_sent
            clients.close()
        return took

    return both(measure, RUNS if count < 50_000 else 1).entry(name, 1.2)


def routes(node: BgpNode) -> int:
    """How many routes the kernel has: counted by the kernel, not listed."""
    text = node.netns.call(lambda: Path("/proc/thread-self/net/fib_triestat").read_text())
    main = text.split("Main:")[-1].split("Local:")[0]
    return int(main.split("Prefixes:")[1].split()[0])


def idle() -> Entry:
    shape = Shape(100, 10)

    def measure(kind: type[OurReflector] | type[BirdReflector]) -> float:
        with reflector(kind, shape.clients) as (node, load):
            clients = connected(load, shape)
            clients.release()
            assert node.process is not None
            before, started = cpu_s(node.process.pid), time.perf_counter()
            time.sleep(5)
            percent = 100 * (cpu_s(node.process.pid) - before) / (time.perf_counter() - started)
            clients.close()
        return percent

    entry = both(measure, 1).entry("bgp-idle-100", None, unit="% CPU")
    return {**entry, "limit": 2.0, "ok": entry["value"] <= 2.0, "note": "limit in percent"}


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def run(only: set[str]) -> list[Entry]:
    measures: dict[str, Callable[[], Entry]] = {
        **{name: (lambda name=name: converge(name)) for name in SHAPES},
        "rr-single": single,
        "rr-peerdown": peer_down,
        "wire-kernel-10k": lambda: wire_to_kernel("wire-kernel-10k", 10_000),
        "wire-kernel-100k": lambda: wire_to_kernel("wire-kernel-100k", 100_000),
        "bgp-idle-100": idle,
    }
    return [measure() for name, measure in measures.items() if not only or name in only]
