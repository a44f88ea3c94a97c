"""iptables rules, as text, executed on one packet: what iptables and the kernel make of the words.

Layer: testing. Used by fakeiptables, which keeps tables and sets. Knows the words that felix writes
and refuses all others.

Source: iptables-extensions(8), net/netfilter/x_tables.c, ip_set_hash_*.c.
"""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from libcalico.testing.fakenft_vm import Packet

PROTOCOLS = {"icmp": 1, "tcp": 6, "udp": 17, "ipv6-icmp": 58, "sctp": 132, "udplite": 136}
_PORT_PROTOCOLS = (6, 17, 132, 136)
_TARGETS = {
    "ACCEPT", "DROP", "RETURN", "MARK", "REJECT", "LOG", "DSCP", "CT", "MASQUERADE", "SNAT", "DNAT"
}  # fmt: skip
_TARGET_OPTIONS = {
    "--set-xmark", "--reject-with", "--log-prefix", "--log-level", "--set-dscp", "--to-ports",
    "--to-source", "--to-destination",
}  # fmt: skip
_TARGET_FLAGS = {"--random-fully", "--notrack"}


class Refused(Exception):
    """A line the tool or the kernel would not take."""


@dataclass(frozen=True, slots=True)
class Condition:
    module: str
    option: str
    value: tuple[str, ...]
    negated: bool = False


@dataclass(slots=True)
class ParsedRule:
    conditions: list[Condition] = field(default_factory=list)
    target: str = ""
    is_goto: bool = False
    options: dict[str, str] = field(default_factory=dict)


# Options that take two words.
_TWO = {"--match-set"}


@lru_cache(maxsize=20_000)
def parse_rule(rule: str) -> ParsedRule:
    found = ParsedRule()
    words = shlex.split(rule)
    module, negated, at = "", False, 0
    while at < len(words):
        word = words[at]
        at += 1
        if word == "!":
            negated = True
        elif word == "-m":
            module = words[at]
            at += 1
        elif word in ("-j", "-g"):
            found.target, found.is_goto = words[at], word == "-g"
            at += 1
        elif word in _TARGET_FLAGS:
            found.options[word] = ""
        elif word in _TARGET_OPTIONS:
            found.options[word] = words[at]
            at += 1
        else:
            width = 2 if word in _TWO else 1
            own = "" if word in ("-p", "-s", "-d", "-i", "-o") else module
            value = tuple(words[at : at + width])
            found.conditions.append(Condition(own, word, value, negated))
            negated, at = False, at + width
    return found


def target_of(rule: str) -> str:
    """The chain of ours or others a rule leads to; "" for a target of the kernel's."""
    target = parse_rule(rule).target
    return "" if target in _TARGETS else target


def set_names_of(rule: str) -> list[str]:
    return [c.value[0] for c in parse_rule(rule).conditions if c.option == "--match-set"]


def check_rule(chain: str, rule: str) -> None:
    """Errors: Refused, for what iptables-restore does not take."""
    if len(chain) > 28:
        raise Refused(f"chain name `{chain}' too long")
    parsed = parse_rule(rule)
    if sum(c.option in ("-p", "-s", "-d") for c in parsed.conditions) != len(
        {c.option for c in parsed.conditions if c.option in ("-p", "-s", "-d")}
    ):
        raise Refused("multiple -p, -s or -d flags not allowed")
    protocols = [c.value[0] for c in parsed.conditions if c.option == "-p" and not c.negated]
    for condition in parsed.conditions:
        if (condition.module, condition.option) not in _MATCHERS:
            raise Refused(f"unknown option {condition.option} of {condition.module!r}")
        _check_condition(condition, protocols)
    if len(parsed.options.get("--log-prefix", "")) > 29:
        raise Refused("Maximum prefix length 29 for --log-prefix")
    if parsed.options.get("--reject-with") == "tcp-reset" and protocols != ["tcp"]:
        raise Refused("tcp-reset without -p tcp")


def _check_condition(condition: Condition, protocols: list[str]) -> None:
    value = condition.value[0]
    if condition.module == "multiport":
        if sum(1 + (":" in part) for part in value.split(",")) > 15:
            raise Refused("too many ports specified")
        if not set(protocols) & {"tcp", "udp", "sctp", "udplite"}:
            raise Refused("multiport needs `-p tcp', `-p udp', `-p udplite', `-p sctp'")
    if condition.module in ("icmp", "icmp6") and not set(protocols) & {"icmp", "ipv6-icmp"}:
        raise Refused("icmp without -p icmp")
    if condition.module == "comment" and len(value) > 255:
        raise Refused("COMMENT must be shorter than 256")
    if condition.option == "--match-set" and len(value) > 31:
        raise Refused("setname too long")


