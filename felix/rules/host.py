"""Host endpoints: where they are policed, and what no policy of theirs can take away.

Layer: pure. Used by felix.dataplane.host_rules_mgr, which says who stands on which interface
(felix.host_interfaces) and puts the chains of endpoints.py behind these.

    hook         priority  chain                 which policies
    prerouting   -300      host-untracked-in     doNotTrack, before connection tracking
    output       -300      host-untracked-out
    prerouting   -150      host-pre-dnat         preDNAT, before destinations are translated
    forward        -3      host-forward-in       applyOnForward of the interface it came by
    forward         1      host-forward-out      applyOnForward of the interface it leaves by
    input          -1      host-in               all others, then profiles, then deny
    output         -1      host-out
    postrouting  -150      host-translated-out   host-out for translated destinations (HR4)

    base chain ─► interface in a verdict map ─► endpoint chain ─► needed, tiers, profiles, deny
               └► no entry: the chain of the `*` endpoint, or nothing at all

Workloads are policed in between (static.py): what comes in by a host interface for a workload meets
host-forward-in, then the workload's ingress policy; the other way round egress policy, then
host-forward-out. What a workload sends to its host meets its egress policy and
defaultEndpointToHostAction, and no host endpoint; what the host sends to its workloads meets
nothing (7.12).

  HR1 a stage is there while an endpoint of this node has something to say at it: a host without
      host endpoints meets none of these chains;
  HR2 before any policy: established and related packets pass, invalid ones are dropped (not in the
      untracked stage, which is before tracking), neighbour discovery passes, failsafe ports pass
      (not in the forward stages). In the untracked stage failsafes hold for replies too: half a
      connection must not be left untracked (5.4, 7.4);
  HR3 what an untracked or preDNAT policy allows carries a mark, and the later stages of the
      interface it came by (or, sent by this host, leaves by) let it pass (7.13). The mark is
      cleared in prerouting and output, before anybody looks: it may come from a packet that
      carried this one (a tunnel), or through lo;
  HR4 when nat has changed the destination of a packet of this host, the output hook still sees the
      interface of the first routing decision. Such a packet is marked there and judged in
      postrouting, by the interface it really leaves by;
  HR5 workload interfaces are in no map here, and the `*` endpoint leaves them out;
  HR6 while the kernel refuses an entry of the map its interface is closed, but for what HR2 says:
      behind the lookup stands a rule for those that should not have come so far.

Source: datamodel 5.1, 5.4, 7.4, 7.9, 7.13; Calico felix/rules/static.go, dispatch.go, endpoints.go;
RFC 4890 4.4.1 (messages of ICMPv6 without which a host has no neighbour and no router).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from felix.intent import HostEndpointUpdate, TierPolicies
from felix.rules.chain import (
    ACCEPT,
    DADDR,
    DROP,
    IFNAME,
    SADDR,
    BaseHook,
    Chain,
    Compare,
    CtStatus,
    Dispatch,
    Field,
    Hook,
    InStatus,
    Literal,
    Lookup,
    Marked,
    Match,
    Rule,
    SetMark,
    goto,
    ifname_bytes,
    jump,
    of_family,
    of_protocol,
)
from felix.rules.match import one_net, port_match
from felix.rules.policy import IN, LATE, OUT, directions, policies_of
from felix.rules.sets import SetSpec, family_of, parse_net
from felix.rules.settings import Failsafe, RuleSettings
from felix.rules.static import (
    PRIORITY_RAW,
    PRIORITY_RECEIVER,
    PRIORITY_SENDER,
    conntrack_rules,
    icmpv6,
)
from libcalico.compute.rules import PortRange

# Between connection tracking (-200) and the translation of destinations (-100) or sources (100).
PRIORITY_MANGLE = -150
# Around the policies of workloads, egress (-2) and ingress (-1), and after DSCP marks (0).
PRIORITY_FORWARD_IN, PRIORITY_FORWARD_OUT = PRIORITY_SENDER - 1, 1

NEEDED_RAW_IN, NEEDED_RAW_OUT = "host-needed-raw-in", "host-needed-raw-out"
NEEDED_IN, NEEDED_OUT = "host-needed-in", "host-needed-out"
NEEDED_FORWARD = "host-needed-forward"
TRANSLATED_DISPATCH = "host-translated-dispatch"

# Multicast listener query, report (v1, v2), done; router and neighbour solicitation and
# advertisement.
NEIGHBOUR_MESSAGES = (130, 131, 132, 133, 134, 135, 136, 143)

Tiers = tuple[TierPolicies, ...]


@dataclass(frozen=True, slots=True)
class HostStage:
    """One of the places of the table above. `name` is its base chain's; `needed` the chain that its
    endpoint chains ask first. An open stage exists for endpoints with policies at it only, and what
    these do not decide goes on; the others ask profiles and deny in the end."""

    name: str
    hook: BaseHook
    direction: str
    field: Field
    needed: str
    comment: str
    tiers_of: Callable[[HostEndpointUpdate], Tiers]
    is_open: bool = True
    # What is allowed here is allowed at the stages after it (HR3).
    marks: bool = False

    @property
    def map(self) -> SetSpec:
        name = f"dispatch-{self.name}"
        return SetSpec(name, (IFNAME,), verdicts=True, comment=self.comment)

    @property
    def closed(self) -> str:
        """The chain of HR6."""
        return f"{self.name}-closed"

    @property
    def is_raw(self) -> bool:
        return self.hook.priority == PRIORITY_RAW


UNTRACKED_IN = HostStage(
    "host-untracked-in",
    BaseHook(Hook.PREROUTING, PRIORITY_RAW),
    IN,
    Field.IIFNAME,
    NEEDED_RAW_IN,
    "what a host interface gets: untracked policy",
    lambda endpoint: endpoint.untracked_tiers,
    marks=True,
)
UNTRACKED_OUT = HostStage(
    "host-untracked-out",
    BaseHook(Hook.OUTPUT, PRIORITY_RAW),
    OUT,
    Field.OIFNAME,
    NEEDED_RAW_OUT,
    "what a host interface sends: untracked policy",
    lambda endpoint: endpoint.untracked_tiers,
    marks=True,
)
PRE_DNAT = HostStage(
    "host-pre-dnat",
    BaseHook(Hook.PREROUTING, PRIORITY_MANGLE),
    IN,
    Field.IIFNAME,
    NEEDED_IN,
    "what a host interface gets: preDNAT policy",
    lambda endpoint: endpoint.pre_dnat_tiers,
    marks=True,
)
FORWARD_IN = HostStage(
    "host-forward-in",
    BaseHook(Hook.FORWARD, PRIORITY_FORWARD_IN),
    IN,
    Field.IIFNAME,
    NEEDED_FORWARD,
    "what comes in by a host interface and is forwarded",
    lambda endpoint: endpoint.forward_tiers,
)
FORWARD_OUT = HostStage(
    "host-forward-out",
    BaseHook(Hook.FORWARD, PRIORITY_FORWARD_OUT),
    OUT,
    Field.OIFNAME,
    NEEDED_FORWARD,
    "what is forwarded and leaves by a host interface",
    lambda endpoint: endpoint.forward_tiers,
)
NORMAL_IN = HostStage(
    "host-in",
    BaseHook(Hook.INPUT, PRIORITY_RECEIVER),
    IN,
    Field.IIFNAME,
    NEEDED_IN,
    "what a host interface gets for this host",
    lambda endpoint: endpoint.tiers,
    is_open=False,
)
NORMAL_OUT = HostStage(
    "host-out",
    BaseHook(Hook.OUTPUT, PRIORITY_RECEIVER),
    OUT,
    Field.OIFNAME,
    NEEDED_OUT,
    "what this host sends by a host interface",
    lambda endpoint: endpoint.tiers,
    is_open=False,
)
TRANSLATED_OUT = HostStage(
    "host-translated-out",
    BaseHook(Hook.POSTROUTING, PRIORITY_MANGLE),
    OUT,
    Field.OIFNAME,
    NEEDED_OUT,
    "what this host sends to a translated destination",
    lambda endpoint: endpoint.tiers,
    is_open=False,
)
STAGES = (
    UNTRACKED_IN,
    UNTRACKED_OUT,
    PRE_DNAT,
    FORWARD_IN,
    FORWARD_OUT,
    NORMAL_IN,
    NORMAL_OUT,
    TRANSLATED_OUT,
)


def direction_at(stage: HostStage, settings: RuleSettings) -> str:
    """Which rendering of policies the stage asks (P3 of policy.py)."""
    return LATE if stage is TRANSLATED_OUT and LATE in directions(settings) else stage.direction


def applies(stage: HostStage, endpoint: HostEndpointUpdate) -> bool:
    """Whether the endpoint has something to say at this stage."""
    if not stage.is_open:
        return True
    return any(policies_of(tier, stage.direction) for tier in stage.tiers_of(endpoint))


# ------------------------------------------------------------------------------- base chains


@dataclass(frozen=True, slots=True)
class HostDispatch:
    """How a stage finds the endpoint of an interface: in its map, which has all of `interfaces`,
    else the `default` chain."""

    interfaces: frozenset[str] = frozenset()
    default: str = ""


def stage_chains(
    stage: HostStage, dispatch: HostDispatch, settings: RuleSettings, *, uses_marks: bool
) -> tuple[Chain, ...]:
    """The base chain of a stage and what belongs to it; () when nothing is asked there (HR1).

    `uses_marks`: some stage of this node marks what it allows (HR3)."""
    made = _stage_chain(stage, dispatch, settings, uses_marks=uses_marks)
    if dispatch.interfaces and settings.guards_maps:
        closed = (Rule((), (jump(stage.needed),)), Rule((), (DROP,), "its policy is missing"))
        return (*made, Chain(stage.closed, closed, comment="interfaces whose entry was refused"))
    return made


def _stage_chain(
    stage: HostStage, dispatch: HostDispatch, settings: RuleSettings, *, uses_marks: bool
) -> tuple[Chain, ...]:
    asked = tuple(_asked(stage, dispatch, settings))
    marks = settings.marks
    if stage.is_raw and uses_marks:
        clear = Rule((), (SetMark(marks.all, False),), "marks are ours")
        return (Chain(stage.name, (clear, *asked), stage.hook, stage.comment),)
    if not asked:
        return ()
    if stage is TRANSLATED_OUT:
        judge = (SetMark(marks.owed, False), goto(TRANSLATED_DISPATCH))
        owed = Rule((Marked(marks.owed),), judge)
        return (
            Chain(stage.name, (owed,), stage.hook, stage.comment),
            Chain(TRANSLATED_DISPATCH, asked, comment=stage.comment),
        )
    head = _head(stage, settings, uses_marks=uses_marks)
    return (Chain(stage.name, (*head, *asked), stage.hook, stage.comment),)


def _head(stage: HostStage, settings: RuleSettings, *, uses_marks: bool) -> Iterable[Rule]:
    marks = settings.marks
    if uses_marks and stage is not FORWARD_OUT:
        yield Rule((Marked(marks.allowed),), (ACCEPT,), "allowed by an earlier stage")
    if stage is NORMAL_OUT:
        owe = (SetMark(marks.owed), ACCEPT)
        yield Rule((InStatus(CtStatus.DNAT),), owe, "judged by the interface it leaves by")


def _asked(stage: HostStage, dispatch: HostDispatch, settings: RuleSettings) -> Iterable[Rule]:
    if dispatch.interfaces:
        yield Rule((), (Dispatch((stage.field,), stage.map.name),))
        if settings.guards_maps:
            names = Literal(tuple(sorted(map(ifname_bytes, dispatch.interfaces))))
            yield Rule((Lookup((stage.field,), names),), (goto(stage.closed),), "refused above")
    if dispatch.default:
        for prefix in settings.interface_prefixes:
            yield Rule((Compare(stage.field, prefix.encode()),), (ACCEPT,), "a workload's")
        yield Rule((), (goto(dispatch.default),), "all other interfaces")


# ------------------------------------------------------------------------ what is always needed


def needed_chains(settings: RuleSettings) -> tuple[Chain, ...]:
    """HR2."""
    inbound, outbound = settings.inbound_failsafes, settings.outbound_failsafes
    neighbours = Rule(icmpv6(NEIGHBOUR_MESSAGES), (ACCEPT,), "neighbour discovery")
    tracked = tuple(conntrack_rules(settings))
    to_us = tuple(_failsafe_rules(inbound, Field.TH_DPORT, SADDR, "failsafe"))
    from_us = tuple(_failsafe_rules(outbound, Field.TH_DPORT, DADDR, "failsafe"))
    replies_to_us = _failsafe_rules(outbound, Field.TH_SPORT, SADDR, "reply of a failsafe")
    replies_from_us = _failsafe_rules(inbound, Field.TH_SPORT, DADDR, "reply of a failsafe")
    return (
        Chain(NEEDED_RAW_IN, (neighbours, *to_us, *replies_to_us)),
        Chain(NEEDED_RAW_OUT, (neighbours, *from_us, *replies_from_us)),
        Chain(NEEDED_IN, (*tracked, neighbours, *to_us)),
        Chain(NEEDED_OUT, (*tracked, neighbours, *from_us)),
        Chain(NEEDED_FORWARD, tracked),
    )


def _failsafe_rules(
    ports: Iterable[Failsafe], field: Field, peer: dict[int, Field], what: str
) -> Iterable[Rule]:
    """One rule for the ports of one protocol and network."""
    numbers: dict[tuple[str, int], list[PortRange]] = {}
    for item in ports:
        numbers.setdefault((item.net, item.protocol), []).append(PortRange(item.port, item.port))
    for (net, protocol), ranges in sorted(numbers.items(), key=lambda item: item[0]):
        matches = (*_peer(net, peer), of_protocol(protocol), port_match(field, ranges))
        yield Rule(matches, (ACCEPT,), f"{what} port")


def _peer(net: str, fields: dict[int, Field]) -> tuple[Match, ...]:
    if not net:
        return ()
    version = family_of(net)
    _version, base, prefix_len = parse_net(net)
    family = of_family(version)
    return (family, one_net(fields[version], base, prefix_len)) if prefix_len else (family,)
