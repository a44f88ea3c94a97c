"""What policy does with a packet between two ends, and why: the question, the answer, the text.

Layer: pure. Used by calicoctl.commands.policy.

    ends + protocol ─► Question ─► judge: one Verdict per endpoint and direction, in the order
                                   the packet meets them ─► text, or JSON

  EX1  the first verdict that denies ends the way; what no endpoint of ours owns is not policed;
  EX2  a workload that talks to the host it runs on meets its own egress policy and then
       defaultEndpointToHostAction; a host that talks to its own workload is not policed;
  EX3  a host endpoint is asked stage by stage (untracked, preDNAT, normal) until one decides. What
       a packet meets at host endpoints that it is only forwarded through is not asked;
  EX4  tiers and profiles are those of the tables that felix compiles (calicoctl.tables); what
       stands before them (failsafe ports, neighbour discovery, overlay protocols) is
       libcalico.policy's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from typing import Any

import msgspec
from msgspec.structs import replace

from calicoctl.tables import Tables
from libcalico import net
from libcalico.errors import InvalidInput
from libcalico.model import (
    FelixConfigurationSpec,
    HostEndpoint,
    Node,
    Resource,
    Rule,
    WorkloadEndpoint,
)
from libcalico.model.felix_config import ProtoPort
from libcalico.model.keys import ResourceKey
from libcalico.model.scalars import parse_port
from libcalico.policy.evaluate import (
    Outcome,
    Reason,
    Stage,
    Step,
    Verdict,
    before_policy,
    evaluate_to_host,
)
from libcalico.policy.packet import ICMP, ICMPV6, SCTP, TCP, UDP, Direction, Packet
from libcalico.policy.world import Failsafe, Settings, World, world_of

_NAMES = {
    "tcp": TCP,
    "udp": UDP,
    "sctp": SCTP,
    "icmp": ICMP,
    "icmpv6": ICMPV6,
    "udplite": 136,
}
_WITH_PORTS = {TCP: "TCP", UDP: "UDP", SCTP: "SCTP"}
_ECHO_REQUEST = {4: 8, 6: 128}
_HOST_STAGES = (Stage.UNTRACKED, Stage.PRE_DNAT, Stage.NORMAL)
# Where clients' ports begin; a rule about source ports makes a difference only if it is asked for.
DEFAULT_SOURCE_PORT = 40000

Endpoint = WorkloadEndpoint | HostEndpoint


class BadQuestion(InvalidInput):
    """An argument that names nothing, or too much; the text says which."""


# -- ends ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class End:
    """One side: an endpoint of the cluster, or an address that is nobody's."""

    addresses: tuple[net.Address, ...]
    endpoint: Endpoint | None = None

    @property
    def key(self) -> ResourceKey | None:
        return None if self.endpoint is None else _key(self.endpoint)


def find_end(text: str, resources: Iterable[Resource]) -> End:
    """An address, `namespace/pod` (or the endpoint's own name), or a host endpoint's name.

    Errors: BadQuestion."""
    known = _Known(resources)
    try:
        address = net.parse_ip(text)
    except net.AddressError:
        return known.named(text)
    return End((address,), known.owner(address))


