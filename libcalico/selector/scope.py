"""Scoping: what a policy's and a rule's selectors mean once namespace and service account count.

Layer: pure, above selector.parser. Users: felix.calc, libcalico.policy, typha's spans.

Endpoints carry the labels `projectcalico.org/namespace` and `projectcalico.org/serviceaccount`;
their profiles add the namespace's labels as `pcns.<k>` and the service account's as `pcsa.<k>`.
So every scoped selector is a plain selector over endpoint labels, written here.

Invariants:
  C1  every part is parsed before it is put together, so that an unbalanced text cannot reach
      out of its parentheses; a part that does not parse raises SelectorSyntaxError;
  C2  the replacement of `all()` (and `global()`) is textual, as in Calico: it works on the
      canonical text of prefixed parts and on the *given* text of a GlobalNetworkPolicy's
      selector, where `all( )` stays. It is not done for a NetworkPolicy's serviceAccountSelector
      nor for `serviceAccounts.selector`.

Source: Calico libcalico-go/lib/backend/syncersv1/updateprocessors/{rules,selectors,
networkpolicyprocessor,globalnetworkpolicyprocessor}.go and felix/calc/rule_scanner.go
(`combineMatchesIfPossible`); reference/datamodel.md 3.4, 7.3, 7.7, 7.8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from libcalico.selector import ast
from libcalico.selector.parser import parse
from libcalico.selector.selector import Selector

NAMESPACE_LABEL = "projectcalico.org/namespace"
ORCHESTRATOR_LABEL = "projectcalico.org/orchestrator"
SERVICE_ACCOUNT_LABEL = "projectcalico.org/serviceaccount"
NAMESPACE_PREFIX = "pcns."
SERVICE_ACCOUNT_PREFIX = "pcsa."

_IN_A_NAMESPACE = f"has({NAMESPACE_LABEL})"
_IN_NO_NAMESPACE = f"!has({NAMESPACE_LABEL})"
_HAS_A_SERVICE_ACCOUNT = f"has({SERVICE_ACCOUNT_LABEL})"


class ServiceAccounts(Protocol):
    """The `serviceAccounts` of a rule: model's ServiceAccountMatch."""

    @property
    def names(self) -> Sequence[str]: ...
    @property
    def selector(self) -> str | None: ...


class EntityScope(Protocol):
    """The fields of a rule's source or destination that select endpoints: model's EntityRule."""

    @property
    def selector(self) -> str | None: ...
    @property
    def not_selector(self) -> str | None: ...
    @property
    def namespace_selector(self) -> str | None: ...
    @property
    def service_accounts(self) -> ServiceAccounts | None: ...


@dataclass(frozen=True, slots=True)
class EntitySelectors:
    """`positive`: addresses must belong to an endpoint or network set that matches;
    `negative`: addresses must not. Never both: a notSelector beside a positive part is folded in.

    `negative` alone also lets addresses pass that nothing known owns. Named ports of the entity
    are looked up among the endpoints that match `positive`, or among all when it is None.
    """

    positive: Selector | None = None
    negative: Selector | None = None


def prefix(selector: str, label_prefix: str) -> str:
    """The canonical text of `selector` with `label_prefix` before every label name."""
    return parse(selector).prefixed(label_prefix).canonical


def network_policy_selector(
    selector: str, namespace: str, *, service_account_selector: str = ""
) -> str:
    """Which endpoints a NetworkPolicy (or a staged one) of `namespace` applies to."""
    own_namespace = ast.Equal(NAMESPACE_LABEL, namespace).text()
    scoped = f"({_checked(selector)}) && {own_namespace}" if selector else own_namespace
    if service_account_selector:
        scoped = f"({scoped}) && {prefix(service_account_selector, SERVICE_ACCOUNT_PREFIX)}"
    return scoped


def global_policy_selector(
    selector: str, *, namespace_selector: str = "", service_account_selector: str = ""
) -> str:
    """Which endpoints a GlobalNetworkPolicy (or a staged one) applies to."""
    scoped = _checked(selector)
    if namespace_selector:
        scoped = _also(scoped, prefix(namespace_selector, NAMESPACE_PREFIX))
        scoped = scoped.replace("all()", _IN_A_NAMESPACE)
    if service_account_selector:
        scoped = _also(scoped, prefix(service_account_selector, SERVICE_ACCOUNT_PREFIX))
        scoped = scoped.replace("all()", _HAS_A_SERVICE_ACCOUNT)
    return scoped


def entity_selector(entity: EntityScope, namespace: str) -> str:
    """The positive selector of one side of a rule; "" selects by no label at all.

    `namespace`: the policy's, "" for global policies and profiles. A rule of a NetworkPolicy that
    names no selector of any kind is *not* restricted to its namespace.
    """
    scope = _namespace_part(entity.namespace_selector or "", namespace)
    chosen = _both(_service_account_part(entity.service_accounts), _checked(entity.selector or ""))
    if not scope or not (chosen or entity.not_selector or entity.namespace_selector):
        return chosen
    return f"({scope}) && ({chosen})" if chosen else scope


def entity_selectors(entity: EntityScope, namespace: str) -> EntitySelectors:
    """Both selectors of one side of a rule, with a notSelector folded in where it can be."""
    unquotable = "'" in namespace and '"' in namespace  # such a text does not parse
    if namespace and not unquotable and _is_plain(entity):
        return EntitySelectors(_within(parse(entity.selector or ""), namespace))
    positive = entity_selector(entity, namespace)
    negative = _checked(entity.not_selector or "")
    if positive and negative:
        return EntitySelectors(parse(f"({positive}) && (!({negative}))"))
    return EntitySelectors(
        parse(positive) if positive else None,
        parse(negative) if negative else None,
    )


def _is_plain(entity: EntityScope) -> bool:
    """Whether a side has a selector and nothing else that selects by label."""
    others = (entity.not_selector, entity.namespace_selector, entity.service_accounts)
    return bool((entity.selector or "").strip()) and not any(others)


def _within(chosen: Selector, namespace: str) -> Selector:
    """What parsing `(<namespace>) && (<chosen>)` gives, put together: a cluster may have the same
    few selectors in each of 100,000 namespaces."""
    return Selector(ast.And((ast.Equal(NAMESPACE_LABEL, namespace), chosen.root)))


def _checked(selector: str) -> str:
    """`selector` as given, once it is known to parse by itself (C1)."""
    parse(selector)
    return selector


def _also(selector: str, prefixed: str) -> str:
    return f"({selector}) && {prefixed}" if selector else prefixed


def _both(first: str, second: str) -> str:
    return f"({first}) && ({second})" if first and second else first or second


def _namespace_part(namespace_selector: str, namespace: str) -> str:
    if namespace_selector:
        scope = prefix(namespace_selector, NAMESPACE_PREFIX)
        return scope.replace("all()", _IN_A_NAMESPACE).replace("global()", _IN_NO_NAMESPACE)
    return ast.Equal(NAMESPACE_LABEL, namespace).text() if namespace else ""


def _service_account_part(accounts: ServiceAccounts | None) -> str:
    if accounts is None:
        return ""
    by_label = prefix(accounts.selector, SERVICE_ACCOUNT_PREFIX) if accounts.selector else ""
    names = frozenset(accounts.names)
    return _both(by_label, ast.In(SERVICE_ACCOUNT_LABEL, names).text() if names else "")
