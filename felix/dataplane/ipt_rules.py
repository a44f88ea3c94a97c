"""The wanted ruleset as iptables tables: which chains each table of each family should hold.

Layer: felix.dataplane, pure. Used by ipt_table. The managers fill a WantedRuleset, the same for
both dataplanes; this module renders what of it changed and follows its references from the base
chains, so that a chain stands in every table from which it is reached and in no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from felix.dataplane.nft_wanted import WantedRuleset
from felix.rules.chain import Chain, References, references
from felix.rules.ipt_layout import (
    TABLES,
    HookSettings,
    Place,
    hook_chain,
    map_chains,
    place_of,
)
from felix.rules.ipt_match import LiteralSet, Unrenderable
from felix.rules.render_iptables import IptChain, MapUse, Rendered, render_chain
from felix.rules.sets import MapValue


@dataclass(slots=True)
class TableWish:
    """What one table should hold: chains by name, and the kernel's chains that lead to them."""

    chains: dict[str, IptChain] = field(default_factory=dict)
    hooks: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Known:
    """A chain of the model in one family."""

    of: Chain
    rendered: Rendered
    refers_to: References


class IptRules:
    """Keeps what was rendered: an apply costs what changed, and a walk over the references."""

    def __init__(self, wanted: WantedRuleset, settings: HookSettings) -> None:
        self._wanted, self._settings = wanted, settings
        self._known: dict[tuple[int, str], _Known] = {}
        self._maps: dict[
            tuple[int, MapUse], tuple[dict[bytes, MapValue], tuple[IptChain, ...]]
        ] = {}
        self._model_names: dict[str, str] = {}
        self._hooks: dict[tuple[int, Place], tuple[tuple[Chain, ...], IptChain]] = {}
        self.literals: dict[str, LiteralSet] = {}
        # Chains iptables has no words for: a bug, closed like a refused one.
        self.unrenderable: dict[str, str] = {}

    def model_name(self, chain: str) -> str | None:
        """The chain of the model that is rendered under this name; None for ours alone."""
        return self._model_names.get(chain)

    def users_of_literal(self, set_name: str) -> list[str]:
        """Chains of the model that hold this set in a rule."""
        return sorted(
            {
                name
                for (_version, name), known in self._known.items()
                if any(literal.name == set_name for literal in known.rendered.literals)
            }
        )

    def build(self, versions: Iterable[int]) -> dict[tuple[int, str], TableWish]:
        """By (version, table). Unrenderable chains are left out and named."""
        self.literals = {}
        self.unrenderable = {}
        found: dict[tuple[int, str], TableWish] = {}
        for version in versions:
            found.update(((version, table), TableWish()) for table in TABLES)
            for place, bases in self._base_chains(version).items():
                self._hang(found[version, place.table], version, place, bases)
        self._forget_unused()
        return found

    def _base_chains(self, version: int) -> dict[Place, list[Chain]]:
        """Those that say something in this family."""
        found: dict[Place, list[Chain]] = {}
        for name, chain in self._wanted.effective.items():
            if chain.base is not None:
                known = self._know(version, name)
                if known is not None and known.rendered.says_something:
                    found.setdefault(place_of(name, chain.base), []).append(chain)
        return found

    def _hang(self, wish: TableWish, version: int, place: Place, bases: list[Chain]) -> None:
        key, same = (version, place), tuple(bases)
        cached = self._hooks.get(key)
        if cached is None or cached[0] != same:
            cached = self._hooks[key] = (same, hook_chain(place, bases, self._settings))
        hook = cached[1]
        wish.chains[hook.name] = hook
        wish.hooks.add(place.kernel_chain)
        self._follow(wish, version, [chain.name for chain in bases])

    def _follow(self, wish: TableWish, version: int, names: list[str]) -> None:
        """Everything that is reached from these chains."""
        seen: set[str] = set()
        while names:
            name = names.pop()
            known = self._know(version, name)
            if known is None or name in seen:
                continue
            seen.add(name)
            wish.chains.update((chain.name, chain) for chain in known.rendered.chains)
            self.literals.update((literal.name, literal) for literal in known.rendered.literals)
            names += known.refers_to.chains
            for use in known.rendered.maps:
                entries, chains = self._map(version, use)
                wish.chains.update((chain.name, chain) for chain in chains)
                names += {
                    value.verdict.chain
                    for value in entries.values()
                    if value.verdict is not None and value.verdict.chain
                }

    def _know(self, version: int, name: str) -> _Known | None:
        chain = self._wanted.effective.get(name)
        if chain is None:
            return None
        cached = self._known.get((version, name))
        if cached is not None and cached.of is chain:
            return cached
        try:
            made = render_chain(chain, version, self._settings.marks)
        except Unrenderable as err:
            self.unrenderable[name] = str(err)
            return None
        known = self._known[version, name] = _Known(chain, made, references(chain))
        self._model_names.update((one.name, name) for one in made.chains)
        return known

    def _map(
        self, version: int, use: MapUse
    ) -> tuple[Mapping[bytes, MapValue], tuple[IptChain, ...]]:
        tracker = self._wanted.entries.get(use.name)
        entries = dict(tracker.wanted_items()) if tracker is not None else {}
        cached = self._maps.get((version, use))
        if cached is None or cached[0] != entries:
            before = {chain.name: chain for chain in cached[1]} if cached is not None else {}
            made = tuple(
                # The same object as before when nothing changed in it: not written anew.
                before[chain.name] if before.get(chain.name) == chain else chain
                for chain in map_chains(use, entries, self._settings.marks)
            )
            cached = self._maps[version, use] = (entries, made)
        return cached

    def _forget_unused(self) -> None:
        effective = self._wanted.effective
        for key in [key for key in self._known if key[1] not in effective]:
            for chain in self._known.pop(key).rendered.chains:
                self._model_names.pop(chain.name, None)
        uses = {
            (version, use)
            for (version, _name), known in self._known.items()
            for use in known.rendered.maps
        }
        for gone in self._maps.keys() - uses:
            del self._maps[gone]
