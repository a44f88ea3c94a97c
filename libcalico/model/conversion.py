"""Kubernetes objects -> our objects: NetworkPolicy, Namespace, ServiceAccount, pod labels.

Layer: libcalico.model, pure. Used by controllers and cni. Input is the Kubernetes object as plain
JSON values; output is a resource and warnings for a person.

  CV1  fail closed: a peer that cannot be converted matches nothing, a rule with a port that cannot
       be converted is left out, and a warning names it. (Calico lets a peer with a bad CIDR match
       everyone; datamodel §7.1.) What cannot be converted at all raises InvalidInput;
  CV2  equal input gives equal output: protocols sorted, ports merged, no clock, no ids.

Source: datamodel §5.5, §5.6, §7.1, §7.2; Calico libcalico-go/lib/backend/k8s/conversion.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from libcalico import net, selector
from libcalico.errors import InvalidInput, SelectorSyntaxError
from libcalico.model.meta import (
    NAMESPACE_LABEL,
    ORCHESTRATOR_LABEL,
    SERVICE_ACCOUNT_LABEL,
    ObjectMeta,
    Resource,
)
from libcalico.model.names import (
    K8S_ORCHESTRATOR,
    NAMESPACE_LABEL_PREFIX,
    SERVICE_ACCOUNT_LABEL_PREFIX,
    k8s_policy_name,
    namespace_profile_name,
    service_account_profile_name,
)
from libcalico.model.policy import (
    EntityRule,
    NetworkPolicy,
    NetworkPolicySpec,
    Profile,
    ProfileSpec,
    Rule,
)
from libcalico.model.scalars import PROTOCOLS_WITH_PORTS, PortRange, parse_port, protocol_number

K8S_POLICY_ORDER = 1000.0
_POD_SELECTOR = f"{ORCHESTRATOR_LABEL} == '{K8S_ORCHESTRATOR}'"
_ALLOW = (Rule(action="Allow"),)
# A rule may hold this many ports (datamodel §4.4); longer lists become several rules.
_MAX_PORTS = 50

_LABEL_NAME = re.compile(r"[A-Za-z0-9_./-]+")

_R = TypeVar("_R", bound=Resource)


@dataclass(frozen=True, slots=True)
class Converted(Generic[_R]):
    """What came out, and what a person should know about it."""

    resource: _R
    warnings: tuple[str, ...] = ()


class _Unconvertible(Exception):
    """A part of the object has no safe counterpart; caught per peer or per rule."""


@dataclass(slots=True)
class _Warnings:
    """Collects texts, each prefixed with the place it is about."""

    texts: list[str] = field(default_factory=list)

    def add(self, place: str, reason: object) -> None:
        self.texts.append(f"{place}: {reason}")


def network_policy(k8s: dict[str, Any]) -> Converted[NetworkPolicy]:
    """A networking/v1 NetworkPolicy as the NetworkPolicy `knp.default.<name>`.

    Errors: InvalidInput when it has no name, or a podSelector that cannot be expressed.
    """
    name, namespace = _identity(k8s)
    spec = _mapping(k8s.get("spec"), "spec")
    try:
        pods = pod_selector(_mapping(spec.get("podSelector"), "spec.podSelector"))
    except _Unconvertible as err:
        raise InvalidInput(f"NetworkPolicy {namespace}/{name}: spec.podSelector: {err}") from err
    warnings = _Warnings()
    policy = NetworkPolicy(
        metadata=ObjectMeta(name=k8s_policy_name(name), namespace=namespace),
        spec=NetworkPolicySpec(
            tier="default",
            order=K8S_POLICY_ORDER,
            ingress=_rules(spec, "ingress", warnings),
            egress=_rules(spec, "egress", warnings),
            selector=pods,
            types=_policy_types(spec),
        ),
    )
    return Converted(policy, tuple(warnings.texts))


def _identity(k8s: dict[str, Any]) -> tuple[str, str]:
    metadata = _mapping(k8s.get("metadata"), "metadata")
    name = metadata.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidInput("a Kubernetes object without a name")
    return name, str(metadata.get("namespace") or "")


def _mapping(value: Any, place: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidInput(f"{place} is not an object")
    return value


def _listing(value: Any, place: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise InvalidInput(f"{place} is not a list")
    return value


def _policy_types(spec: dict[str, Any]) -> tuple[str, ...]:
    given = _listing(spec.get("policyTypes"), "spec.policyTypes")
    return tuple(kind for kind in ("Ingress", "Egress") if kind in given) or ("Ingress",)


def pod_selector(k8s: dict[str, Any] | None) -> str:
    """A LabelSelector over pods; none at all means every pod."""
    terms = [_POD_SELECTOR, *_terms(k8s or {})]
    return _checked(" && ".join(terms))


def namespace_selector(k8s: dict[str, Any] | None) -> str | None:
    """A LabelSelector over namespaces: None when absent, `all()` when present and empty."""
    if k8s is None:
        return None
    return _checked(" && ".join(_terms(k8s)) or "all()")


def _checked(text: str) -> str:
    try:
        selector.parse(text)
    except SelectorSyntaxError as err:
        raise _Unconvertible(str(err)) from err
    return text


def _terms(k8s: dict[str, Any]) -> list[str]:
    labels = _labels(k8s.get("matchLabels"))
    terms = [f"{_label_name(key)} == {_quoted(labels[key])}" for key in sorted(labels)]
    expressions = k8s.get("matchExpressions") or []
    if not isinstance(expressions, list):
        raise _Unconvertible("matchExpressions is not a list")
    return terms + [_expression(expression) for expression in expressions]


def _labels(value: Any) -> dict[str, str]:
    labels = value or {}
    if not isinstance(labels, dict) or not all(
        isinstance(key, str) and isinstance(value, str) for key, value in labels.items()
    ):
        raise _Unconvertible("matchLabels is not a map of strings")
    return labels


def _label_name(key: str) -> str:
    # The key becomes selector text: anything else could change the selector's meaning.
    if not _LABEL_NAME.fullmatch(key):
        raise _Unconvertible(f"bad label name {key!r}")
    return key


def _quoted(value: str) -> str:
    # Kubernetes allows neither quote in a label value; the selector language has no escapes.
    return f'"{value}"' if "'" in value else f"'{value}'"


def _expression(k8s: Any) -> str:
    if not isinstance(k8s, dict) or not isinstance(k8s.get("key"), str):
        raise _Unconvertible("a match expression without a key")
    key, operator, values = _label_name(k8s["key"]), k8s.get("operator"), k8s.get("values") or []
    if operator == "Exists":
        return f"has({key})"
    if operator == "DoesNotExist":
        return f"! has({key})"
    word = {"In": "in", "NotIn": "not in"}.get(str(operator))
    if word is None:
        raise _Unconvertible(f"unknown operator {operator!r} for {key}")
    if not isinstance(values, list) or not values:
        raise _Unconvertible(f"operator {operator} for {key} needs a list of strings")
    if not all(isinstance(value, str) for value in values):
        raise _Unconvertible(f"operator {operator} for {key} needs a list of strings")
    return f"{key} {word} {{ {', '.join(_quoted(value) for value in values)} }}"


def _rules(spec: dict[str, Any], direction: str, warnings: _Warnings) -> tuple[Rule, ...]:
    rules: list[Rule] = []
    for index, k8s in enumerate(_listing(spec.get(direction), f"spec.{direction}")):
        place = f"spec.{direction}[{index}]"
        if not isinstance(k8s, dict):
            warnings.add(place, "not an object, rule skipped")
            continue
        try:
            ports = _ports_by_protocol(_listing(k8s.get("ports"), place + ".ports"))
        except (_Unconvertible, InvalidInput) as err:
            warnings.add(place, f"{err}, rule skipped")
            continue
        peer_field = "from" if direction == "ingress" else "to"
        peers = _peers(k8s.get(peer_field), f"{place}.{peer_field}", warnings)
        rules += [
            _rule(protocol, peer, chunk, is_ingress=direction == "ingress")
            for protocol in sorted(ports)
            for peer in peers
            for chunk in _chunks(ports[protocol])
        ]
    return tuple(rules)


def _chunks(ports: Sequence[int | str]) -> Iterable[tuple[int | str, ...]]:
    if not ports:
        return [()]
    return [tuple(ports[i : i + _MAX_PORTS]) for i in range(0, len(ports), _MAX_PORTS)]


def _rule(
    protocol: str, peer: EntityRule, ports: tuple[int | str, ...], *, is_ingress: bool
) -> Rule:
    """One Allow rule. Ports are always the destination's; `peer` is the other side."""
    if is_ingress:
        return Rule(
            action="Allow",
            protocol=protocol or None,
            source=_unless_empty(peer),
            destination=_unless_empty(EntityRule(ports=ports)),
        )
    return Rule(
        action="Allow",
        protocol=protocol or None,
        destination=_unless_empty(replace(peer, ports=ports)),
    )


