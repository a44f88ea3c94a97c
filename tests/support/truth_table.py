"""Truth tables: a random policy set, every pair of places, ports and protocols, and who says what.

    w0 w1 w2   pods of this node, behind caliw0, caliw1, caliw2
    w3         a pod of another node, behind eth0
    out        an address nobody knows, behind eth1
    host       the node itself, which accepts what its pods may send it

The evaluator says which cases of a table pass; readers say it too: rendered rules that a fake
kernel executes (here), and real packets through a real kernel (tests.support.truth_wire). Every
policy set follows another on the same node, as changes to it, not as a fresh start.

    readers = fake_readers()
    tally = await compare(readers, seeds=range(3))

Source: reference/datamodel.md 5.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from msgspec.structs import replace

from felix.dataplane.manager import ApplyResult
from felix.intent import Intent
from felix.rules.settings import HostAction, RuleSettings
from libcalico import net
from libcalico.model import GlobalNetworkPolicy, ICMPFields, NetworkPolicy, Resource, Rule
from libcalico.model.codec import encode
from libcalico.model.defaults import infer_types
from libcalico.model.keys import ResourceKey
from libcalico.policy.evaluate import Reason, evaluate_endpoint, evaluate_to_host
from libcalico.policy.packet import ICMP, ICMPV6, IPIP, SCTP, TCP, UDP, UDPLITE, Direction, Packet
from libcalico.policy.world import Settings
from libcalico.testing import fakenft
from tests.support import calc
from tests.support.calc import ELSEWHERE, HERE, Object
from tests.support.calc_random import ACCOUNTS, ADDRESSES, NAMESPACES, PORT_NAMES, UNKNOWN, Maker
from tests.support.host_oracle import Oracle, host_cluster
from tests.support.iptables import FakeIptNode, with_settings
from tests.support.nft import FakeNode

GRE, ESP, L2TP = 47, 50, 115
FIRST_PORT = 20000
FAMILIES = (4, 6)
SETTINGS = Settings(endpoint_to_host_action="ACCEPT")
# What shrinking may cost: each step is a change of the node's rules.
MAX_SHRINKING_STEPS = 80

Cluster = Mapping[ResourceKey, Resource]


# -------------------------------------------------------------------------------------- places


@dataclass(frozen=True, slots=True)
class Place:
    """Where packets come from and go to; `ifname` is the node's interface that leads there.
    `endpoint`: the workload whose policy this node enforces."""

    name: str
    ifname: str
    addresses: Mapping[int, str]
    endpoint: str = ""


def _address(index: int) -> dict[int, str]:
    return {family: ADDRESSES[family][index] for family in FAMILIES}


HOST = Place("host", "", _address(4))
PLACES = (
    *(Place(f"w{n}", f"caliw{n}", _address(n), endpoint=f"w{n}") for n in range(3)),
    Place("w3", "eth0", _address(3)),
    Place("out", "eth1", UNKNOWN),
    HOST,
)


# --------------------------------------------------------------------------------- the generator


class TruthMaker(Maker):
    """Clusters whose pods stand at PLACES, and rules for what a table's packets are."""

    def _workload(self, index: int) -> Object:
        namespace, account = self._pick(NAMESPACES), self._pick((None, *ACCOUNTS))
        listed = [f"kns.{namespace}", *([f"ksa.{account}"] if account else [])]
        return calc.wep(
            f"w{index}",
            *_address(index).values(),
            namespace=namespace,
            labels=self._labels(),
            node=HERE if index < 3 else ELSEWHERE,
            profiles=tuple(self._shuffled(listed)),
            service_account_name=account,
            ports=[
                (name, self._pick(("TCP", "UDP", "SCTP")), self._pick((80, 53)))
                for name in PORT_NAMES
                if self._chance(0.6)
            ],
        )

    def _staged_policy(self) -> Object:
        return calc.sgnp("s2", **self._policy()) if self._chance(0.5) else super()._staged_policy()

    def _icmp(self) -> ICMPFields:
        return ICMPFields(type=self._pick((8, 13, 128, 139)), code=self._pick((None, 0, 1)))

    def _rule(self) -> Rule:
        rule = super()._rule()
        if rule.protocol == GRE:
            return replace(rule, protocol=self._pick((GRE, ESP, "UDPLite", IPIP)))
        return rule


def cluster_of(seed: int) -> dict[ResourceKey, Resource]:
    """A policy set; every third has many host endpoints, every second policies without types as
    they are persisted, the others such as foreign writers leave them."""
    maker = TruthMaker(seed)
    cluster = host_cluster(maker) if seed % 3 == 0 else maker.cluster()
    if seed % 2:
        return cluster
    return {key: _persisted(value) for key, value in cluster.items()}


