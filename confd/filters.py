"""BGPFilters as they are given to the speaker: every rule is understood, or rejects everything.

Layer: pure. Used by confd.context. A stored object may have been written by a newer version or past
all validation; a condition that nobody understands must not turn into "matches everything, accept"
(X3 of confd.context). The rules behind such a rule stay, but nothing reaches them.

Source: datamodel 1.9 (BGPFilter).
"""

from __future__ import annotations

import ipaddress
from typing import TypeVar

from libcalico.model import BGPFilter
from libcalico.model.bgp_filter import BGPFilterRuleV4, BGPFilterRuleV6
from libcalico.model.speaker import Filter

RuleT = TypeVar("RuleT", BGPFilterRuleV4, BGPFilterRuleV6)
_KNOWN = {
    "action": ("Accept", "Reject"),
    "source": ("RemotePeers",),
    "match_operator": ("Equal", "NotEqual", "In", "NotIn"),
    "peer_type": ("eBGP", "iBGP"),
}
_COMMUNITY_PARTS = {2: 0xFFFF, 3: 0xFFFFFFFF}


def sound_filter(name: str, found: BGPFilter, warnings: list[str]) -> Filter:
    """`found` with what cannot be used replaced, one warning for each such rule."""

    def sound(rules: tuple[RuleT, ...], member: str, version: int) -> tuple[RuleT, ...]:
        made = []
        for number, rule in enumerate(rules):
            problem = _problem(rule, version)
            if problem:
                warnings.append(f"BGPFilter({name}).{member}[{number}] rejects all: {problem}")
            made.append(type(rule)(action="Reject") if problem else rule)
        return tuple(made)

    spec = found.spec
    return Filter(
        name=name,
        export_v4=sound(spec.export_v4, "exportV4", 4),
        import_v4=sound(spec.import_v4, "importV4", 4),
        export_v6=sound(spec.export_v6, "exportV6", 6),
        import_v6=sound(spec.import_v6, "importV6", 6),
    )


def check_community(text: str) -> None:
    """ "aa:nn" or "aa:nn:mm". Errors: ValueError."""
    parts = text.split(":")
    limit = _COMMUNITY_PARTS.get(len(parts), -1)
    if not all(part.isascii() and part.isdigit() and int(part) <= limit for part in parts):
        raise ValueError(f"{text!r} is no community")


def _problem(rule: BGPFilterRuleV4 | BGPFilterRuleV6, version: int) -> str:
    """Why the speaker could not do what the rule says; "" when it can."""
    for attribute, known in _KNOWN.items():
        value = getattr(rule, attribute)
        if value not in known and (value or attribute == "action"):
            return f"unknown {attribute.replace('_', ' ')} {value!r}"
    try:
        if rule.cidr and ipaddress.ip_network(rule.cidr, strict=False).version != version:
            return f"{rule.cidr} is not IPv{version}"
        for text in _communities(rule):
            check_community(text)
    except ValueError as err:
        return str(err)
    return ""


def _communities(rule: BGPFilterRuleV4 | BGPFilterRuleV6) -> list[str]:
    wanted = list(rule.communities.values) if rule.communities else []
    added = [op.add_community.value for op in rule.operations if op.add_community is not None]
    return wanted + added