class _Known:
    """The endpoints of the cluster, and the addresses that nodes say they have."""

    def __init__(self, resources: Iterable[Resource]) -> None:
        self._endpoints: list[Endpoint] = []
        self._nodes: dict[str, list[net.Network]] = {}
        for item in resources:
            if isinstance(item, WorkloadEndpoint | HostEndpoint):
                self._endpoints.append(item)
            elif isinstance(item, Node):
                self._nodes[item.metadata.name] = _node_addresses(item)

    def owner(self, address: net.Address) -> Endpoint | None:
        """Errors: BadQuestion when an address of a node may be behind any of several."""
        owners = [item for item in self._endpoints if any(address in one for one in _own(item))]
        if owners:
            # A workload before a host endpoint: its interface is nearer.
            return min(owners, key=lambda item: (isinstance(item, HostEndpoint), _key(item)))
        owners = [e for e in self._endpoints if any(address in one for one in self._of_node(e))]
        if len(owners) > 1:
            names = ", ".join(sorted(item.metadata.name for item in owners))
            raise BadQuestion(f"{address}: more than one host endpoint, choose one of {names}")
        return owners[0] if owners else None

    def named(self, text: str) -> End:
        namespace, slash, name = text.rpartition("/")
        found: list[Endpoint]
        if slash:
            found = [item for item in self._endpoints if _is_called(item, namespace, name)]
        else:
            hosts = (item for item in self._endpoints if isinstance(item, HostEndpoint))
            found = [item for item in hosts if item.metadata.name == name]
        if not found:
            raise BadQuestion(f"{text or repr(text)}: {_why_unknown(text)}")
        if len(found) > 1:
            names = ", ".join(sorted(f"{namespace}/{item.metadata.name}" for item in found))
            raise BadQuestion(f"{text}: more than one endpoint, choose one of {names}")
        nets = _own(found[0]) or self._of_node(found[0])
        if not nets:
            raise BadQuestion(f"{text}: neither the endpoint nor its node has an address")
        return End(tuple(one.network_address for one in nets), found[0])

    def _of_node(self, item: Endpoint) -> list[net.Network]:
        """What a host endpoint without expectedIPs may have: its interface is what counts."""
        if not isinstance(item, HostEndpoint) or item.spec.expected_ips:
            return []
        return self._nodes.get(item.spec.node or "", [])


def _why_unknown(text: str) -> str:
    namespace, slash, name = text.rpartition("/")
    if not (name and (namespace or not slash)):
        return "an end is NAMESPACE/POD, the name of a host endpoint, or an address"
    if slash and _is_network(text):
        return "a network is no end, give one address of it"
    if slash:
        return f'there is no workload "{name}" in namespace "{namespace}"'
    if ":" in text or text.replace(".", "").isdecimal():
        return "invalid IP address"
    return f'there is no host endpoint "{name}" (workloads are NAMESPACE/NAME)'


def _is_network(text: str) -> bool:
    try:
        net.parse_cidr_or_ip(text)
    except net.AddressError:
        return False
    return True


def _node_addresses(node: Node) -> list[net.Network]:
    bgp = node.spec.bgp
    texts = [item.address for item in node.spec.addresses]
    texts += [bgp.ipv4_address or "", bgp.ipv6_address or ""] if bgp is not None else []
    found = []
    for text in texts:
        try:
            # Without the prefix length: "192.0.2.11/24" is one address.
            found.append(net.parse_cidr_or_ip(text.partition("/")[0]))
        except net.AddressError:
            continue
    return list(dict.fromkeys(found))


def _is_called(item: Endpoint, namespace: str, name: str) -> bool:
    if not isinstance(item, WorkloadEndpoint) or item.metadata.namespace != namespace:
        return False
    return name in (item.metadata.name, item.spec.pod, item.spec.workload)


def _own(item: Endpoint) -> list[net.Network]:
    texts = item.spec.expected_ips if isinstance(item, HostEndpoint) else item.spec.ip_networks
    return [net.parse_cidr_or_ip(text) for text in texts]


def _key(item: Endpoint) -> ResourceKey:
    return ResourceKey(item.kind, item.metadata.name, item.metadata.namespace)


# -- the packet ----------------------------------------------------------------------------------


