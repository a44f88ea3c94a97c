"""The output of iptables-save and `ipset save`, read strictly.

Layer: felix.dataplane, pure. Used by ipt_table and ipt_leftovers.

Only what is ours is kept: of chains that begin with `cali-` their rules' hashes, of the kernel's
chains the rules in their order, as the words `iptables-restore` deletes them by. What does not look
like a save is an error: to guess here would mean to rewrite, or to leave, the wrong thing.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field

from felix.rules import ipt_names
from felix.rules.render_iptables import HASH_CHARS
from libcalico.errors import ProgrammingFailed

_HASH = re.compile(rf'--comment "?{ipt_names.HASH_PREFIX}([A-Za-z0-9_-]{{{HASH_CHARS}}})"?(?:\s|$)')
_TO_US = re.compile(rf"(?:^|\s)-[jg] {ipt_names.CHAIN_PREFIX}")
_INCOMPATIBLE = re.compile(r"# Table `(\S+)' is incompatible")
# What a rule shows that carries no hash of ours.
NO_HASH = ""


@dataclass(frozen=True, slots=True)
class HookRule:
    """A rule in one of the kernel's chains. `text` is what follows `-A CHAIN `."""

    text: str
    hash: str
    is_ours: bool


@dataclass(slots=True)
class SavedTable:
    """One table: our chains as the hashes of their rules, the kernel's chains rule by rule."""

    chains: dict[str, tuple[str, ...]] = field(default_factory=dict)
    hooks: dict[str, tuple[HookRule, ...]] = field(default_factory=dict)
    # Chains of ours that rules of other programs lead to: they cannot be deleted.
    held: set[str] = field(default_factory=set)

    @property
    def has_ours(self) -> bool:
        return bool(self.chains) or any(
            rule.is_ours for rules in self.hooks.values() for rule in rules
        )


@dataclass(frozen=True, slots=True)
class SavedSet:
    """An ipset. `members` as ipset prints them; empty for sets that are not ours."""

    type: str
    family: str
    maxelem: int
    members: list[str] = field(default_factory=list)


def parse_tables(text: str, *, skips_incompatible: bool = False) -> dict[str, SavedTable]:
    """All tables of one iptables-save. Errors: ProgrammingFailed, also for a table that holds what
    iptables cannot say (somebody wrote it with nft), unless such tables are to be left out."""
    found: dict[str, SavedTable] = {}
    reader: _TableReader | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        incompatible = _INCOMPATIBLE.match(line)
        if incompatible and not skips_incompatible:
            raise _unreadable(
                number, f"table {incompatible[1]} holds rules that iptables cannot say"
            )
        if not line or line.startswith("#"):
            continue
        if line.startswith("*"):
            reader = _TableReader(found.setdefault(line[1:], SavedTable()))
        elif reader is None:
            raise _unreadable(number, line)
        elif line == "COMMIT":
            reader.finish()
            reader = None
        elif not reader.read(line):
            raise _unreadable(number, line)
    if reader is not None:
        raise _unreadable(0, "it ends without COMMIT")
    return found


def _unreadable(number: int, line: str) -> ProgrammingFailed:
    return ProgrammingFailed("read iptables-save", f"line {number}", 0, line[:200])


class _TableReader:
    """Collects the lines of one table."""

    def __init__(self, table: SavedTable) -> None:
        self._table = table
        self._ours: dict[str, list[str]] = {}
        self._hooks: dict[str, list[HookRule]] = {}

    def read(self, line: str) -> bool:
        """False: no line of an iptables-save."""
        kind, _space, rest = line.partition(" ")
        if kind.startswith(":") and len(kind) > 1:
            self._chain(kind[1:], rest.split(" ", 1)[0])
            return True
        name, _space, text = rest.partition(" ")
        if kind != "-A" or not name:
            return False
        self._rule(name, text)
        return True

    def finish(self) -> None:
        self._table.chains = {name: tuple(hashes) for name, hashes in self._ours.items()}
        self._table.hooks = {name: tuple(rules) for name, rules in self._hooks.items()}

    def _chain(self, name: str, policy: str) -> None:
        if ipt_names.is_our_chain(name):
            self._ours[name] = []
        elif policy != "-":
            self._hooks[name] = []

    def _rule(self, name: str, text: str) -> None:
        found = _HASH.search(text)
        digest = found[1] if found else NO_HASH
        if ipt_names.is_our_chain(name):
            self._ours.setdefault(name, []).append(digest)
            return
        to_us = _TO_US.search(text)
        if name in self._hooks:
            self._hooks[name].append(HookRule(text, digest, bool(found or to_us)))
        elif to_us:
            self._table.held.add(text[to_us.end() - len(ipt_names.CHAIN_PREFIX) :].split(" ", 1)[0])


def parse_sets(text: str) -> dict[str, SavedSet]:
    """All sets of one `ipset save`. Errors: ProgrammingFailed."""
    found: dict[str, SavedSet] = {}
    last, members = "", None
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("add "):
            _verb, name, member = line.split(" ", 2)
            if name != last or members is None:
                last, members = name, _members_of(found, name, number)
            members.append(member)
        elif line.startswith("create "):
            name, made = _created(line, number)
            found[name] = made
        elif line:
            raise ProgrammingFailed("read ipset save", f"line {number}", 0, line[:200])
    return {name: saved for name, saved in found.items() if ipt_names.is_our_set(name)}


def _members_of(found: dict[str, SavedSet], name: str, number: int) -> list[str]:
    if name not in found:
        raise ProgrammingFailed("read ipset save", f"line {number}", 0, f"unknown set {name}")
    return found[name].members


def _created(line: str, number: int) -> tuple[str, SavedSet]:
    words = line.split()
    try:
        _verb, name, set_type, *rest = words
    except ValueError:
        raise ProgrammingFailed("read ipset save", f"line {number}", 0, line[:200]) from None
    # A flag without value is paired with what follows, which no option we read is.
    options = dict(itertools.pairwise(rest))
    maxelem = options.get("maxelem", "0")
    family = options.get("family", "")
    return name, SavedSet(set_type, family, int(maxelem) if maxelem.isdigit() else 0)
