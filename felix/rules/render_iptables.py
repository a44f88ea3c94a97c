"""The model of felix.rules.chain as iptables rules.

Layer: pure. Used by ipt_layout, which puts chains into tables.

In nf_tables an accept ends one base chain and the next one is asked; in iptables it ends the table.
So a verdict is kept in mark bits of IptablesMarkMask:

  accept   this stage has accepted: every chain on the way out returns at once
  allowed  some stage has: what the whole hook says at its end (ipt_layout)
  scratch  within one rule: "none of these protocols", or "matched" where its actions are several

Pass needs none: a policy that has it is written into its tier's chain, where RETURN is Pass
(policy P1). A jump is followed by a look at the accept bit, unless nothing comes after it.

A verdict map's `goto` must not come back to the rule behind the lookup. So the map is gone to, and
what stands behind the lookup is a chain of its own, to which the map's chains lead what they do not
have (`MapUse.then`).

  I1  the rules of a chain do what its model does (property tests, against the evaluator);
  I2  a rule's hash covers the chain's name and everything up to and including the rule, so the
      hashes of a chain's rules, read back, say whether it holds what it should, in that order.

Source: iptables-extensions(8); Calico felix/rules/{policy,dispatch}.go, felix/iptables/rules.go.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from ipaddress import IPv4Address, IPv6Address

from felix.config_parse import IPTABLES_MARK_BITS
from felix.rules import ipt_names
from felix.rules.chain import (
    Action,
    Chain,
    Count,
    CountConnections,
    Dispatch,
    Field,
    Limit,
    Log,
    Lookup,
    Marked,
    Masquerade,
    Match,
    NatByMap,
    NoTrack,
    Reject,
    Rule,
    SetDscp,
    SetMark,
    SourceNat,
    Verdict,
    VerdictCode,
)
from felix.rules.ipt_match import LiteralSet, Unrenderable, Words, words_of
from felix.rules.names import identity_hash

HASH_CHARS = 16
_COMMENT_MAX = 255
_LOG_PREFIX_MAX = 29
# xt_hashlimit takes no higher rate or burst.
_HASHLIMIT_MAX = 1_000_000
_UNITS = {1: "second", 60: "minute", 3600: "hour", 86400: "day"}
_OUR_BITS = 3


@dataclass(frozen=True, slots=True)
class MarkWords:
    """Mark bits, as iptables writes them."""

    accept: str
    allowed: str
    scratch: str
    every: str
    accept_or_allowed: str

    @classmethod
    def of_mask(cls, mask: int) -> MarkWords:
        """The highest three bits of the mask; rules use the lowest two (settings.Marks).

        Errors: ValueError."""
        bits = [1 << place for place in range(32) if mask >> place & 1]
        if len(bits) < IPTABLES_MARK_BITS:
            raise ValueError(f"needs at least {IPTABLES_MARK_BITS} bits")
        accept, allowed, scratch = bits[-_OUR_BITS:]
        return cls(
            hex(accept),
            hex(allowed),
            hex(scratch),
            hex(accept | allowed | scratch),
            hex(accept | allowed),
        )

    @property
    def has_accepted(self) -> str:
        return f"-m mark --mark {self.accept}/{self.accept}"

    @property
    def is_scratched(self) -> str:
        return f"-m mark --mark {self.scratch}/{self.scratch}"

    @property
    def set_accept(self) -> str:
        return f"-j MARK --set-xmark {self.accept}/{self.accept}"


@dataclass(frozen=True, slots=True)
class MapUse:
    """A map that is looked up: verdicts by interface, or addresses to translate to.

    `root` is the chain that the rule leads to, `then` where what is not in the map goes on."""

    name: str
    root: str
    field: Field
    then: str = ""
    is_nat: bool = False
    is_source_nat: bool = False


@dataclass(frozen=True)
class IptChain:
    """`rules` are lines without `-A name` and without their hash."""

    name: str
    rules: tuple[str, ...]

    @cached_property
    def hashes(self) -> tuple[str, ...]:
        """I2."""
        found: list[str] = []
        last = hashlib.sha224(self.name.encode()).digest()
        for rule in self.rules:
            last = hashlib.sha224(last + rule.encode()).digest()
            found.append(base64.urlsafe_b64encode(last).decode()[:HASH_CHARS])
        return tuple(found)

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """The rules as `iptables-restore` reads them."""
        return tuple(
            f"-A {self.name} {hash_words(digest)} {rule}"
            for digest, rule in zip(self.hashes, self.rules, strict=True)
        )


def hash_words(digest: str) -> str:
    return f'-m comment --comment "{ipt_names.HASH_PREFIX}{digest}"'


def comment_words(text: str) -> str:
    """A comment that survives both variants and the quoting of iptables-restore."""
    if not text:
        return ""
    fit = "".join(c if " " <= c <= "~" and c not in "\"\\'" else "_" for c in text)
    return f'-m comment --comment "{fit[:_COMMENT_MAX]}"'


# --------------------------------------------------------------------------------------- chains


@dataclass(frozen=True, slots=True)
class Rendered:
    """A chain of the model in one family: itself, what stands behind its lookups, what it needs."""

    chains: tuple[IptChain, ...]
    literals: tuple[LiteralSet, ...] = ()
    maps: tuple[MapUse, ...] = ()

    @property
    def says_something(self) -> bool:
        return any(chain.rules for chain in self.chains)


def render_chain(chain: Chain, version: int, marks: MarkWords) -> Rendered:
    """One family's rules of a chain. Errors: Unrenderable."""
    writer = _Writer(chain, version, marks)
    for place, rule in enumerate(chain.rules, start=1):
        writer.add(rule, is_last=place == len(chain.rules))
    return writer.rendered()