def packet_between(
    source: End, destination: End, traffic: str, *, version: int = 0, source_port: int = 0
) -> Packet:
    """`traffic`: tcp/80, udp/53, sctp/9, icmp, icmp/TYPE, icmp/TYPE/CODE, or a protocol number.

    `version` 4 or 6, 0: IPv4 if both ends have it. Errors: BadQuestion."""
    protocol, *numbers = traffic.split("/")
    possible = versions_of(traffic)
    if version and version not in possible:
        raise BadQuestion(f"{traffic}: is not of IPv{version}")
    versions = [
        candidate
        for candidate in ((version,) if version else possible)
        if all(any(a.version == candidate for a in end.addresses) for end in (source, destination))
    ]
    if not versions:
        wanted = (
            f"IPv{version or possible[0]}" if version or len(possible) == 1 else "one IP version"
        )
        raise BadQuestion(f"the two ends have no addresses of {wanted}")
    chosen = versions[0]
    first, second = (
        next(a for a in end.addresses if a.version == chosen) for end in (source, destination)
    )
    number = _protocol(protocol, chosen)
    if number in _WITH_PORTS:
        return Packet(
            first, second, number, source_port or DEFAULT_SOURCE_PORT, _port(traffic, numbers)
        )
    if number in (ICMP, ICMPV6):
        kind, code = _icmp(traffic, numbers, chosen)
        return Packet(first, second, number, icmp_type=kind, icmp_code=code)
    if numbers:
        raise BadQuestion(f"{traffic}: this protocol has no ports")
    return Packet(first, second, number)


def versions_of(traffic: str) -> tuple[int, ...]:
    """The IP versions that the traffic may be of: "icmp" is the ICMP of either."""
    return (6,) if traffic.lower().partition("/")[0] == "icmpv6" else (4, 6)


def _protocol(text: str, version: int) -> int:
    number = _NAMES.get(text.lower())
    if number in (ICMP, ICMPV6):
        return ICMP if version == 4 else ICMPV6
    if number is None:
        number = _small_number(text)
    if not number:
        known = ", ".join(_NAMES)
        raise BadQuestion(f"{text or repr(text)}: no protocol; known are {known} and 1-255")
    return number