def _unless_empty(entity: EntityRule) -> EntityRule | None:
    return None if entity == EntityRule() else entity


def _peers(value: Any, place: str, warnings: _Warnings) -> list[EntityRule]:
    """The peers of one rule; an absent or empty list is one peer that matches everyone."""
    if value is None or value == []:
        return [EntityRule()]
    if not isinstance(value, list):
        warnings.add(place, "not a list, the rule matches nothing")
        return []
    peers = []
    for index, k8s in enumerate(value):
        try:
            peers.append(_peer(k8s))
        except _Unconvertible as err:
            warnings.add(f"{place}[{index}]", f"{err}, the peer matches nothing")
    return peers


def _peer(k8s: Any) -> EntityRule:
    if not isinstance(k8s, dict):
        raise _Unconvertible("not an object")
    block = k8s.get("ipBlock")
    if block is not None:
        return _ip_block(block)
    for name in ("podSelector", "namespaceSelector"):
        if not isinstance(k8s.get(name) or {}, dict):
            raise _Unconvertible(f"{name} is not an object")
    return EntityRule(
        selector=pod_selector(k8s.get("podSelector")),
        namespace_selector=namespace_selector(k8s.get("namespaceSelector")),
    )


def _ip_block(block: Any) -> EntityRule:
    if not isinstance(block, dict):
        raise _Unconvertible("ipBlock is not an object")
    cidr = _cidr(block.get("cidr"), "cidr")
    excluded = block.get("except") or []
    if not isinstance(excluded, list):
        raise _Unconvertible("except is not a list")
    networks = [_cidr(item, "except") for item in excluded]
    for network in networks:
        if network.version != cidr.version:
            raise _Unconvertible(f"except {network} is not of the family of {cidr}")
        if network.prefixlen <= cidr.prefixlen and net.overlap(network, cidr):
            raise _Unconvertible(f"except {network} leaves nothing of {cidr}")
    return EntityRule(nets=(str(cidr),), not_nets=tuple(str(network) for network in networks))


