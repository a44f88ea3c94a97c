"""The calculation graph through sequences of datastore states (house-rules 10.7).

Every scenario is a list of named states with what a person expects of this node in each. The
harness runs it in all its expansions; after every step the intents handed out so far must add up to
that expectation, and to exactly what a fresh graph says of the same state (O5). The fake dataplane
refuses a broken order or a dangling reference on the way (O1 to O4, O6).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from felix.testing.dataplane import Contents
from libcalico.model import EntityRule, NodeBGPSpec, ServiceAccountMatch
from libcalico.model.keys import ResourceKey
from libcalico.testing.sequences import Case, Named, cases, drive
from tests.support.calc import (
    ALLOW,
    DENY,
    ELSEWHERE,
    PASS,
    Object,
    Rig,
    gnetset,
    gnp,
    hep,
    netset,
    node,
    np,
    pool,
    profile,
    rule,
    sgnp,
    shown,
    snp,
    state_of,
    tier,
    wep,
)

TierRow = tuple[str, list[str], list[str], bool]


@dataclass(frozen=True)
class Expect:
    """What a person expects; None: no opinion.

    tiers: per local endpoint the rows of its normal stage; members: the sorted union of all address
    sets; policies, profiles: their names.
    """

    tiers: Mapping[str, list[TierRow]] | None = None
    members: list[str] | None = None
    policies: list[str] | None = None
    profiles: list[str] | None = None

    def check(self, contents: Contents, where: str) -> None:
        if self.tiers is not None:
            found = {key.name: shown(item.tiers) for key, item in contents.endpoints.items()}
            assert found == self.tiers, where
        if self.members is not None:
            everyone = frozenset().union(*(members for _, members in contents.sets.values()))
            assert sorted(everyone) == self.members, where
        if self.policies is not None:
            assert sorted(key.name for key in contents.policies) == self.policies, where
        if self.profiles is not None:
            assert sorted(contents.profiles) == self.profiles, where


@dataclass(frozen=True)
class Step:
    name: str
    objects: tuple[Object, ...]
    expect: Expect = field(default_factory=Expect)


def step(name: str, *objects: Object, **expect: object) -> Step:
    return Step(name, objects, Expect(**expect))  # type: ignore[arg-type]


NOTHING = Step("nothing", (), Expect(tiers={}, members=[], policies=[], profiles=[]))

WEB = wep("web", "10.0.0.1", "fd00::1", labels={"app": "web"}, profiles=("kns.prod",))
DB = wep("db", "10.0.0.2", labels={"app": "db"}, profiles=("kns.prod",))
FE = wep("fe", "10.0.1.1", labels={"app": "fe"}, node=ELSEWHERE, profiles=("kns.prod",))
FE2 = wep("fe2", "10.0.1.2", labels={"app": "fe"}, node=ELSEWHERE)
PROD = profile("kns.prod", labels={"pcns.env": "live"}, ingress=ALLOW, egress=ALLOW)
DEV = profile("kns.dev", labels={"pcns.env": "dev"})
OPEN = tier("open", 10, "Pass")


def from_(**entity: object) -> tuple:
    return (rule(source=EntityRule(**entity)),)  # type: ignore[arg-type]


FROM_FE = np(
    "from-fe", selector="app == 'web'", types=("Ingress",), ingress=from_(selector="app == 'fe'")
)
EVERY_FROM_FE = gnp("from-fe", types=("Ingress",), ingress=from_(selector="app == 'fe'"))
ROW = [("default", ["from-fe"], [], True)]

SCENARIOS: dict[str, list[Step]] = {
    "an endpoint and its policy": [
        step("endpoint", WEB, tiers={"web": []}, profiles=["kns.prod"], policies=[]),
        step("policy", WEB, FROM_FE, tiers={"web": ROW}, members=[]),
        step("peer", WEB, FROM_FE, FE, tiers={"web": ROW}, members=["10.0.1.1/32"]),
        step("policy only", FROM_FE, FE, tiers={}, members=[], policies=[], profiles=[]),
        step("peer stays, endpoint back", WEB, FE, tiers={"web": []}, members=[]),
    ],
    # The harness's blind spot: deletions with a live referrer, by hand.
    "referents go while referrers stay": [
        step("all", WEB, FROM_FE, FE, PROD, tiers={"web": ROW}, members=["10.0.1.1/32"]),
        step("without peer", WEB, FROM_FE, PROD, members=[]),
        step("without profile", WEB, FROM_FE, FE, profiles=["kns.prod"]),
        step("without policy", WEB, FE, PROD, tiers={"web": []}, members=[]),
        step("without endpoint", FROM_FE, FE, PROD, tiers={}, policies=[], profiles=[]),
    ],
    "one set shared by policies that come and go": [
        step("one", WEB, FE, FROM_FE, policies=["from-fe"], members=["10.0.1.1/32"]),
        step(
            "two",
            WEB,
            FE,
            FROM_FE,
            np("again", ingress=from_(selector="app == 'fe'")),
            policies=["again", "from-fe"],
        ),
        step(
            "other", WEB, FE, np("again", ingress=from_(selector="app == 'fe'")), policies=["again"]
        ),
        step(
            "moved to another selector",
            WEB,
            FE,
            DB,
            np("again", ingress=from_(selector="app == 'db'")),
            members=["10.0.0.2/32"],
        ),
    ],
    "members come, go and change addresses": [
        step("one", WEB, EVERY_FROM_FE, FE, members=["10.0.1.1/32"]),
        step("two", WEB, EVERY_FROM_FE, FE, FE2, members=["10.0.1.1/32", "10.0.1.2/32"]),
        step(
            "renumbered",
            WEB,
            EVERY_FROM_FE,
            wep("fe", "10.0.1.2", "fd00::9", labels={"app": "fe"}, node=ELSEWHERE),
            FE2,
            members=["10.0.1.2/32", "fd00::9/128"],
        ),
        step(
            "relabelled",
            WEB,
            EVERY_FROM_FE,
            wep("fe", "10.0.1.1", labels={"app": "no"}, node=ELSEWHERE),
            members=[],
        ),
        step(
            "as network set too",
            WEB,
            EVERY_FROM_FE,
            FE,
            gnetset("g", "10.0.1.1", "0.0.0.0/0", labels={"app": "fe"}),
            members=["0.0.0.0/1", "10.0.1.1/32", "128.0.0.0/1"],
        ),
    ],
    "labels that profiles hand down": [
        step(
            "no profile",
            WEB,
            FE,
            gnp("live", namespace_selector="env == 'live'"),
            tiers={"web": []},
        ),
        step(
            "live",
            WEB,
            FE,
            PROD,
            gnp("live", namespace_selector="env == 'live'"),
            tiers={"web": [("default", ["live"], ["live"], True)]},
        ),
        step(
            "dev",
            WEB,
            FE,
            profile("kns.prod", labels={"pcns.env": "dev"}),
            gnp("live", namespace_selector="env == 'live'"),
            tiers={"web": []},
        ),
        step(
            "in a rule",
            WEB,
            FE,
            PROD,
            np("p", types=("Ingress",), ingress=from_(namespace_selector="env == 'live'")),
            members=["10.0.0.1/32", "10.0.1.1/32", "fd00::1/128"],
        ),
        step(
            "namespaced set",
            WEB,
            PROD,
            DEV,
            netset("s", "192.0.2.0/24", namespace="dev"),
            np("p", types=("Ingress",), ingress=from_(namespace_selector="env == 'dev'")),
            members=["192.0.2.0/24"],
        ),
    ],
    "tiers appear, move, change their action and vanish": [
        step(
            "missing",
            WEB,
            gnp("o", tier="open"),
            gnp("d"),
            tier("default", 100),
            tiers={"web": [("default", ["d"], ["d"], True), ("open", ["o"], ["o"], True)]},
        ),
        step(
            "there",
            WEB,
            OPEN,
            gnp("o", tier="open"),
            gnp("d"),
            tier("default", 100),
            tiers={"web": [("open", ["o"], ["o"], False), ("default", ["d"], ["d"], True)]},
        ),
        step(
            "moved",
            WEB,
            tier("open", 1000, "Pass"),
            gnp("o", tier="open"),
            gnp("d"),
            tier("default", 100),
            tiers={"web": [("default", ["d"], ["d"], True), ("open", ["o"], ["o"], False)]},
        ),
        step(
            "denies",
            WEB,
            tier("open", 10, "Deny"),
            gnp("o", tier="open"),
            tiers={"web": [("open", ["o"], ["o"], True)]},
        ),
        step(
            "policy moved to it",
            WEB,
            OPEN,
            gnp("d", tier="open"),
            tiers={"web": [("open", ["d"], ["d"], False)]},
        ),
        step("empty", WEB, OPEN, tiers={"web": []}),
    ],
    "policies change their order, types and selectors": [
        step(
            "ab",
            WEB,
            np("a", order=1),
            np("b", order=2),
            tiers={"web": [("default", ["a", "b"], ["a", "b"], True)]},
        ),
        step(
            "ba",
            WEB,
            np("a", order=3),
            np("b", order=2),
            tiers={"web": [("default", ["b", "a"], ["b", "a"], True)]},
        ),
        step(
            "tie", WEB, np("a"), np("b"), tiers={"web": [("default", ["a", "b"], ["a", "b"], True)]}
        ),
        step(
            "one way each",
            WEB,
            np("a", types=("Ingress",), ingress=DENY),
            np("b", types=("Egress",), egress=PASS),
            tiers={"web": [("default", ["a"], ["b"], True)]},
        ),
        step(
            "one endpoint each",
            WEB,
            DB,
            np("a", selector="app == 'web'"),
            np("b", selector="app == 'db'"),
            tiers={
                "web": [("default", ["a"], ["a"], True)],
                "db": [("default", ["b"], ["b"], True)],
            },
        ),
        step(
            "swapped",
            WEB,
            DB,
            np("a", selector="app == 'db'"),
            np("b", selector="app == 'web'"),
            tiers={
                "web": [("default", ["b"], ["b"], True)],
                "db": [("default", ["a"], ["a"], True)],
            },
        ),
    ],
    "staged policies become real": [
        step(
            "staged",
            WEB,
            FE,
            snp("p", ingress=from_(selector="app == 'fe'")),
            tiers={"web": []},
            policies=["p"],
            members=["10.0.1.1/32"],
        ),
        step(
            "both",
            WEB,
            FE,
            snp("p", ingress=DENY),
            np("p", ingress=ALLOW),
            tiers={"web": [("default", ["p"], ["p"], True)]},
            policies=["p", "p"],
        ),
        step("real", WEB, FE, np("p", ingress=ALLOW), policies=["p"]),
        step(
            "staged only in its tier",
            WEB,
            OPEN,
            sgnp("s", tier="open"),
            gnp("r"),
            tiers={"web": [("default", ["r"], ["r"], True)]},
        ),
        step("staged delete", WEB, snp("p", staged_action="Delete"), policies=[]),
    ],
    "named ports": [
        step(
            "one",
            WEB,
            wep("a", "10.0.2.1", node=ELSEWHERE, ports=[("http", "TCP", 80)]),
            np(
                "p",
                types=("Ingress",),
                ingress=(rule(protocol="TCP", source={"ports": ("http",)}),),
            ),
            members=["10.0.2.1,tcp,80"],
        ),
        step(
            "another number and family",
            WEB,
            wep("a", "10.0.2.1", "fd00::2", node=ELSEWHERE, ports=[("http", "TCP", 81)]),
            np(
                "p",
                types=("Ingress",),
                ingress=(rule(protocol="TCP", source={"ports": ("http",)}),),
            ),
            members=["10.0.2.1,tcp,81", "fd00::2,tcp,81"],
        ),
        step(
            "another protocol",
            WEB,
            wep("a", "10.0.2.1", node=ELSEWHERE, ports=[("http", "UDP", 80)]),
            np(
                "p",
                types=("Ingress",),
                ingress=(rule(protocol="TCP", source={"ports": ("http",)}),),
            ),
            members=[],
        ),
        step(
            "asked for by UDP",
            WEB,
            wep("a", "10.0.2.1", node=ELSEWHERE, ports=[("http", "UDP", 80)]),
            np(
                "p",
                types=("Ingress",),
                ingress=(rule(protocol="UDP", source={"ports": ("http",)}),),
            ),
            members=["10.0.2.1,udp,80"],
        ),
    ],
    "service accounts": [
        step(
            "by name",
            WEB,
            wep("b", "10.0.2.1", node=ELSEWHERE, service_account_name="builder"),
            np("p", ingress=from_(service_accounts=ServiceAccountMatch(names=("builder",)))),
            members=["10.0.2.1/32"],
        ),
        step(
            "by label",
            WEB,
            profile("ksa.prod.builder", labels={"pcsa.role": "build"}),
            wep("b", "10.0.2.1", node=ELSEWHERE, profiles=("ksa.prod.builder",)),
            np("p", ingress=from_(service_accounts=ServiceAccountMatch(selector="has(role)"))),
            members=["10.0.2.1/32"],
        ),
        step(
            "of the policy",
            wep("b", "10.0.2.1", profiles=("ksa.prod.builder",)),
            profile("ksa.prod.builder", labels={"pcsa.role": "build"}),
            np("p", service_account_selector="role == 'build'"),
            tiers={"b": [("default", ["p"], ["p"], True)]},
        ),
    ],
    "host endpoints and the flags of global policies": [
        step("alone", hep("h", interface_name="eth0"), tiers={"h": []}),
        step(
            "all stages",
            hep("h", "192.0.2.1", interface_name="eth0", profiles=("projectcalico-default-allow",)),
            gnp("n"),
            gnp("f", apply_on_forward=True),
            gnp("u", do_not_track=True, apply_on_forward=True),
            gnp("d", pre_dnat=True, apply_on_forward=True),
            tiers={"h": [("default", ["f", "n"], ["f", "n"], True)]},
            profiles=["projectcalico-default-allow"],
            policies=["d", "f", "n", "u"],
        ),
        step(
            "flags swapped",
            hep("h", interface_name="eth0"),
            gnp("n", apply_on_forward=True),
            gnp("f", do_not_track=True, apply_on_forward=True),
            gnp("u", pre_dnat=True, apply_on_forward=True),
            gnp("d"),
            tiers={"h": [("default", ["d", "n"], ["d", "n"], True)]},
        ),
        step(
            "every interface",
            hep("h", interface_name="*"),
            gnp("u", do_not_track=True, apply_on_forward=True),
            tiers={"h": []},
        ),
        step(
            "not ours",
            hep("h", interface_name="eth0", node=ELSEWHERE),
            gnp("n"),
            tiers={},
            policies=[],
        ),
    ],
    "an endpoint moves between nodes and changes its facts": [
        step("here", WEB, EVERY_FROM_FE, tiers={"web": ROW}),
        step("elsewhere", wep("web", "10.0.0.1", node=ELSEWHERE), EVERY_FROM_FE, tiers={}),
        step(
            "relabelled",
            wep("web", "10.0.0.1", labels={"app": "fe"}),
            EVERY_FROM_FE,
            members=["10.0.0.1/32"],
        ),
        step(
            "renamed interface",
            wep("web", "10.0.0.7", interface_name="cali7"),
            EVERY_FROM_FE,
            members=[],
        ),
        step("no address", wep("web"), EVERY_FROM_FE, tiers={}),
        step(
            "invalid",
            wep("web", "10.0.0.1", interface_name=""),
            EVERY_FROM_FE,
            tiers={},
            policies=[],
        ),
    ],
    "invalid objects": [
        step("valid", WEB, FE, FROM_FE, tiers={"web": ROW}),
        step("bad selector", WEB, FE, np("from-fe", selector="app = 'web'"), tiers={"web": []}),
        step(
            "bad rule",
            WEB,
            FE,
            np("from-fe", ingress=from_(selector="app = 'fe'")),
            tiers={"web": []},
            members=[],
            policies=[],
        ),
        step("bad profile", WEB, FE, profile("kns.prod", ingress=from_(nets=("x",)))),
        step(
            "bad set",
            WEB,
            FE,
            EVERY_FROM_FE,
            gnetset("g", "10.0.0.0/99", labels={"app": "fe"}),
            members=["10.0.1.1/32"],
        ),
    ],
    "pools and hosts": [
        step(
            "some",
            pool("a", "10.0.0.0/16", nat_outgoing=True),
            node("n", bgp=NodeBGPSpec(ipv4_address="192.0.2.1/24")),
        ),
        step("changed", pool("a", "10.1.0.0/16"), node("n")),
        step(
            "doubled",
            pool("a", "10.1.0.0/16"),
            pool("b", "10.1.0.0/16", nat_outgoing=True),
            node("m"),
        ),
        step(
            "bad",
            pool("a", "10.1.0.0"),
            pool("b", "10.1.0.0/16"),
            node("n", bgp=NodeBGPSpec(ipv4_address="x")),
        ),
    ],
}

EXPECT_BY_NAME = {
    (scenario, item.name): item.expect for scenario, steps in SCENARIOS.items() for item in steps
}


def fresh(state: Mapping[ResourceKey, object]) -> Contents:
    """What a graph that knows nothing else says of this state."""
    return Rig(*state.items(), fixed_revision=True).contents  # type: ignore[arg-type]


class GraphSubject:
    """The graph behind the fake dataplane, as the harness drives it."""

    def __init__(self, scenario: str) -> None:
        self.scenario = scenario
        self.rig = Rig(fixed_revision=True)

    def change(self, key: ResourceKey, value: object | None) -> None:
        self.rig.change(key, value)

    def settle(self) -> None:
        self.rig.flush()

    def verify(self, state: Mapping[ResourceKey, object], name: str) -> None:
        where = f"{self.scenario}: {name}"
        assert self.rig.contents == fresh(state), where
        step_name = name.rsplit(": ", 1)[1]
        expect = EXPECT_BY_NAME.get((self.scenario, step_name))
        (expect or NOTHING.expect).check(self.rig.contents, where)


def every_case() -> list[tuple[str, Case[ResourceKey]]]:
    found = []
    for scenario, steps in SCENARIOS.items():
        states = [Named(item.name, state_of(*item.objects)) for item in steps]
        found += [(scenario, case) for case in cases(scenario, states)]
    return found


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(scenario):
    for name, case in every_case():
        if name == scenario:
            drive(GraphSubject(scenario), case)


def test_going_from_any_state_of_any_scenario_to_any_other():
    """One long walk: each scenario's states followed by the next one's."""
    walk = [
        Named(item.name, state_of(*item.objects))
        for steps in [*SCENARIOS.values(), *reversed(SCENARIOS.values())]
        for item in steps
    ]
    rig, before = Rig(fixed_revision=True), {}
    for state in walk:
        for key in before.keys() - state.state.keys():
            rig.change(key, None)
        for key, value in state.state.items():
            rig.change(key, value)
        rig.flush()
        assert rig.contents == fresh(state.state), state.name
        before = state.state
