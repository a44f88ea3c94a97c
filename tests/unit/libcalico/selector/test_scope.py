"""libcalico.selector.scope: the rewrites of datamodel 3.4, 7.3, 7.7."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from libcalico.errors import SelectorSyntaxError
from libcalico.selector import parse
from libcalico.selector.scope import (
    entity_selector,
    entity_selectors,
    global_policy_selector,
    network_policy_selector,
    prefix,
)

NS = 'projectcalico.org/namespace == "x"'
HAS_NS = "has(projectcalico.org/namespace)"
HAS_SA = "has(projectcalico.org/serviceaccount)"


@dataclass
class Accounts:
    names: tuple[str, ...] = ()
    selector: str | None = None


@dataclass
class Entity:
    selector: str | None = None
    not_selector: str | None = None
    namespace_selector: str | None = None
    service_accounts: Accounts | None = None


def test_prefix_is_canonical():
    assert prefix("a=='b' && !has(c)", "pcns.") == '(pcns.a == "b" && !has(pcns.c))'


@pytest.mark.parametrize(
    ("selector", "service_accounts", "expected"),
    [
        ("", "", NS),
        ("has(a)", "", f"(has(a)) && {NS}"),
        ("has(a) || has(b)", "", f"(has(a) || has(b)) && {NS}"),
        ("has(a)", "r=='ci'", f'((has(a)) && {NS}) && pcsa.r == "ci"'),
        ("", "all()", f"({NS}) && all()"),  # 7.7: not replaced in a NetworkPolicy
    ],
)
def test_a_network_policy(selector, service_accounts, expected):
    got = network_policy_selector(selector, "x", service_account_selector=service_accounts)
    assert got == expected
    parse(got)


@pytest.mark.parametrize(
    ("selector", "namespaces", "service_accounts", "expected"),
    [
        ("", "", "", ""),
        ("all()", "", "", "all()"),
        ("has(a)", "", "", "has(a)"),
        ("", "t=='b'", "", 'pcns.t == "b"'),
        ("has(a)", "t=='b'", "", '(has(a)) && pcns.t == "b"'),
        ("has(a)", "all()", "", f"(has(a)) && {HAS_NS}"),
        # 7.7: the replacement is textual and covers the policy's own selector, but for `all( )`.
        ("all()", "t=='b'", "", f'({HAS_NS}) && pcns.t == "b"'),
        ("all( )", "t=='b'", "", '(all( )) && pcns.t == "b"'),
        ("", "", "all()", HAS_SA),
        ("has(a)", "", "r=='ci'", '(has(a)) && pcsa.r == "ci"'),
        ("has(a)", "all()", "all()", f"((has(a)) && {HAS_NS}) && {HAS_SA}"),
        ("", "all()", "r=='ci'", f'({HAS_NS}) && pcsa.r == "ci"'),
    ],
)
def test_a_global_network_policy(selector, namespaces, service_accounts, expected):
    got = global_policy_selector(
        selector, namespace_selector=namespaces, service_account_selector=service_accounts
    )
    assert got == expected
    parse(got)


BUILDER = 'projectcalico.org/serviceaccount in {"builder"}'
ENTITIES = [
    # policy namespace, entity, positive selector
    ("", Entity(), ""),
    ("x", Entity(), ""),  # nets or ports alone are not confined to the namespace
    ("", Entity(selector="has(a)"), "has(a)"),
    ("x", Entity(selector="has(a)"), f"({NS}) && (has(a))"),
    ("x", Entity(not_selector="has(a)"), NS),
    ("", Entity(not_selector="has(a)"), ""),
    ("x", Entity(namespace_selector="t=='b'"), 'pcns.t == "b"'),
    ("", Entity(namespace_selector="t=='b'"), 'pcns.t == "b"'),
    ("x", Entity(namespace_selector="all()"), HAS_NS),
    ("x", Entity(namespace_selector="global()"), "!" + HAS_NS),
    ("x", Entity(selector="has(a)", namespace_selector="all()"), f"({HAS_NS}) && (has(a))"),
    # all() of a rule's own selector stays.
    ("x", Entity(selector="all()"), f"({NS}) && (all())"),
    ("", Entity(service_accounts=Accounts(("builder",))), BUILDER),
    ("x", Entity(service_accounts=Accounts(("builder",))), f"({NS}) && ({BUILDER})"),
    ("", Entity(service_accounts=Accounts(selector="r=='ci'")), 'pcsa.r == "ci"'),
    # 7.7: not replaced in serviceAccounts.selector
    ("", Entity(service_accounts=Accounts(selector="all()")), "all()"),
    (
        "",
        Entity(service_accounts=Accounts(("builder",), "r=='ci'")),
        f'(pcsa.r == "ci") && ({BUILDER})',
    ),
    (
        "",
        Entity(selector="has(a)", service_accounts=Accounts(("builder",))),
        f"({BUILDER}) && (has(a))",
    ),
    ("x", Entity(service_accounts=Accounts()), ""),
]


@pytest.mark.parametrize(("namespace", "entity", "expected"), ENTITIES)
def test_one_side_of_a_rule(namespace, entity, expected):
    assert entity_selector(entity, namespace) == expected


def test_a_not_selector_is_folded_into_a_positive_one():
    both = entity_selectors(Entity(selector="has(a)", not_selector="has(b)"), "")
    assert both.negative is None
    assert both.positive == parse("(has(a)) && (!(has(b)))")


def test_a_not_selector_alone_stays_negative_in_a_global_policy():
    alone = entity_selectors(Entity(not_selector="has(b)"), "")
    assert alone.positive is None
    assert alone.negative == parse("has(b)")


def test_7_3_a_not_selector_of_a_network_policy_is_confined_to_the_namespace():
    confined = entity_selectors(Entity(not_selector="has(b)"), "x")
    assert confined.negative is None
    assert confined.positive == parse(f"({NS}) && (!(has(b)))")


def test_nothing_selects_nothing():
    neither = entity_selectors(Entity(), "x")
    assert (neither.positive, neither.negative) == (None, None)


@pytest.mark.parametrize(
    "entity",
    [
        Entity(selector="has(a)) || (all()"),
        Entity(selector="has(a)", not_selector="has(b)) || (all()"),
        Entity(namespace_selector="t"),
        Entity(service_accounts=Accounts(selector="r")),
    ],
)
def test_a_part_that_does_not_parse_by_itself_is_refused(entity):
    with pytest.raises(SelectorSyntaxError):
        entity_selectors(entity, "x")
    for namespace in ("x", ""):
        with pytest.raises(SelectorSyntaxError):
            entity_selectors(entity, namespace)


def test_a_policy_selector_cannot_reach_out_of_its_namespace():
    with pytest.raises(SelectorSyntaxError):
        network_policy_selector("has(a)) || (all()", "x")
    with pytest.raises(SelectorSyntaxError):
        global_policy_selector("has(a)) || (all()", namespace_selector="all()")


def test_a_service_account_name_cannot_break_out_of_its_literal():
    names = ('a", "b', "c")
    positive = entity_selectors(Entity(service_accounts=Accounts(names)), "").positive
    assert positive is not None
    assert not positive.evaluate({"projectcalico.org/serviceaccount": "b"})
    assert positive.evaluate({"projectcalico.org/serviceaccount": 'a", "b'})
