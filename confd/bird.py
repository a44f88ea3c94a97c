"""How the context reads in BIRD 2's language, and what that language cannot say.

Layer: pure. `FILTERS` are used by confd.render in `bird.cfg.j2`; `speakable` by confd.daemon.
Every text from the datastore that reaches the file goes through a function here: a quote or a
newline in it must never become a statement.

Source: BIRD 2.0 user's guide 3 to 6; semantics: bgp reference 6 and bgp.rib.policy, rule by rule.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from confd.context import BgpContext
from confd.peers import Session
from libcalico.model.bgp_filter import BGPFilterOperation, BGPFilterRuleV4, BGPFilterRuleV6
from libcalico.model.speaker import Filter, PoolExport, SpeakerConfig

T = TypeVar("T")
Rule = BGPFilterRuleV4 | BGPFilterRuleV6
PRIORITY_BASE = 2**31 - 1
# BIRD's symbols have at most 64 characters; Calico cuts a filter's name to this many.
_NAME_LENGTH = 45
# From here on BIRD takes a password as hex bytes, in which everything can be said.
_HEX_PASSWORD_LENGTH = 16
_LOG_CLASSES = ("bug", "fatal", "error", "auth", "warning", "remote", "info", "trace", "debug")
_CLASSES_BY_SEVERITY = {"None": 0, "Panic": 1, "Fatal": 2, "Error": 4, "Warning": 6, "Info": 8}


def speakable(context: BgpContext) -> BgpContext:
    """The context without what BIRD 2 cannot do, and a warning for each such thing: a session with
    a password that cannot be written; routes of IPIP pools that need the tunnel."""
    warnings, sessions = list(context.warnings), []
    for session in context.sessions:
        try:
            password(session.password or "")
        except ValueError as err:
            warnings.append(f"{session.name} is left out: {err}")
        else:
            sessions.append(session)
    if context.speaker.kernel.program_cluster_routes in ("Enabled", "EnabledIPIPOnly"):
        warnings += [
            f"IPPool {pool.cidr}: BIRD 2 cannot program routes through the IPIP tunnel; "
            "set programClusterRoutes so that felix does"
            for pool in context.speaker.pools
            if pool.ipip_mode != "Never"
        ]
    return replace(context, sessions=tuple(sessions), warnings=tuple(dict.fromkeys(warnings)))


def text(value: str) -> str:
    """A string of BIRD's: it has no escapes. Errors: ValueError."""
    if '"' in value or not value.isprintable():
        raise ValueError(f"{value!r} cannot be written in BIRD's configuration")
    return f'"{value}"'


def password(value: str) -> str:
    """Errors: ValueError, which does not say the password."""
    try:
        return text(value)
    except ValueError:
        packed = value.encode()
    if len(packed) < _HEX_PASSWORD_LENGTH:
        raise ValueError("BIRD takes no short password with a quote or control character") from None
    return packed.hex(":")


def log_classes(severity: str) -> str:
    if severity == "Debug":
        return "all"
    return "{ " + ", ".join(_LOG_CLASSES[: _CLASSES_BY_SEVERITY.get(severity, 8)] or ["bug"]) + " }"


def cluster_id(value: str) -> str:
    return str(ipaddress.IPv4Address(value))


def function_name(name: str, direction: str) -> str:
    """Quoted, so that every character of an object's name may stand in it."""
    if len(name) > _NAME_LENGTH:
        digest = hashlib.sha256(name.encode()).hexdigest()[:16].upper()
        name = f"{name[: _NAME_LENGTH - 17]}_{digest}"
    return f"'bgp_{name}_{direction}'"


def directions(item: Filter, version: int) -> Iterator[tuple[str, Sequence[Rule]]]:
    v4 = version == 4
    yield f"importFilterV{version}", item.import_v4 if v4 else item.import_v6
    yield f"exportFilterV{version}", item.export_v4 if v4 else item.export_v6


def known_filters(session: Session, speaker: SpeakerConfig) -> list[str]:
    """A filter that does not exist (yet) filters nothing, as in Calico."""
    known = {item.name for item in speaker.filters}
    return [name for name in session.filters if name in known]


