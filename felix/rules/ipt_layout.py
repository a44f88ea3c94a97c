"""Which iptables table and chain everything stands in: hooks, and interfaces to their endpoints.

Layer: pure. Used by felix.dataplane.ipt_rules.

    -A FORWARD -j cali-FORWARD            the one rule of ours in each of the kernel's chains
    cali-FORWARD   clear our mark bits
                   -j cali-egress-forward      a base chain of the model; accept: allowed bit set,
                   -j cali-ingress-forward     accept bit cleared, the next one is asked
                   allowed: ACCEPT             (or, by IptablesFilterAllowAction, go on)

    cali-from-wl-dispatch        -i cali1+  -g cali-from-wl-dispatch-1
    cali-from-wl-dispatch-1      -i cali1a2 -g cali-fw-…

A base chain's priority says its table: before conntrack raw, before routing mangle, else filter.

  Y1  all base chains of one hook and table hang in one chain, in the order of their priority;
  Y2  a verdict map is a tree over the next character of the names, leaves of at most LEAF rules: a
      packet meets a few of them, however many workloads there are, and a workload that comes or
      goes rewrites one leaf (or splits it);
  Y3  what is in no leaf, and what a `jump` of the map comes back from, goes on behind the lookup.

Source: Calico felix/rules/{static,dispatch}.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from felix.rules import ipt_names
from felix.rules.chain import BaseHook, Chain, Field, Hook, VerdictCode
from felix.rules.qos import DSCP_BASE
from felix.rules.render_iptables import (
    IptChain,
    MapUse,
    MarkWords,
    comment_words,
    hash_words,
    verdict_words,
)
from felix.rules.sets import MapValue
from felix.rules.settings import HostAction, RuleSettings

TABLES = ("raw", "mangle", "nat", "filter")
KERNEL_CHAINS = {
    "raw": ("PREROUTING", "OUTPUT"),
    "mangle": ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"),
    "nat": ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"),
    "filter": ("INPUT", "FORWARD", "OUTPUT"),
}
LEAF = 8
_CONNTRACK = -200  # NF_IP_PRI_CONNTRACK
_OPTIONS = {Field.IIFNAME: "-i", Field.OIFNAME: "-o"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a base chain hangs."""

    table: str
    kernel_chain: str


def place_of(name: str, base: BaseHook) -> Place:
    kernel_chain = base.hook.text.upper()
    if base.type == "nat":
        return Place("nat", kernel_chain)
    if name == DSCP_BASE:
        return Place("mangle", kernel_chain)  # the only table that may change a packet
    if base.priority <= _CONNTRACK and base.hook in (Hook.PREROUTING, Hook.OUTPUT):
        return Place("raw", kernel_chain)
    if base.hook in (Hook.PREROUTING, Hook.POSTROUTING):
        return Place("mangle", kernel_chain)
    return Place("filter", kernel_chain)


@dataclass(frozen=True, slots=True)
class HookSettings:
    """What the end of a hook depends on."""

    marks: MarkWords
    # Tables in which an allowed packet is accepted for good, past other programs' rules.
    accepting_tables: frozenset[str] = frozenset({"filter"})
    # Interfaces whose allowed packets to this host go on to the host's own rules.
    returning_prefixes: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: RuleSettings) -> HookSettings:
        words = settings.iptables
        accepting = {"filter": words.filter_accepts, "mangle": words.mangle_accepts}
        returns = settings.endpoint_to_host is HostAction.RETURN
        return cls(
            MarkWords.of_mask(words.mark_mask),
            frozenset(table for table, accepts in accepting.items() if accepts),
            settings.interface_prefixes if returns else (),
        )


def hook_chain(place: Place, bases: Sequence[Chain], settings: HookSettings) -> IptChain:
    """Y1. `bases` are the base chains of this place."""
    marks = settings.marks
    name = hook_chain_name(place.kernel_chain)
    ordered = sorted(
        bases, key=lambda chain: (chain.base.priority if chain.base else 0, chain.name)
    )
    if place.table == "nat":
        return IptChain(name, tuple(_jump_to(chain) for chain in ordered))
    rules = [f"-j MARK --set-xmark 0x0/{marks.every}"]
    for chain in ordered:
        rules.append(_jump_to(chain))
        keep = f"--set-xmark {marks.allowed}/{marks.accept_or_allowed}"
        rules.append(f"{marks.has_accepted} -j MARK {keep}")
    if place.table in settings.accepting_tables:
        if place == Place("filter", "INPUT"):
            rules += [f"-i {prefix}+ -j RETURN" for prefix in settings.returning_prefixes]
        comment = comment_words("allowed by policy")
        rules.append(f"-m mark --mark {marks.allowed}/{marks.allowed} {comment} -j ACCEPT")
    return IptChain(name, tuple(rules))