def _persisted(value: Resource) -> Resource:
    if not isinstance(value, NetworkPolicy | GlobalNetworkPolicy) or value.spec.types:
        return value
    types = infer_types(value.spec.ingress, value.spec.egress)
    return replace(value, spec=replace(value.spec, types=types))


# ------------------------------------------------------------------------------------------ cases


@dataclass(frozen=True, slots=True)
class Case:
    """One packet, the first of a connection of its own in either direction: all cases of a table
    can be sent without making the node forget connections in between. `number` is from 1."""

    number: int
    source: Place
    target: Place
    packet: Packet


def cases() -> tuple[Case, ...]:
    """The table: all pairs of places, both families, ports and protocols."""
    found: list[Case] = []
    for source, target in _pairs():
        for family in FAMILIES:
            ends = (net.parse_ip(place.addresses[family]) for place in (source, target))
            own, other = ends
            is_first = PLACES.index(source) < PLACES.index(target)
            for probe in _probes(FIRST_PORT + 20 * len(found), family, is_first=is_first):
                found.append(Case(len(found) + 1, source, target, Packet(own, other, **probe)))
    return tuple(found)


def _pairs() -> Iterator[tuple[Place, Place]]:
    for source in PLACES:
        yield from ((source, target) for target in PLACES if target is not source)


def _probes(unused_port: int, family: int, *, is_first: bool) -> Iterator[dict[str, int]]:
    """`is_first`: of the two directions of a pair. A protocol without ports has one connection a
    pair, so each direction has protocols of its own."""
    unused_port = FIRST_PORT + unused_port % 20000
    for protocol, ports in (
        (TCP, (80, 53, 85, 179, 4000)),
        (UDP, (80, 53, 68, 4789)),
        (SCTP, (80, 53)),
        (UDPLITE, (80,)),
    ):
        for port in ports:
            yield {"protocol": protocol, "source_port": unused_port, "destination_port": port}
    for protocol, source, port in ((TCP, 80, 4000), (TCP, 53, 85), (UDP, 53, 4000)):
        yield {"protocol": protocol, "source_port": source, "destination_port": port}
    for protocol in (GRE, IPIP) if is_first else (ESP, L2TP):
        yield {"protocol": protocol}
    number, kinds = (ICMP, (8, 13)) if family == 4 else (ICMPV6, (128, 139))
    for kind, code in ((kinds[0], 0), (kinds[0], 1), (kinds[1], 0)):
        yield {"protocol": number, "icmp_type": kind, "icmp_code": code}


CASES = cases()


# -------------------------------------------------------------------------------- what is expected


class Judge:
    """The evaluator, asked what becomes of a case; counts what decided."""

    def __init__(self, cluster: Cluster) -> None:
        self._oracle = Oracle.of(cluster)
        self._oracle.world = dataclasses.replace(self._oracle.world, settings=SETTINGS)
        self._keys = {key.name: key for key in cluster if key.kind == "WorkloadEndpoint"}
        self.reasons: Counter[Reason] = Counter()

    def passes(self, case: Case) -> bool:
        """Forwarding asks the interface it comes in by, and the one it goes out by."""
        if case.target is HOST:
            return self._reaches_the_host(case)
        if case.source is HOST:
            # The node and its own pods: nobody asks (datamodel 7.12).
            is_free = bool(case.target.endpoint)
            return is_free or self._oracle.from_host(case.target.ifname, case.packet)
        return self._leaves(case) and self._enters(case)

    def _reaches_the_host(self, case: Case) -> bool:
        if not case.source.endpoint:
            return self._oracle.to_host(case.source.ifname, case.packet)
        key = self._keys.get(case.source.endpoint)
        return key is not None and evaluate_to_host(self._oracle.world, key, case.packet).allowed

    def _leaves(self, case: Case) -> bool:
        if case.source.endpoint:
            return self._workload(case.source, Direction.EGRESS, case.packet)
        return self._oracle.comes_in(case.source.ifname, case.packet)

    def _enters(self, case: Case) -> bool:
        if case.target.endpoint:
            return self._workload(case.target, Direction.INGRESS, case.packet)
        return self._oracle.goes_out(case.target.ifname, case.packet)

    def _workload(self, place: Place, direction: Direction, packet: Packet) -> bool:
        key = self._keys.get(place.endpoint)
        if key is None:
            return False  # an interface of a workload without an endpoint is closed
        verdict = evaluate_endpoint(self._oracle.world, key, direction, packet)
        self.reasons[verdict.reason] += 1
        return verdict.allowed


# ---------------------------------------------------------------------------------------- readers


class Reader(Protocol):
    """Somebody who enforces policy and tells which packets got through."""

    name: str

    async def enforce(self, intents: Iterable[Intent]) -> None: ...

    def passed(self, table: Iterable[Case]) -> set[int]: ...


