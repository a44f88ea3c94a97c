"""One iptables table of one family: what it should hold, what it holds, and the script between.

Layer: felix.dataplane, pure. Used by ipt_table and ipt_leftovers.

    *filter
    :cali-pi-… - [0:0]            each chain that is written anew or goes, emptied
    -A cali-pi-… …                its rules
    -D FORWARD <our old rule>     by its words, never by its number: the rules of others move
    -I FORWARD 1 <our rule>
    -X cali-…                     what nothing leads to any more
    COMMIT

  L1  a chain whose hashes are right is not mentioned, nor is a hook that stands where it should;
  L2  nothing but `-D`, `-I` and `-A` of our one rule touches a chain of the kernel's, so the rules
      of others stay, in their order;
  L3  a chain of ours that a rule of others leads to is emptied, not deleted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from felix.dataplane.ipt_save import HookRule, SavedTable
from felix.deltatracker import DeltaTracker
from felix.rules import ipt_names
from felix.rules.ipt_layout import hook_hash, hook_rule
from felix.rules.render_iptables import IptChain


@dataclass(frozen=True, slots=True)
class Subject:
    """What a line of a script is about: kind "chain", "hook", "delete" or "commit"."""

    kind: str
    name: str = ""


@dataclass(slots=True)
class Script:
    """Lines for iptables-restore, and what becomes true once they are taken."""

    lines: list[str] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    hooks: list[str] = field(default_factory=list)
    _starts: list[int] = field(default_factory=list)
    _subjects: list[Subject] = field(default_factory=list)

    def about(self, kind: str, name: str = "") -> None:
        """The lines from here on are about this."""
        self._starts.append(len(self.lines) + 1)
        self._subjects.append(Subject(kind, name))

    def subject_at(self, line: int) -> Subject:
        """Of a refused line; "commit" for none in particular."""
        place = bisect_right(self._starts, line) - 1
        return self._subjects[place] if place >= 0 else Subject("commit")

    @property
    def text(self) -> str:
        return "\n".join([*self.lines, ""])


class TableState:
    """See the module docstring. All methods are cheap and do no I/O."""

    def __init__(self, version: int, table: str, *, appends: bool = False) -> None:
        self.version, self.table, self._appends = version, table, appends
        self.rendered: dict[str, IptChain] = {}
        self.chains: DeltaTracker[str, tuple[str, ...]] = DeltaTracker()
        self._wanted_hooks: frozenset[str] = frozenset()
        self._hooks: dict[str, tuple[HookRule, ...]] = {}
        self._held: set[str] = set()
        # Chains whose deletion was refused: somebody uses them. Tried again after a reading.
        self.kept: set[str] = set()

    def want(self, chains: Mapping[str, IptChain], hooks: AbstractSet[str]) -> None:
        """Exactly these chains, and a jump from each of these chains of the kernel's."""
        before, self.rendered = self.rendered, dict(chains)
        for name in before.keys() - self.rendered.keys():
            self.chains.want(name, None)
        for name, chain in self.rendered.items():
            if before.get(name) is not chain:
                self.chains.want(name, chain.hashes)
        self._wanted_hooks = frozenset(hooks)

    def absorb(self, saved: SavedTable) -> None:
        """Make a reading the programmed view."""
        self.chains.resync(saved.chains)
        self._hooks = dict(saved.hooks)
        self._held = saved.held
        self.kept.clear()

    @property
    def is_empty(self) -> bool:
        """Nothing of ours is wanted or known to be there."""
        nothing = not self.rendered and not any(True for _ in self.chains.programmed_items())
        return nothing and not any(self._ours_in(chain) for chain in self._hooks)

    # -------------------------------------------------------------------------------- planning

    def script(self) -> Script | None:
        """What is missing; None when nothing is."""
        written = sorted(self.chains.pending_updates())
        gone = sorted(filter(self._may_go, self.chains.pending_deletions()))
        hooks = [
            chain for chain in sorted({*self._hooks, *self._wanted_hooks}) if self._differs(chain)
        ]
        if not written and not gone and not hooks:
            return None
        made = Script([f"*{self.table}"])
        for name in (*written, *gone):
            made.about("chain", name)
            made.lines.append(f":{name} - [0:0]")
        for name in written:
            made.about("chain", name)
            made.lines += self.rendered[name].lines
        for kernel_chain in hooks:
            made.about("hook", kernel_chain)
            made.lines += self._hook_lines(kernel_chain)
        deleted = [name for name in gone if name not in self._held]
        for name in deleted:
            made.about("delete", name)
            made.lines.append(f"-X {name}")
        made.about("commit")
        made.lines.append("COMMIT")
        made.written, made.deleted, made.hooks = written, gone, hooks
        return made

    def _may_go(self, name: str) -> bool:
        """L3: one that others lead to is empty at best."""
        is_as_empty_as_can_be = name in self._held and self.chains.programmed(name) == ()
        return name not in self.kept and not is_as_empty_as_can_be

    def confirm(self, script: Script) -> None:
        for name in script.written:
            self.chains.confirm(name, self.rendered[name].hashes)
        for name in script.deleted:
            self.chains.confirm(name, None)
        for kernel_chain in script.hooks:
            self._hooks[kernel_chain] = tuple(self._hooks_after(kernel_chain))

    def _ours_in(self, kernel_chain: str) -> list[HookRule]:
        return [rule for rule in self._hooks.get(kernel_chain, ()) if rule.is_ours]

    def _differs(self, kernel_chain: str) -> bool:
        ours = self._ours_in(kernel_chain)
        if kernel_chain not in self._wanted_hooks:
            return bool(ours)
        if [rule.hash for rule in ours] != [hook_hash(kernel_chain)]:
            return True
        rules = self._hooks[kernel_chain]
        return not rules[-1 if self._appends else 0].is_ours

    def _hook_lines(self, kernel_chain: str) -> Iterable[str]:
        for rule in self._ours_in(kernel_chain):
            yield f"-D {kernel_chain} {rule.text}"
        if kernel_chain in self._wanted_hooks:
            where = f"-A {kernel_chain}" if self._appends else f"-I {kernel_chain} 1"
            yield f"{where} {hook_rule(kernel_chain)}"

    def _hooks_after(self, kernel_chain: str) -> list[HookRule]:
        others = [rule for rule in self._hooks.get(kernel_chain, ()) if not rule.is_ours]
        if kernel_chain not in self._wanted_hooks:
            return others
        ours = HookRule(hook_rule(kernel_chain), hook_hash(kernel_chain), is_ours=True)
        return [*others, ours] if self._appends else [ours, *others]

    # ----------------------------------------------------------------------------------- trials

    def trial(self, names: Iterable[str]) -> Script:
        """A chain that nothing leads to, with the rules of these chains: does the kernel take them?

        Rules that lead elsewhere are left out: what they lead to may not be there yet."""
        name = f"{ipt_names.CHAIN_PREFIX}trial"
        made = Script([f"*{self.table}", f":{name} - [0:0]"])
        for chain in names:
            made.lines += [
                f"-A {name} {rule}"
                for rule in self.rendered[chain].rules
                if f"-j {ipt_names.CHAIN_PREFIX}" not in rule
                and f"-g {ipt_names.CHAIN_PREFIX}" not in rule
            ]
        made.lines.append("COMMIT")
        return made

    def end_of_trial(self) -> Script:
        name = f"{ipt_names.CHAIN_PREFIX}trial"
        return Script([f"*{self.table}", f":{name} - [0:0]", f"-X {name}", "COMMIT"])

    def dump(self) -> dict[str, object]:
        return {
            "chains": self.chains.dump(),
            "hooks": sorted(self._wanted_hooks),
            "held": sorted(self._held | self.kept),
        }
