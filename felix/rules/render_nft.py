"""The model as nft text, and digests over that text.

Layer: pure. Used by `calico-felix render`, by tests (`nft -c -f`), and by the nft driver, which
compares chains by `chain_digest`.

  R1  the text of two chains is equal exactly when they do the same (it holds every field of the
      model), so a digest of the text is a digest of the content, on any Python;
  R2  `script` is accepted by nft 1.0.6 and gives the same ruleset as the netlink encoder
      (tests/netns compares what the kernel lists back).

Source: nft(8).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from felix.rules.chain import (
    Action,
    Between,
    Chain,
    Compare,
    Count,
    CountConnections,
    CtState,
    CtStatus,
    Dispatch,
    Field,
    InNet,
    InState,
    InStatus,
    KeyType,
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
    key_types,
    split_key,
)
from felix.rules.names import TABLE
from felix.rules.sets import MapValue, SetSpec

_PROTOCOLS = {1: "icmp", 6: "tcp", 17: "udp", 58: "ipv6-icmp", 132: "sctp", 136: "udplite"}
_FAMILIES = {2: "ipv4", 10: "ipv6"}
_STATES = tuple((state, (state.name or "").lower()) for state in CtState)
_STATUSES = tuple((status, (status.name or "").lower()) for status in CtStatus)
_UNITS = {1: "second", 60: "minute", 3600: "hour", 86400: "day"}


# ----------------------------------------------------------------------------------- values


def _ifname(value: bytes) -> str:
    name = value.rstrip(b"\0").decode("utf-8", "backslashreplace")
    return f'"{name}*"' if len(value) < 16 else f'"{name}"'


def _number(value: bytes) -> str:
    return str(int.from_bytes(value, "big"))


_VALUE_TEXT: dict[str, Callable[[bytes], str]] = {
    "ipv4_addr": lambda value: str(IPv4Address(value)),
    "ipv6_addr": lambda value: str(IPv6Address(value)),
    "inet_proto": lambda value: _PROTOCOLS.get(value[0], str(value[0])),
    "nf_proto": lambda value: _FAMILIES[value[0]],
    "ifname": _ifname,
}


def value_text(key_type: KeyType, value: bytes) -> str:
    return _VALUE_TEXT.get(key_type.text, _number)(value)


def _part_text(key_type: KeyType, first: bytes, last: bytes) -> str:
    """One field of an interval element: a value, a network or a range."""
    if first == last:
        return value_text(key_type, first)
    if key_type.text in ("ipv4_addr", "ipv6_addr"):
        low, high = int.from_bytes(first, "big"), int.from_bytes(last, "big")
        span = high ^ low
        if span & (span + 1) == 0 and low & span == 0:
            prefix_len = len(first) * 8 - span.bit_length()
            return f"{value_text(key_type, first)}/{prefix_len}"
    return f"{value_text(key_type, first)}-{value_text(key_type, last)}"


def element_text(types: tuple[KeyType, ...], element: bytes, *, interval: bool) -> str:
    """One member of a set, fields joined by " . "."""
    if not interval:
        return " . ".join(value_text(part, value) for part, value in split_key(types, element))
    half = len(element) // 2
    ends = zip(split_key(types, element[:half]), split_key(types, element[half:]), strict=True)
    return " . ".join(_part_text(part, first, last) for (part, first), (_same, last) in ends)


# ------------------------------------------------------------------------ matches and actions


def _op(negated: bool) -> str:
    return "!= " if negated else ""


def _compare(match: Compare) -> str:
    return f"{match.field.text} {_op(match.negated)}{value_text(match.field.type, match.value)}"


def _in_net(match: InNet) -> str:
    base = value_text(match.field.type, match.base)
    return f"{match.field.text} {_op(match.negated)}{base}/{match.prefix_len}"


def _between(match: Between) -> str:
    return f"{match.field.text} {_op(match.negated)}{_number(match.first)}-{_number(match.last)}"


def _in_state(match: InState) -> str:
    return "ct state " + ",".join(name for state, name in _STATES if state & match.states)


def _in_status(match: InStatus) -> str:
    return "ct status " + ",".join(name for bit, name in _STATUSES if bit & match.statuses)


def _marked(match: Marked) -> str:
    return f"meta mark & {match.bits:#010x} == {match.bits:#010x}"


def _fields(fields: tuple[Field, ...]) -> str:
    return " . ".join(field.text for field in fields)


def _lookup(match: Lookup) -> str:
    head = f"{_fields(match.fields)} {_op(match.negated)}"
    if isinstance(match.members, str):
        return f"{head}@{match.members}"
    types = key_types(match.fields)
    members = (
        element_text(types, element, interval=match.members.interval)
        for element in match.members.elements
    )
    return head + "{ " + ", ".join(members) + " }"


_MATCH_TEXT: dict[type, Callable[..., str]] = {
    Compare: _compare,
    InNet: _in_net,
    Between: _between,
    InState: _in_state,
    InStatus: _in_status,
    Marked: _marked,
    Lookup: _lookup,
}


def _ports(ports: tuple[int, int] | None) -> str:
    if ports is None:
        return ""
    return f":{ports[0]}" if ports[0] == ports[1] else f":{ports[0]}-{ports[1]}"


def _masquerade(action: Masquerade) -> str:
    to = f" to {_ports(action.ports)}" if action.ports else ""
    return f"masquerade{to} fully-random"


def _source_nat(action: SourceNat) -> str:
    ports = _ports(action.ports)
    if len(action.address) == 4:
        return f"snat ip to {IPv4Address(action.address)}{ports} fully-random"
    address = str(IPv6Address(action.address))
    return f"snat ip6 to {f'[{address}]{ports}' if ports else address} fully-random"


def _nat_by_map(action: NatByMap) -> str:
    kind = "snat" if action.source else "dnat"
    family = "ip" if action.field.type.text == "ipv4_addr" else "ip6"
    return f"{kind} {family} to {action.field.text} map @{action.map_name}"


def verdict_text(verdict: Verdict) -> str:
    return f"{verdict.code.value} {verdict.chain}".rstrip()


def _limit(action: Limit) -> str:
    over = "over " if action.over else ""
    return f"limit rate {over}{action.rate}/{_UNITS[action.unit_s]} burst {action.burst} packets"


def _reject(action: Reject) -> str:
    return f"reject with {'tcp reset' if action.tcp_reset else 'icmpx port-unreachable'}"


def _set_dscp(action: SetDscp) -> str:
    return f"{'ip' if action.version == 4 else 'ip6'} dscp set {action.value}"


def _set_mark(action: SetMark) -> str:
    if action.on:
        return f"meta mark set meta mark | {action.bits:#010x}"
    return f"meta mark set meta mark & {~action.bits & 0xFFFFFFFF:#010x}"


_ACTION_TEXT: dict[type, Callable[..., str]] = {
    Verdict: verdict_text,
    Dispatch: lambda action: f"{_fields(action.fields)} vmap @{action.map_name}",
    Reject: _reject,
    Log: lambda action: f"log prefix {_quoted(action.prefix)} level notice",
    Limit: _limit,
    CountConnections: lambda action: f"ct count over {action.limit}",
    SetDscp: _set_dscp,
    SetMark: _set_mark,
    Count: lambda _action: "counter",
    NoTrack: lambda _action: "notrack",
    Masquerade: _masquerade,
    SourceNat: _source_nat,
    NatByMap: _nat_by_map,
}


def _quoted(text: str) -> str:
    """nft strings know no escape: a quote in them becomes an apostrophe."""
    return '"' + text.replace('"', "'") + '"'


def match_text(match: Match) -> str:
    return _MATCH_TEXT[type(match)](match)


def action_text(action: Action) -> str:
    return _ACTION_TEXT[type(action)](action)


def rule_text(rule: Rule) -> str:
    words = [match_text(match) for match in rule.matches]
    words += [action_text(action) for action in rule.actions]
    if rule.comment:
        words.append("comment " + _quoted(rule.comment))
    return " ".join(words)


# -------------------------------------------------------------------------- chains and tables


def hook_text(chain: Chain) -> str:
    if chain.base is None:
        return ""
    base = chain.base
    return f"type {base.type} hook {base.hook.text} priority {base.priority}; policy accept;"


def chain_digest(chain: Chain) -> bytes:
    """16 bytes over all that a rewrite of the chain's rules would change; b"" when it has none."""
    if not chain.rules:
        return b""
    text = "\n".join(map(rule_text, chain.rules))
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Ruleset:
    """A whole table, for rendering."""

    chains: tuple[Chain, ...]
    sets: tuple[SetSpec, ...]
    members: Mapping[str, Iterable[bytes]]
    entries: Mapping[str, Mapping[bytes, MapValue]]


