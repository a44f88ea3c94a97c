"""bgp.rib.Rib against bgp.rib.oracle: whatever peers, kernel, configuration and timing do, every
peer ends up holding exactly what the oracle says, and the selection is the oracle's.

A World is both sides plus the receiving ends of all sessions. A story is a few hundred random
events; now and then everything settles and is compared. Hypothesis chooses a seed per story (its
own choices are too slow for stories this dense).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from bgp import queries
from bgp.rib.admission import peer_key
from bgp.rib.attributes import AS_SEQUENCE, AS_SET, AsPath, PathAttributes, Segment, encode
from bgp.rib.nlri import FAMILIES, IPV4, IPV6, Family, parse, text
from bgp.rib.oracle import BASE, Oracle, SessionFacts
from bgp.rib.path import LocalRoute
from bgp.rib.peer import GracefulRestart, RibPeer, Session
from bgp.rib.rib import Rib
from bgp.rib.update import HEADER_BYTES, end_of_rib, pack_announce, pack_withdraw
from bgp.rib.update import parse as parse_update
from bgp.speaker.decode import decode_attributes, decoder
from libcalico.errors import NotFound
from libcalico.model.bgp_filter import (
    BGPFilterAddCommunity,
    BGPFilterCommunityMatch,
    BGPFilterOperation,
    BGPFilterPrefixLengthV4,
    BGPFilterPrependASPath,
    BGPFilterRuleV4,
    BGPFilterRuleV6,
    BGPFilterSetPriority,
)
from libcalico.model.speaker import (
    Drain,
    Filter,
    LocalBlock,
    PeerOptions,
    PoolExport,
    PrefixAdvertisement,
    SpeakerConfig,
)

Network = IPv4Network | IPv6Network
OWN_AS = 64512
V4, V6 = "10.0.0.1", "fd00::1"
PEERS = ("10.0.0.11", "10.0.0.12", "10.0.0.13", "10.0.0.21", "10.0.0.22", "fd00::31")
EXTERNAL = {"10.0.0.21": 65001, "10.0.0.22": 65002}
NEXT_HOPS = {4: ("10.0.0.11", "10.0.0.12", "10.0.0.99", V4), 6: ("fd00::31", "fd00::99", V6)}
NETWORKS = [
    ip_network(cidr)
    for cidr in (
        *("10.65.0.0/26", "10.65.0.64/26", "10.65.0.5/32", "10.65.0.70/32", "10.66.0.0/26"),
        *("10.96.0.0/12", "10.96.0.7/32", "172.16.0.0/24", "0.0.0.0/0"),
        *("fd65::/122", "fd65::5/128", "fd65::40/122", "2001:db8::/32"),
    )
]
BLOCKS = ("10.65.0.0/26", "10.65.0.64/26", "fd65::/122")
OPERATIONS = (
    BGPFilterOperation(add_community=BGPFilterAddCommunity(value="64512:7")),
    BGPFilterOperation(add_community=BGPFilterAddCommunity(value="1:2:3")),
    BGPFilterOperation(prepend_as_path=BGPFilterPrependASPath(prefix=(65500, 65501))),
    BGPFilterOperation(prepend_as_path=BGPFilterPrependASPath(prefix=(65502,))),
    BGPFilterOperation(set_priority=BGPFilterSetPriority(value=512)),
)
ADVERTISEMENT = PrefixAdvertisement(
    cidr="10.65.0.0/16", communities=("100:1",), large_communities=("1:2:3",)
)
COMMUNITIES = (100 << 16 | 1, 0xFFFFFF01, 0xFFFFFF02, 0xFFFF0000)
DRAINS = (*[Drain.NONE] * 4, Drain.GRACEFUL_SHUTDOWN, Drain.WITHDRAWN)


def family_of(network: Network) -> Family:
    return IPV4 if network.version == 4 else IPV6


# -- random configurations and routes


def some(rng: random.Random, items: tuple[object, ...], most: int = 99) -> list[object]:
    return rng.sample(items, rng.randint(0, min(most, len(items))))


def random_rule(rng: random.Random, *, is_v4: bool) -> BGPFilterRuleV4 | BGPFilterRuleV6:
    kind = BGPFilterRuleV4 if is_v4 else BGPFilterRuleV6
    action = rng.choice(["Accept", "Accept", "Reject"])
    cidr = operator = lengths = None
    if rng.random() < 0.7:
        cidrs = [str(n) for n in NETWORKS if (n.version == 4) is is_v4]
        cidr = rng.choice([*cidrs, "10.0.0.0/8" if is_v4 else "fd00::/8"])
        operator = rng.choice(["Equal", "NotEqual", "In", "NotIn"])
        if is_v4 and rng.random() < 0.3:
            lengths = BGPFilterPrefixLengthV4(
                min=rng.choice([None, 24, 27]), max=rng.choice([None, 26, 32])
            )
    community = BGPFilterCommunityMatch(values=("100:1",))
    return kind(
        cidr=cidr,
        match_operator=operator,
        prefix_length=lengths,
        source=rng.choice([None, None, None, "RemotePeers"]),
        interface=rng.choice([None, None, None, "cali*"]),
        peer_type=rng.choice([None, None, None, "eBGP", "iBGP"]),
        communities=rng.choice([None, None, None, community]),
        as_path_prefix=rng.choice([(), (), (), (65001,), (65001, 65002)]),
        priority=rng.choice([None, None, None, 512, 1024]),
        action=action,
        operations=tuple(some(rng, OPERATIONS, 3)) if action == "Accept" else (),
    )


def random_filter(rng: random.Random, name: str) -> Filter:
    def rules(is_v4: bool) -> tuple[object, ...]:
        return tuple(random_rule(rng, is_v4=is_v4) for _ in range(rng.randint(0, 2)))

    return Filter(
        name=name,
        import_v4=rules(True),
        export_v4=rules(True),
        import_v6=rules(False),
        export_v6=rules(False),
    )


def random_peer(rng: random.Random, address: str) -> PeerOptions:
    external = EXTERNAL.get(address)
    is_client = external is None and rng.random() < 0.5
    return PeerOptions(
        name=f"p{address}",
        address=address,
        kind="node",
        remote_as=external or OWN_AS,
        local_as=OWN_AS,
        rr_client=is_client,
        cluster_id="9.9.9.9" if is_client else "",
        next_hop_mode=rng.choice(["Auto", "Auto", "Self", "Keep"]),
        keep_original_next_hop=rng.random() < 0.3,
        filters=rng.choice([(), (), ("f1",), ("f1", "f2", "nothing")]),
        allowed_local_as=rng.choice([0, 0, 1]),
    )


def random_config(rng: random.Random) -> SpeakerConfig:
    def exported() -> bool:
        return rng.random() < 0.8

    return SpeakerConfig(
        exabgp_sha256="",
        node_name="n",
        router_id=V4,
        local_as=OWN_AS,
        ipv4_address=V4,
        ipv6_address=rng.choice([V6, V6, V6, None]),
        cluster_id=rng.choice(["", "9.9.9.9"]),
        blocks=tuple(LocalBlock(cidr=str(c), export=exported()) for c in some(rng, BLOCKS)),
        pools=tuple(
            PoolExport(cidr=cidr, export=exported())
            for cidr in ("10.65.0.0/16", "10.66.0.0/16", "fd65::/64")
        ),
        service_cidrs=rng.choice([(), ("10.96.0.0/12",)]),
        prefix_advertisements=rng.choice([(), (ADVERTISEMENT,)]),
        filters=(random_filter(rng, "f1"), random_filter(rng, "f2")),
        peers=tuple(random_peer(rng, address) for address in PEERS if rng.random() < 0.85),
        drain=rng.choice(DRAINS),
    )


def random_path(rng: random.Random) -> AsPath:
    asns = [rng.choice([65001, 65001, 65002, 4200000001, OWN_AS]) for _ in range(rng.randint(0, 2))]
    if not asns:
        return ()
    head = Segment(AS_SEQUENCE, tuple(asns))
    return (head, Segment(AS_SET, (7, 8))) if rng.random() < 0.2 else (head,)


def random_attributes(rng: random.Random, version: int) -> PathAttributes:
    ours, other = ip_address(V4).packed, ip_address("1.2.3.4").packed
    return PathAttributes(
        origin=rng.choice([0, 0, 0, 2]),
        as_path=random_path(rng),
        next_hop=ip_address(rng.choice(NEXT_HOPS[version])).packed,
        med=rng.choice([None, 0, 5]),
        local_pref=rng.choice([100, 100, 100, BASE - 1024, BASE - 512]),
        communities=rng.choice([*[()] * 3, *((c,) for c in COMMUNITIES)]),
        originator_id=rng.choice([None, None, None, None, other, ours]),
        cluster_list=rng.choice([(), (), (), (bytes([8] * 4),), (bytes([9] * 4),)]),
    )


class Receiver:
    """The other end of a session: what it was told, applied in order."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.holds: dict[Network, PathAttributes] = {}
        self.ends: list[str] = []

    def take(self, messages: list[bytes]) -> None:
        for message in messages:
            assert len(message) <= 4096
            assert int.from_bytes(message[16:18], "big") == len(message)
            if message[18] == 2:
                self._apply(message[HEADER_BYTES:])

    def _apply(self, body: bytes) -> None:
        fields = parse_update(body)
        assert not fields.malformed
        if fields.end_of_rib is not None:
            self.ends.append(fields.end_of_rib.name)
        for family, nlris in fields.withdrawn:
            for nlri in nlris:
                self.holds.pop(ip_network(text(family, nlri)), None)
        for family, nlris, next_hop in fields.announced:
            found = decode_attributes(fields.plain, asn4=self.session.asn4)
            assert isinstance(found, PathAttributes), found
            if next_hop:
                found = replace(found, next_hop=next_hop)
            for nlri in nlris:
                self.holds[ip_network(text(family, nlri))] = found