def condition(rule: Rule, version: int) -> str:
    """All conditions of a rule; `true` without any."""
    found = [] if not rule.cidr else [_prefix(rule, version)]
    if rule.source == "RemotePeers":
        found.append("source = RTS_BGP")
    if rule.interface:
        # As in calico-bgp an interface is where a workload of this node is.
        found.append(f"source != RTS_BGP && defined(ifname) && ifname ~ {text(rule.interface)}")
    if rule.peer_type:
        found.append("to_internal" if rule.peer_type == "iBGP" else "!to_internal")
    if rule.communities and rule.communities.values:
        found.append("{1} ~ {0}".format(*_community(rule.communities.values[0])))
    if rule.as_path_prefix:
        numbers = " ".join(str(int(number)) for number in rule.as_path_prefix)
        found.append(f"bgp_path ~ [= {numbers} * =]")
    if rule.priority is not None:
        found.append(f"bgp_local_pref = {PRIORITY_BASE - rule.priority}")
    return " && ".join(f"({part})" for part in found) or "true"


def _prefix(rule: Rule, version: int) -> str:
    network = ipaddress.ip_network(rule.cidr or "", strict=False)
    lengths, bits = rule.prefix_length, 32 if version == 4 else 128
    low = max(network.prefixlen, (lengths.min if lengths else None) or 0)
    given = lengths.max if lengths else None
    high = bits if given is None else min(bits, given)
    operator = rule.match_operator or "In"
    if operator in ("Equal", "NotEqual"):
        is_possible = low <= network.prefixlen <= high
        met = f"net = {network}"
    else:
        is_possible = low <= high
        met = f"net ~ [ {network}{{{low},{high}}} ]"
    met = met if is_possible else "false"
    return f"!({met})" if operator.startswith("Not") else met


def _community(value: str) -> tuple[str, str]:
    """The attribute and BIRD's literal."""
    parts = [str(int(part)) for part in value.split(":")]
    attribute = "bgp_community" if len(parts) == 2 else "bgp_large_community"
    return attribute, "(" + ",".join(parts) + ")"


def add_community(value: str) -> str:
    return "{}.add({});".format(*_community(value))


def statements(rule: Rule) -> list[str]:
    """The rule's operations, if it accepts, and its verdict."""
    if rule.action != "Accept":
        return ["reject;"]
    return [part for operation in rule.operations for part in _operation(operation)] + ["accept;"]


def _operation(operation: BGPFilterOperation) -> Iterator[str]:
    if operation.add_community is not None:
        yield add_community(operation.add_community.value)
    if operation.prepend_as_path is not None:
        # Each lands in front, so the last one of the list first.
        for number in reversed(operation.prepend_as_path.prefix):
            yield f"bgp_path.prepend({int(number)});"
    if operation.set_priority is not None:
        yield f"bgp_local_pref = {PRIORITY_BASE - operation.set_priority.value};"


def kernel_verdict(pool: PoolExport, mode: str) -> str:
    """programClusterRoutes: what is not ours to program is felix's (bgp.kernel.decision)."""
    if pool.vxlan_mode != "Never":
        return "reject;"
    if pool.ipip_mode == "Never":
        return "accept;" if mode in ("Enabled", "EnabledNoEncapOnly") else "reject;"
    if mode in ("Enabled", "EnabledIPIPOnly") and pool.ipip_mode == "CrossSubnet":
        return "if gw = bgp_next_hop then accept; reject;"
    return "reject;"


def of_version(items: Iterable[T], version: int) -> list[T]:
    """Those of one family: CIDRs, addresses, or what has a `cidr`."""
    return [item for item in items if (":" in getattr(item, "cidr", str(item))) is (version == 6)]


def longest_first(pools: Iterable[PoolExport]) -> list[PoolExport]:
    return sorted(pools, key=lambda pool: -ipaddress.ip_network(pool.cidr).prefixlen)


def reachable_by(sessions: Iterable[Session], version: int) -> list[tuple[str, str]]:
    """(peer, gateway), one for each peer address."""
    found = {s.address: s.reachable_by for s in sessions if s.reachable_by and s.version == version}
    return sorted(found.items())


FILTERS: Mapping[str, Callable[..., object]] = {
    "bird_text": text,
    "bird_password": password,
    "bird_log": log_classes,
    "bird_cluster_id": cluster_id,
    "bird_function": function_name,
    "bird_directions": directions,
    "bird_condition": condition,
    "bird_statements": statements,
    "bird_add_community": add_community,
    "bird_kernel_verdict": kernel_verdict,
    "known_filters": known_filters,
    "of_version": of_version,
    "longest_first": longest_first,
    "reachable_by": reachable_by,
}
