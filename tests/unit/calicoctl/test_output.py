"""calicoctl.output, .kinds and .cells: the tables and documents of datamodel 6.6 and 6.7."""

from __future__ import annotations

import json

import pytest

from calicoctl import kinds
from calicoctl.cells import go_float
from calicoctl.kinds import Environment
from calicoctl.output import OutputError, Printer, Result, parse_format, table
from calicoctl.realization import Realization
from libcalico.model.realization import PolicyRealization

POOL = {
    "kind": "IPPool",
    "apiVersion": "projectcalico.org/v3",
    "metadata": {"name": "pool-a", "resourceVersion": "7"},
    "spec": {"cidr": "10.10.0.0/16", "nodeSelector": "all()", "natOutgoing": True},
}


def policy(name: str, namespace: str = "prod", **spec):
    return {
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


def render(kind: str, items, output: str = "ps", *, namespaces: bool = False, as_: str = "64512"):
    result = Result(kinds.find(kind), items, True, "9")
    printer = parse_format(output, lambda path: "")
    shown = Printer(printer.format, printer.argument, namespaces, Environment(as_))
    return shown.render([result])


def test_the_sample_of_the_data_model_to_the_last_blank():
    assert render("ippools", [POOL]) == (
        "NAME     CIDR           SELECTOR   \npool-a   10.10.0.0/16   all()      \n\n"
    )


def test_the_narrowest_column_is_five_wide():
    assert table(["A"], [["x"]]) == "A    \nx    \n\n"


def test_wide_and_custom_columns():
    assert render("pool", [POOL], "wide").splitlines()[0].split() == [
        "NAME",
        "CIDR",
        "NAT",
        "IPIPMODE",
        "VXLANMODE",
        "DISABLED",
        "DISABLEBGPEXPORT",
        "SELECTOR",
        "ASSIGNMENTMODE",
    ]
    custom = render("pool", [POOL], "custom-columns=name,nat")
    assert custom.split() == ["NAME", "NAT", "pool-a", "true"]
    with pytest.raises(OutputError, match=r"unknown heading AGE, valid values are: .*CIDR"):
        render("pool", [POOL], "custom-columns=AGE")


def test_a_namespace_column_leads_where_several_are_asked_for():
    items = [policy("p", tier="default", order=100.5, selector="a == 'b'")]
    assert render("np", items, "wide", namespaces=True).split() == [
        *("NAMESPACE", "NAME", "TIER", "ORDER", "SELECTOR", "REALIZED"),
        *("prod", "p", "default", "100.5", "a", "==", "'b'", "unknown"),
    ]
    assert "NAMESPACE" not in render("pool", [POOL], namespaces=True)
    assert "NAMESPACE" not in render("np", items, "custom-columns=NAME", namespaces=True)


def test_policies_say_on_how_many_nodes_they_are_realized_and_staged_ones_computed():
    nodes = Realization({"n1": PolicyRealization(revisions={"NetworkPolicy": 7})})
    environment = Environment(realization=nodes)
    for alias, kind, heading, cell in (
        ("np", "NetworkPolicy", "REALIZED", "1/1"),
        ("gnp", "GlobalNetworkPolicy", "REALIZED", "0/1 (n1: behind, at revision 0)"),
        ("snp", "StagedNetworkPolicy", "COMPUTED", "0/1 (n1: behind, at revision 0)"),
        ("sgnp", "StagedGlobalNetworkPolicy", "COMPUTED", "0/1 (n1: behind, at revision 0)"),
        ("sknp", "StagedKubernetesNetworkPolicy", "COMPUTED", "0/1 (n1: behind, at revision 0)"),
    ):
        item = policy("p")
        shown = {**item, "kind": kind, "metadata": {**item["metadata"], "resourceVersion": "7"}}
        result = Result(kinds.find(alias), [shown], True, "9")
        head, row = Printer("wide", "", False, environment).render([result]).splitlines()[:2]
        assert head.split()[-1] == heading
        assert row.rstrip().endswith(f" {cell}")
        assert heading not in render(alias, [shown])


def test_an_absent_order_prints_as_a_nil_pointer():
    assert "<nil>" in render("np", [policy("p")], "wide")


def test_tiers_go_by_order_and_those_without_come_last():
    def tier(name, **spec):
        return {"kind": "Tier", "metadata": {"name": name}, "spec": spec}

    shown = render("tier", [tier("z"), tier("b", order=1000000), tier("a", order=1e3)])
    assert shown.split()[2:] == ["a", "1000", "b", "1e+06", "z", "<nil>"]


def test_the_as_number_of_a_node():
    def node(**bgp):
        return {"kind": "Node", "metadata": {"name": "n"}, "spec": {"bgp": bgp} if bgp else {}}

    assert "(64512)" in render("node", [node(ipv4Address="192.0.2.1/24")], "wide")
    assert " 65001 " in render("node", [node(asNumber=65001)], "wide")
    assert "(unknown)" in render("node", [node(ipv4Address="x")], "wide", as_="")
    assert render("node", [node()], "wide").split()[4:] == ["n"]


def test_a_list_is_wrapped_and_one_object_is_not():
    assert json.loads(render("pool", [POOL], "json")) == {
        "apiVersion": "projectcalico.org/v3",
        "items": [POOL],
        "kind": "IPPoolList",
        "metadata": {"resourceVersion": "9"},
    }
    one = Result(kinds.find("pool"), [POOL], False)
    printer = parse_format("json", lambda path: "")
    assert json.loads(printer.render([one])) == POOL
    assert json.loads(printer.render([one, one])) == [POOL, POOL]
    assert not printer.render([one]).endswith("\n")


def test_yaml_is_sorted_flush_and_ends_with_a_newline():
    items = [policy("p", order=100.0, types=["Ingress"])]
    one = Result(kinds.find("np"), items, False)
    assert parse_format("yaml", lambda path: "").render([one]) == (
        "kind: NetworkPolicy\nmetadata:\n  name: p\n  namespace: prod\n"
        "spec:\n  order: 100\n  types:\n  - Ingress\n"
    )


def test_names():
    assert render("pool", [POOL], "name") == "ippool/pool-a\n"


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("xml", "unrecognized output format 'xml'"),
        ("wide=x", "unrecognized output format 'wide=x'"),
        ("custom-columns", "need to specify at least one column"),
        ("go-template", "need to specify a template"),
        ("go-template-file=", "need to specify a template file"),
    ],
)
def test_a_bad_format_is_refused_in_calicos_words(output, message):
    with pytest.raises(OutputError) as caught:
        parse_format(output, lambda path: "")
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1000000, "1e+06"),
        (100.5, "100.5"),
        (999999, "999999"),
        (1234567.5, "1.2345675e+06"),
        (0.00001, "1e-05"),
        (0, "0"),
        (-5, "-5"),
    ],
)
def test_floats_print_as_go_prints_them(value, text):
    assert go_float(float(value)) == text


def test_every_alias_names_one_kind_and_case_does_not_matter():
    aliases = [alias for kind in kinds.KINDS for alias in kind.aliases]
    assert len(aliases) == len(set(aliases))
    assert kinds.find("IPPools") is kinds.find("pool")
    with pytest.raises(kinds.UnknownResourceType, match="resource type 'pods' is not supported"):
        kinds.find("pods")


def test_every_kind_has_a_cell_for_every_heading():
    for kind in kinds.KINDS:
        assert {*kind.ps, *kind.wide} <= set(kind.columns)
        empty = {"metadata": {"name": "x"}}
        for heading in kind.columns:
            kind.columns[heading](empty, Environment())
