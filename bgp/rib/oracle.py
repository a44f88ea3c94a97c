"""The same answers as `Rib`, the slow and obvious way: the yardstick of the property tests.

Layer: pure; nothing in production imports it. It keeps only state (who is up, what each said last,
what is ours, what is unreachable) and computes every answer from scratch, straight from the speaker
file, with no masks, caches, groups or dirty sets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from bgp.rib.attributes import (
    AS_SEQUENCE,
    AS_SET,
    GRACEFUL_SHUTDOWN,
    NO_ADVERTISE,
    NO_EXPORT,
    NO_EXPORT_SUBCONFED,
    PathAttributes,
    Segment,
)
from libcalico.model.bgp_filter import BGPFilterRuleV4, BGPFilterRuleV6
from libcalico.model.speaker import PeerOptions, SpeakerConfig

Network = IPv4Network | IPv6Network
BASE = 2**31 - 1


@dataclass(frozen=True)
class Candidate:
    """One path: from a peer (by address) or our own (`kind` says what)."""

    peer: str
    attributes: PathAttributes
    router_id: bytes = b""
    kind: str = ""
    metric: int = 0
    interface: str = ""


@dataclass(frozen=True)
class SessionFacts:
    router_id: bytes
    local_address: bytes
    families: tuple[int, ...]  # IP versions


class Oracle:
    """Set the state, ask the questions."""

    def __init__(self, config: SpeakerConfig) -> None:
        self.config = config
        self.sessions: dict[str, SessionFacts] = {}
        self.heard: dict[tuple[str, Network], PathAttributes] = {}
        self.router_ids: dict[str, bytes] = {}
        self.workloads: dict[Network, tuple[int, str]] = {}
        self.unreachable: set[bytes] = set()

    # -- state

    def peer(self, address: str) -> PeerOptions:
        return next(peer for peer in self.config.peers if peer.address == address)

    def forget_peer(self, address: str) -> None:
        self.sessions.pop(address, None)
        self.heard = {key: said for key, said in self.heard.items() if key[0] != address}

    # -- questions

    def prefixes(self) -> set[Network]:
        found = {network for _, network in self.heard} | set(self.workloads)
        found |= {ip_network(block.cidr) for block in self.config.blocks}
        return found | {ip_network(cidr) for cidr in self.config.service_cidrs}

    def selected(self, network: Network) -> list[Candidate]:
        """Best first, then those to share load with."""
        left = [c for c in self.candidates(network) if self._is_usable(c)]
        if not left:
            return []
        left = _least(left, lambda c: 0 if c.kind == "configured" else 1)
        left = _least(left, lambda c: -_preference(c.attributes))
        left = _least(left, lambda c: 0 if c.kind else 1)
        left = _least(left, lambda c: _length(c.attributes))
        left = _least(left, lambda c: c.attributes.origin)
        left = [c for c in left if not any(_beats_by_med(other, c) for other in left)]
        left = _least(left, lambda c: 0 if self._is_external(c) else 1)
        left.sort(key=self._tie)
        distinct: list[Candidate] = []
        for candidate in left:
            hops = {c.attributes.next_hop for c in distinct}
            if candidate.attributes.next_hop not in hops:
                distinct.append(candidate)
        return distinct[:16]

    def advertised(self, address: str) -> dict[Network, PathAttributes]:
        """What the peer holds of ours once everything has been sent."""
        session = self.sessions[address]
        found = {}
        for network in self.prefixes():
            if network.version in session.families:
                told = self._told(address, network)
                if told is not None:
                    found[network] = told
        return found

    # -- candidates

    def candidates(self, network: Network) -> list[Candidate]:
        found = []
        own = self._own(network)
        if own is not None:
            found.append(own)
        for (address, heard), attributes in self.heard.items():
            if heard == network:
                accepted = self._imported(address, network, attributes)
                if accepted is not None:
                    found.append(Candidate(address, accepted, self.router_ids[address]))
        return found

    def _own(self, network: Network) -> Candidate | None:
        normal = self.config.kernel.metric_of(network.version)
        if network in self.workloads:
            metric, interface = self.workloads[network]
            metric = metric or normal
            attributes = PathAttributes(local_pref=BASE - metric)
            return Candidate("", attributes, kind="workload", metric=metric, interface=interface)
        blocks = {ip_network(block.cidr) for block in self.config.blocks}
        services = {ip_network(cidr) for cidr in self.config.service_cidrs}
        if network in blocks or network in services:
            attributes = PathAttributes(local_pref=BASE - normal)
            return Candidate("", attributes, kind="configured", metric=normal)
        return None

    def _imported(
        self, address: str, network: Network, attributes: PathAttributes
    ) -> PathAttributes | None:
        peer = self.peer(address)
        is_ibgp = peer.remote_as == peer.local_as
        seen = [asn for segment in attributes.as_path for asn in segment.asns]
        if seen.count(peer.local_as) > peer.allowed_local_as:
            return None
        if not is_ibgp:
            attributes = replace(attributes, local_pref=None, originator_id=None, cluster_list=())
        if GRACEFUL_SHUTDOWN in attributes.communities:
            attributes = replace(attributes, local_pref=0)
        if attributes.originator_id == ip_address(self.config.router_id).packed:
            return None
        if any(cluster in attributes.cluster_list for cluster in self._clusters()):
            return None
        if attributes.next_hop in self._own_addresses():
            return None
        verdict = self._filtered("import", peer, network, Candidate(address, attributes))
        if isinstance(verdict, PathAttributes):
            return verdict
        return attributes if verdict else None

    def _clusters(self) -> list[bytes]:
        """The node's own first; its router id when it has none."""
        texts = [self.config.cluster_id]
        texts += [peer.cluster_id for peer in self.config.peers if peer.rr_client]
        found = [ip_address(text).packed for text in texts if text]
        return found or [ip_address(self.config.router_id).packed]

    def _own_addresses(self) -> list[bytes]:
        texts = [self.config.ipv4_address, self.config.ipv6_address]
        return [ip_address(text).packed for text in texts if text]

    def _is_usable(self, candidate: Candidate) -> bool:
        return candidate.attributes.next_hop not in self.unreachable

    def _is_external(self, candidate: Candidate) -> bool:
        if candidate.kind:
            return False
        peer = self.peer(candidate.peer)
        return peer.remote_as != peer.local_as

    def _tie(self, candidate: Candidate) -> tuple[bytes, int, int, bytes]:
        attributes = candidate.attributes
        packed = ip_address(candidate.peer).packed if candidate.peer else b""
        router_id = attributes.originator_id or candidate.router_id
        return router_id, len(attributes.cluster_list), len(packed), packed

    # -- filters

    def _filtered(
        self, direction: str, peer: PeerOptions, network: Network, candidate: Candidate
    ) -> PathAttributes | bool:
        is_ibgp = peer.remote_as == peer.local_as
        named = [item for name in peer.filters for item in self.config.filters if item.name == name]
        rules = [r for item in named for r in getattr(item, f"{direction}_v{network.version}")]
        for rule in rules:
            if _matches(rule, network, candidate, is_ibgp=is_ibgp):
                return _acted(rule, candidate.attributes)
        return True

    # -- export

    def _told(self, address: str, network: Network) -> PathAttributes | None:
        selected = self.selected(network)
        if not selected or selected[0].peer == address:
            return None
        best, peer = selected[0], self.peer(address)
        if not self._may_hear(peer, best):
            return None
        verdict = self._filtered("export", peer, network, best)
        if verdict is False:
            return None
        attributes = verdict if isinstance(verdict, PathAttributes) else self._calico(network, best)
        if attributes is None:
            return None
        return self._drained(peer, self._changed(peer, network, best, attributes))

    def _drained(
        self, peer: PeerOptions, attributes: PathAttributes | None
    ) -> PathAttributes | None:
        if attributes is None or self.config.drain == "withdrawn":
            return None
        if self.config.drain == "graceful-shutdown":
            attributes = _with_community(attributes, "65535:0")
            if peer.remote_as == peer.local_as:
                attributes = replace(attributes, local_pref=0)
        return attributes

    def _may_hear(self, peer: PeerOptions, best: Candidate) -> bool:
        to_ibgp = peer.remote_as == peer.local_as
        communities = best.attributes.communities
        if NO_ADVERTISE in communities:
            return False
        if not to_ibgp and (NO_EXPORT in communities or NO_EXPORT_SUBCONFED in communities):
            return False
        if best.kind or self._is_external(best) or not to_ibgp:
            return True
        return self.peer(best.peer).rr_client or peer.rr_client

    def _calico(self, network: Network, best: Candidate) -> PathAttributes | None:
        if any(not p.export and _inside(network, p.cidr) for p in self.config.pools):
            return None
        attributes = best.attributes
        for advert in self.config.prefix_advertisements:
            if _inside(network, advert.cidr):
                for text in (*advert.communities, *advert.large_communities):
                    attributes = _with_community(attributes, text)
        exact = [b for b in self.config.blocks if ip_network(b.cidr) == network]
        if any(block.export for block in exact):
            return attributes
        inside = [b for b in self.config.blocks if _inside(network, b.cidr)]
        if inside:
            metric = best.metric if best.kind else BASE - _preference(best.attributes)
            is_elevated = metric < self.config.kernel.metric_of(network.version)
            return attributes if is_elevated and all(b.export for b in inside) else None
        if any(_inside(network, cidr) for cidr in self.config.service_cidrs):
            return attributes
        enabled = any(p.export and _inside(network, p.cidr) for p in self.config.pools)
        return attributes if enabled else None

    def _changed(
        self, peer: PeerOptions, network: Network, best: Candidate, attributes: PathAttributes
    ) -> PathAttributes | None:
        next_hop = self._next_hop(peer, network, best)
        if len(next_hop) != network.max_prefixlen // 8:
            return None
        attributes = replace(attributes, next_hop=next_hop)
        if peer.remote_as != peer.local_as:
            path = (Segment(AS_SEQUENCE, (peer.local_as,)), *attributes.as_path)
            if len(path) > 1 and path[1].kind == AS_SEQUENCE and len(path[1].asns) < 255:
                path = (Segment(AS_SEQUENCE, path[0].asns + path[1].asns), *path[2:])
            med = attributes.med if best.kind else None
            return replace(
                attributes,
                as_path=path,
                med=med,
                local_pref=None,
                originator_id=None,
                cluster_list=(),
            )
        attributes = replace(attributes, local_pref=_preference(attributes))
        if best.kind or self._is_external(best):
            return attributes
        cluster = self._clusters()[0]
        if peer.rr_client and peer.cluster_id:
            cluster = ip_address(peer.cluster_id).packed
        return replace(
            attributes,
            originator_id=attributes.originator_id or best.router_id,
            cluster_list=(cluster, *attributes.cluster_list),
        )

    def _next_hop(self, peer: PeerOptions, network: Network, best: Candidate) -> bytes:
        is_ibgp = peer.remote_as == peer.local_as
        own = self.sessions[peer.address].local_address
        if len(own) != network.max_prefixlen // 8:
            config = self.config
            text = config.ipv4_address if network.version == 4 else config.ipv6_address
            own = ip_address(text).packed if text else b""
        keeps = peer.next_hop_mode == "Keep" or (
            peer.next_hop_mode == "Auto" and (is_ibgp or peer.keep_original_next_hop)
        )
        return best.attributes.next_hop if keeps and not best.kind else own


