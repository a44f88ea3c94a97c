"""What objects say about packets by host interfaces, stage by stage: the oracle of host endpoints.

The evaluator of libcalico.policy decides one stage; what the stages make of each other (what is
allowed early is not asked again, who governs which interface) is said here once more, in its
plainest form.

    cluster = host_cluster(Maker(seed))
    Oracle.of(cluster).to_host("eth0", some_packet(maker))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from felix.intent import Intent, SetUpdate
from libcalico.model import HostEndpoint, Resource
from libcalico.model.keys import ResourceKey
from libcalico.policy.evaluate import Outcome, Reason, Stage, Verdict, evaluate_endpoint
from libcalico.policy.packet import ICMPV6, Direction, Packet
from libcalico.policy.world import World, world_of
from tests.support import calc
from tests.support.calc import HERE, Object, Rig
from tests.support.calc_random import Maker

# What the random packets of Maker have too rarely: (protocol, ports or ICMP type).
NEEDED = ((6, 22), (6, 179), (17, 53), (17, 68), (132, 22))
FLAGS: Mapping[str, dict[str, object]] = {
    "normal": {},
    "forward": {"apply_on_forward": True},
    "untracked": {"do_not_track": True, "apply_on_forward": True},
    "pre-dnat": {"pre_dnat": True, "apply_on_forward": True, "types": ("Ingress",), "egress": ()},
}


@dataclass
class Oracle:
    """What the objects say; counts what decided."""

    world: World
    endpoints: Mapping[ResourceKey, HostEndpoint]
    seen: Counter[tuple[Stage, Reason]] = field(default_factory=Counter)

    @classmethod
    def of(cls, cluster: Mapping[ResourceKey, Resource]) -> Oracle:
        hosts = {key: item for key, item in cluster.items() if isinstance(item, HostEndpoint)}
        local = {key: item for key, item in hosts.items() if item.spec.node == HERE}
        return cls(world_of(cluster.values()), local)

    def governing(self, ifname: str) -> ResourceKey | None:
        """Datamodel 5.4: by name, else `*`; of several the smallest name."""
        for wanted in (ifname, "*"):
            named = [key.name for key, found in self.endpoints.items() if _is_for(found, wanted)]
            if named:
                return ResourceKey(HostEndpoint.kind, min(named))
        return None

    def ask(self, key: ResourceKey, stage: Stage, way: Direction, packet: Packet) -> Verdict:
        verdict = evaluate_endpoint(self.world, key, way, packet, stage=stage)
        self.seen[stage, verdict.reason] += 1
        return verdict

    def early(self, key: ResourceKey, packet: Packet) -> bool | None:
        """The two stages before routing: allowed for good, denied, or (None) not decided."""
        for stage in (Stage.UNTRACKED, Stage.PRE_DNAT):
            verdict = self.ask(key, stage, Direction.INGRESS, packet)
            if verdict.outcome is Outcome.DENY:
                return False
            if verdict.reason is Reason.RULE:
                return True
        return None

    def to_host(self, ifname: str, packet: Packet) -> bool:
        key = self.governing(ifname)
        if key is None:
            return True
        decided = self.early(key, packet)
        if decided is not None:
            return decided
        return self.ask(key, Stage.NORMAL, Direction.INGRESS, packet).allowed

    def from_host(self, ifname: str, packet: Packet) -> bool:
        key = self.governing(ifname)
        if key is None:
            return True
        verdict = self.ask(key, Stage.UNTRACKED, Direction.EGRESS, packet)
        if verdict.outcome is Outcome.DENY or verdict.reason is Reason.RULE:
            return verdict.allowed
        return self.ask(key, Stage.NORMAL, Direction.EGRESS, packet).allowed

    def comes_in(self, ifname: str, packet: Packet) -> bool:
        """Forwarded, as far as the interface it came by is concerned."""
        key = self.governing(ifname)
        if key is None:
            return True
        decided = self.early(key, packet)
        return self._passes(key, Direction.INGRESS, packet) if decided is None else decided

    def goes_out(self, ifname: str, packet: Packet) -> bool:
        key = self.governing(ifname)
        return key is None or self._passes(key, Direction.EGRESS, packet)

    def _passes(self, key: ResourceKey, way: Direction, packet: Packet) -> bool:
        """The forward stage: what is not decided goes on to other people's rules."""
        return self.ask(key, Stage.FORWARD, way, packet).outcome is not Outcome.DENY


def _is_for(endpoint: HostEndpoint, ifname: str) -> bool:
    return endpoint.spec.interface_name == ifname


def host_cluster(maker: Maker) -> dict[ResourceKey, Resource]:
    return maker.cluster() | dict(_more(maker))


def _more(maker: Maker) -> Iterator[Object]:
    """Host endpoints and policies of every stage, more than a cluster usually has."""
    for _ in range(2):
        yield maker._host_endpoint()
    for name, flags in FLAGS.items():
        if maker._chance(0.7):
            yield calc.gnp(name, **maker._policy() | {"selector": "all()"} | flags)


def intents_of(cluster: Mapping[ResourceKey, Resource]) -> list[Intent]:
    """What calc makes of it, in an order that a dataplane takes."""
    contents = Rig(*cluster.items()).contents
    return [
        *(SetUpdate(name, kind, members) for name, (kind, members) in contents.sets.items()),
        *contents.policies.values(),
        *contents.profiles.values(),
        *contents.endpoints.values(),
    ]


def some_packet(maker: Maker) -> Packet:
    packet = maker.packet()
    if packet.protocol == ICMPV6 and maker._chance(0.5):
        return Packet(packet.source, packet.destination, ICMPV6, icmp_type=135, icmp_code=0)
    if packet.source_port is None or not maker._chance(0.4):
        return packet
    protocol, port = maker._pick(NEEDED)
    ports = (port, 4000) if maker._chance(0.3) else (4000, port)
    return Packet(packet.source, packet.destination, protocol, *ports)
