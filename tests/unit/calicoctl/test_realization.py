"""calicoctl.realization: who counts, and what is said of those that do not enforce (RC1, RC2)."""

from __future__ import annotations

from calicoctl.realization import Realization
from libcalico.model.realization import PolicyException, PolicyRealization
from tests.support import calc

WEB, DB = calc.np("web")[0], calc.np("db")[0]


def said(revision: int, *refused: str, unlisted: int = 0) -> PolicyRealization:
    exceptions = tuple(
        PolicyException(kind=WEB.kind, namespace=WEB.namespace, name=name, reason="refused: full")
        for name in refused
    )
    return PolicyRealization(
        revisions={WEB.kind: revision}, exceptions=exceptions, unlisted=unlisted
    )


def shown(revision: int = 7, **nodes: PolicyRealization) -> str:
    return str(Realization(nodes).of(WEB, revision))


def test_a_cluster_without_reports_has_no_nodes():
    assert shown() == "0/0"


def test_nodes_that_have_come_that_far_count():
    assert shown(n1=said(7), n2=said(100), n3=said(8)) == "3/3"


def test_a_node_behind_is_named_with_its_revision():
    assert shown(n2=said(6), n1=said(7)) == "1/2 (n2: behind, at revision 6)"
    assert shown(n1=PolicyRealization(revisions={"GlobalNetworkPolicy": 9})).startswith("0/1")


def test_an_exception_is_told_of_its_policy_and_of_no_other():
    nodes = {"n1": said(9, "web"), "n2": said(9, "db")}
    assert shown(**nodes) == "1/2 (n1: refused: full)"
    assert str(Realization(nodes).of(DB, 7)) == "1/2 (n2: refused: full)"
    elsewhere = calc.np("web", namespace="dev")[0]
    assert str(Realization(nodes).of(elsewhere, 7)) == "2/2"


def test_what_a_node_does_not_list_is_unknown():
    assert shown(n1=said(9, "db", unlisted=2)) == "0/1 (n1: unknown, 2 problems are not listed)"


def test_of_many_nodes_the_first_are_named():
    nodes = {f"n{n}": said(1) for n in range(9)}
    assert shown(**nodes).endswith("n2: behind, at revision 1; and 6 more)")
    assert shown(**nodes).startswith("0/9 (n0: ")
