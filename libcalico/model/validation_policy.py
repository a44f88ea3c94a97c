"""Tables for tiers, policies, rules, network sets and profiles.

Layer: libcalico.model, pure. User: validation.

Source: reference/datamodel.md 1.9, 4.4, 7.5; Calico LCG/validator/v3/validator.go and
api/pkg/apis/projectcalico/v3/{policy_common,networkpolicy,globalnetworkpolicy,tier,staged*}.go.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from libcalico.errors import SelectorSyntaxError
from libcalico.model import scalars
from libcalico.model.defaults import BUILT_IN_TIERS
from libcalico.model.meta import Model
from libcalico.model.policy import (
    EntityRule,
    GlobalNetworkPolicy,
    GlobalNetworkPolicySpec,
    GlobalNetworkSet,
    GlobalNetworkSetSpec,
    HTTPMatch,
    HTTPPath,
    ICMPFields,
    NetworkPolicy,
    NetworkPolicySpec,
    NetworkSet,
    NetworkSetSpec,
    ProfileSpec,
    Rule,
    RuleMetadata,
    ServiceAccountMatch,
    ServiceMatch,
    StagedGlobalNetworkPolicy,
    StagedGlobalNetworkPolicySpec,
    StagedKubernetesNetworkPolicy,
    StagedKubernetesNetworkPolicySpec,
    StagedNetworkPolicy,
    StagedNetworkPolicySpec,
    Tier,
    TierSpec,
)
from libcalico.model.validation_metadata import (
    check_global_policy_name,
    check_network_set_labels,
    check_policy_name,
    check_rule_annotations,
    check_tier_name,
)
from libcalico.model.validation_rules import Cel, GoCheck, Member, Report, StructRules, gte, lte
from libcalico.model.validation_tags import CIDR, LABELS, NAME, NET, SELECTOR, cidr_of
from libcalico.selector import parser

_NEEDS_PORT_PROTOCOL = "rules that specify ports must set protocol to TCP or UDP or SCTP"
_NUMERIC_NEEDS_PROTOCOL = (
    "rules with numeric port or port range must set protocol to TCP or UDP or SCTP"
)
_GLOBAL_ONLY_IN_ENTITY = "global() can only be used in an EntityRule namespaceSelector"
_GLOBAL_ALONE = "global() cannot be combined with other selectors"
_STAGED_DELETE = "Spec fields, except Tier, should all be zero-value if stagedAction is Delete"
_STAGED_DELETE_K8S = "Spec fields should all be zero-value if stagedAction is Delete"
_TYPES = ("Ingress", "Egress")
_STAGED_ACTIONS = ("Set", "Delete", "Learn", "Ignore")

_SELECTOR = Member(tags=(SELECTOR,), max_length=1024)
_NETS = Member(each=(NET,), max_items=256, unique=True)
_PORTS = Member(max_items=50)


def _names_global(text: str | None) -> bool:
    return text is not None and "global(" in text


# -- one rule ---------------------------------------------------------------------------------


def _check_rule(rule: Rule, report: Report) -> None:
    sides = (("Source", rule.source), ("Destination", rule.destination))
    entities = [(name, entity or EntityRule()) for name, entity in sides]
    for name, entity in entities:
        for field, ports in (("Ports", entity.ports), ("NotPorts", entity.not_ports)):
            reason = _port_problem(rule, ports)
            if reason:
                report.reason(f"{name}.{field}", ports, reason)
    seen: set[int] = set()
    for name, entity in entities:
        _scan_nets(rule, f"{name}.Nets", entity.nets, seen, report)
        _scan_nets(rule, f"{name}.NotNets", entity.not_nets, seen, report)


def _port_problem(rule: Rule, ports: tuple[int | str, ...]) -> str:
    if rule.protocol is None:
        return "" if all(map(_is_named_port, ports)) else _NUMERIC_NEEDS_PROTOCOL
    if ports and _number(rule.protocol) not in scalars.PROTOCOLS_WITH_PORTS:
        return _NEEDS_PORT_PROTOCOL
    return ""


def _is_named_port(port: int | str) -> bool:
    return isinstance(port, str) and not port.replace(":", "").isdigit()


def _number(protocol: int | str) -> int | str:
    return scalars.PROTOCOL_NUMBER_BY_NAME.get(str(protocol), protocol)


def _scan_nets(
    rule: Rule, field: str, nets: tuple[str, ...], seen: set[int], report: Report
) -> None:
    """CIDRs of one list; `seen` collects the families of the rule so far."""
    versions: set[int] = set()
    for text in nets:
        network = cidr_of(text) if "/" in text else None
        if network is None:
            report.reason(field, text, "invalid CIDR")
            continue
        versions.add(network.version)
        if network.prefixlen == 0 and field.endswith("NotNets"):
            reason = "catch-all CIDR in negation creates logical contradiction (matches no traffic)"
            report.reason(field, text, reason)
    if rule.ip_version is not None and versions - {rule.ip_version}:
        report.reason(field, nets, "rule IP version doesn't match CIDR version")
    if len(versions | seen) > 1 and versions:
        report.reason(field, nets, "rule contains both IPv4 and IPv6 CIDRs")
    seen |= versions


def _check_entity(entity: EntityRule, report: Report) -> None:
    """global() may stand in a namespaceSelector, but only alone."""
    text = entity.namespace_selector or ""
    if not _names_global(text):
        return
    try:
        tokens = parser.tokenize(text)
    except SelectorSyntaxError:
        tokens = []
    if len(tokens) != 2 or tokens[0].kind is not parser.Kind.GLOBAL:
        report.reason("NamespaceSelector field", text, _GLOBAL_ALONE)


def _check_http(http: HTTPMatch, report: Report) -> None:
    if len(set(http.methods)) < len(http.methods):
        shown = "[" + " ".join(http.methods) + "]"
        report.reason("Methods", http.methods, f"Invalid methods (duplicates): {shown}")
    for path in http.paths:
        reason = _path_problem(path.exact or "", path.prefix or "")
        if reason:
            paths = tuple(f"{{{p.exact or ''} {p.prefix or ''}}}" for p in http.paths)
            report.reason("Paths", paths, reason)
            return


def _path_problem(exact: str, prefix: str) -> str:
    if exact and prefix:
        return "Invalid path match. Both 'exact' and 'prefix' are set"
    path = exact or prefix
    if not path:
        return "Invalid path match. Either 'exact' or 'prefix' must be set"
    if not path.startswith("/") or set("? #") & set(path):
        # The missing bracket is Calico's.
        return f"Invalid path {path}. (must start with `/` and not contain `?` or `#`"
    return ""


def _is_icmp(protocol: int | str | None, name: str, number: int) -> bool:
    return protocol in (name, number)


def _icmp_version_holds(protocol: str, number: int, version: int) -> Callable[[Rule], bool]:
    def holds(rule: Rule) -> bool:
        named = _is_icmp(rule.protocol, protocol, number)
        return not named or rule.ip_version in (None, version)

    return holds


def _not_icmp_version_holds(protocol: str, number: int, version: int) -> Callable[[Rule], bool]:
    def holds(rule: Rule) -> bool:
        named = _is_icmp(rule.not_protocol, protocol, number)
        return not named or rule.ip_version in (None, version)

    return holds


def _service_ports_hold(rule: Rule) -> bool:
    entity = rule.destination
    if entity is None or entity.services is None:
        return True
    return not entity.ports and not entity.not_ports


def _without_services(*attributes: str) -> Callable[[EntityRule], bool]:
    """Services exclude these members."""

    def holds(entity: EntityRule) -> bool:
        return entity.services is None or not any(getattr(entity, name) for name in attributes)

    return holds


_RULE_CEL = (
    Cel(
        lambda rule: rule.http is None or rule.protocol in (None, "TCP", 6),
        "rules with HTTP match must have protocol TCP or unset",
    ),
    Cel(
        lambda rule: rule.action == "Allow" or rule.http is None,
        "HTTP match is only valid on Allow rules",
    ),
    Cel(_service_ports_hold, "ports and notPorts cannot be specified with services"),
    Cel(
        lambda rule: rule.icmp is None or rule.protocol in ("ICMP", "ICMPv6", 1, 58),
        "ICMP fields require protocol to be ICMP or ICMPv6",
    ),
    Cel(_icmp_version_holds("ICMP", 1, 4), "protocol ICMP requires ipVersion 4"),
    Cel(_icmp_version_holds("ICMPv6", 58, 6), "protocol ICMPv6 requires ipVersion 6"),
    Cel(_not_icmp_version_holds("ICMP", 1, 4), "protocol ICMP requires ipVersion 4"),
    Cel(_not_icmp_version_holds("ICMPv6", 58, 6), "protocol ICMPv6 requires ipVersion 6"),
)

_ENTITY_CEL = (
    Cel(lambda entity: not _names_global(entity.selector), _GLOBAL_ONLY_IN_ENTITY),
    Cel(
        _without_services("namespace_selector"),
        "cannot specify NamespaceSelector and Services on the same rule",
    ),
    Cel(
        lambda entity: entity.services is None or entity.service_accounts is None,
        "cannot specify ServiceAccounts and Services on the same rule",
    ),
    Cel(
        lambda entity: entity.services is None or bool(entity.services.name),
        "services must specify a service name",
    ),
    Cel(
        _without_services("selector", "not_selector"),
        "cannot specify Selector/NotSelector and Services on the same rule",
    ),
    Cel(
        _without_services("nets", "not_nets"),
        "cannot specify Nets/NotNets and Services on the same rule",
    ),
)

# -- policies ---------------------------------------------------------------------------------


def _services_text(services: ServiceMatch) -> str:
    """As Go prints a pointer to the struct."""
    return f"&{{{services.name or ''} {services.namespace or ''}}}"


def _check_policy_spec(spec: Any, report: Report, spec_name: str, http_text: str) -> None:
    """Repeated types, and what may stand on which side of a rule of which direction."""
    for index, type_ in enumerate(spec.types):
        if type_ in spec.types[:index]:
            reason = f"'{type_}' type specified more than once"
            report.reason(f"{spec_name}.Types", spec.types, reason)
    for rule in spec.egress:
        if rule.source is not None and rule.source.services is not None:
            shown = _services_text(rule.source.services)
            report.reason("Services", shown, "not allowed in egress rule source")
        if rule.http is not None:
            report.reason("HTTP", None, http_text)
    for rule in spec.ingress:
        if rule.destination is not None and rule.destination.services is not None:
            shown = _services_text(rule.destination.services)
            report.reason("Services", shown, "not allowed in ingress rule destination")


def _check_network_policy_spec(spec: Any, report: Report) -> None:
    _check_policy_spec(spec, report, "NetworkPolicySpec", "not allowed in egress rule")


def _check_global_policy_spec(spec: Any, report: Report) -> None:
    _check_policy_spec(spec, report, "GlobalNetworkPolicySpec", "not allowed in egress rules")
    entities = [rule.destination for rule in spec.egress] + [rule.source for rule in spec.ingress]
    for entity in entities:
        services = entity.services if entity is not None else None
        if services is not None and not services.namespace:
            report.reason("Namespace", "", "must specify a namespace")


def _staged_check(spec_name: str, check_spec: Callable[[Any, Report], None]) -> GoCheck:
    """A staged deletion says nothing but its tier; any other action is a policy."""

    def check(policy: Any, report: Report) -> None:
        spec = policy.spec
        if spec.staged_action != "Delete":
            check_spec(spec, report)
        elif spec != type(spec)(staged_action="Delete", tier=spec.tier):
            report.reason(spec_name, None, _STAGED_DELETE)

    return check


def _check_staged_kubernetes(policy: StagedKubernetesNetworkPolicy, report: Report) -> None:
    spec = policy.spec
    if spec.staged_action == "Delete" and spec != StagedKubernetesNetworkPolicySpec(
        staged_action="Delete"
    ):
        report.reason("StagedKubernetesNetworkPolicySpec", None, _STAGED_DELETE_K8S)


def _no_global(attribute: str) -> Cel:
    return Cel(lambda spec: not _names_global(getattr(spec, attribute)), _GLOBAL_ONLY_IN_ENTITY)


_POLICY_CEL = (_no_global("selector"), _no_global("service_account_selector"))
_GLOBAL_POLICY_CEL = (
    Cel(
        lambda spec: not (spec.do_not_track and spec.pre_dnat),
        "preDNAT and doNotTrack cannot both be true",
    ),
    Cel(
        lambda spec: not (spec.pre_dnat and spec.egress),
        "preDNAT policy cannot have any egress rules",
    ),
    Cel(
        lambda spec: not (spec.pre_dnat and "Egress" in spec.types),
        "preDNAT policy cannot have 'Egress' type",
    ),
    Cel(
        lambda spec: spec.apply_on_forward or not (spec.do_not_track or spec.pre_dnat),
        "applyOnForward must be true if either preDNAT or doNotTrack is true",
    ),
    *_POLICY_CEL,
    _no_global("namespace_selector"),
)

_POLICY_MEMBERS = {
    "tier": Member(tags=(NAME,)),
    "ingress": Member(max_items=1024),
    "egress": Member(max_items=1024),
    "selector": _SELECTOR,
    "types": Member(each_enum=_TYPES, min_items=1, max_items=2, unique=True),
    "serviceAccountSelector": _SELECTOR,
    "performanceHints": Member(each_enum=("AssumeNeededOnEveryNode",), unique=True),
}
_GLOBAL_POLICY_MEMBERS = _POLICY_MEMBERS | {"namespaceSelector": _SELECTOR}
_STAGED = {"stagedAction": Member(enum=_STAGED_ACTIONS)}

# -- tiers ------------------------------------------------------------------------------------


def _tier_order_holds(name: str, order: float) -> Callable[[Tier], bool]:
    return lambda tier: tier.metadata.name != name or tier.spec.order == order


def _tier_action_holds(name: str, action: str) -> Callable[[Tier], bool]:
    return lambda tier: tier.metadata.name != name or tier.spec.default_action == action


def _tier_rules() -> StructRules:
    order_rules = tuple(
        Cel(_tier_order_holds(name, order), f"{name} tier order must be {order:.0f}")
        for name, (order, _) in BUILT_IN_TIERS.items()
    )
    action_rules = tuple(
        Cel(
            _tier_action_holds(name, action),
            f"The '{name}' tier must have default action '{action}'",
        )
        for name, (_, action) in BUILT_IN_TIERS.items()
    )
    return StructRules(go=(check_tier_name,), cel=order_rules + action_rules)


TABLES: dict[type[Model], StructRules] = {
    Rule: StructRules(
        {
            "action": Member(required=True, enum=("Allow", "Deny", "Log", "Pass")),
            "ipVersion": Member(enum=(4, 6)),
        },
        go=(_check_rule,),
        cel=_RULE_CEL,
    ),
    EntityRule: StructRules(
        {
            "nets": _NETS,
            "selector": _SELECTOR,
            "namespaceSelector": _SELECTOR,
            "ports": _PORTS,
            "notNets": _NETS,
            "notSelector": _SELECTOR,
            "notPorts": _PORTS,
        },
        go=(_check_entity,),
        cel=_ENTITY_CEL,
    ),
    ServiceMatch: StructRules(
        {
            "name": Member(tags=(NAME,), max_length=253),
            "namespace": Member(tags=(NAME,), max_length=253),
        }
    ),
    ServiceAccountMatch: StructRules(
        {"names": Member(unique=True), "selector": Member(tags=(SELECTOR,))}
    ),
    ICMPFields: StructRules(
        {
            "type": Member(tags=(gte(0), lte(254)), minimum=0, maximum=254),
            "code": Member(tags=(gte(0), lte(255)), minimum=0, maximum=255),
        },
        cel=(
            Cel(
                lambda icmp: icmp.code is None or icmp.type is not None,
                "ICMP code specified without an ICMP type",
            ),
        ),
    ),
    HTTPMatch: StructRules(
        {"methods": Member(max_items=20), "paths": Member(max_items=20)}, go=(_check_http,)
    ),
    HTTPPath: StructRules({"exact": Member(max_length=1024), "prefix": Member(max_length=1024)}),
    RuleMetadata: StructRules(go=(check_rule_annotations,)),
    NetworkPolicySpec: StructRules(_POLICY_MEMBERS, cel=_POLICY_CEL),
    NetworkPolicy: StructRules(
        go=(
            check_policy_name,
            lambda policy, report: _check_network_policy_spec(policy.spec, report),
        )
    ),
    GlobalNetworkPolicySpec: StructRules(_GLOBAL_POLICY_MEMBERS, cel=_GLOBAL_POLICY_CEL),
    GlobalNetworkPolicy: StructRules(
        go=(
            check_global_policy_name,
            lambda policy, report: _check_global_policy_spec(policy.spec, report),
        )
    ),
    StagedNetworkPolicySpec: StructRules(_POLICY_MEMBERS | _STAGED, cel=_POLICY_CEL),
    StagedNetworkPolicy: StructRules(
        go=(
            check_policy_name,
            _staged_check("StagedNetworkPolicySpec", _check_network_policy_spec),
        )
    ),
    StagedGlobalNetworkPolicySpec: StructRules(
        _GLOBAL_POLICY_MEMBERS | _STAGED, cel=_GLOBAL_POLICY_CEL
    ),
    StagedGlobalNetworkPolicy: StructRules(
        go=(
            check_global_policy_name,
            _staged_check("StagedGlobalNetworkPolicySpec", _check_global_policy_spec),
        )
    ),
    StagedKubernetesNetworkPolicySpec: StructRules(
        _STAGED | {"policyTypes": Member(each_enum=_TYPES, min_items=1, max_items=2, unique=True)}
    ),
    StagedKubernetesNetworkPolicy: StructRules(go=(_check_staged_kubernetes,)),
    NetworkSetSpec: StructRules({"nets": Member(each=(CIDR,), unique=True)}),
    NetworkSet: StructRules(go=(check_network_set_labels,)),
    GlobalNetworkSetSpec: StructRules({"nets": Member(each=(CIDR,), unique=True)}),
    GlobalNetworkSet: StructRules(go=(check_network_set_labels,)),
    ProfileSpec: StructRules({"labelsToApply": Member(tags=(LABELS,))}),
    TierSpec: StructRules({"defaultAction": Member(enum=("Deny", "Pass"))}),
    Tier: _tier_rules(),
}