def _jump_to(chain: Chain) -> str:
    target = f"-j {ipt_names.chain_name(chain.name)}"
    return " ".join(filter(None, (comment_words(chain.comment), target)))


def hook_chain_name(kernel_chain: str) -> str:
    return f"{ipt_names.CHAIN_PREFIX}{kernel_chain}"


def hook_hash(kernel_chain: str) -> str:
    return IptChain(kernel_chain, (_hook_jump(kernel_chain),)).hashes[0]


def hook_rule(kernel_chain: str) -> str:
    """The rule in the kernel's chain, without `-A` and the chain's name."""
    return f"{hash_words(hook_hash(kernel_chain))} {_hook_jump(kernel_chain)}"


def _hook_jump(kernel_chain: str) -> str:
    return f"-j {hook_chain_name(kernel_chain)}"


# ------------------------------------------------------------------------------------------ maps


def map_chains(
    use: MapUse, entries: Mapping[bytes, MapValue], marks: MarkWords
) -> tuple[IptChain, ...]:
    """The chains of one map; the first is what rules lead to."""
    if use.is_nat:
        return (IptChain(use.root, tuple(_translations(use, entries))),)
    named = sorted((key.rstrip(b"\0").decode(), value) for key, value in entries.items())
    return tuple(_Tree(_OPTIONS[use.field], use.then, marks).chains(use.root, named))


@dataclass(frozen=True, slots=True)
class _Tree:
    """Y2, Y3."""

    option: str
    then: str
    marks: MarkWords

    def chains(self, name: str, entries: Sequence[tuple[str, MapValue]]) -> Iterable[IptChain]:
        rules: list[str] = []
        children: list[IptChain] = []
        for beginning, inside in _branches(entries):
            if len(entries) <= LEAF or len(inside) == 1:
                rules += [rule for entry in inside for rule in self._leaf_rules(*entry)]
                continue
            child = _branch_name(name, beginning)
            rules.append(f"{self.option} {beginning}+ -g {child}")
            children += self.chains(child, inside)
        if self.then:
            rules.append(f"-g {self.then}")
        yield IptChain(name, tuple(rules))
        yield from children

    def _leaf_rules(self, ifname: str, value: MapValue) -> Iterable[str]:
        verdict = value.verdict
        assert verdict is not None, "a map of interfaces has verdicts"
        is_accept = verdict.code is VerdictCode.ACCEPT
        target = self.marks.set_accept if is_accept else verdict_words(verdict)
        words = (f"{self.option} {ifname}", comment_words(value.comment), target)
        yield " ".join(filter(None, words))
        if is_accept or verdict.code is VerdictCode.JUMP:
            yield f"{self.marks.has_accepted} -j RETURN"


def _branches(
    entries: Sequence[tuple[str, MapValue]],
) -> list[tuple[str, list[tuple[str, MapValue]]]]:
    """Sorted entries by what follows the beginning they share; that itself stands alone."""
    if not entries:
        return []
    shared = _shared_beginning(entries[0][0], entries[-1][0])
    branches: list[tuple[str, list[tuple[str, MapValue]]]] = []
    for name, value in entries:
        beginning = name[: len(shared) + 1]
        if branches and branches[-1][0] == beginning and len(name) > len(shared):
            branches[-1][1].append((name, value))
        else:
            branches.append((beginning, [(name, value)]))
    return branches


def _branch_name(parent: str, beginning: str) -> str:
    """`cali-from-wl-dispatch-a`; hashed where it does not fit."""
    return ipt_names.fitting(f"{parent}-{beginning[-1]}")


def _shared_beginning(first: str, last: str) -> str:
    """Of sorted names: what the first and the last share, all do."""
    length = 0
    while length < min(len(first), len(last)) and first[length] == last[length]:
        length += 1
    return first[:length]


def _translations(use: MapUse, entries: Mapping[bytes, MapValue]) -> Iterable[str]:
    """One rule each. Source NAT is of what a workload sends to itself (nat.HAIRPIN_PAIRS)."""
    for key, value in sorted(entries.items()):
        here, there = _text(key), _text(value.data)
        if use.is_source_nat:
            yield f"-s {here} -d {here} -j SNAT --to-source {there}"
        else:
            yield f"-d {here} -j DNAT --to-destination {there}"


def _text(address: bytes) -> str:
    return str(IPv4Address(address)) if len(address) == 4 else str(IPv6Address(address))