@dataclass
class World:
    """The Rib, the oracle, and the ends of all sessions."""

    rng: random.Random
    now: float = 0.0
    receivers: dict[str, Receiver] = field(default_factory=dict)
    stale: dict[str, set[Network]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        config = random_config(self.rng)
        self.rib = Rib(config, now=self.now)
        self.oracle = Oracle(config)

    def peer(self, address: str) -> RibPeer | None:
        return self.rib.peers.get(peer_key(address))

    # -- events

    def reconfigure(self, config: SpeakerConfig | None = None) -> None:
        config = config or random_config(self.rng)
        kept = {peer.address for peer in config.peers}
        self.rib.configure(config)
        for address in [p.address for p in self.oracle.config.peers if p.address not in kept]:
            self.oracle.forget_peer(address)
            self.receivers.pop(address, None)
            self.stale.pop(address, None)
        self.oracle.config = config

    def reconfigure_a_part(self) -> None:
        old, new = self.oracle.config, random_config(self.rng)
        part = self.rng.choice(
            ["blocks", "pools", "filters", "cluster_id", "peers", "one peer", "drain"]
        )
        if part in ("peers", "one peer"):
            by_address = {peer.address: peer for peer in new.peers}
            peers = [by_address.get(peer.address, peer) for peer in old.peers]
            if part == "one peer" and peers:
                index = self.rng.randrange(len(peers))
                peers = [*old.peers[:index], peers[index], *old.peers[index + 1 :]]
            changed = {"peers": tuple(peers)}
        else:
            changed = {part: getattr(new, part)}
        self.reconfigure(msgspec.structs.replace(old, **changed))

    def session_comes_up(self) -> None:
        address = self.rng.choice(PEERS)
        peer = self.peer(address)
        if peer is None or peer.session is not None:
            return
        both = self.rng.random() < 0.8
        listed = self.rng.choice([None, (), (IPV4,), FAMILIES, FAMILIES])
        kept = [family for family in listed or () if self.rng.random() < 0.7]
        local = ip_address(V6 if ":" in address else V4).packed
        asn4 = self.rng.random() < 0.8
        session = Session(
            families=FAMILIES if both else (IPV4,),
            router_id=bytes([1, 1, 1, PEERS.index(address)]),
            local_address=local,
            decode=decoder(asn4=asn4),
            asn4=asn4,
            restart=None
            if listed is None
            else GracefulRestart(30, frozenset(listed), frozenset(kept)),
        )
        self.rib.session_up(peer, session, now=self.now)
        confirmed = set(kept) & set(session.families)
        for network in list(self.stale.setdefault(address, set())):
            if family_of(network) not in confirmed:
                self._forget(address, network)
        versions = (4, 6) if both else (4,)
        self.oracle.sessions[address] = SessionFacts(session.router_id, local, versions)
        self.oracle.router_ids[address] = session.router_id
        self.receivers[address] = Receiver(session)

    def session_is_lost(self) -> None:
        found = self._live()
        if found is None:
            return
        address, receiver, peer = found
        silent = self.rng.random() < 0.6
        del self.receivers[address]
        self.rib.session_down(peer, may_restart=silent, now=self.now)
        del self.oracle.sessions[address]
        for network in list(self.stale[address]):
            self._forget(address, network)
        restart = receiver.session.restart
        for network in [n for a, n in self.oracle.heard if a == address]:
            if silent and restart and family_of(network) in restart.families:
                self.stale[address].add(network)
            else:
                self._forget(address, network)

    def _live(self) -> tuple[str, Receiver, RibPeer] | None:
        if not self.receivers:
            return None
        address = self.rng.choice(sorted(self.receivers))
        peer = self.peer(address)
        assert peer is not None
        return address, self.receivers[address], peer

    def _forget(self, address: str, network: Network) -> None:
        self.oracle.heard.pop((address, network), None)
        self.stale[address].discard(network)

    def _some_networks(self) -> list[Network]:
        version = self.rng.choice([4, 4, 6])
        networks = [network for network in NETWORKS if network.version == version]
        return self.rng.sample(networks, self.rng.randint(1, 3))

    def peer_announces(self) -> None:
        found = self._live()
        if found is None:
            return
        address, receiver, peer = found
        networks = self._some_networks()
        family = family_of(networks[0])
        said = random_attributes(self.rng, networks[0].version)
        asn4, is_v4 = receiver.session.asn4, family is IPV4
        encoded = encode(said, asn4=asn4, with_next_hop=is_v4)
        nlris = [parse(str(network))[1] for network in networks]
        next_hop = b"" if is_v4 else said.next_hop
        for message, _ in pack_announce(family, encoded, next_hop, nlris):
            self.rib.receive(peer, message[HEADER_BYTES:])
        if family in receiver.session.families:
            for network in networks:
                self.oracle.heard[address, network] = said
                self.stale[address].discard(network)

    def peer_withdraws(self) -> None:
        found = self._live()
        if found is None:
            return
        address, _, peer = found
        networks = self._some_networks()
        nlris = [parse(str(network))[1] for network in networks]
        for message, _ in pack_withdraw(family_of(networks[0]), nlris):
            self.rib.receive(peer, message[HEADER_BYTES:])
        for network in networks:
            self._forget(address, network)

    def peer_says_end_of_rib(self) -> None:
        found = self._live()
        if found is None:
            return
        address, _, peer = found
        family = self.rng.choice(FAMILIES)
        self.rib.receive(peer, end_of_rib(family)[HEADER_BYTES:])
        for network in [n for n in self.stale[address] if family_of(n) is family]:
            self._forget(address, network)

    def peer_asks_for_a_refresh(self) -> None:
        found = self._live()
        if found is not None:
            found[2].refresh(self.rng.choice(FAMILIES), enhanced=self.rng.random() < 0.5)

    def workload_changes(self) -> None:
        network = self.rng.choice(NETWORKS)
        metric = self.rng.choice([None, 0, 512, 1024])
        family, nlri = parse(str(network))
        if metric is None:
            self.rib.set_local(family, nlri, None)
            self.oracle.workloads.pop(network, None)
        else:
            self.rib.set_local(family, nlri, LocalRoute("workload", metric, "cali1"))
            self.oracle.workloads[network] = (metric, "cali1")

    def reachability_changes(self) -> None:
        packed = ip_address(self.rng.choice(["10.0.0.11", "10.0.0.99", "fd00::99"])).packed
        reachable = self.rng.random() < 0.6
        self.rib.set_reachable(packed, reachable=reachable)
        (self.oracle.unreachable.discard if reachable else self.oracle.unreachable.add)(packed)

    def time_passes(self) -> None:
        self.now += self.rng.choice([1.0, 40.0, 200.0])
        due = [
            peer.address
            for peer in self.rib.peers.values()
            if peer.stale_deadline is not None and self.now >= peer.stale_deadline
        ]
        self.rib.tick(self.now)
        for address in due:
            for network in list(self.stale.get(address, ())):
                self._forget(address, network)

    def flush(self) -> None:
        self.rib.flush()

    def peer_reads_some(self) -> None:
        found = self._live()
        if found is not None:
            _, receiver, peer = found
            receiver.take(peer.take(self.rng.choice([1, 60, 4096])))

    def peer_falls_behind(self) -> None:
        found = self._live()
        if found is not None:
            for stream in found[2].streams.values():
                if stream.cursor is not None:
                    stream.fall_behind()

    # -- the comparison

    def settle(self) -> None:
        self.rib.flush()
        for address, receiver in self.receivers.items():
            peer = self.peer(address)
            assert peer is not None
            for _ in range(1000):
                messages = peer.take(4096)
                receiver.take(messages)
                if not messages and not peer.has_output():
                    break
            else:
                raise AssertionError(f"{address} never drained")

    def compare(self) -> None:
        self.rib.check()
        for address, receiver in self.receivers.items():
            assert receiver.holds == self.oracle.advertised(address), address
        for network in NETWORKS:
            family, nlri = parse(str(network))
            selected = self.rib.tables[family].selected.get(nlri, ())
            ours = [(path.source.name, path.attributes) for path in selected]
            theirs = [
                (f"p{c.peer}" if c.peer else "local", c.attributes)
                for c in self.oracle.selected(network)
            ]
            assert ours == theirs, network
            self.check_explanation(network)

    def check_explanation(self, network: Network) -> None:
        """What `explain` says is what is."""
        try:
            found = queries.explanation(self.rib, None, str(network))
        except NotFound:
            assert all(network not in receiver.holds for receiver in self.receivers.values())
            return
        for path in found["paths"]:
            said = path["outcome"].partition(":")[0]
            assert (said == "best") is path.get("best", False), path
            assert (said in ("best", "shares the load")) is path.get("selected", False), path
        told = {peer["peer"] for peer in found["peers"] if peer["told"]}
        assert told == {a for a, receiver in self.receivers.items() if network in receiver.holds}


EVENTS: tuple[tuple[int, Callable[[World], None]], ...] = (
    (30, World.peer_announces),
    (12, World.peer_withdraws),
    (8, World.workload_changes),
    (12, World.session_comes_up),
    (3, World.session_is_lost),
    (4, World.peer_says_end_of_rib),
    (2, World.peer_asks_for_a_refresh),
    (4, World.reachability_changes),
    (1, World.time_passes),
    (8, World.flush),
    (12, World.peer_reads_some),
    (3, World.peer_falls_behind),
    (1, World.reconfigure),
    (4, World.reconfigure_a_part),
)
WEIGHTS, ACTIONS = zip(*EVENTS, strict=True)


def run_story(seed: int, steps: int) -> None:
    rng = random.Random(seed)
    world = World(rng)
    for _ in range(8):
        world.session_comes_up()
    for step in range(steps):
        rng.choices(ACTIONS, WEIGHTS)[0](world)
        if step % 12 == 11:
            world.settle()
            world.compare()
    world.settle()
    world.compare()


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_every_peer_holds_what_the_oracle_says(seed: int) -> None:
    run_story(seed, 240)
