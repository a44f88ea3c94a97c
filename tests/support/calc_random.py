"""Random clusters and packets that have something to do with each other.

A plain generator over `random.Random(seed)`; the seed comes from hypothesis. Whole clusters drawn
field by field by hypothesis would cost a hundred times as much, and most of them would be empty:
here the odds are chosen so that a good part of all verdicts is decided by a policy rule.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, TypeVar

from libcalico import net
from libcalico.model import (
    EntityRule,
    HTTPMatch,
    ICMPFields,
    Resource,
    Rule,
    ServiceAccountMatch,
    ServiceMatch,
)
from libcalico.model.keys import ResourceKey
from libcalico.policy.packet import ICMP, ICMPV6, Packet
from tests.support import calc
from tests.support.calc import ELSEWHERE, HERE, Object

T = TypeVar("T")

NAMESPACES = ("prod", "dev")
ACCOUNTS = ("sa1", "sa2")
SERVICES = ("s1", "s2")
TIERS = ("default", "early", "missing")
ADDRESSES = {
    4: ("10.0.0.1", "10.0.0.2", "10.0.1.1", "10.0.1.2", "192.0.2.1"),
    6: ("fd00::1", "fd00::2", "fd00:1::1", "fd00:1::2", "2001:db8::1"),
}
NETS = {
    4: ("10.0.0.0/24", "10.0.0.1/32", "10.0.0.0/8", "192.0.2.0/24", "0.0.0.0/0"),
    6: ("fd00::/64", "fd00::1/128", "fd00::/16", "2001:db8::/32", "::/0"),
}
UNKNOWN = {4: "203.0.113.9", 6: "2001:db8:ffff::9"}
SELECTORS = (
    "all()",
    "app == 'a'",
    "app != 'a'",
    "has(role)",
    "!has(role)",
    "app in {'a', 'b'}",
    "app not in {'b'}",
    "app == 'a' && role == 'b' || app contains 'b'",
    "projectcalico.org/namespace == 'dev'",
    "has(pcns.env) || has(set)",
)
NAMESPACE_SELECTORS = ("all()", "env == 'x'", "env != 'x'", "has(env)")
PORT_NAMES = ("http", "dns")
PORTS = (80, 53, "80:90", "1:65535", *PORT_NAMES)
WITH_PORTS = ("TCP", "UDP", "SCTP", 6)


class Maker:
    """Everything from one seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    # -- clusters -----------------------------------------------------------------------------

    def cluster(self) -> dict[ResourceKey, Resource]:
        found = [self._workload(index) for index in range(4)]
        found += self._some(0, 2, self._host_endpoint)
        found += self._some(2, 6, self._network_policy)
        found += self._some(2, 6, self._global_policy)
        found += self._some(0, 2, self._staged_policy)
        found += self._some(0, 3, self._network_set)
        found += [self._namespace(name) for name in NAMESPACES if self._chance(0.85)]
        found += [self._account(name) for name in ACCOUNTS if self._chance(0.8)]
        found += self._some(0, 3, self._endpoint_slice)
        found += [self._tier(name) for name in TIERS[:2] if self._chance(0.8)]
        self._random.shuffle(found)
        return dict(found)

    def _workload(self, index: int) -> Object:
        namespace, account = self._pick(NAMESPACES), self._pick((None, *ACCOUNTS))
        listed = [f"kns.{namespace}", *([f"ksa.{account}"] if account else [])]
        both = (ADDRESSES[4][index], ADDRESSES[6][index])
        return calc.wep(
            f"w{index}",
            *self._pick((both, both, both[:1], both[1:])),
            namespace=namespace,
            labels=self._labels(),
            node=HERE if index == 0 else self._pick((HERE, ELSEWHERE)),
            profiles=tuple(self._shuffled(listed)),
            service_account_name=account,
            ports=[
                (name, self._pick(("TCP", "UDP")), self._pick((80, 53)))
                for name in PORT_NAMES
                if self._chance(0.6)
            ],
        )

    def _host_endpoint(self) -> Object:
        return calc.hep(
            self._pick(("h1", "h2")),
            *self._pick(((), (ADDRESSES[4][4],), (ADDRESSES[4][4], ADDRESSES[6][4]))),
            interface_name=self._pick(("eth0", "eth1", "*")),
            labels=self._labels(),
            node=self._pick((HERE, HERE, ELSEWHERE)),
            profiles=self._pick(((), ("kns.prod",), ("projectcalico-default-allow",))),
            ports=[("http", "TCP", 80)] if self._chance(0.5) else [],
        )

    def _network_policy(self) -> Object:
        return calc.np(
            self._pick(("p1", "p2", "p3", "p4")), namespace=self._pick(NAMESPACES), **self._policy()
        )

    def _staged_policy(self) -> Object:
        return calc.snp("s1", namespace=self._pick(NAMESPACES), **self._policy())

    def _global_policy(self) -> Object:
        flags = self._pick(
            (
                {},
                {},
                {},
                {"apply_on_forward": True},
                {"do_not_track": True, "apply_on_forward": True},
                {"pre_dnat": True, "apply_on_forward": True},
            )
        )
        spec = self._policy() | flags
        if self._chance(0.2):
            spec["namespace_selector"] = self._pick(NAMESPACE_SELECTORS)
        if "pre_dnat" in flags:
            spec |= {"types": ("Ingress",), "egress": ()}
        return calc.gnp(self._pick(("g1", "g2", "g3", "g4")), **spec)

    def _policy(self) -> dict[str, Any]:
        return {
            "tier": self._pick((None, *TIERS)),
            "order": self._pick((None, 1.0, 2.5)),
            "selector": self._pick((*[None] * 6, *SELECTORS)),
            "service_account_selector": "has(rank)" if self._chance(0.1) else None,
            "types": self._pick((("Ingress",), ("Egress",), ("Ingress", "Egress"), ())),
            "ingress": self._rules(),
            "egress": self._rules(),
        }

    def _namespace(self, name: str) -> Object:
        labels = {"pcns.env": self._pick(("x", "y"))} if self._chance(0.8) else {}
        return calc.profile(f"kns.{name}", labels=labels, ingress=self._rules(), egress=calc.ALLOW)

    def _account(self, name: str) -> Object:
        rules = self._rules() if self._chance(0.3) else ()
        return calc.profile(f"ksa.{name}", labels={"pcsa.rank": self._pick("xy")}, ingress=rules)

    def _network_set(self) -> Object:
        nets = self._random.sample([*NETS[4], *NETS[6], "10.0.0.2"], self._pick((1, 2)))
        labels = {"set": "s"} | self._labels()
        if self._chance(0.5):
            return calc.netset("s", *nets, labels=labels, namespace=self._pick(NAMESPACES))
        return calc.gnetset(self._pick(("s1", "s2")), *nets, labels=labels)

    def _endpoint_slice(self) -> Object:
        addresses = self._random.sample([*ADDRESSES[4], *ADDRESSES[6]], self._pick((1, 3, 6)))
        ports = self._random.sample([("TCP", 80), ("UDP", 53), ("TCP", 85)], self._pick((0, 1, 2)))
        name, service = self._pick(("e1", "e2", "e3")), self._pick(SERVICES)
        return calc.endpoint_slice(
            name, service, *addresses, ports=ports, namespace=self._pick(NAMESPACES)
        )

    def _tier(self, name: str) -> Object:
        return calc.tier(name, self._pick((None, 1.0, 2.0)), self._pick(("Pass", "Deny", None)))

    def _labels(self) -> dict[str, str]:
        given = {"app": self._pick(("a", "b", "")), "role": self._pick(("a", "b"))}
        return {name: value for name, value in given.items() if self._chance(0.7)}

    # -- rules --------------------------------------------------------------------------------

    def _rules(self) -> tuple[Rule, ...]:
        return tuple(self._rule() for _ in range(self._pick((0, 1, 2, 3, 4, 5))))

    def _rule(self) -> Rule:
        version = self._pick((4, 4, 6))
        icmp_name = "ICMP" if version == 4 else "ICMPv6"
        protocol = self._pick((*[None] * 5, "TCP", "TCP", "UDP", "SCTP", 6, 47, icmp_name))
        fields: dict[str, Any] = {}
        if protocol == icmp_name:
            fields["icmp"] = self._icmp() if self._chance(0.5) else None
            fields["not_icmp"] = self._icmp() if self._chance(0.3) else None
        return Rule(
            action=self._pick(("Allow", "Allow", "Allow", "Deny", "Deny", "Pass", "Pass", "Log")),
            ip_version=version if self._chance(0.15) else None,
            protocol=protocol,
            not_protocol=self._pick(("TCP", "UDP", 47)) if self._chance(0.1) else None,
            http=HTTPMatch(methods=("GET",)) if self._chance(0.02) else None,
            source=self._entity(version, protocol) if self._chance(0.4) else None,
            destination=self._entity(version, protocol) if self._chance(0.4) else None,
            **fields,
        )

    def _icmp(self) -> ICMPFields:
        return ICMPFields(type=self._pick((8, 128)), code=self._pick((None, 0, 1)))

    def _entity(self, version: int, protocol: int | str | None) -> EntityRule:
        fields: dict[str, Any] = {}
        if self._chance(0.25):
            fields["nets"] = tuple(self._random.sample(NETS[version], self._pick((1, 2))))
        if self._chance(0.1):
            fields["not_nets"] = (self._pick(NETS[version][:-1]),)
        if self._chance(0.35):
            fields["selector"] = self._pick(SELECTORS)
        if self._chance(0.12):
            fields["not_selector"] = self._pick(SELECTORS)
        if self._chance(0.15):
            fields["namespace_selector"] = self._pick((*NAMESPACE_SELECTORS, "global()"))
        if self._chance(0.1):
            fields["service_accounts"] = self._pick(
                (
                    ServiceAccountMatch(names=("sa1",)),
                    ServiceAccountMatch(selector="rank == 'x'"),
                    ServiceAccountMatch(names=ACCOUNTS, selector="has(rank)"),
                )
            )
        if self._chance(0.05):
            namespace = self._pick((None, *NAMESPACES))
            fields["services"] = ServiceMatch(name=self._pick(SERVICES), namespace=namespace)
        if protocol in WITH_PORTS and self._chance(0.35):
            fields["ports"] = tuple(self._random.sample(PORTS, self._pick((1, 2))))
        if protocol in WITH_PORTS and self._chance(0.1):
            fields["not_ports"] = (self._pick(PORTS),)
        return EntityRule(**fields)

    # -- packets ------------------------------------------------------------------------------

    def packet(self) -> Packet:
        version = self._pick((4, 4, 6))
        source, destination = (
            net.parse_ip(self._pick((*ADDRESSES[version], UNKNOWN[version]))) for _ in range(2)
        )
        protocol = self._pick((6, 6, 6, 17, 17, 132, 47, ICMP if version == 4 else ICMPV6))
        if protocol in (6, 17, 132):
            ports = (self._pick((80, 53, 85, 4000)), self._pick((80, 53, 85, 4000)))
            return Packet(source, destination, protocol, *ports)
        if protocol in (ICMP, ICMPV6):
            kind, code = self._pick((8, 128, 3)), self._pick((0, 1))
            return Packet(source, destination, protocol, icmp_type=kind, icmp_code=code)
        return Packet(source, destination, protocol)

    # -- dice ---------------------------------------------------------------------------------

    def _pick(self, choices: Sequence[T]) -> T:
        return self._random.choice(choices)

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _shuffled(self, items: Sequence[T]) -> list[T]:
        return self._random.sample(list(items), len(items))

    def _some(self, low: int, high: int, make: Any) -> list[Object]:
        return [make() for _ in range(self._random.randint(low, high))]