def _set_lines(spec: SetSpec, ruleset: Ruleset) -> list[str]:
    kind = "map" if spec.is_map else "set"
    data = "verdict" if spec.verdicts else spec.data.text if spec.data else ""
    key = " . ".join(part.text for part in spec.key)
    lines = [f"\t{kind} {spec.name} {{", f"\t\ttype {key}{f' : {data}' if data else ''}"]
    if spec.interval:
        lines.append("\t\tflags interval")
    if spec.comment:
        lines.append(f"\t\tcomment {_quoted(spec.comment)}")
    elements = list(_element_lines(spec, ruleset))
    if elements:
        lines.append("\t\telements = { " + ",\n\t\t\t".join(elements) + " }")
    return [*lines, "\t}"]


def _element_lines(spec: SetSpec, ruleset: Ruleset) -> Iterable[str]:
    if not spec.is_map:
        for element in sorted(ruleset.members.get(spec.name, ())):
            yield element_text(spec.key, element, interval=spec.interval)
        return
    for element, value in sorted(ruleset.entries.get(spec.name, {}).items()):
        comment = f" comment {_quoted(value.comment)}" if value.comment else ""
        key = element_text(spec.key, element, interval=spec.interval)
        yield f"{key}{comment} : {_map_value(spec, value)}"


def _map_value(spec: SetSpec, value: MapValue) -> str:
    if value.verdict is not None:
        return verdict_text(value.verdict)
    assert spec.data is not None, "a map without verdicts has data"
    return value_text(spec.data, value.data)


def _chain_lines(chain: Chain) -> list[str]:
    lines = [f"\tchain {chain.name} {{"]
    if chain.comment:
        lines.append(f"\t\tcomment {_quoted(chain.comment)}")
    if chain.base is not None:
        lines.append(f"\t\t{hook_text(chain)}")
    lines += [f"\t\t{rule_text(rule)}" for rule in chain.rules]
    return [*lines, "\t}"]


def script(ruleset: Ruleset) -> str:
    """The table as `nft -f` reads it, in name order."""
    lines = [f"table inet {TABLE} {{"]
    for spec in sorted(ruleset.sets, key=lambda spec: spec.name):
        lines += _set_lines(spec, ruleset)
    for chain in sorted(ruleset.chains, key=lambda chain: chain.name):
        lines += _chain_lines(chain)
    return "\n".join([*lines, "}", ""])