def _cidr(value: Any, place: str) -> net.Network:
    try:
        return net.parse_cidr(value if isinstance(value, str) else "")
    except net.AddressError as err:
        raise _Unconvertible(f"bad {place} {value!r}") from err


def _ports_by_protocol(ports: list[Any]) -> dict[str, tuple[int | str, ...]]:
    """Ports by protocol name; no ports means every port, and "" means every protocol."""
    if not ports:
        return {"": ()}
    found: dict[str, list[PortRange | str] | None] = {}
    for k8s in ports:
        if not isinstance(k8s, dict):
            raise _Unconvertible("a port that is not an object")
        protocol = _protocol(k8s.get("protocol") or "TCP")
        if k8s.get("port") is None:
            found[protocol] = None  # all ports: nothing may narrow it again
            continue
        known = found.setdefault(protocol, [])
        if known is not None:
            known.append(_port(k8s["port"], k8s.get("endPort")))
    return {protocol: simplify_ports(ports or []) for protocol, ports in found.items()}


def _protocol(value: Any) -> str:
    try:
        has_ports = protocol_number(str(value)) in PROTOCOLS_WITH_PORTS
    except InvalidInput as err:
        raise _Unconvertible(f"unknown protocol {value!r}") from err
    if not has_ports:
        raise _Unconvertible(f"protocol {value!r} has no ports")
    return str(value)


