"""calicoctl.explain: ends, packets, the way of a packet, and what is said about it."""

from __future__ import annotations

import json

import pytest

from calicoctl import explain
from calicoctl.explain import (
    BadQuestion,
    Cluster,
    as_json,
    as_text,
    find_end,
    judge,
    packet_between,
)
from libcalico import net
from libcalico.model import FelixConfigurationSpec, NodeBGPSpec
from libcalico.model.felix_config import ProtoPort
from libcalico.policy.evaluate import Outcome
from libcalico.policy.packet import Packet
from libcalico.policy.world import Failsafe, Settings
from tests.support import calc
from tests.support.calc import ALLOW, ELSEWHERE, rule

WEB = calc.wep("n1-web", "10.0.0.1", "fd00::1", pod="web", profiles=("kns.prod",))[1]
DB = calc.wep("n1-db", "10.0.0.2", labels={"app": "db"}, pod="db", profiles=("kns.prod",))[1]
NODE = calc.hep("n1-eth0", "192.0.2.1", interface_name="eth0")[1]
FAR_NODE = calc.hep("n2-eth0", "192.0.2.2", interface_name="eth0", node=ELSEWHERE)[1]
OPEN = calc.profile("kns.prod", ingress=ALLOW, egress=ALLOW)[1]
TIERS = (calc.tier("default", 100, "Deny")[1], calc.tier("early", 1, "Pass")[1])
ENDS = (net.parse_ip("10.0.0.1"), net.parse_ip("10.0.0.2"))
BASE = (WEB, DB, NODE, FAR_NODE, OPEN, *TIERS)
ONLY_80 = calc.np(
    "only-80",
    selector="app == 'db'",
    types=("Ingress",),
    ingress=(rule("Log"), rule(protocol="TCP", destination={"ports": (80,)})),
)[1]


class Case:
    """One question to a cluster."""

    def __init__(self, source: str, destination: str, traffic: str, *more, **options) -> None:
        resources = [*BASE, *more]
        first, second = find_end(source, resources), find_end(destination, resources)
        cluster = Cluster.of(resources, options.pop("settings", None), first, second)
        self.world = cluster.world
        self.packet = packet_between(first, second, traffic, **options)
        self.verdicts = judge(cluster, first, second, self.packet)

    @property
    def lines(self) -> list[str]:
        return as_text(self.world, self.packet, self.verdicts).splitlines()

    @property
    def outcomes(self) -> list[tuple[str, Outcome]]:
        return [(v.direction.value, v.outcome) for v in self.verdicts]


# -- ends ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["prod/web", "prod/n1-web", "10.0.0.1", "fd00::1"])
def test_a_workload_is_found_by_pod_name_and_address(text):
    assert find_end(text, BASE).endpoint == WEB


def test_a_host_endpoint_is_found_by_name_and_address():
    assert find_end("n1-eth0", BASE).endpoint == find_end("192.0.2.1", BASE).endpoint == NODE


def test_an_address_of_nobody_is_an_end_too():
    end = find_end("198.51.100.9", BASE)
    assert (end.endpoint, [str(a) for a in end.addresses]) == (None, ["198.51.100.9"])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("prod/nobody", 'prod/nobody: there is no workload "nobody" in namespace "prod"'),
        ("dev/web", 'dev/web: there is no workload "web" in namespace "dev"'),
        ("web", 'web: there is no host endpoint "web" (workloads are NAMESPACE/NAME)'),
        ("bare", "bare: neither the endpoint nor its node has an address"),
        ("", "'': an end is NAMESPACE/POD, the name of a host endpoint, or an address"),
        ("prod/", "prod/: an end is NAMESPACE/POD, the name of a host endpoint, or an address"),
        ("/web", "/web: an end is NAMESPACE/POD, the name of a host endpoint, or an address"),
        ("10.0.0.0/24", "10.0.0.0/24: a network is no end, give one address of it"),
        ("10.0.0.300", "10.0.0.300: invalid IP address"),
        ("fe80::1%eth0", "fe80::1%eth0: invalid IP address"),
        ("prod/two", "prod/two: more than one endpoint, choose one of prod/t1, prod/t2"),
    ],
)
def test_an_end_that_cannot_be_found_is_named(text, reason):
    more = (
        calc.hep("bare", interface_name="eth9")[1],
        *(calc.wep(name, "10.0.1.1", pod="two")[1] for name in ("t2", "t1")),
    )
    with pytest.raises(BadQuestion) as caught:
        find_end(text, (*BASE, *more))
    assert str(caught.value) == reason