def _small_number(text: str) -> int | None:
    """0 to 255 in plain digits, else None."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 3):
        return None
    return int(text) if int(text) <= 255 else None


def _port(traffic: str, numbers: list[str]) -> int:
    try:
        (text,) = numbers
        port = parse_port(text)
        if not isinstance(port, str) and port.first == port.last:
            return port.first
    except (ValueError, InvalidInput) as err:
        raise BadQuestion(f"{traffic}: needs one port, as in tcp/80") from err
    raise BadQuestion(f"{traffic}: needs one port, as in tcp/80")


def _icmp(traffic: str, numbers: list[str], version: int) -> tuple[int, int]:
    found = [number for text in numbers if (number := _small_number(text)) is not None]
    if len(numbers) > 2 or len(found) < len(numbers):
        raise BadQuestion(f"{traffic}: ICMP is icmp, icmp/TYPE or icmp/TYPE/CODE")
    kind = found[0] if found else _ECHO_REQUEST[version]
    return kind, found[1] if len(found) > 1 else 0


# -- the verdicts --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cluster:
    """The objects, for their words and what stands before policy; and what felix makes of them."""

    world: World
    tables: Tables

    @classmethod
    def of(cls, resources: Sequence[Resource], settings: Settings | None, *ends: End) -> Cluster:
        local = [end.key for end in ends if end.key is not None]
        return cls(world_of(resources, settings=settings), Tables(resources, local))

    def endpoint(
        self,
        key: ResourceKey,
        direction: Direction,
        packet: Packet,
        *,
        stage: Stage = Stage.NORMAL,
    ) -> Verdict:
        """EX4. Errors: Ignored."""
        before = before_policy(self.world, key, direction, packet, stage=stage)
        if before is not None:
            return before
        found = self.tables.decide(key, direction, packet, stage=stage)
        if found.profile and found.profile not in self.world.profiles:
            return replace_fields(found, reason=Reason.PROFILE_MISSING, rule_index=None)
        return found

    def to_host(self, key: ResourceKey, packet: Packet) -> Verdict:
        return evaluate_to_host(
            self.world, key, packet, lambda _world, *asked: self.endpoint(*asked)
        )


def judge(cluster: Cluster, source: End, destination: End, packet: Packet) -> list[Verdict]:
    """What the packet meets, in order; ends with the first denial (EX1)."""
    verdicts: list[Verdict] = []
    for verdict in _way(cluster, source, destination, packet):
        verdicts.append(verdict)
        if verdict.outcome is Outcome.DENY:
            break
    return verdicts


def is_allowed(verdicts: Iterable[Verdict]) -> bool:
    return all(verdict.outcome is not Outcome.DENY for verdict in verdicts)


def _way(cluster: Cluster, source: End, destination: End, packet: Packet) -> Iterable[Verdict]:
    first, second = source.endpoint, destination.endpoint
    is_same_node = _node(first) == _node(second) != ""
    if first is not None and first == second:
        return  # what talks to itself leaves no interface
    if isinstance(first, WorkloadEndpoint) and isinstance(second, HostEndpoint) and is_same_node:
        yield cluster.to_host(_key(first), packet)  # EX2
        return
    if isinstance(first, HostEndpoint) and isinstance(second, WorkloadEndpoint) and is_same_node:
        # It leaves by the workload's interface, where no host endpoint stands (EX2).
        yield Verdict(Outcome.ALLOW, Reason.NOT_POLICED, Direction.INGRESS, endpoint=_key(second))
        return
    if isinstance(first, HostEndpoint):
        yield _host(cluster, first, Direction.EGRESS, packet)
    elif first is not None:
        yield cluster.endpoint(_key(first), Direction.EGRESS, packet)
    if isinstance(second, HostEndpoint):
        yield _host(cluster, second, Direction.INGRESS, packet)
    elif second is not None:
        yield cluster.endpoint(_key(second), Direction.INGRESS, packet)


def _node(endpoint: Endpoint | None) -> str:
    return (endpoint.spec.node or "") if endpoint is not None else ""


def _host(cluster: Cluster, host: HostEndpoint, direction: Direction, packet: Packet) -> Verdict:
    """EX3."""
    for stage in _HOST_STAGES:
        verdict = cluster.endpoint(_key(host), direction, packet, stage=stage)
        if verdict.outcome is not Outcome.UNDECIDED:
            return verdict
    raise AssertionError("the normal stage always decides")


def settings_of(spec: FelixConfigurationSpec) -> Settings:
    """The parameters of FelixConfiguration `default` that verdicts depend on."""
    defaults = Settings()

    def given(value: Any, default: Any) -> Any:
        return default if value is None else value

    return Settings(
        allow_vxlan_from_workloads=given(spec.allow_vxlan_packets_from_workloads, False),
        allow_ipip_from_workloads=given(spec.allow_ipip_packets_from_workloads, False),
        vxlan_port=given(spec.vxlan_port, defaults.vxlan_port),
        endpoint_to_host_action=spec.default_endpoint_to_host_action
        or defaults.endpoint_to_host_action,
        inbound_failsafes=_failsafes(spec.failsafe_inbound_host_ports, defaults.inbound_failsafes),
        outbound_failsafes=_failsafes(
            spec.failsafe_outbound_host_ports, defaults.outbound_failsafes
        ),
    )


def _failsafes(
    ports: tuple[ProtoPort, ...] | None, default: tuple[Failsafe, ...]
) -> tuple[Failsafe, ...]:
    if ports is None:
        return default
    return tuple(
        Failsafe(
            _NAMES.get(port.protocol.lower(), 0),
            port.port,
            net.parse_cidr_or_ip(port.net) if port.net else None,
        )
        for port in ports
    )


# -- what is shown -------------------------------------------------------------------------------


def as_text(world: World, packet: Packet, verdicts: Sequence[Verdict]) -> str:
    word = "allowed" if is_allowed(verdicts) else "denied"
    lines = [f"{word}: {describe(packet)}"]
    if not verdicts:
        lines.append("neither end is policed")
    for verdict in verdicts:
        lines.append(
            f"{verdict.direction.value.lower()} of {_shown(verdict.endpoint)}:"
            f" {verdict.outcome.value}"
        )
        lines += [f"  passed tier {step.tier}: {_step(step)}" for step in verdict.trail]
        lines.append(f"  decided by {_decider(verdict)}")
        rule = _rule(world, verdict)
        if rule is not None:
            lines.append(f"  {_rule_text(rule)}")
    return "\n".join(lines)


def as_json(world: World, packet: Packet, verdicts: Sequence[Verdict]) -> str:
    document = {
        "allowed": is_allowed(verdicts),
        "packet": packet_document(packet),
        "verdicts": [_document(world, verdict) for verdict in verdicts],
    }
    return json.dumps(document, indent=2)


def packet_document(packet: Packet) -> dict[str, Any]:
    return {
        "source": str(packet.source),
        "destination": str(packet.destination),
        "protocol": packet.protocol,
        "sourcePort": packet.source_port,
        "destinationPort": packet.destination_port,
        "icmpType": packet.icmp_type,
        "icmpCode": packet.icmp_code,
    }


def _document(world: World, verdict: Verdict) -> dict[str, Any]:
    rule = _rule(world, verdict)
    return {
        "direction": verdict.direction.value,
        "endpoint": _shown(verdict.endpoint),
        "outcome": verdict.outcome.value,
        "reason": verdict.reason.value,
        "tier": verdict.tier or None,
        "policy": _shown(verdict.policy) if verdict.policy else None,
        "profile": verdict.profile or None,
        "ruleIndex": verdict.rule_index,
        "rule": None if rule is None else msgspec.to_builtins(rule),
        "passed": [
            {
                "tier": step.tier,
                "policy": _shown(step.policy) if step.policy else None,
                "ruleIndex": step.rule_index,
                "by": step.passed_by,
            }
            for step in verdict.trail
        ],
    }


def describe(packet: Packet) -> str:
    """tcp 10.0.0.1 -> 10.0.0.2 port 80"""
    names = {number: name for name, number in _NAMES.items()}
    text = f"{names.get(packet.protocol, f'protocol {packet.protocol}')}"
    text += f" {packet.source} -> {packet.destination}"
    if packet.destination_port is not None:
        return f"{text} port {packet.destination_port}"
    if packet.icmp_type is not None:
        return f"{text} type {packet.icmp_type} code {packet.icmp_code}"
    return text


def _shown(key: ResourceKey | None) -> str:
    if key is None:
        return "nobody"
    return f"{key.kind} {key.namespace}/{key.name}" if key.namespace else f"{key.kind} {key.name}"


def _step(step: Step) -> str:
    if step.policy is None:
        return step.passed_by
    return f"{_shown(step.policy)} rule {step.rule_index} ({step.passed_by})"


def _decider(verdict: Verdict) -> str:
    match verdict.reason:
        case Reason.RULE:
            policy = _shown(verdict.policy)
            return f"tier {verdict.tier}, {policy}, rule {verdict.rule_index}"
        case Reason.TIER_DEFAULT:
            return f"the end of tier {verdict.tier}: no rule of its policies matched"
        case Reason.PROFILE_RULE:
            return f"profile {verdict.profile}, rule {verdict.rule_index}"
        case Reason.PROFILE_MISSING:
            return f"profile {verdict.profile}, which does not exist"
        case other:
            return str(other.value)


def _rule(world: World, verdict: Verdict) -> Rule | None:
    if verdict.rule_index is None:
        return None
    if verdict.profile:
        spec = world.profiles[verdict.profile].spec
        ingress = verdict.direction is Direction.INGRESS
        return (spec.ingress if ingress else spec.egress)[verdict.rule_index]
    (found,) = (
        policy for tier in world.tiers for policy in tier.policies if policy.key == verdict.policy
    )
    return found.rules(verdict.direction)[verdict.rule_index]


def _rule_text(rule: Rule) -> str:
    """As it is stored, in one line, without its annotations."""
    text: bytes = msgspec.json.encode(replace(rule, metadata=None))
    return text.decode()
