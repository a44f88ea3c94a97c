"""Policy rules -> compiled rules, with every selector replaced by the id of an address set.

Layer: pure functions. Used by felix.calc for active policies and profiles (the rules of the other
policies are only checked), whose address_sets.py keeps the sets that rules name, and by typha's
spans, which must call the sets by the same ids.

  R1  the compiled list has one entry per rule, `index` is the rule's place: explain and comments
      stay true; a rule that can match nothing is kept as `unmatchable`;
  R2  the same match always gives the same set id, so that rules share sets: Calico's `s:…` ids for
      selectors, `n:…` for named ports under a selector;
  R3  a rule whose nets (negated ones too) are all of one family exists in that family only, and
      protocol ICMP and ICMPv6 imply theirs (reference/datamodel.md 5.2); an address family that a
      negated catch-all excludes is gone as well;
  R4  named ports are looked up for the rule's protocol, TCP when it names none, among the endpoints
      that match the positive selector of that side (7.8);
  R5  what only layer 7 can see (http) counts as not seen: a rule that would let more through
      without the clause (all but Deny) matches nothing;
  R6  services become sets of their endpoints, one of addresses with ports for a destination, one of
      addresses for a source (felix.calc.services).

Source: Calico felix/calc/rule_scanner.go, felix/rules/policy.go (FilterRuleToIPVersion).
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from libcalico import net
from libcalico.compute.members import PortMatch
from libcalico.compute.rules import Action, CompiledRule, EntityMatch, IcmpMatch, PortRange, SetKind
from libcalico.errors import ValidationError
from libcalico.model import EntityRule, ICMPFields, Rule, ServiceMatch
from libcalico.model.scalars import parse_port, protocol_number
from libcalico.selector import Selector, parse, scope

_ACTION_BY_NAME = {
    "Allow": Action.ALLOW,
    "Deny": Action.DENY,
    "Pass": Action.PASS,
    "Log": Action.LOG,
}
_ICMP, _ICMPV6 = 1, 58
_NAMED_PORT_PROTOCOL = {6: "tcp", 17: "udp", 132: "sctp"}
_TCP = 6

# Sets of families as bits.
_V4, _V6 = 1, 2
_BOTH = _V4 | _V6
_VERSION_BY_FAMILIES = {_V4: 4, _V6: 6, _BOTH: None}

_CACHE_SIZE = 1 << 15

# Which well-named namespace scopes a rule never decides whether it compiles, only that one does.
_SOME_NAMESPACE = "namespace"

# Stands for every endpoint when a named port has no selector beside it.
_EVERYTHING = parse("all()")


@dataclass(frozen=True, slots=True)
class SetDefinition:
    """What an address set holds: the addresses, or the addresses with one named port, of all
    endpoints (and network sets) that match."""

    kind: SetKind
    selector: Selector
    port: PortMatch | None = None


@dataclass(frozen=True, slots=True)
class ServiceDefinition:
    """A set that holds the endpoints of one service (namespace, name)."""

    kind: SetKind
    service: tuple[str, str]


AnyDefinition = SetDefinition | ServiceDefinition
SetsById = dict[str, AnyDefinition]
_Needed = tuple[tuple[str, AnyDefinition], ...]


@dataclass(frozen=True, slots=True)
class _Side:
    """One entity compiled, the sets it needs, and the families it can match."""

    match: EntityMatch
    sets: _Needed
    families: int


_ANYTHING = _Side(EntityMatch(), (), _BOTH)


def compile_rules(
    rules: Iterable[Rule], namespace: str, sets: SetsById
) -> tuple[CompiledRule, ...]:
    """Compile in order; adds the needed sets to `sets`.

    `namespace` is the policy's, "" for global policies and profiles.
    Errors: InvalidInput for a selector, port, protocol or net that does not parse.
    """
    compiled = []
    for index, rule in enumerate(rules):
        # Annotations are a dict, which no cache takes.
        compile_one = _compile if rule.metadata is not None else _compile_cached
        found, needed = compile_one(rule, index, namespace)
        sets.update(needed)
        compiled.append(found)
    return tuple(compiled)


def check_rules(rules: Iterable[Rule], namespace: str) -> None:
    """Raise what `compile_rules` would, and keep nothing: for policies that may never be active.

    Equal rules are checked once per process, whatever the namespaces of their policies.
    Errors: InvalidInput.
    """
    well_named = namespace.isascii() and namespace.replace("-", "").isalnum()
    scope_by = _SOME_NAMESPACE if well_named else namespace
    for rule in rules:
        check = _compile if rule.metadata is not None else _compile_cached
        check(rule, 0, scope_by)


def _compile(rule: Rule, index: int, namespace: str) -> tuple[CompiledRule, _Needed]:
    protocol = None if rule.protocol is None else protocol_number(rule.protocol)
    source = _side(rule.source, namespace, protocol, is_source=True)
    destination = _side(rule.destination, namespace, protocol, is_source=False)
    families = source.families & destination.families & _families(rule.ip_version, protocol)
    annotations = tuple(sorted(rule.metadata.annotations.items())) if rule.metadata else ()
    action = _action(rule.action)
    if not families or needs_layer_7(rule):
        return CompiledRule(action, index, unmatchable=True, annotations=annotations), ()
    compiled = CompiledRule(
        action=action,
        index=index,
        ip_version=_VERSION_BY_FAMILIES[families],
        protocol=protocol,
        not_protocol=None if rule.not_protocol is None else protocol_number(rule.not_protocol),
        icmp=_icmp(rule.icmp),
        not_icmp=_icmp(rule.not_icmp),
        source=_of_families(source.match, families),
        destination=_of_families(destination.match, families),
        annotations=annotations,
    )
    return compiled, source.sets + destination.sets


# A cluster repeats the same few thousand rules, and equal rules then share their memory.
_compile_cached = lru_cache(maxsize=_CACHE_SIZE)(_compile)


def needs_layer_7(rule: Rule) -> bool:
    """Whether the rule may only be applied by somebody who reads HTTP (R5)."""
    return rule.http is not None and rule.action != "Deny"


def _action(name: str) -> Action:
    action = _ACTION_BY_NAME.get(name)
    if action is None:
        raise ValidationError.of("Action", name, "must be Allow, Deny, Log or Pass")
    return action


def _families(ip_version: int | None, protocol: int | None) -> int:
    families = {4: _V4, 6: _V6}.get(ip_version or 0, _BOTH)
    if protocol == _ICMP:
        families &= _V4
    elif protocol == _ICMPV6:
        families &= _V6
    return families


def _icmp(fields: ICMPFields | None) -> IcmpMatch | None:
    if fields is None or fields.type is None:
        return None
    return IcmpMatch(fields.type, fields.code)


def _side(
    entity: EntityRule | None, namespace: str, protocol: int | None, *, is_source: bool
) -> _Side:
    if entity is None:
        return _ANYTHING
    return _compile_side(entity, namespace, protocol, is_source=is_source)


@lru_cache(maxsize=_CACHE_SIZE)
def _compile_side(
    entity: EntityRule, namespace: str, protocol: int | None, *, is_source: bool
) -> _Side:
    selectors = scope.entity_selectors(entity, namespace)
    nets, not_nets = _networks(entity.nets), _networks(entity.not_nets)
    ports, names = _split_ports(entity.ports)
    not_ports, not_names = _split_ports(entity.not_ports)
    needed: SetsById = {}
    service = _service_set(entity.services, namespace, needed, is_source=is_source)
    match = EntityMatch(
        nets=tuple(map(str, nets)),
        not_nets=tuple(map(str, not_nets)),
        sets=_address_set(selectors.positive, needed) + (service if is_source else ()),
        not_sets=_address_set(selectors.negative, needed),
        ports=ports,
        named_port_sets=_port_sets(names, selectors.positive, protocol, needed),
        not_ports=not_ports,
        not_named_port_sets=_port_sets(not_names, selectors.positive, protocol, needed),
        ip_port_sets=() if is_source else service,
    )
    families = _families_of(nets) & _families_left(not_nets)
    return _Side(match, tuple(needed.items()), families)


def _networks(texts: tuple[str, ...]) -> list[net.Network]:
    return list(dict.fromkeys(map(net.parse_cidr_or_ip, texts)))


def _split_ports(
    ports: tuple[int | str, ...],
) -> tuple[tuple[PortRange, ...], tuple[str, ...]]:
    """Ranges and names, each in the order given."""
    parsed = [parse_port(port) for port in ports]
    ranges = tuple(PortRange(p.first, p.last) for p in parsed if not isinstance(p, str))
    return ranges, tuple(p for p in parsed if isinstance(p, str))


def _families_of(nets: list[net.Network]) -> int:
    """The families a non-empty list can match; no list matches both."""
    if not nets:
        return _BOTH
    versions = {network.version for network in nets}
    return (_V4 if 4 in versions else 0) | (_V6 if 6 in versions else 0)


def _families_left(not_nets: list[net.Network]) -> int:
    """A list of exceptions in one family only keeps the rule out of the other; a catch-all among
    them leaves nothing of its own family."""
    families = _families_of(not_nets)
    for network in not_nets:
        if network.prefixlen == 0:
            families &= ~(_V4 if network.version == 4 else _V6)
    return families


def _address_set(selector: Selector | None, needed: SetsById) -> tuple[str, ...]:
    if selector is None:
        return ()
    set_id = selector.uid
    needed[set_id] = SetDefinition(SetKind.NET, selector)
    return (set_id,)


def _service_set(
    service: ServiceMatch | None, namespace: str, needed: SetsById, *, is_source: bool
) -> tuple[str, ...]:
    """A service without a namespace is one of the policy's own; a global policy has none."""
    if service is None:
        return ()
    named = (service.namespace or namespace, service.name or "")
    # The beginnings are Calico's.
    kind, prefix = (SetKind.NET, "svcnoport:") if is_source else (SetKind.IP_PORT, "svc:")
    set_id = prefix + _digest(prefix + "/".join(named))
    needed[set_id] = ServiceDefinition(kind, named)
    return (set_id,)


