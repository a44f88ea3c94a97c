"""A ruleset with every kind of match, action, set and hook, to compare encoder, text and kernel."""

from __future__ import annotations

from felix.dataplane.nft_port import (
    AddChain,
    AddElements,
    AddEntries,
    AddSet,
    AddTable,
    Op,
    WriteRules,
)
from felix.rules.chain import (
    ACCEPT,
    DROP,
    ICMP_CODE,
    ICMP_TYPE,
    IFNAME,
    INET_PROTO,
    INET_SERVICE,
    IPV4_ADDR,
    IPV6_ADDR,
    RETURN,
    BaseHook,
    Between,
    Chain,
    Compare,
    Count,
    CountConnections,
    CtState,
    CtStatus,
    Dispatch,
    Field,
    Hook,
    InNet,
    InState,
    InStatus,
    Limit,
    Literal,
    Log,
    Lookup,
    Marked,
    Masquerade,
    NatByMap,
    NoTrack,
    Reject,
    Rule,
    SetDscp,
    SetMark,
    SourceNat,
    goto,
    ifname_bytes,
    jump,
    key_of,
    of_family,
    of_protocol,
    port_bytes,
)
from felix.rules.render_nft import Ruleset, chain_digest
from felix.rules.sets import MapValue, SetSpec, ip_port_element, ip_port_set, net_element, net_set

TEN = bytes([10, 0, 0, 0])
V6_HOST = bytes([0xFD]) + bytes(14) + b"\1"
_V4, _V6, _TCP, _UDP = of_family(4), of_family(6), of_protocol(6), of_protocol(17)


def _ports(*pairs: tuple[int, int]) -> Literal:
    return Literal(tuple(port_bytes(a) + port_bytes(b) for a, b in pairs), interval=True)


def _box(net: tuple[int, int], ports: tuple[int, int]) -> bytes:
    element = net_element(4, *net)
    tail = [((INET_PROTO, b"\6"), (INET_SERVICE, port_bytes(port))) for port in ports]
    return key_of((IPV4_ADDR, element[:4]), *tail[0]) + key_of((IPV4_ADDR, element[4:]), *tail[1])


