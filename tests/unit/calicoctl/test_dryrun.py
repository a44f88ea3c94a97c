"""calicoctl.dryrun: which pairs change, and what is asked (DR1 to DR4)."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calicoctl import dryrun
from calicoctl.dryrun import compare, doubts
from calicoctl.explain import BadQuestion, describe
from libcalico.policy.evaluate import evaluate_packet
from libcalico.policy.world import Settings, world_of
from tests.support import calc
from tests.support.calc import ALLOW, DENY, ELSEWHERE, rule
from tests.support.calc_random import Maker

WEB = calc.wep("web", "10.0.0.1", "fd00::1", labels={"app": "web"}, profiles=("kns.prod",))[1]
DB = calc.wep("db", "10.0.0.2", labels={"app": "db"}, profiles=("kns.prod",), node=ELSEWHERE)[1]
LOG = calc.wep("log", "10.0.0.3", "fd00::3", labels={"app": "log"}, profiles=("kns.prod",))[1]
BASE = [
    WEB,
    DB,
    LOG,
    calc.profile("kns.prod", ingress=ALLOW, egress=ALLOW)[1],
    calc.tier("default", 1, "Deny")[1],
    calc.hep("host", "192.0.2.1", interface_name="eth0")[1],
]


def only(port: object, selector: str = "app == 'db'"):
    allow = rule(protocol="TCP", destination={"ports": (port,)}, source={"selector": "has(app)"})
    return calc.np("p", selector=selector, types=("Ingress",), ingress=(allow,))[1]


def said(before, after, **options) -> list[str]:
    report = compare(before, after, **options)
    return [
        f"{'+' if change.is_allowed else '-'} {change.source} {describe(change.packet)}"
        for change in report.changes
    ]


def test_a_new_policy_denies_what_it_does_not_name():
    """DR3: its port, another one, and a ping."""
    assert said(BASE, [*BASE, only(80)]) == [
        "- prod/log icmp 10.0.0.3 -> 10.0.0.2 type 8 code 0",
        "- prod/log tcp 10.0.0.3 -> 10.0.0.2 port 65535",
        "- prod/web icmp 10.0.0.1 -> 10.0.0.2 type 8 code 0",
        "- prod/web tcp 10.0.0.1 -> 10.0.0.2 port 65535",
    ]


def test_an_edited_port_changes_both():
    found = said([*BASE, only(80)], [*BASE, only(81)])
    assert sorted(set(line.split()[0] + line.rsplit(" ", 1)[1] for line in found)) == ["+81", "-80"]


def test_the_traffic_can_be_given():
    assert said([*BASE, only(80)], [*BASE, only(81)], traffic=("tcp/81",)) == [
        "+ prod/log tcp 10.0.0.3 -> 10.0.0.2 port 81",
        "+ prod/web tcp 10.0.0.1 -> 10.0.0.2 port 81",
    ]


def test_both_families_are_asked_where_both_ends_have_them():
    """DR3."""
    found = said(BASE, [*BASE, only(80, "app == 'log'")], traffic=("tcp/1",))
    assert found == [
        "- prod/db tcp 10.0.0.2 -> 10.0.0.3 port 1",
        "- prod/web tcp 10.0.0.1 -> 10.0.0.3 port 1",
        "- prod/web tcp fd00::1 -> fd00::3 port 1",
    ]


def test_labels_sets_profiles_and_orders_are_changes_too():
    """DR2."""
    policy = calc.np(
        "p",
        selector="app == 'db'",
        types=("Ingress",),
        ingress=(rule(source={"selector": "app == 'web'"}),),
    )[1]
    now = [*BASE, policy]
    relabelled = calc.wep(
        "web", "10.0.0.1", "fd00::1", labels={"app": "x"}, profiles=("kns.prod",)
    )[1]
    assert said(
        now, [item for item in now if item is not WEB] + [relabelled], traffic=("6/1",)
    ) == ["- prod/web tcp 10.0.0.1 -> 10.0.0.2 port 1"]
    closed = calc.profile("kns.prod", ingress=DENY, egress=ALLOW)[1]
    without = [item for item in BASE if item.kind != "Profile"]
    assert len(said(BASE, [*without, closed], traffic=("tcp/1",))) == 8
    allow = calc.np("a", order=1.0, selector="app == 'db'", ingress=ALLOW, types=("Ingress",))[1]
    late = calc.np("a", order=9.0, selector="app == 'db'", ingress=ALLOW, types=("Ingress",))[1]
    deny = calc.np("d", order=5.0, selector="app == 'db'", ingress=DENY, types=("Ingress",))[1]
    assert len(said([*BASE, allow, deny], [*BASE, late, deny], traffic=("tcp/1",))) == 2


def test_named_ports_are_asked_by_their_numbers():
    """DR3."""
    named = calc.wep(
        "db", "10.0.0.2", labels={"app": "db"}, ports=[("sql", "TCP", 5432)], profiles=("kns.prod",)
    )[1]
    base = [item for item in BASE if item is not DB] + [named]
    found = said([*base, only("sql")], [*base, only(80)])
    assert "- prod/web tcp 10.0.0.1 -> 10.0.0.2 port 5432" in found


def test_ports_of_rules_that_stay_are_asked_too():
    """DR3: a policy without ports closes what another one had opened."""
    closing = calc.np("a", selector="app == 'db'", types=("Ingress",), ingress=DENY)[1]
    before = [*BASE, only(80)]
    assert said(before, [*before, closing]) == [
        "- prod/log tcp 10.0.0.3 -> 10.0.0.2 port 80",
        "- prod/web tcp 10.0.0.1 -> 10.0.0.2 port 80",
    ]


def test_what_the_other_end_lets_through_is_asked():
    """DR3: the pair changes where the rules of both ends let it."""
    allow = rule(protocol="TCP", destination={"ports": (81,)})
    leaving = calc.np("e", selector="app == 'web'", types=("Egress",), egress=(allow,))[1]
    closing = calc.np("a", selector="app == 'db'", types=("Ingress",), ingress=DENY)[1]
    found = said([*BASE, leaving], [*BASE, leaving, closing])
    assert "- prod/web tcp 10.0.0.1 -> 10.0.0.2 port 81" in found


def test_traffic_of_ipv6_is_asked_of_no_other():
    """And is refused nowhere because a pair has IPv4 too."""
    closing = calc.np("a", selector="app == 'log'", types=("Ingress",), ingress=DENY)[1]
    assert said(BASE, [*BASE, closing], traffic=("icmpv6/128",)) == [
        "- prod/web icmpv6 fd00::1 -> fd00::3 type 128 code 0"
    ]


def test_doubts_about_what_was_given():
    first, second = only(80), only(81)
    staged = calc.snp("s", selector="all()")[1]
    lost = calc.np("l", tier="nosuch", selector="all()")[1]
    assert doubts([first, second, staged, lost], BASE, staged=False) == [
        "NetworkPolicy(prod/p): given more than once, the last one counts",
        "StagedNetworkPolicy(prod/s): is staged and changes nothing; "
        "--staged asks what it would do",
        'NetworkPolicy(prod/l): there is no tier "nosuch": it comes last and denies at its end',
    ]
    tier = calc.tier("nosuch")[1]
    assert doubts([staged, lost], [*BASE, tier], staged=True) == []


def test_what_changes_nothing_asks_nothing():
    """DR2: and a workload that only one of the two has is no end (DR1)."""
    more = calc.wep("new", "10.0.0.9", labels={"app": "new"})[1]
    other = calc.np("o", selector="app == 'nobody'", ingress=DENY)[1]
    assert compare([*BASE, only(80)], [*BASE, only(80)]).asked == 0
    assert compare(BASE, [*BASE, more, other]).asked == 0


def test_too_many_questions_are_refused(monkeypatch):
    """DR4."""
    monkeypatch.setattr(dryrun, "LIMIT", 10)
    with pytest.raises(BadQuestion) as caught:
        compare(BASE, [*BASE, only(80)])
    assert str(caught.value) == (
        "about 12 questions (1 workloads would be governed otherwise, of 3): more than 10,"
        " ask about less with --traffic"
    )


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**64))
def test_it_says_what_the_evaluator_says_of_both_clusters(seed):
    """No change is missed and none made up, for the packets that are asked."""
    maker = Maker(seed)
    before = list(maker.cluster().values())
    kept = [item for item in before if "Policy" not in item.kind]
    after = [*kept, *(item for item in maker.cluster().values() if "Policy" in item.kind)]
    open_settings = Settings(allow_vxlan_from_workloads=True, allow_ipip_from_workloads=True)
    old, new = (world_of(objects, settings=open_settings) for objects in (before, after))
    workloads = [item for item in kept if item.kind == "WorkloadEndpoint"]
    traffic = ("tcp/80", "udp/53", "icmp")
    expected = set()
    for source in workloads:
        for destination in workloads:
            if source is destination:
                continue
            for packet in _packets(source, destination, traffic):
                was, now = (evaluate_packet(world, packet).allowed for world in (old, new))
                if was != now:
                    expected.add((packet, now))
    found = compare(before, after, traffic=traffic).changes
    assert {(change.packet, change.is_allowed) for change in found} == expected


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**64))
def test_no_pair_that_changes_is_missed(seed):
    """DR3: whatever packet of an ordinary client changes, its pair is found without being told."""
    maker = Maker(seed)
    before = list(maker.cluster().values())
    kept = [item for item in before if "Policy" not in item.kind]
    after = [*kept, *(item for item in maker.cluster().values() if "Policy" in item.kind)]
    open_settings = Settings(allow_vxlan_from_workloads=True, allow_ipip_from_workloads=True)
    old, new = (world_of(objects, settings=open_settings) for objects in (before, after))
    workloads = [item for item in kept if item.kind == "WorkloadEndpoint"]
    found = {
        (change.packet.source, change.packet.destination)
        for change in compare(before, after).changes
    }
    for source, destination in itertools.permutations(workloads, 2):
        for plain in _packets(source, destination, ("tcp/1",)):
            for _ in range(30):
                asked = maker.packet()
                if asked.protocol == 0 or asked.version != plain.version:
                    continue
                port = None if asked.source_port is None else plain.source_port
                packet = replace(
                    asked, source=plain.source, destination=plain.destination, source_port=port
                )
                was, now = (evaluate_packet(world, packet).allowed for world in (old, new))
                assert was == now or (packet.source, packet.destination) in found, packet


def _packets(source, destination, traffic):
    ends = [dryrun.End(tuple(dryrun.net.parse_ip(text) for text in item.spec.ip_networks))
            for item in (source, destination)]  # fmt: skip
    for version in (4, 6):
        if all(any(a.version == version for a in end.addresses) for end in ends):
            yield from (dryrun.packet_between(*ends, text, version=version) for text in traffic)