@dataclass(slots=True)
class _Writer:
    """Collects the lines of one chain."""

    of: Chain
    version: int
    marks: MarkWords
    done: list[IptChain] = field(default_factory=list)
    rules: list[str] = field(default_factory=list)
    literals: list[LiteralSet] = field(default_factory=list)
    maps: list[MapUse] = field(default_factory=list)
    # A jump was the last thing written: whether it accepted is only asked if something follows.
    owes_check: bool = False

    def add(self, rule: Rule, *, is_last: bool) -> None:
        found = words_of(_without_pairs(rule), self.version)
        if not found.lines:
            return
        self.literals += found.literals
        conditions, targets = self._effects(rule, is_last=is_last)
        lines, comment = found.lines, comment_words(rule.comment)
        if len(targets) > 1 and (conditions or _changes_what_it_asks(rule)):
            lines, conditions = self._matched_once(lines, conditions), []
        for target in targets:
            for words in lines:
                self._line(words, (*conditions, comment, target))
            if target == self.marks.set_accept:
                self._put(f"{self.marks.has_accepted} -j RETURN")
            elif target.startswith("-j cali-"):
                self.owes_check = True
        if any(isinstance(action, Dispatch) for action in rule.actions) and not is_last:
            self._go_on(is_reached=bool(rule.matches))

    def rendered(self) -> Rendered:
        self._end_chain()
        return Rendered(tuple(self.done), tuple(self.literals), tuple(self.maps))

    # ----------------------------------------------------------------------------- chains

    def _name(self, number: int) -> str:
        """Of the chain itself, and of what stands behind its first, second, … lookup."""
        name = ipt_names.chain_name(self.of.name)
        return ipt_names.fitting(f"{name}-{number}") if number else name

    def _go_on(self, *, is_reached: bool) -> None:
        """What follows a lookup is another chain."""
        if is_reached:
            self._put(f"-g {self._name(len(self.done) + 1)}")
        self._end_chain()

    def _end_chain(self) -> None:
        self.done.append(IptChain(self._name(len(self.done)), tuple(self.rules)))
        self.rules = []
        self.owes_check = False

    # ------------------------------------------------------------------------------ lines

    def _line(self, words: Words, tail: Sequence[str]) -> None:
        text = words.text
        if words.excluded:
            bit = self.marks.scratch
            self._put(f"-j MARK --set-xmark {bit}/{bit}")
            for protocol in words.excluded:
                self._put(f"-p {protocol} -j MARK --set-xmark 0x0/{bit}")
            text = f"{text} {self.marks.is_scratched}".lstrip()
        self._put(" ".join(filter(None, (text, *tail))))

    def _matched_once(self, lines: Sequence[Words], conditions: Sequence[str]) -> list[Words]:
        """Keep in the scratch bit that the rule matched: asked again, it might not."""
        bit = self.marks.scratch
        if any(words.excluded for words in lines):
            raise Unrenderable("several actions behind excluded protocols")
        self._put(f"-j MARK --set-xmark 0x0/{bit}")
        for words in lines:
            self._line(words, (*conditions, f"-j MARK --set-xmark {bit}/{bit}"))
        return [Words(self.marks.is_scratched)]

    def _put(self, line: str) -> None:
        if self.owes_check:
            self.owes_check = False
            self.rules.append(f"{self.marks.has_accepted} -j RETURN")
        self.rules.append(line)

    # ---------------------------------------------------------------------------- actions

    def _effects(self, rule: Rule, *, is_last: bool) -> tuple[list[str], list[str]]:
        """(further conditions, targets in their order)."""
        conditions: list[str] = []
        targets: list[str] = []
        for action in rule.actions:
            if isinstance(action, Count):
                continue  # iptables counts by itself
            if isinstance(action, Limit):
                conditions.append(self._limit(action))
            elif isinstance(action, CountConnections):
                limit = f"--connlimit-above {action.limit} --connlimit-mask 0"
                conditions.append(f"-m connlimit {limit}")
            else:
                targets += self._target(action, is_last=is_last)
        return conditions, targets

    def _limit(self, action: Limit) -> str:
        if not action.over:
            rate = f"{action.rate}/{_UNITS[action.unit_s]}"
            return f"-m limit --limit {rate} --limit-burst {action.burst}"
        rate = f"{min(action.rate, _HASHLIMIT_MAX)}/{_UNITS[action.unit_s]}"
        burst = min(action.burst, _HASHLIMIT_MAX)
        # The kernel keeps the limits of a name as long as a rule has it, so they are part of it.
        name = identity_hash(self.of.name, rate, str(burst), str(self.version))[:15]
        limits = f"--hashlimit-above {rate} --hashlimit-burst {burst}"
        return f"-m hashlimit {limits} --hashlimit-name {name}"

    def _target(self, action: Action, *, is_last: bool) -> list[str]:
        if isinstance(action, Verdict):
            return [self._verdict(action)]
        if isinstance(action, Dispatch):
            return [self._dispatch(action, is_last=is_last)]
        if isinstance(action, NatByMap):
            root, source = ipt_names.chain_name(action.map_name), action.source
            use = MapUse(action.map_name, root, action.field, is_nat=True, is_source_nat=source)
            self.maps.append(use)
            return [f"-j {root}"]
        if isinstance(action, SetDscp) and action.version != self.version:
            return []
        return [_TARGETS[type(action)](action, self.version)]

    def _dispatch(self, action: Dispatch, *, is_last: bool) -> str:
        if len(action.fields) != 1:
            raise Unrenderable("a dispatch by several fields")
        number = len(self.done)
        root = ipt_names.chain_name(action.map_name)
        if number:  # the same map may be asked in several places
            root = ipt_names.fitting(f"{root}-{number}")
        then = "" if is_last else self._name(number + 1)
        self.maps.append(MapUse(action.map_name, root, action.fields[0], then))
        return f"-g {root}"

    def _verdict(self, verdict: Verdict) -> str:
        if verdict.code is VerdictCode.ACCEPT:
            return self.marks.set_accept
        return verdict_words(verdict)