def _least(candidates: list[Candidate], cost: Callable[[Candidate], int]) -> list[Candidate]:
    lowest = min(cost(candidate) for candidate in candidates)
    return [candidate for candidate in candidates if cost(candidate) == lowest]


def _preference(attributes: PathAttributes) -> int:
    return 100 if attributes.local_pref is None else attributes.local_pref


def _length(attributes: PathAttributes) -> int:
    sequences = sum(len(s.asns) for s in attributes.as_path if s.kind == AS_SEQUENCE)
    return sequences + sum(s.kind == AS_SET for s in attributes.as_path)


def _neighbour(attributes: PathAttributes) -> int:
    for segment in attributes.as_path:
        if segment.kind == AS_SEQUENCE:
            return segment.asns[0]
        if segment.kind == AS_SET:
            return 0
    return 0


def _beats_by_med(one: Candidate, other: Candidate) -> bool:
    same_neighbour = _neighbour(one.attributes) == _neighbour(other.attributes)
    return same_neighbour and (one.attributes.med or 0) < (other.attributes.med or 0)


def _inside(network: Network, cidr: str) -> bool:
    outer = ip_network(cidr)
    return outer.version == network.version and outer.supernet_of(network)  # type: ignore[arg-type]


def _matches(
    rule: BGPFilterRuleV4 | BGPFilterRuleV6,
    network: Network,
    candidate: Candidate,
    *,
    is_ibgp: bool,
) -> bool:
    attributes = candidate.attributes
    checks = [
        not rule.cidr or _matches_cidr(rule, network),
        not rule.peer_type or (rule.peer_type == "iBGP") == is_ibgp,
        rule.source != "RemotePeers" or not candidate.kind,
        not rule.interface
        or (candidate.kind == "workload" and fnmatchcase(candidate.interface, rule.interface)),
        rule.priority is None or attributes.local_pref == BASE - rule.priority,
        not rule.communities or _has_community(attributes, rule.communities.values[0]),
    ]
    flat = [asn for segment in attributes.as_path for asn in segment.asns]
    head = list(rule.as_path_prefix)
    return all(checks) and flat[: len(head)] == head