def test_a_host_endpoint_without_addresses_has_those_of_its_node():
    """What arrives at them is not nobody's: `*` host endpoints seldom have expectedIPs."""
    node = calc.node("n7", bgp=NodeBGPSpec(ipv4_address="192.0.2.7/24", ipv6_address="fd07::7"))[1]
    star = calc.hep("n7-all", interface_name="*", node="n7")[1]
    resources = (*BASE, node, star)
    found = find_end("n7-all", resources)
    assert [str(a) for a in found.addresses] == ["192.0.2.7", "fd07::7"]
    assert find_end("192.0.2.7", resources).endpoint == star
    assert find_end("192.0.2.8", resources).endpoint is None, "of its network, not its address"
    second = calc.hep("n7-eth1", interface_name="eth1", node="n7")[1]
    with pytest.raises(BadQuestion) as caught:
        find_end("192.0.2.7", (*resources, second))
    assert str(caught.value) == (
        "192.0.2.7: more than one host endpoint, choose one of n7-all, n7-eth1"
    )
    with_others = calc.hep("n7-eth3", "192.0.2.77", interface_name="eth3", node="n7")[1]
    assert find_end("192.0.2.7", (*resources, with_others)).endpoint == star
    own = calc.hep("n7-eth2", "192.0.2.7", interface_name="eth2", node="n7")[1]
    assert find_end("192.0.2.7", (*resources, second, own)).endpoint == own


# -- packets -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("traffic", "packet"),
    [
        ("tcp/80", Packet.tcp("10.0.0.1", "10.0.0.2", 80)),
        ("UDP/53", Packet.udp("10.0.0.1", "10.0.0.2", 53)),
        ("6/80", Packet.tcp("10.0.0.1", "10.0.0.2", 80)),
        ("icmp", Packet.icmp("10.0.0.1", "10.0.0.2", 8)),
        ("icmp/3", Packet.icmp("10.0.0.1", "10.0.0.2", 3)),
        ("icmp/3/1", Packet.icmp("10.0.0.1", "10.0.0.2", 3, code=1)),
        ("47", Packet(*ENDS, 47)),
    ],
)
def test_traffic_is_a_packet(traffic, packet):
    assert packet_between(find_end("prod/web", BASE), find_end("prod/db", BASE), traffic) == packet


def test_the_ip_version_is_ipv4_if_both_have_it_else_what_both_have():
    web, far = find_end("prod/web", BASE), find_end("2001:db8::9", BASE)
    assert packet_between(web, far, "icmp") == Packet.icmp("fd00::1", "2001:db8::9", 128)
    six = calc.wep("six", "10.0.0.6", "fd00::6")[1]
    both = find_end("prod/six", (six,))
    assert packet_between(web, both, "tcp/1").version == 4
    assert packet_between(web, both, "tcp/1", version=6).version == 6
    assert packet_between(web, both, "icmpv6/3") == Packet.icmp("fd00::1", "fd00::6", 3)
    assert packet_between(web, both, "icmp/3") == Packet.icmp("10.0.0.1", "10.0.0.6", 3)
    assert packet_between(web, both, "tcp/1", source_port=7).source_port == 7


