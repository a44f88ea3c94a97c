"""What our table should hold: chains, sets and map entries, closed under reference.

Layer: felix.dataplane, pure. The wanted half of nft_table, which owns one of these and hands it to
the managers.

Managers say what they know: "this chain", "this set". This module makes of it a ruleset that the
kernel can take and that fails closed:

  W1  a chain or set is programmed while something refers to it (base chains always): a policy that
      governs nobody costs nothing, nor does the IPv6 half of a set that only IPv4 rules use;
  W2  a chain that is referred to and unknown is programmed all the same, with one rule: drop;
  W3  a chain that uses a set which is unknown or refused by the kernel becomes that drop chain;
  W4  so does a chain that the kernel refused. A base chain cannot: dropping there would cut off the
      whole host, so it is left out, and the alarm is all there is.

Reference counts are kept as chains change, so an apply costs what changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from felix.dataplane.nft_members import MemberTracker
from felix.dataplane.nft_port import ChainImage
from felix.deltatracker import DeltaTracker
from felix.rules.chain import DROP, Chain, References, Rule, references
from felix.rules.render_nft import Ruleset, chain_digest
from felix.rules.sets import MapValue, SetSpec

_NOTHING = References(frozenset(), frozenset())


def stub(name: str, why: str) -> Chain:
    """The chain that stands for one we cannot have (W2-W4)."""
    return Chain(name, (Rule((), (DROP,), why),))


@dataclass(slots=True)
class _Users:
    """Who refers to a thing, and how often over all of them."""

    chains: set[str] = field(default_factory=set)
    entries: int = 0

    @property
    def any(self) -> bool:
        return bool(self.chains or self.entries)


class WantedRuleset:
    """The managers' side of the nft driver. All methods are cheap and do no I/O."""

    def __init__(self) -> None:
        self._chains: dict[str, Chain] = {}
        self._references: dict[str, References] = {}
        self._users_of_chain: dict[str, _Users] = {}
        self._users_of_set: dict[str, set[str]] = {}
        self._specs: dict[str, SetSpec] = {}
        self._element_isolation: set[str] = set()
        self._touched: set[str] = set()
        self._touched_sets: set[str] = set()
        # Objects the kernel refused; kept by nft_table.
        self._refused_chains: set[str] = set()
        self._refused_sets: set[str] = set()
        # What is to be programmed, and against it what is.
        self.effective: dict[str, Chain] = {}
        self.chains: DeltaTracker[str, ChainImage] = DeltaTracker()
        self.sets: DeltaTracker[str, SetSpec] = DeltaTracker()
        self.members: dict[str, MemberTracker] = {}
        self.dirty_members: set[str] = set()
        self.entries: dict[str, DeltaTracker[bytes, MapValue]] = {}

    # -------------------------------------------------------------------------------- chains

    def want_chain(self, chain: Chain) -> None:
        if self._chains.get(chain.name) != chain:
            self._chains[chain.name] = chain
            self._refer(chain.name, references(chain))
            self._touched.add(chain.name)

    def drop_chain(self, name: str) -> None:
        if self._chains.pop(name, None) is not None:
            self._refer(name, _NOTHING)
            self._touched.add(name)

    def _refer(self, name: str, after: References) -> None:
        """Move the references of chain `name` from what they were to `after`."""
        before = self._references.get(name, _NOTHING)
        for target in before.chains - after.chains:
            self._unuse_chain(target, name)
        for target in after.chains - before.chains:
            self._use_chain(target).chains.add(name)
        for target in before.sets - after.sets:
            self._users_of_set[target].discard(name)
            if not self._users_of_set[target]:
                del self._users_of_set[target]
        for target in after.sets - before.sets:
            self._users_of_set.setdefault(target, set()).add(name)
        self._touched_sets |= before.sets ^ after.sets
        if after is _NOTHING:
            self._references.pop(name, None)
        else:
            self._references[name] = after

    def _use_chain(self, target: str) -> _Users:
        users = self._users_of_chain.get(target)
        if users is None:
            users = self._users_of_chain[target] = _Users()
            self._touched.add(target)
        return users

    def _unuse_chain(self, target: str, chain: str | None) -> None:
        users = self._users_of_chain[target]
        if chain is None:
            users.entries -= 1
        else:
            users.chains.discard(chain)
        if not users.any:
            del self._users_of_chain[target]
            self._touched.add(target)

    # ---------------------------------------------------------------------------------- sets

    def want_set(self, spec: SetSpec, *, isolates_elements: bool = False) -> None:
        """Declare a set or map; its members are said separately.

        isolates_elements: a member the kernel refuses is left out alone. Only right where a
        missing member means a drop; otherwise the users of the set are closed (W3)."""
        if spec.name not in self._specs:
            self._touched |= self._users_of_set.get(spec.name, set())
        self._specs[spec.name] = spec
        self._touched_sets.add(spec.name)
        if isolates_elements:
            self._element_isolation.add(spec.name)
        if spec.is_map:
            self._forget_members(spec.name)
            self.entries.setdefault(spec.name, DeltaTracker())
        else:
            self.entries.pop(spec.name, None)
            self.members.setdefault(spec.name, MemberTracker())

    def drop_set(self, name: str) -> None:
        """No longer want a set and its members; the kernel gives them up together.

        What is programmed is remembered: a set wanted again before that differs from it."""
        if self._specs.pop(name, None) is None:
            return
        self.sets.want(name, None)
        self._touched_sets.add(name)
        self._element_isolation.discard(name)
        self._touched |= self._users_of_set.get(name, set())
        if name in self.members:
            self.replace_members(name, frozenset())
        if name in self.entries:
            for key in [key for key, _value in self.entries[name].wanted_items()]:
                self.want_entry(name, key, None)
        if self.sets.programmed(name) is None:
            self.on_set_deleted(name)

    def on_set_deleted(self, name: str) -> None:
        """The kernel's set has gone, with its members."""
        if name in self._specs:
            if name in self.members:
                self.resync_members(name, frozenset())
            if name in self.entries:
                self.entries[name].resync({})
        else:
            self._forget_members(name)
            self.entries.pop(name, None)

    def _forget_members(self, name: str) -> None:
        self.members.pop(name, None)
        self.dirty_members.discard(name)

    def replace_members(self, name: str, elements: AbstractSet[bytes]) -> None:
        self.members[name].replace(elements)
        self._note_members(name)

    def change_members(
        self, name: str, added: AbstractSet[bytes], removed: AbstractSet[bytes]
    ) -> None:
        self.members[name].change(added, removed)
        self._note_members(name)

    def resync_members(self, name: str, observed: AbstractSet[bytes]) -> None:
        """What the kernel's set holds."""
        self.members[name].resync(observed)
        self._note_members(name)

    def confirm_members(
        self, name: str, added: AbstractSet[bytes], deleted: AbstractSet[bytes]
    ) -> None:
        """What the kernel took over; nothing when the set is forgotten meanwhile."""
        if name in self.members:
            self.members[name].confirm(added, deleted)
            self._note_members(name)

    def _note_members(self, name: str) -> None:
        if self.members[name].is_dirty:
            self.dirty_members.add(name)
        else:
            self.dirty_members.discard(name)

    def want_entry(self, map_name: str, key: bytes, value: MapValue | None) -> None:
        tracker = self.entries[map_name]
        before = tracker.wanted(key)
        if value is not None and value.verdict is not None and value.verdict.chain:
            self._use_chain(value.verdict.chain).entries += 1
        if before is not None:
            self._unuse_entry(before)
        tracker.want(key, value)

    def _unuse_entry(self, value: MapValue) -> None:
        if value.verdict is not None and value.verdict.chain:
            self._unuse_chain(value.verdict.chain, None)

    # ------------------------------------------------------------------------------- settling

    def settle(self) -> None:
        """Decide what each touched chain and set is programmed as (W1-W4)."""
        for name in self._touched_sets:
            spec = self._specs.get(name)
            is_used = spec is not None and name in self._users_of_set
            self.sets.want(name, shape_of(spec) if spec is not None and is_used else None)
        self._touched_sets.clear()
        touched, self._touched = self._touched, set()
        for name in touched:
            chain = self._decide(name)
            if chain is None:
                self.effective.pop(name, None)
                self.chains.want(name, None)
            elif self.effective.get(name) != chain:
                self.effective[name] = chain
                self.chains.want(name, ChainImage(chain.base, chain_digest(chain)))

    def _decide(self, name: str) -> Chain | None:
        chain = self._chains.get(name)
        is_base = chain is not None and chain.base is not None
        if not is_base and name not in self._users_of_chain:
            return None
        if chain is None:
            return stub(name, "unknown: closed")
        if name in self._refused_chains:
            return None if is_base else stub(name, "refused by the kernel: closed")
        for set_name in sorted(self._references[name].sets):
            if set_name not in self._specs or set_name in self._refused_sets:
                problem = "refused" if set_name in self._specs else "unknown"
                return None if is_base else stub(name, f"set {set_name} {problem}: closed")
        return chain

    def refuse(self, chains: AbstractSet[str], sets: AbstractSet[str]) -> None:
        """Replace what counts as refused by the kernel."""
        self._touched |= chains ^ self._refused_chains
        for name in sets ^ self._refused_sets:
            self._touched |= self._users_of_set.get(name, set())
        self._refused_chains, self._refused_sets = set(chains), set(sets)

    # ------------------------------------------------------------------------------ questions

    def spec(self, name: str) -> SetSpec:
        return self._specs[name]

    def knows_set(self, name: str) -> bool:
        """Whether somebody has declared it, used or not."""
        return name in self._specs

    def is_wanted_set(self, name: str) -> bool:
        """Whether the set is to be in the kernel (W1)."""
        return self.sets.wanted(name) is not None

    def fingerprint(self, kind: str, name: str) -> object:
        """Changes when a refused chain or set is no longer the same wish."""
        if kind == "chain":
            return self._chains.get(name)
        members = self.members.get(name)
        counts = (len(members.wanted), len(members.to_delete)) if members is not None else ()
        return self._specs.get(name), counts

    def isolates_elements(self, name: str) -> bool:
        return name in self._element_isolation

    def is_refused_set(self, name: str) -> bool:
        return name in self._refused_sets

    def is_refused_chain(self, name: str) -> bool:
        return name in self._refused_chains

    def refused_part(self, name: str) -> str | None:
        """What of a chain the kernel refused, so that it is closed (W3, W4): "chain NAME" or
        "set NAME"; None while it is programmed as wanted."""
        if name in self._refused_chains:
            return f"chain {name}"
        if not self._refused_sets or name not in self._references:
            return None
        found = sorted(self._references[name].sets & self._refused_sets)
        return f"set {found[0]}" if found else None

    @property
    def has_refusals(self) -> bool:
        return bool(self._refused_chains or self._refused_sets)

    def users_of_sets(self, names: Iterable[str]) -> set[str]:
        """Programmed chains that use any of the sets."""
        return {
            chain
            for name in names
            for chain in self._users_of_set.get(name, ())
            if chain in self.effective
        }

    def ruleset(self) -> Ruleset:
        """Everything, for rendering and dumps."""
        self.settle()
        entries: Mapping[str, Mapping[bytes, MapValue]] = {
            name: dict(tracker.wanted_items()) for name, tracker in self.entries.items()
        }
        members = {name: frozenset(tracker.wanted) for name, tracker in self.members.items()}
        specs = (self._specs[name] for name, _shape in self.sets.wanted_items())
        return Ruleset(tuple(self.effective.values()), tuple(specs), members, entries)

    def check(self) -> None:
        """Counts agree with what is wanted; used by tests after every step."""
        users: dict[str, _Users] = {}
        for name, found in self._references.items():
            for target in found.chains:
                users.setdefault(target, _Users()).chains.add(name)
        for tracker in self.entries.values():
            tracker.check()
            for _key, value in tracker.wanted_items():
                if value.verdict is not None and value.verdict.chain:
                    users.setdefault(value.verdict.chain, _Users()).entries += 1
        assert users == self._users_of_chain
        for members in self.members.values():
            members.check()
        assert self.dirty_members == {n for n, found in self.members.items() if found.is_dirty}
        self.chains.check()


def shape_of(spec: SetSpec) -> SetSpec:
    """The part of a spec that a set in the kernel is compared by."""
    return replace(spec, comment="")
