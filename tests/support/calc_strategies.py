"""Random resources of a small world: few names, labels and addresses, so that they meet.

Hypothesis strategies for the calc graph's property tests. What they make is valid (the rules of
reference/datamodel.md 4), except where a strategy says otherwise.
"""

from __future__ import annotations

from hypothesis import strategies as st

from libcalico.model import EntityRule, ICMPFields, Rule, ServiceAccountMatch
from tests.support import calc
from tests.support.calc import ELSEWHERE, HERE, Object

NAMESPACES = st.sampled_from(["prod", "dev"])
LABELS = st.dictionaries(
    st.sampled_from(["app", "role"]), st.sampled_from(["a", "b", ""]), max_size=2
)
SELECTORS = st.sampled_from(
    [
        "all()",
        "app == 'a'",
        "app != 'a'",
        "has(role)",
        "!has(role)",
        "app in {'a', 'b'}",
        "app not in {'b'}",
        "role starts with ''",
        "app == 'a' && role == 'b' || app contains 'b'",
        "projectcalico.org/namespace == 'dev'",
        "has(pcns.env)",
    ]
)
NAMESPACE_SELECTORS = st.sampled_from(
    ["all()", "env == 'x'", "env != 'x'", "has(env)", "!has(env)"]
)
ACCOUNTS = st.sampled_from(["sa1", "sa2"])
TIERS = ["default", "early", "missing"]

V4_ADDRESSES = ["10.0.0.1", "10.0.0.2", "10.0.1.1", "192.0.2.1"]
V6_ADDRESSES = ["fd00::1", "fd00::2", "fd00:1::1", "2001:db8::1"]
V4_NETS = ["10.0.0.0/24", "10.0.0.1/32", "10.0.0.0/8", "192.0.2.0/24", "0.0.0.0/0"]
V6_NETS = ["fd00::/64", "fd00::1/128", "fd00::/16", "::/0"]
PORT_NAMES = ["http", "dns"]


def _maybe(strategy: st.SearchStrategy, none: object = None) -> st.SearchStrategy:
    return st.just(none) | strategy


@st.composite
def entities(draw: st.DrawFn, *, v6: bool, with_ports: bool) -> EntityRule | None:
    """One side of a rule; nets of one family, as one rule must have."""
    nets = V6_NETS if v6 else V4_NETS
    not_nets = [text for text in nets if not text.endswith("/0")]
    ports = st.lists(
        st.sampled_from([80, 53, "80:90", "1:65535", *PORT_NAMES]), max_size=2, unique=True
    ).map(tuple)
    fields: dict[str, object] = {
        "nets": draw(st.lists(st.sampled_from(nets), max_size=2, unique=True).map(tuple)),
        "not_nets": draw(
            _maybe(st.lists(st.sampled_from(not_nets), max_size=1).map(tuple), none=())
        ),
        "selector": draw(_maybe(SELECTORS)),
        "not_selector": draw(_maybe(_maybe(SELECTORS))),
        "namespace_selector": draw(_maybe(NAMESPACE_SELECTORS | st.just("global()"))),
        "service_accounts": draw(
            _maybe(
                _maybe(
                    st.builds(
                        ServiceAccountMatch,
                        names=st.lists(ACCOUNTS, max_size=1).map(tuple),
                        selector=_maybe(st.sampled_from(["rank == 'x'", "has(rank)"])),
                    )
                )
            )
        ),
    }
    if with_ports:
        fields["ports"] = draw(ports)
        fields["not_ports"] = draw(_maybe(ports, none=()))
    return draw(_maybe(st.just(EntityRule(**fields))))  # type: ignore[arg-type]


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    v6 = draw(st.booleans())
    protocol = draw(
        st.sampled_from([None, "TCP", "UDP", "SCTP", 6, 47, "ICMPv6" if v6 else "ICMP"])
    )
    has_ports = protocol in ("TCP", "UDP", "SCTP", 6)
    icmp = None
    if protocol in ("ICMP", "ICMPv6"):
        icmp = st.builds(
            ICMPFields, type=st.sampled_from([8, 128]), code=_maybe(st.sampled_from([0, 1]))
        )
    return Rule(
        action=draw(st.sampled_from(["Allow", "Deny", "Pass", "Log"])),
        ip_version=draw(_maybe(st.just(6 if v6 else 4))),
        protocol=protocol,
        not_protocol=draw(_maybe(_maybe(st.sampled_from(["TCP", "UDP", 47])))),
        icmp=draw(_maybe(icmp)) if icmp is not None else None,
        not_icmp=draw(_maybe(icmp)) if icmp is not None else None,
        source=draw(entities(v6=v6, with_ports=has_ports)),
        destination=draw(entities(v6=v6, with_ports=has_ports)),
    )


RULES = st.lists(rules(), max_size=3).map(tuple)
TYPES = st.sampled_from([("Ingress",), ("Egress",), ("Ingress", "Egress"), ()])
ORDERS = _maybe(st.sampled_from([1.0, 2.5]))