@pytest.mark.parametrize(
    ("traffic", "version", "reason"),
    [
        ("tcp", 0, "tcp: needs one port, as in tcp/80"),
        ("tcp/http", 0, "tcp/http: needs one port, as in tcp/80"),
        ("tcp/1:2", 0, "tcp/1:2: needs one port, as in tcp/80"),
        ("tcp/70000", 0, "tcp/70000: needs one port, as in tcp/80"),
        ("tcp/1/2", 0, "tcp/1/2: needs one port, as in tcp/80"),
        ("icmp/x", 0, "icmp/x: ICMP is icmp, icmp/TYPE or icmp/TYPE/CODE"),
        ("icmp/1/2/3", 0, "icmp/1/2/3: ICMP is icmp, icmp/TYPE or icmp/TYPE/CODE"),
        ("icmp/256", 0, "icmp/256: ICMP is icmp, icmp/TYPE or icmp/TYPE/CODE"),
        ("47/1", 0, "47/1: this protocol has no ports"),
        (
            "smoke/1",
            0,
            "smoke: no protocol; known are tcp, udp, sctp, icmp, icmpv6, udplite and 1-255",
        ),
        ("tcp/80", 6, "the two ends have no addresses of IPv6"),
        ("icmpv6", 0, "the two ends have no addresses of IPv6"),
        ("icmpv6/128", 4, "icmpv6/128: is not of IPv4"),
        ("icmp/²", 0, "icmp/²: ICMP is icmp, icmp/TYPE or icmp/TYPE/CODE"),
        ("tcp/²", 0, "tcp/²: needs one port, as in tcp/80"),
        ("", 0, "'': no protocol; known are tcp, udp, sctp, icmp, icmpv6, udplite and 1-255"),
        ("0", 0, "0: no protocol; known are tcp, udp, sctp, icmp, icmpv6, udplite and 1-255"),
        ("٦", 0, "٦: no protocol; known are tcp, udp, sctp, icmp, icmpv6, udplite and 1-255"),
    ],
)
def test_traffic_that_is_none_is_named(traffic, version, reason):
    web, db = find_end("prod/web", BASE), find_end("prod/db", BASE)
    with pytest.raises(BadQuestion) as caught:
        packet_between(web, db, traffic, version=version)
    assert str(caught.value) == reason


# -- the way of a packet -------------------------------------------------------------------------


def test_both_ends_are_asked_and_the_deciding_rule_is_shown():
    case = Case("prod/web", "prod/db", "tcp/80", ONLY_80)
    assert case.lines == [
        "allowed: tcp 10.0.0.1 -> 10.0.0.2 port 80",
        "egress of WorkloadEndpoint prod/n1-web: allow",
        "  decided by profile kns.prod, rule 0",
        '  {"action":"Allow"}',
        "ingress of WorkloadEndpoint prod/n1-db: allow",
        "  decided by tier default, NetworkPolicy prod/only-80, rule 1",
        '  {"action":"Allow","protocol":"TCP","destination":{"ports":[80]}}',
    ]


def test_the_first_denial_ends_the_way():
    """EX1."""
    no_way_out = calc.np("no", types=("Egress",), egress=())[1]
    case = Case("prod/web", "prod/db", "tcp/80", no_way_out)
    assert case.outcomes == [("Egress", Outcome.DENY)]
    assert case.lines[0] == "denied: tcp 10.0.0.1 -> 10.0.0.2 port 80"
    assert case.lines[2] == "  decided by the end of tier default: no rule of its policies matched"


def test_the_trail_of_tiers_that_were_passed():
    early = calc.gnp("early", tier="early", types=("Ingress",), ingress=(rule("Pass"),))[1]
    quiet = calc.gnp("quiet", tier="early", types=("Egress",), egress=())[1]
    case = Case("prod/web", "prod/db", "tcp/81", ONLY_80, early, quiet)
    assert case.lines[2] == "  passed tier early: default action Pass"
    assert "  passed tier early: GlobalNetworkPolicy early rule 0 (Pass rule)" in case.lines
    assert case.outcomes[-1] == ("Ingress", Outcome.DENY)


def test_what_is_nobodys_is_not_policed():
    """EX1."""
    case = Case("198.51.100.1", "198.51.100.2", "udp/53")
    assert case.lines == [
        "allowed: udp 198.51.100.1 -> 198.51.100.2 port 53",
        "neither end is policed",
    ]
    assert Case("198.51.100.1", "prod/db", "tcp/80").outcomes == [("Ingress", Outcome.ALLOW)]


def test_a_workload_that_talks_to_its_host_meets_the_hosts_own_action():
    """EX2."""
    case = Case("prod/web", "n1-eth0", "tcp/22")
    assert case.outcomes == [("Egress", Outcome.DENY)]
    assert case.lines[-1] == "  decided by default endpoint to host action"
    accepting = Settings(endpoint_to_host_action="ACCEPT")
    assert Case("prod/web", "n1-eth0", "tcp/22", settings=accepting).outcomes == [
        ("Egress", Outcome.ALLOW)
    ]


