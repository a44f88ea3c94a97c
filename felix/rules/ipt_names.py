"""Names in iptables and ipset: short forms of felix.rules.names, as Calico gives them.

Layer: pure. Used by render_iptables and felix.dataplane.ipt_*.

iptables takes 28 bytes for a chain, ipset 31 for a set. What does not fit is named by its kind and
by the hash that its nftables name ends with already (names N1), so different things stay different.

  P1  every chain of ours begins with `cali-`, every set with `cali4` or `cali6`: that is how a
      fresh process, or another one, recognises them (Calico's prefixes: it cleans up after us, and
      we after it).

Source: XT_EXTENSION_MAXNAMELEN and IPSET_MAXNAMELEN of the kernel; Calico felix/rules/rule_defs.go.
"""

from __future__ import annotations

import re

from felix.rules.names import identity_hash

CHAIN_PREFIX = "cali-"
SET_PREFIXES = {4: "cali4", 6: "cali6"}
HASH_PREFIX = "cali:"
MAX_CHAIN, MAX_SET = 28, 31

_SHORT = {
    "from-workload": "from-wl",
    "to-workload": "to-wl",
    "workload-to-host": "wl-to-host",
    "from-workload-to-host": "from-wl-to-host",
    "dispatch-egress": "from-wl-dispatch",
    "dispatch-ingress": "to-wl-dispatch",
}
_KINDS = {
    ("policy", "in"): "pi",
    ("policy", "out"): "po",
    ("policy", "late"): "pl",
    ("profile", "in"): "pri",
    ("profile", "out"): "pro",
    ("profile", "late"): "prl",
    ("tier", "in"): "ti",
    ("tier", "out"): "to",
    ("tier", "late"): "tl",
    ("endpoint", "in"): "tw",
    ("endpoint", "out"): "fw",
    ("packet-rate", "in"): "rti",
    ("packet-rate", "out"): "rto",
    ("connections", "in"): "cti",
    ("connections", "out"): "cto",
}
_HASHED = re.compile(r"(?P<kind>[a-z-]+?)-(?P<way>in|out|late)-(?:.*-)?(?P<hash>[a-z2-7]{20})")
_FIT = re.compile(r"[A-Za-z0-9_.-]+")
_SET_ID = re.compile(r"set-([a-z])\.(.+)-[46]")
_FIXED_SETS = {
    "all-pools": "all-ipam-pools",
    "nat-pools": "masq-ipam-pools",
    "all-hosts": "all-hosts-net",
    "sources": "wl-sources",
    "source-nets": "wl-source-nets",
}


def chain_name(name: str) -> str:
    """The iptables chain of a chain (or verdict map) of felix.rules.names."""
    found = _HASHED.fullmatch(name)
    kind = _KINDS.get((found["kind"], found["way"])) if found else None
    if found and kind:
        return f"{CHAIN_PREFIX}{kind}-{found['hash']}"[:MAX_CHAIN]
    return fitting(CHAIN_PREFIX + _SHORT.get(name, name))


def fitting(name: str) -> str:
    """The name itself when iptables takes it, else its hash."""
    if len(name) <= MAX_CHAIN and _FIT.fullmatch(name):
        return name
    return f"{CHAIN_PREFIX}x-{identity_hash(name)}"


def set_name(name: str, version: int) -> str:
    """The ipset of a set of felix.rules.names; `version` is its family's."""
    prefix = f"{SET_PREFIXES[version]}0"
    found = _SET_ID.fullmatch(name)
    if found:
        whole = f"{prefix}{found[1]}:{found[2]}"
        short = f"{prefix}{found[1]}:{identity_hash(name)}"
    else:
        whole = prefix + _FIXED_SETS.get(name.removesuffix(f"-{version}"), name)
        short = f"{prefix}x:{identity_hash(name)}"
    return whole if len(whole) <= MAX_SET else short


def literal_set_name(version: int, *elements: str) -> str:
    """A set that is written inside one rule: named by what it holds, so it never changes."""
    return f"{SET_PREFIXES[version]}0l:{identity_hash(*elements)}"


def temporary_set_name(name: str) -> str:
    """The set that is filled beside `name` and then takes its place."""
    version = 4 if name.startswith(SET_PREFIXES[4]) else 6
    return f"{SET_PREFIXES[version]}t:{identity_hash(name)}"


def is_our_chain(name: str) -> bool:
    return name.startswith(CHAIN_PREFIX)


def is_our_set(name: str) -> bool:
    return name.startswith((f"{SET_PREFIXES[4]}0", f"{SET_PREFIXES[6]}0")) or is_temporary_set(name)


def is_temporary_set(name: str) -> bool:
    return name.startswith((f"{SET_PREFIXES[4]}t", f"{SET_PREFIXES[6]}t"))