_FILTER = (
    Rule((_V4, InNet(Field.IP4_SADDR, TEN, 8)), (ACCEPT,), "default: policy ns/web rule 0"),
    Rule((_V4, InNet(Field.IP4_SADDR, bytes([10, 64, 0, 0]), 12, True)), (DROP,)),
    Rule((_V4, InNet(Field.IP4_DADDR, bytes([10, 64, 0, 128]), 25)), (DROP,)),
    Rule((_V6, InNet(Field.IP6_SADDR, bytes([0xFD]) + bytes(15), 9)), (DROP,)),
    Rule((_V6, InNet(Field.IP6_DADDR, bytes([0xFD]) + bytes(15), 64, True)), (DROP,)),
    Rule((_V4, Compare(Field.IP4_DADDR, bytes([1, 2, 3, 4]))), (Count(), ACCEPT)),
    Rule((_V6, Compare(Field.IP6_DADDR, V6_HOST, True)), (RETURN,)),
    Rule((_TCP, Compare(Field.TH_DPORT, port_bytes(80))), (ACCEPT,)),
    Rule((_UDP, Between(Field.TH_SPORT, port_bytes(80), port_bytes(90), True)), (ACCEPT,)),
    Rule((_UDP, Between(Field.TH_DPORT, port_bytes(80), port_bytes(90))), (ACCEPT,)),
    Rule((_TCP, Lookup((Field.TH_DPORT,), _ports((1, 5), (80, 80), (443, 65535)))), (ACCEPT,)),
    Rule((_TCP, Lookup((Field.TH_DPORT,), Literal((port_bytes(1), port_bytes(5))), True)),
         (ACCEPT,)),
    Rule((Lookup((Field.L4PROTO,), Literal((b"\6", b"\x11", b"\x84"))),), (ACCEPT,)),
    Rule((of_protocol(250, negated=True),), (ACCEPT,)),
    Rule((InState(CtState.ESTABLISHED | CtState.RELATED),), (ACCEPT,)),
    Rule((InState(CtState.INVALID),), (DROP,)),
    Rule((_V4, Lookup((Field.IP4_SADDR,), "nets-4")), (ACCEPT,)),
    Rule((_V6, Lookup((Field.IP6_DADDR,), "nets-6", True)), (RETURN,)),
    Rule((_V4, Lookup((Field.IP4_DADDR, Field.L4PROTO, Field.TH_DPORT), "services-4")),
         (jump("leaf"),)),
    Rule((_V6, Lookup((Field.IP6_DADDR, Field.L4PROTO, Field.TH_DPORT), "services-6", True)),
         (jump("leaf"),)),
    Rule((_V4, Lookup((Field.IIFNAME, Field.IP4_SADDR), "sources-4")), (ACCEPT,)),
    Rule((_V4, Lookup((Field.IIFNAME, Field.IP4_SADDR), "source-nets-4")), (ACCEPT,)),
    Rule((_V6, Lookup((Field.IIFNAME, Field.IP6_SADDR), "source-nets-6")), (ACCEPT,)),
    Rule((_V4, of_protocol(1), Lookup((Field.ICMP_TYPE, Field.ICMP_CODE), Literal(
        (key_of((ICMP_TYPE, b"\x08"), (ICMP_CODE, b"\0")),)), True)), (ACCEPT,)),
    Rule((_V4, of_protocol(1), Compare(Field.ICMP_TYPE, b"\x03"),
          Compare(Field.ICMP_CODE, b"\x04")), (DROP,)),
    Rule((_V6, of_protocol(58), Compare(Field.ICMPV6_TYPE, b"\x86")), (DROP,)),
    Rule((Compare(Field.IIFNAME, b"cali"),), (goto("leaf"),)),
    Rule((Compare(Field.OIFNAME, ifname_bytes("eth0"), True),),
         (Limit(10, 60, 7), Log("calico-packet: "))),
    Rule((_V4, Lookup((Field.IP4_SADDR,), Literal(
        (net_element(4, 10 << 24, 8), net_element(4, 12 << 24, 32)), interval=True))), (ACCEPT,)),
    Rule((_V4, Lookup((Field.IP4_SADDR, Field.L4PROTO, Field.TH_DPORT), Literal(
        (_box((10 << 24, 24), (80, 90)), _box((11 << 24, 32), (1, 1))), interval=True))),
         (ACCEPT,)),
    Rule((), (Dispatch((Field.IIFNAME,), "dispatch"),)),
    Rule((), (Limit(100, 1, 20, over=True), Count(), DROP)),
    Rule((_TCP, InState(CtState.NEW)), (CountConnections(3), Count(), Reject(tcp_reset=True))),
    Rule((_V4,), (SetDscp(4, 46),)),
    Rule((_V6,), (SetDscp(6, 10),)),
    Rule((InStatus(CtStatus.DNAT),), (SetMark(0x20000),)),
    Rule((Marked(0x20000),), (SetMark(0x20000, False), ACCEPT)),
    Rule((), (Reject(),), "the end"),
)  # fmt: skip
_NAT = (
    Rule((_V4,), (Masquerade(),)),
    Rule((_V6, _TCP), (Masquerade((1024, 2000)),)),
    Rule((_V4,), (SourceNat(bytes([1, 2, 3, 4])),)),
    Rule((_V4, _TCP), (SourceNat(bytes([1, 2, 3, 4]), (5, 9)),)),
    Rule((_V6, _TCP), (SourceNat(V6_HOST, (5, 9)),)),
    Rule((_V4, Lookup((Field.IP4_SADDR, Field.IP4_DADDR), "pairs-4")),
         (NatByMap(Field.IP4_SADDR, "floating-4", True),)),
)  # fmt: skip
CHAINS = (
    Chain("filter-it", _FILTER, BaseHook(Hook.FORWARD, -2), "what comes through"),
    Chain("leaf", (Rule((), (DROP,), "closed"),)),
    Chain("empty", ()),
    Chain("raw-it", (Rule((), (NoTrack(),)),), BaseHook(Hook.PREROUTING, -300)),
    Chain("nat-out", _NAT, BaseHook(Hook.POSTROUTING, 100, "nat")),
    Chain(
        "nat-in",
        (
            Rule((_V4,), (NatByMap(Field.IP4_DADDR, "floating-4", False),)),
            Rule((_V6,), (NatByMap(Field.IP6_DADDR, "floating-6", False),)),
        ),
        BaseHook(Hook.PREROUTING, -100, "nat"),
    ),
    Chain("input-it", (), BaseHook(Hook.INPUT, 0)),
    Chain("output-it", (), BaseHook(Hook.OUTPUT, 7)),
)
SETS = (
    net_set("nets-4", 4, "some networks"),
    net_set("nets-6", 6),
    ip_port_set("services-4", 4),
    ip_port_set("services-6", 6),
    SetSpec("dispatch", (IFNAME,), verdicts=True, comment="by interface"),
    SetSpec("sources-4", (IFNAME, IPV4_ADDR)),
    SetSpec("source-nets-4", (IFNAME, IPV4_ADDR), interval=True),
    SetSpec("source-nets-6", (IFNAME, IPV6_ADDR), interval=True),
    SetSpec("pairs-4", (IPV4_ADDR, IPV4_ADDR)),
    SetSpec("floating-4", (IPV4_ADDR,), data=IPV4_ADDR),
    SetSpec("floating-6", (IPV6_ADDR,), data=IPV6_ADDR),
)
_CALI1 = ifname_bytes("cali1")
MEMBERS = {
    "nets-4": [
        net_element(4, 0x0A000001, 32),
        net_element(4, 0x0A000002, 32),
        net_element(4, 0x0A000100, 24),
        net_element(4, 1 << 31, 1),
    ],
    "nets-6": [net_element(6, 0xFD << 120, 64), net_element(6, (1 << 128) - 1, 128)],
    "services-4": [ip_port_element("10.0.0.1,tcp,80"), ip_port_element("10.0.0.2,udp,53")],
    "services-6": [ip_port_element("fd00::1,tcp,80")],
    "sources-4": [key_of((IFNAME, _CALI1), (IPV4_ADDR, TEN))],
    "source-nets-4": [_CALI1 + TEN + _CALI1 + bytes([10, 0, 0, 255])],
    "source-nets-6": [_CALI1 + bytes(16) + _CALI1 + b"\xff" * 16],
    "pairs-4": [TEN + TEN],
}
ENTRIES = {
    "dispatch": {
        _CALI1: MapValue(goto("leaf"), comment="default/pod"),
        ifname_bytes("cali2"): MapValue(DROP),
    },
    "floating-4": {bytes([1, 1, 1, 1]): MapValue(data=bytes([2, 2, 2, 2]))},
    "floating-6": {V6_HOST: MapValue(data=V6_HOST)},
}
RULESET = Ruleset(CHAINS, SETS, MEMBERS, ENTRIES)


def operations() -> list[Op]:
    """The sample as one transaction."""
    ops: list[Op] = [AddTable()]
    ops += [AddSet(spec) for spec in SETS]
    ops += [AddElements(spec, MEMBERS[spec.name]) for spec in SETS if not spec.is_map]
    ops += [AddChain(chain.name, chain.base, chain.comment) for chain in CHAINS]
    ops += [WriteRules(chain, chain_digest(chain)) for chain in CHAINS if chain.rules]
    return ops + [
        AddEntries(spec, list(ENTRIES[spec.name].items())) for spec in SETS if spec.is_map
    ]