def _port(port: Any, end_port: Any) -> PortRange | str:
    if isinstance(port, bool) or not isinstance(port, int | str):
        raise _Unconvertible(f"bad port {port!r}")
    if isinstance(port, int) and not 0 < port <= 65535:
        raise _Unconvertible(f"bad port {port}")
    text = str(port) if end_port is None else f"{port}:{end_port}"
    try:
        parsed = parse_port(text)
    except InvalidInput as err:
        raise _Unconvertible(f"bad port {text!r}") from err
    if isinstance(parsed, PortRange) and parsed.first == 0:
        raise _Unconvertible(f"bad port {text!r}")
    return parsed


def simplify_ports(ports: Sequence[PortRange | str]) -> tuple[int | str, ...]:
    """Named ports first, then the numeric ones merged into the fewest ranges (datamodel §7.2).

    With fewer than two numeric port values the list keeps its order.
    """
    ranges = sorted(port for port in ports if isinstance(port, PortRange))
    count = sum(port.last - port.first + 1 for port in ranges)
    if len(ports) <= 1 or count <= 1:
        return tuple(_stored_port(port) for port in ports)
    merged: list[PortRange] = []
    for port in ranges:
        if merged and port.first <= merged[-1].last + 1:
            merged[-1] = PortRange(merged[-1].first, max(merged[-1].last, port.last))
        else:
            merged.append(port)
    named = [port for port in ports if isinstance(port, str)]
    return (*named, *(_stored_port(port) for port in merged))


def _stored_port(port: PortRange | str) -> int | str:
    return port.first if isinstance(port, PortRange) and port.first == port.last else str(port)


def namespace_profile(k8s: dict[str, Any]) -> Converted[Profile]:
    """The profile of a Namespace: allows everything, hands its labels down."""
    name, _ = _identity(k8s)
    labels = _prefixed_labels(k8s, NAMESPACE_LABEL_PREFIX, name)
    spec = ProfileSpec(ingress=_ALLOW, egress=_ALLOW, labels_to_apply=labels)
    return Converted(Profile(metadata=ObjectMeta(name=namespace_profile_name(name)), spec=spec))


def service_account_profile(k8s: dict[str, Any]) -> Converted[Profile]:
    """The profile of a ServiceAccount: no rules, only labels."""
    name, namespace = _identity(k8s)
    labels = _prefixed_labels(k8s, SERVICE_ACCOUNT_LABEL_PREFIX, name)
    metadata = ObjectMeta(name=service_account_profile_name(namespace, name))
    return Converted(Profile(metadata=metadata, spec=ProfileSpec(labels_to_apply=labels)))


def _prefixed_labels(k8s: dict[str, Any], prefix: str, name: str) -> dict[str, str]:
    labels = _mapping(_mapping(k8s.get("metadata"), "metadata").get("labels"), "metadata.labels")
    prefixed = {prefix + key: str(value) for key, value in labels.items()}
    # Last, so that no label of the object can pretend to be the name.
    return {**prefixed, f"{prefix}projectcalico.org/name": name}


def pod_labels(labels: dict[str, str], namespace: str, service_account: str) -> dict[str, str]:
    """The labels of a pod's endpoint: the pod's own and ours, ours winning."""
    result = {
        **labels,
        NAMESPACE_LABEL: namespace,
        ORCHESTRATOR_LABEL: K8S_ORCHESTRATOR,
    }
    # A label value cannot be longer; selection by account then goes through the profile alone.
    if service_account and len(service_account) < 63:
        result[SERVICE_ACCOUNT_LABEL] = service_account
    return result


def pod_profiles(namespace: str, service_account: str) -> tuple[str, ...]:
    """The profiles of a pod's endpoint."""
    profiles = (namespace_profile_name(namespace),)
    if not service_account:
        return profiles
    return (*profiles, service_account_profile_name(namespace, service_account))


def cni_network_profile(network: str, orchestrator: str) -> Profile:
    """The profile made once per CNI network when no policy type is configured (datamodel §5.6).

    Members of the network may talk to each other; under Kubernetes everybody may.
    """
    ingress = _ALLOW
    if orchestrator != K8S_ORCHESTRATOR:
        ingress = (Rule(action="Allow", source=EntityRule(selector=f"has({network})")),)
    return Profile(
        metadata=ObjectMeta(name=network),
        spec=ProfileSpec(ingress=ingress, egress=_ALLOW, labels_to_apply={network: ""}),
    )