class Pushable(Protocol):
    """FakeNode, FakeIptNode: managers and driver over a fake kernel."""

    fake: Any

    async def push(self, *intents: Intent) -> ApplyResult: ...


class FakeReader:
    """Rendered rules, executed by a fake kernel."""

    def __init__(self, name: str, node: Pushable) -> None:
        self.name, self.node = name, node

    async def enforce(self, intents: Iterable[Intent]) -> None:
        result = await self.node.push(*intents)
        assert (result.failed, result.deferred) == (0, 0), result.error

    def passed(self, table: Iterable[Case]) -> set[int]:
        return {case.number for case in table if self._verdict(case) == "accept"}

    def _verdict(self, case: Case) -> str:
        fake, packet = self.node.fake, _in_the_fake(case.packet)
        if case.target is HOST:
            return str(fake.deliver(packet, case.source.ifname))
        if case.source is HOST:
            return str(fake.originate(packet, case.target.ifname))
        return str(fake.forward(packet, case.source.ifname, case.target.ifname))


def fake_readers() -> list[FakeReader]:
    """Both dataplanes."""
    nft = FakeNode(RuleSettings(endpoint_to_host=HostAction.ACCEPT))
    iptables = FakeIptNode(with_settings(endpoint_to_host=HostAction.ACCEPT))
    return [FakeReader("nft rules", nft), FakeReader("iptables rules", iptables)]


def _in_the_fake(packet: Packet) -> fakenft.Packet:
    return fakenft.Packet(
        str(packet.source),
        str(packet.destination),
        packet.protocol,
        packet.source_port or 0,
        packet.destination_port or 0,
        packet.icmp_type or 0,
        packet.icmp_code or 0,
    )


# ------------------------------------------------------------------------------------- comparison


@dataclass(slots=True)
class Tally:
    """What was compared: cases (each by every reader), how many passed, and what decided."""

    cases: int = 0
    passed: int = 0
    reasons: Counter[Reason] = field(default_factory=Counter)


class Difference(AssertionError):
    """A reader and the evaluator disagree; the text has all that is needed to see it again."""


class Comparison:
    """One node whose policy changes from table to table, and its readers."""

    def __init__(self, readers: Iterable[Reader]) -> None:
        self._readers = tuple(readers)
        self._rig = calc.Rig()
        self._cluster: Cluster = {}
        self.tally = Tally()

    async def table(self, seed: int) -> None:
        """Errors: Difference."""
        cluster = cluster_of(seed)
        await self._become(cluster)
        judge = Judge(cluster)
        expected = {case.number for case in CASES if judge.passes(case)}
        for reader in self._readers:
            wrong = reader.passed(CASES) ^ expected
            if wrong:
                case = CASES[min(wrong) - 1]
                few = await self._shrunk(reader, cluster, case)
                raise Difference(_described(seed, reader, case, few, len(wrong)))
        self.tally.cases += len(CASES)
        self.tally.passed += len(expected)
        self.tally.reasons += judge.reasons

    async def _become(self, cluster: Cluster) -> None:
        for key in self._cluster.keys() - cluster.keys():
            self._rig.change(key, None)
        for key, value in cluster.items():
            if self._cluster.get(key) != value:
                self._rig.change(key, value)
        self._cluster = cluster
        intents = self._rig.flush()
        for reader in self._readers:
            await reader.enforce(intents)

    async def _shrunk(self, reader: Reader, cluster: Cluster, case: Case) -> Cluster:
        """Fewer objects that still show it."""
        few = cluster
        for key in list(cluster)[:MAX_SHRINKING_STEPS]:
            fewer = {other: value for other, value in few.items() if other != key}
            await self._become(fewer)
            if bool(reader.passed([case])) != Judge(fewer).passes(case):
                few = fewer
        return few


def _described(seed: int, reader: Reader, case: Case, few: Cluster, wrong: int) -> str:
    said, opposite = ("pass", "drop") if Judge(few).passes(case) else ("drop", "pass")
    return "\n".join(
        (
            f"seed {seed}, case {case.number} ({wrong} of {len(CASES)} cases differ): "
            f"the evaluator says {said}, {reader.name} {opposite}",
            f"{case.source.name} -> {case.target.name}: {case.packet}",
            f"(make truth-table SEED={seed}, or the first of this run: sets follow each other)",
            *(f"  {encode(value).decode()}" for value in few.values()),
        )
    )


async def compare(readers: Iterable[Reader], seeds: Iterable[int]) -> Tally:
    """A table a seed. Errors: Difference, at the first one."""
    comparison = Comparison(readers)
    for seed in seeds:
        await comparison.table(seed)
    return comparison.tally


def tables_for(wanted: int) -> int:
    """How many tables make that many cases."""
    return -(-wanted // len(CASES))