def test_a_host_and_its_own_workload_are_not_policed_but_another_nodes_is():
    """EX2."""
    host_open = calc.gnp("out", types=("Egress",), selector="!has(app)", egress=ALLOW)[1]
    deny = calc.np("no", selector="app == 'db'", types=("Ingress",), ingress=())[1]
    near = Case("n1-eth0", "prod/db", "tcp/80", host_open, deny)
    assert near.lines[-1] == "  decided by no endpoint of ours"
    assert near.outcomes == [("Ingress", Outcome.ALLOW)]
    closed = Case("n1-eth0", "prod/db", "tcp/80", deny)
    assert closed.outcomes == near.outcomes, "no host endpoint stands where it leaves"
    far = Case("n2-eth0", "prod/db", "tcp/80", host_open, deny)
    assert far.outcomes == [("Egress", Outcome.ALLOW), ("Ingress", Outcome.DENY)]


def test_what_talks_to_itself_leaves_no_interface():
    assert Case("prod/web", "prod/web", "tcp/80").verdicts == []


def test_a_host_endpoint_is_asked_stage_by_stage():
    """EX3."""
    early = calc.gnp(
        "pre",
        selector="!has(app)",
        pre_dnat=True,
        apply_on_forward=True,
        types=("Ingress",),
        ingress=(rule("Deny", protocol="TCP", destination={"ports": (80,)}),),
    )[1]
    denied = Case("198.51.100.1", "n1-eth0", "tcp/80", early)
    assert denied.lines[2] == "  decided by tier default, GlobalNetworkPolicy pre, rule 0"
    untouched = Case("198.51.100.1", "n1-eth0", "tcp/81", early)
    assert untouched.lines[-1] == "  decided by no policy or profile matched"
    failsafe = Case("198.51.100.1", "n1-eth0", "tcp/22", early)
    assert failsafe.lines[-1] == "  decided by failsafe port"


def test_a_profile_that_is_missing_and_one_that_decides():
    lost = calc.wep("lost", "10.0.0.7", profiles=("nowhere",))[1]
    case = Case("prod/web", "prod/lost", "tcp/80", lost)
    assert case.lines[-1] == "  decided by profile nowhere, which does not exist"


def test_json_holds_the_same():
    case = Case("prod/web", "prod/db", "tcp/80", ONLY_80)
    found = json.loads(as_json(case.world, case.packet, case.verdicts))
    assert found["allowed"] is True
    assert found["packet"]["destinationPort"] == 80
    assert found["verdicts"][1] == {
        "direction": "Ingress",
        "endpoint": "WorkloadEndpoint prod/n1-db",
        "outcome": "allow",
        "reason": "policy rule",
        "tier": "default",
        "policy": "NetworkPolicy prod/only-80",
        "profile": None,
        "ruleIndex": 1,
        "rule": {"action": "Allow", "protocol": "TCP", "destination": {"ports": [80]}},
        "passed": [],
    }


def test_descriptions_of_packets():
    assert explain.describe(Packet.icmp("fd00::1", "fd00::2", 128)) == (
        "icmpv6 fd00::1 -> fd00::2 type 128 code 0"
    )
    assert explain.describe(Packet(*ENDS, 47)) == "protocol 47 10.0.0.1 -> 10.0.0.2"


def test_settings_come_from_the_felix_configuration():
    assert explain.settings_of(FelixConfigurationSpec()) == Settings()
    ports = (ProtoPort(protocol="tcp", port=22, net="10.0.0.0/8"),)
    spec = FelixConfigurationSpec(
        default_endpoint_to_host_action="Accept",
        vxlan_port=4790,
        allow_ipip_packets_from_workloads=True,
        failsafe_inbound_host_ports=ports,
        failsafe_outbound_host_ports=(),
    )
    found = explain.settings_of(spec)
    assert (found.endpoint_to_host_action, found.vxlan_port) == ("Accept", 4790)
    assert (found.allow_ipip_from_workloads, found.allow_vxlan_from_workloads) == (True, False)
    (failsafe,) = found.inbound_failsafes
    assert (failsafe.protocol, failsafe.port, str(failsafe.net)) == (6, 22, "10.0.0.0/8")
    assert isinstance(failsafe, Failsafe)
    assert found.outbound_failsafes == ()