def _changes_what_it_asks(rule: Rule) -> bool:
    """Its first action may make its matches untrue for the second."""
    asks = any(isinstance(match, Marked) for match in rule.matches)
    return asks and any(isinstance(action, SetMark) for action in rule.actions)


def _without_pairs(rule: Rule) -> list[Match]:
    """No ipset holds pairs of addresses everywhere (hash:net,net is rare). Ours are of a workload
    and itself, in front of source NAT: there each translation names both (ipt_layout)."""
    is_source_nat = any(isinstance(one, NatByMap) and one.source for one in rule.actions)
    return [
        match
        for match in rule.matches
        if not (is_source_nat and isinstance(match, Lookup) and len(match.fields) > 1)
    ]


def verdict_words(verdict: Verdict) -> str:
    """Any verdict but accept, which is a mark."""
    if verdict.code is VerdictCode.JUMP:
        return f"-j {ipt_names.chain_name(verdict.chain)}"
    if verdict.code is VerdictCode.GOTO:
        return f"-g {ipt_names.chain_name(verdict.chain)}"
    if verdict.code is VerdictCode.ACCEPT:
        raise Unrenderable("an accept without marks")
    return f"-j {verdict.code.value.upper()}"


def _reject(action: Reject, version: int) -> str:
    if action.tcp_reset:
        return "-j REJECT --reject-with tcp-reset"
    return f"-j REJECT --reject-with {'icmp' if version == 4 else 'icmp6'}-port-unreachable"


def _log(action: Log, _version: int) -> str:
    prefix = action.prefix
    if len(prefix) > _LOG_PREFIX_MAX:
        prefix = prefix[: _LOG_PREFIX_MAX - 2] + ": "
    return f'-j LOG --log-prefix "{prefix}" --log-level 5'


def _masquerade(action: Masquerade, _version: int) -> str:
    ports = f" --to-ports {action.ports[0]}-{action.ports[1]}" if action.ports else ""
    return f"-j MASQUERADE{ports} --random-fully"


def _source_nat(action: SourceNat, version: int) -> str:
    ports = f":{action.ports[0]}-{action.ports[1]}" if action.ports else ""
    if version == 4:
        return f"-j SNAT --to-source {IPv4Address(action.address)}{ports} --random-fully"
    address = str(IPv6Address(action.address))
    return f"-j SNAT --to-source {f'[{address}]{ports}' if ports else address} --random-fully"


def _set_mark(action: SetMark, _version: int) -> str:
    value = hex(action.bits) if action.on else "0x0"
    return f"-j MARK --set-xmark {value}/{action.bits:#x}"


_TARGETS: dict[type, Callable[..., str]] = {
    Reject: _reject,
    Log: _log,
    SetDscp: lambda action, _version: f"-j DSCP --set-dscp {action.value:#04x}",
    SetMark: _set_mark,
    NoTrack: lambda _action, _version: "-j CT --notrack",
    Masquerade: _masquerade,
    SourceNat: _source_nat,
}