def _matches_cidr(rule: BGPFilterRuleV4 | BGPFilterRuleV6, network: Network) -> bool:
    assert rule.cidr, "looked at before"
    lengths = rule.prefix_length
    low = lengths.min if lengths and lengths.min is not None else 0
    high = lengths.max if lengths and lengths.max is not None else network.max_prefixlen
    met = _inside(network, rule.cidr) and low <= network.prefixlen <= high
    if rule.match_operator in ("Equal", "NotEqual"):
        met = met and network == ip_network(rule.cidr)
    return met == (rule.match_operator in ("Equal", "In"))


def _acted(
    rule: BGPFilterRuleV4 | BGPFilterRuleV6, attributes: PathAttributes
) -> PathAttributes | bool:
    if rule.action == "Reject":
        return False
    for operation in rule.operations:
        if operation.add_community:
            attributes = _with_community(attributes, operation.add_community.value)
        if operation.prepend_as_path:
            added = Segment(AS_SEQUENCE, tuple(operation.prepend_as_path.prefix))
            path = (added, *attributes.as_path)
            if len(path) > 1 and path[1].kind == AS_SEQUENCE:
                path = (Segment(AS_SEQUENCE, added.asns + path[1].asns), *path[2:])
            attributes = replace(attributes, as_path=path)
        if operation.set_priority:
            attributes = replace(attributes, local_pref=BASE - operation.set_priority.value)
    return attributes


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(":")]


def _has_community(attributes: PathAttributes, text: str) -> bool:
    numbers = _numbers(text)
    if len(numbers) == 2:
        return numbers[0] * 65536 + numbers[1] in attributes.communities
    return tuple(numbers) in attributes.large_communities


def _with_community(attributes: PathAttributes, text: str) -> PathAttributes:
    if _has_community(attributes, text):
        return attributes
    numbers = _numbers(text)
    if len(numbers) == 2:
        added = numbers[0] * 65536 + numbers[1]
        return replace(attributes, communities=(*attributes.communities, added))
    large = (numbers[0], numbers[1], numbers[2])
    return replace(attributes, large_communities=(*attributes.large_communities, large))