@dataclass(slots=True)
class Traversal:
    """One packet on its way through the hooks. `run` says "accept", "drop" or "" (fell off)."""

    packet: Packet
    sets: Mapping[str, set[str]] = field(default_factory=dict)
    is_over: bool = False
    iifname: str = ""
    oifname: str = ""
    mark: int = 0
    is_untracked: bool = False
    effects: list[str] = field(default_factory=list)

    def run(self, chains: Mapping[str, list[str]], name: str) -> str:
        for rule in chains[name]:
            parsed = parse_rule(rule)
            if not all(self._holds(condition) for condition in parsed.conditions):
                continue
            if parsed.target in chains:
                verdict = self.run(chains, parsed.target)
                if verdict or parsed.is_goto:
                    return verdict
                continue
            verdict = self._act(parsed)
            if verdict:
                return "" if verdict == "return" else verdict
        return ""

    def _holds(self, condition: Condition) -> bool:
        found = _MATCHERS[condition.module, condition.option](self, *condition.value)
        return found is not condition.negated

    def _act(self, rule: ParsedRule) -> str:
        if rule.target == "MARK":
            value, mask = (int(part, 16) for part in rule.options["--set-xmark"].split("/"))
            self.mark = (self.mark & ~mask) ^ value
            return ""
        if rule.target == "CT":
            self.effects.append("notrack")
            self.is_untracked = True
            return ""
        if rule.target in ("LOG", "DSCP"):
            self.effects.append(f"{rule.target} {' '.join(rule.options.values())}".rstrip())
            return ""
        if rule.target in ("MASQUERADE", "SNAT", "DNAT"):
            self.effects.append(f"{rule.target} {' '.join(rule.options.values())}".rstrip())
            return "accept"
        return {"ACCEPT": "accept", "DROP": "drop", "REJECT": "drop", "RETURN": "return", "": ""}[
            rule.target
        ]


# --------------------------------------------------------------------------------------- matches


def _protocol(walk: Traversal, name: str) -> bool:
    return walk.packet.number == (PROTOCOLS[name] if name in PROTOCOLS else int(name))


@lru_cache(maxsize=100_000)
def _in_net(address: str, net: str) -> bool:
    return ipaddress.ip_address(address) in ipaddress.ip_network(net)


def _interface(name: str, pattern: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("+") else name == pattern


def _in_ports(walk: Traversal, port: int, ports: str) -> bool:
    if walk.packet.number not in _PORT_PROTOCOLS:
        return False
    for part in ports.split(","):
        first, _colon, last = part.partition(":")
        if int(first) <= port <= int(last or first):
            return True
    return False


def _icmp(walk: Traversal, kind: str) -> bool:
    number, _slash, code = kind.partition("/")
    packet = walk.packet
    return packet.icmp_type == int(number) and (not code or packet.icmp_code == int(code))


def _state(walk: Traversal, states: str) -> bool:
    told = states.split(",")
    if walk.is_untracked:
        return "UNTRACKED" in told  # and no connection that could have been translated
    return walk.packet.state.upper() in told or (walk.packet.is_dnat and "DNAT" in told)


def _mark(walk: Traversal, text: str) -> bool:
    value, mask = (int(part, 16) for part in text.split("/"))
    return walk.mark & mask == value


def _in_set(walk: Traversal, name: str, directions: str) -> bool:
    return any(_is_member(walk, member, directions.split(",")) for member in walk.sets[name])


def _is_member(walk: Traversal, member: str, directions: list[str]) -> bool:
    parts = member.split(",")
    if len(parts) != len(directions):
        return False
    for part, direction in zip(parts, directions, strict=True):
        is_source = direction == "src"
        if part.partition(":")[0] in PROTOCOLS:
            protocol, _colon, port = part.partition(":")
            mine = walk.packet.sport if is_source else walk.packet.dport
            has_ports = walk.packet.number in _PORT_PROTOCOLS
            if not (has_ports and _protocol(walk, protocol) and mine == int(port)):
                return False
        elif part[0].isdigit() or ":" in part:
            if not _in_net(walk.packet.src if is_source else walk.packet.dst, part):
                return False
        elif part != (walk.iifname if is_source else walk.oifname):
            return False
    return True


def _always(_walk: Traversal, _value: str) -> bool:
    return True


def _over(walk: Traversal, _value: str) -> bool:
    return walk.is_over


_MATCHERS: dict[tuple[str, str], Callable[..., bool]] = {
    ("", "-p"): _protocol,
    ("", "-s"): lambda walk, net: _in_net(walk.packet.src, net),
    ("", "-d"): lambda walk, net: _in_net(walk.packet.dst, net),
    ("", "-i"): lambda walk, name: _interface(walk.iifname, name),
    ("", "-o"): lambda walk, name: _interface(walk.oifname, name),
    ("comment", "--comment"): _always,
    ("conntrack", "--ctstate"): _state,
    ("multiport", "--sports"): lambda walk, ports: _in_ports(walk, walk.packet.sport, ports),
    ("multiport", "--dports"): lambda walk, ports: _in_ports(walk, walk.packet.dport, ports),
    ("icmp", "--icmp-type"): _icmp,
    ("icmp6", "--icmpv6-type"): _icmp,
    ("mark", "--mark"): _mark,
    ("set", "--match-set"): _in_set,
    ("limit", "--limit"): lambda walk, _rate: not walk.is_over,
    ("limit", "--limit-burst"): _always,
    ("hashlimit", "--hashlimit-above"): _over,
    ("hashlimit", "--hashlimit-burst"): _always,
    ("hashlimit", "--hashlimit-name"): _always,
    ("connlimit", "--connlimit-above"): _over,
    ("connlimit", "--connlimit-mask"): _always,
}
