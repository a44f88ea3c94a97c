"""Fake iptables and ipset: commands in, exit codes and text out, and packets forwarded.

Layer: testing. It stands in place of the runner of felix.kernel.iptables, so driver, planner and
parsers run unchanged on it:

    fake = FakeIptables()
    kernel = IptablesKernel(fake, Variant.NFT)
    ...
    assert fake.forward(Packet("10.65.0.2", "10.65.0.3", dport=80), "cali1", "cali2") == "drop"

What it keeps to: a restore is all or nothing and names the line it refuses; a rule's target and
sets must exist, a chain that goes must be empty and unused, `-D` needs a rule that is there, names
and lists have iptables' limits; `ipset restore` stops at the first bad line and keeps what came
before; a set in use cannot be destroyed, nor swapped with one of another type.

Source: iptables(8), iptables-extensions(8), ipset(8).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from libcalico.testing.fakeiptables_vm import (
    Refused,
    Traversal,
    check_rule,
    set_names_of,
    target_of,
)
from libcalico.testing.fakenft_vm import Packet

BUILT_IN = {
    "raw": ("PREROUTING", "OUTPUT"),
    "mangle": ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"),
    "nat": ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"),
    "filter": ("INPUT", "FORWARD", "OUTPUT"),
}
_COMMAND = re.compile(r"ip(?P<six>6)?tables(?:-(?P<variant>legacy|nft))?-(?P<verb>save|restore)")
_PREROUTING = (("raw", "PREROUTING"), ("mangle", "PREROUTING"), ("nat", "PREROUTING"))
_POSTROUTING = (("mangle", "POSTROUTING"), ("nat", "POSTROUTING"))
_FORWARD = (*_PREROUTING, ("mangle", "FORWARD"), ("filter", "FORWARD"), *_POSTROUTING)
_DELIVER = (*_PREROUTING, ("mangle", "INPUT"), ("filter", "INPUT"))
_OUTPUT = (("raw", "OUTPUT"), ("mangle", "OUTPUT"), ("nat", "OUTPUT"), ("filter", "OUTPUT"))
_LOCKED = "Another app is currently holding the xtables lock."


@dataclass(frozen=True, slots=True)
class Finished:
    """What a command left: felix.kernel.iptables.Finished."""

    returncode: int
    stdout: str = ""
    stderr: str = ""


@dataclass(slots=True)
class FakeIpSet:
    type: str
    family: str
    maxelem: int
    members: set[str] = field(default_factory=set)


Rules = dict[str, list[str]]
_TableKey = tuple[str, int, str]


class FakeIptables:
    """One network namespace, both variants and families. See the module docstring."""

    def __init__(self) -> None:
        self.tables: dict[_TableKey, Rules] = {}
        self.sets: dict[str, FakeIpSet] = {}
        self.variant = "nft"  # which one packets meet, and what a plain `iptables-save` is
        self.calls: list[tuple[str, ...]] = []
        self.scripts: list[str] = []
        self.missing: set[str] = set()  # commands that are not installed
        self.locked_calls = 0
        self.over_limit = False  # what rate and connection limits say
        self.effects: list[str] = []
        self._refused: list[tuple[str, bool]] = []
        self._before_next: Callable[[], None] | None = None

    # ------------------------------------------------------------------------------ faults

    def refuse(self, text: str, *, at_commit: bool = False) -> None:
        """Lines that hold this text: refused where they stand, or (legacy) only at the end."""
        self._refused.append((text, at_commit))

    def allow(self) -> None:
        self._refused.clear()

    def before_next_restore(self, work: Callable[[], None]) -> None:
        """Somebody is faster."""
        self._before_next = work

    # ------------------------------------------------------------------------------ commands

    def __call__(self, argv: Sequence[str], stdin: str, timeout_s: float) -> Finished:
        assert timeout_s > 0, "a command without a bound"
        self.calls.append(tuple(argv))
        if argv[0] in self.missing:
            raise FileNotFoundError(argv[0])
        if argv[0] == "ipset":
            return self._ipset(argv[1:], stdin)
        found = _COMMAND.fullmatch(argv[0])
        assert found, argv
        version, variant = 6 if found["six"] else 4, found["variant"] or self.variant
        if found["verb"] == "save":
            return self._save(variant, version, argv[1:])
        if self.locked_calls:
            self.locked_calls -= 1
            return Finished(4, "", _LOCKED)
        assert "--noflush" in argv, "a restore that would flush the rules of others"
        work, self._before_next = self._before_next, None
        if work is not None:
            work()
        self.scripts.append(stdin)
        return self._restore(variant, version, stdin)

    def table(self, table: str, *, version: int = 4, variant: str = "") -> Rules:
        """Chains of a table with their rules; changing them is what another program does."""
        key = (variant or self.variant, version, table)
        return self.tables.setdefault(key, {name: [] for name in BUILT_IN[table]})

    def _save(self, variant: str, version: int, options: Sequence[str]) -> Finished:
        if options:
            assert options[0] == "-t"
            tables = [options[1]]
            self.table(options[1], version=version, variant=variant)
        else:
            tables = [
                t for v, family, t in sorted(self.tables) if (v, family) == (variant, version)
            ]
        lines: list[str] = []
        for table in tables:
            chains = self.tables[variant, version, table]
            lines += ["# Generated by a fake", f"*{table}"]
            for name in chains:
                policy = "ACCEPT" if name in BUILT_IN[table] else "-"
                lines.append(f":{name} {policy} [0:0]")
            lines += [f"-A {name} {rule}" for name, rules in chains.items() for rule in rules]
            lines += ["COMMIT", "# Completed by a fake"]
        return Finished(0, "\n".join([*lines, ""]))

    def _restore(self, variant: str, version: int, script: str) -> Finished:
        number = 0
        key: _TableKey | None = None
        draft: Rules = {}
        done: dict[_TableKey, Rules] = {}
        try:
            for line in script.splitlines():
                number += 1
                if line.startswith("*"):
                    key = (variant, version, line[1:])
                    present = self.table(line[1:], version=version, variant=variant)
                    draft = {name: list(rules) for name, rules in present.items()}
                elif line == "COMMIT":
                    assert key is not None
                    self._check(draft, script)
                    done[key] = draft
                    key = None
                elif line and not line.startswith("#"):
                    self._edit(draft, line)
        except Refused as refused:
            text = f"iptables-restore: line {number} failed: {refused}\n"
            return Finished(1, "", text)
        if key is not None:
            return Finished(1, "", "iptables-restore: COMMIT expected at the end\n")
        self.tables.update(done)
        return Finished(0)

    def _edit(self, chains: Rules, line: str) -> None:
        for text, at_commit in self._refused:
            if text in line and not at_commit and not line.startswith("-D"):
                raise Refused(f"no {text}")
        if line.startswith(":"):
            name, policy, *_ = line[1:].split()
            if policy != "-":
                raise Refused("a policy of somebody else's")
            check_rule(name, "")
            chains[name] = []
            return
        command, name, *rest = line.split(" ", 2)
        if name not in chains:
            raise Refused(f"no chain {name}")
        edit = {
            "-A": self._append,
            "-I": self._insert,
            "-D": self._delete,
            "-X": self._delete_chain,
        }
        edit[command](chains, name, rest[0] if rest else "")

    def _append(self, chains: Rules, name: str, rule: str) -> None:
        self._check_rule(chains, name, rule)
        chains[name].append(rule)

    def _insert(self, chains: Rules, name: str, rule: str) -> None:
        place, _space, rule = rule.partition(" ")
        assert place == "1"
        self._check_rule(chains, name, rule)
        chains[name].insert(0, rule)

    def _delete(self, chains: Rules, name: str, rule: str) -> None:
        if rule not in chains[name]:
            raise Refused("does a matching rule exist in that chain?")
        chains[name].remove(rule)

    def _check_rule(self, chains: Rules, name: str, rule: str) -> None:
        check_rule(name, rule)
        for set_name in set_names_of(rule):
            if set_name not in self.sets:
                raise Refused(f"Set {set_name} doesn't exist")
        target = target_of(rule)
        if target and target not in chains:
            raise Refused(f"Couldn't load target `{target}'")

    def _delete_chain(self, chains: Rules, name: str, _rule: str) -> None:
        if chains[name]:
            raise Refused("Directory not empty")
        users = [u for u, rules in chains.items() if any(target_of(r) == name for r in rules)]
        if users:
            raise Refused(f"chain {name} is in use by {users}")
        del chains[name]

    def _check(self, chains: Rules, script: str) -> None:
        for text, at_commit in self._refused:
            if at_commit and any(text in rule for rules in chains.values() for rule in rules):
                raise Refused("Invalid argument")
        for name, rules in chains.items():
            for rule in rules:
                if target_of(rule) and target_of(rule) not in chains:
                    raise Refused(f"{name} jumps to a chain that has gone: {rule} in {script}")

    # ------------------------------------------------------------------------------ ipset

    def _ipset(self, argv: Sequence[str], stdin: str) -> Finished:
        if argv[0] == "save":
            return Finished(0, "".join(self._set_lines()))
        assert argv[0] == "restore", argv
        self.scripts.append(stdin)
        for number, line in enumerate(stdin.splitlines(), start=1):
            try:
                self._ipset_line(line.split(), exist="-exist" in argv)
            except Refused as refused:
                return Finished(1, "", f"ipset v0: Error in line {number}: {refused}\n")
        return Finished(0)

    def _set_lines(self) -> list[str]:
        lines: list[str] = []
        for name, found in self.sets.items():
            lines.append(
                f"create {name} {found.type} family {found.family} hashsize 1024 "
                f"maxelem {found.maxelem} bucketsize 12 initval 0x0\n"
            )
            lines += [f"add {name} {member}\n" for member in sorted(found.members)]
        return lines

    def _ipset_line(self, words: list[str], *, exist: bool) -> None:
        verb, name, *rest = words
        if any(text in " ".join(words) for text, _at_commit in self._refused):
            raise Refused("Kernel error received")
        if verb == "create":
            self._create_set(name, rest, exist=exist)
            return
        found = self.sets.get(name)
        if found is None:
            raise Refused("The set with the given name does not exist")
        if verb in ("swap", "destroy"):
            self._swap_or_destroy(verb, name, found, rest)
            return
        member = rest[0]
        if verb == "add" and len(found.members) >= found.maxelem:
            raise Refused("Hash is full, cannot add more elements")
        if member.endswith("/0"):
            raise Refused("The value of the CIDR parameter of the IP address is invalid")
        {"add": found.members.add, "del": found.members.discard}[verb](member)

    def _swap_or_destroy(self, verb: str, name: str, found: FakeIpSet, rest: list[str]) -> None:
        if verb == "swap":
            other = self.sets.get(rest[0])
            if other is None or (other.type, other.family) != (found.type, found.family):
                raise Refused("The sets cannot be swapped: their type does not match")
            self.sets[name], self.sets[rest[0]] = other, found
            return
        if name in self._sets_in_use():
            raise Refused("Set cannot be destroyed: it is in use by a kernel component")
        del self.sets[name]

    def _create_set(self, name: str, words: list[str], *, exist: bool) -> None:
        if len(name) > 31:
            raise Refused("setname is longer than 31 characters")
        options = dict(zip(words[1::2], words[2::2], strict=True))
        made = FakeIpSet(words[0], options["family"], int(options["maxelem"]))
        before = self.sets.get(name)
        if before is not None:
            same = (before.type, before.family, before.maxelem) == (
                (made.type, made.family, made.maxelem)
            )
            if not exist or not same:
                raise Refused("Set cannot be created: set with the same name already exists")
            return
        self.sets[name] = made

    def _sets_in_use(self) -> set[str]:
        return {
            name
            for chains in self.tables.values()
            for rules in chains.values()
            for rule in rules
            for name in set_names_of(rule)
        }

    # ------------------------------------------------------------------------------ packets

    def forward(self, packet: Packet, iifname: str, oifname: str, *, mark: int = 0) -> str:
        """ "accept" or "drop"."""
        return self._through(Traversal(packet, mark=mark), _FORWARD, iifname, oifname)

    def deliver(self, packet: Packet, iifname: str, *, mark: int = 0) -> str:
        return self._through(Traversal(packet, mark=mark), _DELIVER, iifname, "")

    def originate(
        self, packet: Packet, oifname: str, *, rerouted_to: str = "", mark: int = 0
    ) -> str:
        """`rerouted_to`: it leaves by another interface than the first routing decision said."""
        walk = Traversal(packet, mark=mark)
        if self._through(walk, _OUTPUT, "", oifname) == "drop":
            return "drop"
        return self._through(walk, _POSTROUTING, "", rerouted_to or oifname)

    def _through(
        self, walk: Traversal, hooks: tuple[tuple[str, str], ...], iifname: str, oifname: str
    ) -> str:
        walk.sets = {name: found.members for name, found in self.sets.items()}
        walk.is_over = self.over_limit
        self.effects = walk.effects
        for table, chain in hooks:
            walk.iifname = "" if chain == "POSTROUTING" else iifname
            walk.oifname = "" if chain in ("PREROUTING", "INPUT") else oifname
            chains = self.tables.get((self.variant, walk.packet.version, table))
            if chains is not None and walk.run(chains, chain) == "drop":
                return "drop"
        return "accept"