def _port_sets(
    names: tuple[str, ...], selector: Selector | None, protocol: int | None, needed: SetsById
) -> tuple[str, ...]:
    offered = _NAMED_PORT_PROTOCOL.get(_TCP if protocol is None else protocol)
    if names and offered is None:
        reason = "rules that specify ports must set protocol to TCP or UDP or SCTP"
        raise ValidationError.of("Ports", protocol, reason)
    ids = []
    for name in names:
        assert offered is not None
        definition = SetDefinition(
            SetKind.IP_PORT, selector or _EVERYTHING, PortMatch(name, offered)
        )
        set_id = _port_set_id(definition)
        needed[set_id] = definition
        ids.append(set_id)
    return tuple(ids)


def _port_set_id(definition: SetDefinition) -> str:
    assert definition.port is not None
    text = f"n:{definition.selector.canonical},{definition.port.protocol},{definition.port.name}"
    return "n:" + _digest(text)


def _digest(text: str) -> str:
    digest = hashlib.sha224(text.encode("utf-8", "surrogatepass")).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")


def _of_families(match: EntityMatch, families: int) -> EntityMatch:
    """Drop the nets of a family that the rule as a whole cannot match."""
    if families == _BOTH or not (match.nets or match.not_nets):
        return match
    wants_v6 = families == _V6
    nets = tuple(text for text in match.nets if (":" in text) == wants_v6)
    not_nets = tuple(text for text in match.not_nets if (":" in text) == wants_v6)
    if nets == match.nets and not_nets == match.not_nets:
        return match
    return EntityMatch(
        nets=nets,
        not_nets=not_nets,
        sets=match.sets,
        not_sets=match.not_sets,
        ports=match.ports,
        named_port_sets=match.named_port_sets,
        not_ports=match.not_ports,
        not_named_port_sets=match.not_named_port_sets,
        ip_port_sets=match.ip_port_sets,
    )