@st.composite
def workloads(draw: st.DrawFn, name: str | None = None) -> Object:
    index = draw(st.integers(0, 3))
    v4, v6 = V4_ADDRESSES[index], V6_ADDRESSES[index]
    namespace = draw(NAMESPACES)
    account = draw(_maybe(ACCOUNTS))
    profiles = [f"kns.{namespace}"] + ([f"ksa.{namespace}.{account}"] if account else [])
    return calc.wep(
        name or f"w{index}",
        *draw(st.sampled_from([(v4,), (v6,), (v4, v6)])),
        namespace=namespace,
        labels=draw(LABELS),
        node=draw(st.sampled_from([HERE, ELSEWHERE])),
        profiles=tuple(draw(st.permutations(profiles))),
        service_account_name=account,
        ports=draw(
            st.lists(
                st.tuples(
                    st.sampled_from(PORT_NAMES),
                    st.sampled_from(["TCP", "UDP"]),
                    st.sampled_from([80, 53]),
                ),
                max_size=2,
            )
        ),
    )


@st.composite
def host_endpoints(draw: st.DrawFn) -> Object:
    return calc.hep(
        draw(st.sampled_from(["h1", "h2"])),
        *draw(st.lists(st.sampled_from(["192.0.2.1", "2001:db8::1"]), max_size=1)),
        interface_name=draw(st.sampled_from(["eth0", "*"])),
        labels=draw(LABELS),
        node=draw(st.sampled_from([HERE, ELSEWHERE])),
        profiles=draw(st.sampled_from([(), ("kns.prod",), ("projectcalico-default-allow",)])),
    )


@st.composite
def network_policies(draw: st.DrawFn, make: object = calc.np) -> Object:
    assert callable(make)
    return make(
        draw(st.sampled_from(["p1", "p2"])),
        namespace=draw(NAMESPACES),
        tier=draw(_maybe(st.sampled_from(TIERS))),
        order=draw(ORDERS),
        selector=draw(_maybe(SELECTORS)),
        service_account_selector=draw(_maybe(_maybe(st.just("has(rank)")))),
        types=draw(TYPES),
        ingress=draw(RULES),
        egress=draw(RULES),
    )


@st.composite
def global_policies(draw: st.DrawFn, make: object = calc.gnp) -> Object:
    assert callable(make)
    flags = draw(
        st.sampled_from(
            [
                {},
                {},
                {"apply_on_forward": True},
                {"do_not_track": True, "apply_on_forward": True},
                {"pre_dnat": True, "apply_on_forward": True},
            ]
        )
    )
    is_early = "pre_dnat" in flags
    return make(
        draw(st.sampled_from(["g1", "g2"])),
        tier=draw(_maybe(st.sampled_from(TIERS))),
        order=draw(ORDERS),
        selector=draw(_maybe(SELECTORS)),
        namespace_selector=draw(_maybe(_maybe(NAMESPACE_SELECTORS))),
        types=("Ingress",) if is_early else draw(TYPES),
        ingress=draw(RULES),
        egress=() if is_early else draw(RULES),
        **flags,
    )


@st.composite
def profiles(draw: st.DrawFn) -> Object:
    name, label = draw(
        st.sampled_from(
            [
                ("kns.prod", "pcns.env"),
                ("kns.dev", "pcns.env"),
                ("ksa.prod.sa1", "pcsa.rank"),
                ("ksa.dev.sa2", "pcsa.rank"),
            ]
        )
    )
    return calc.profile(
        name,
        labels=draw(st.dictionaries(st.just(label), st.sampled_from(["x", "y"]), max_size=1)),
        ingress=draw(RULES),
        egress=draw(RULES),
    )


def network_sets() -> st.SearchStrategy[Object]:
    nets = st.lists(st.sampled_from([*V4_NETS, *V6_NETS, "10.0.0.2"]), max_size=2, unique=True)
    namespaced = st.builds(
        lambda found, labels, namespace: calc.netset(
            "s1", *found, labels=labels, namespace=namespace
        ),
        nets,
        LABELS,
        NAMESPACES,
    )
    everywhere = st.builds(
        lambda found, labels: calc.gnetset("s1", *found, labels=labels), nets, LABELS
    )
    return namespaced | everywhere


def tiers() -> st.SearchStrategy[Object]:
    return st.builds(
        calc.tier, st.sampled_from(TIERS[:2]), ORDERS, st.sampled_from(["Pass", "Deny", None])
    )


def pools_and_nodes() -> st.SearchStrategy[Object]:
    return st.builds(
        calc.pool,
        st.sampled_from(["a", "b"]),
        st.sampled_from(["10.0.0.0/16", "fd00::/64"]),
        nat_outgoing=st.booleans(),
    ) | st.builds(calc.node, st.sampled_from(["n1", "n2"]))


def broken() -> st.SearchStrategy[Object]:
    """Objects that only the graph finds invalid."""
    return st.sampled_from(
        [
            calc.wep("w0", "10.0.0.256"),
            calc.wep("w1"),
            calc.np("p1", selector="app = 'a'"),
            calc.np("p1", ingress=(calc.rule(source={"selector": "has("}),)),
            calc.profile("kns.prod", egress=(calc.rule(source={"nets": ("x",)}),)),
            calc.gnetset("s1", "10.0.0.0/33"),
            calc.pool("a", "10.0.0.0"),
        ]
    )


def objects() -> st.SearchStrategy[Object]:
    return (
        workloads()
        | workloads()
        | host_endpoints()
        | network_policies()
        | network_policies(calc.snp)
        | global_policies()
        | global_policies(calc.sgnp)
        | profiles()
        | network_sets()
        | tiers()
        | pools_and_nodes()
        | broken()
    )
