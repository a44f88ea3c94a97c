"""Host endpoints and the node's interfaces into dispatch entries and chains at each stage.

Layer: felix.dataplane, a manager and listener. Pushes into the nft driver's wanted ruleset. Which
endpoint stands on which interface is decided by felix.host_interfaces, what the chains say by
felix.rules.host.

  N1  what is wanted depends on the endpoints and interfaces of now: there are few of both, so all
      stages are worked out anew and compared with what was wanted before;
  N2  an endpoint that names an interface governs it before it exists: the first packet of an
      interface that appears is policed. One that expects addresses follows them;
  N3  an interface that some endpoint governs has an entry at every stage where the `*` endpoint has
      something to say, if only to say that its own has not;
  N4  base chains exist while something is asked there, maps while they look something up (HR1 of
      felix.rules.host, W1 of nft_wanted).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from felix.dataplane.governance_chains import GovernanceChains
from felix.dataplane.manager import InterfaceState
from felix.dataplane.nft_wanted import WantedRuleset
from felix.host_interfaces import ANY_INTERFACE, HostAssignment, assign_host_endpoints
from felix.intent import HostEndpointRemove, HostEndpointUpdate, Intent
from felix.rules import host
from felix.rules.chain import ACCEPT, Chain, goto, ifname_bytes
from felix.rules.endpoints import Governance
from felix.rules.host import HostDispatch, HostStage
from felix.rules.sets import MapValue
from felix.rules.settings import RuleSettings
from libcalico.model.keys import ResourceKey


@dataclass(frozen=True, slots=True)
class _Governed:
    """An interface, or `*`, and what governs it at one stage; None: nothing, and nobody else."""

    endpoint: HostEndpointUpdate
    governance: Governance | None


@dataclass(slots=True)
class _Stage:
    """What is wanted at one stage at present."""

    governed: dict[str, _Governed] = field(default_factory=dict)
    chains: dict[str, Chain] = field(default_factory=dict)


class HostRulesManager:
    """Manager and InterfaceListener. Runs after PolicyManager."""

    def __init__(
        self, wanted: WantedRuleset, settings: RuleSettings, chains: GovernanceChains
    ) -> None:
        self._wanted, self._settings, self._chains = wanted, settings, chains
        self._endpoints: dict[ResourceKey, HostEndpointUpdate] = {}
        self._addresses: dict[str, tuple[str, ...]] = {}
        self._assignment = HostAssignment({}, None)
        self._stages = {stage.name: _Stage() for stage in host.STAGES}
        self._is_dirty = False
        for chain in host.needed_chains(settings):
            wanted.want_chain(chain)
        for stage in host.STAGES:
            # An element the kernel refuses closes one interface (HR6) and says so; refusing all of
            # them would unpolice every interface.
            wanted.want_set(stage.map, isolates_elements=True)

    # ------------------------------------------------------------------------------- inputs

    def on_intent(self, intent: Intent) -> None:
        if isinstance(intent, HostEndpointUpdate):
            self._endpoints[intent.key] = intent
            self._is_dirty = True
        elif isinstance(intent, HostEndpointRemove):
            self._is_dirty |= self._endpoints.pop(intent.key, None) is not None

    def on_interface(self, name: str, state: InterfaceState | None) -> None:
        if not self.is_host_interface(name):
            return
        before = self._addresses.pop(name, None)
        if state is not None:
            self._addresses[name] = state.addresses
        self._is_dirty |= before != self._addresses.get(name)

    def is_host_interface(self, name: str) -> bool:
        """Whether a host endpoint may stand on it (RuleSettings)."""
        return self._settings.is_host_interface(name)

    # --------------------------------------------------------------------------------- work

    def complete_deferred_work(self) -> None:
        if not self._is_dirty:
            return
        self._is_dirty = False
        interfaces = {**self._expected(), **self._addresses}
        self._assignment = assign_host_endpoints(self._endpoints.values(), interfaces)
        governed = {stage.name: dict(self._governed(stage)) for stage in host.STAGES}
        uses_marks = any(governed[stage.name] for stage in host.STAGES if stage.marks)
        for stage in host.STAGES:
            self._settle(stage, governed[stage.name], uses_marks=uses_marks)

    def _expected(self) -> dict[str, tuple[str, ...]]:
        """Interfaces that endpoints name, without addresses: they may not exist yet (N2)."""
        named = {endpoint.interface for endpoint in self._endpoints.values()}
        return {name: () for name in named - {"", ANY_INTERFACE} if self.is_host_interface(name)}

    def _governed(self, stage: HostStage) -> Iterator[tuple[str, _Governed]]:
        remaining = self._assignment.remaining
        has_default = remaining is not None and host.applies(stage, remaining)
        for ifname, endpoint in sorted(self._assignment.by_interface.items()):
            if host.applies(stage, endpoint):
                yield ifname, _Governed(endpoint, self._governance(stage, endpoint))
            elif has_default:
                yield ifname, _Governed(endpoint, None)  # N3
        if remaining is not None and has_default:
            yield ANY_INTERFACE, _Governed(remaining, self._governance(stage, remaining))

    def _governance(self, stage: HostStage, endpoint: HostEndpointUpdate) -> Governance:
        return Governance.of(
            host.direction_at(stage, self._settings),
            stage.tiers_of(endpoint),
            () if stage.is_open else endpoint.profiles,
            before=stage.needed,
            is_open=stage.is_open,
        )

    def _settle(
        self, stage: HostStage, governed: Mapping[str, _Governed], *, uses_marks: bool
    ) -> None:
        present = self._stages[stage.name]
        before, present.governed = present.governed, dict(governed)
        for ifname, found in governed.items():
            if found.governance is not None:
                self._chains.use(found.governance, _user(stage, ifname))
        self._release(stage, before, governed)
        self._settle_entries(stage, before, governed)
        self._settle_chains(stage, present, uses_marks=uses_marks)

    def _release(
        self, stage: HostStage, before: Mapping[str, _Governed], after: Mapping[str, _Governed]
    ) -> None:
        """Give up the chains that are no longer used, now that the others are held."""
        for ifname, found in before.items():
            name = _chain_name(found)
            if name and name != _chain_name(after.get(ifname)):
                self._chains.unuse(name, _user(stage, ifname))

    def _settle_entries(
        self, stage: HostStage, before: Mapping[str, _Governed], after: Mapping[str, _Governed]
    ) -> None:
        had, has = before.keys() - {ANY_INTERFACE}, after.keys() - {ANY_INTERFACE}
        for ifname in has:
            found = after[ifname]
            name = _chain_name(found)
            value = MapValue(goto(name) if name else ACCEPT, comment=found.endpoint.key.name)
            self._wanted.want_entry(stage.map.name, ifname_bytes(ifname), value)
        for ifname in had - has:
            self._wanted.want_entry(stage.map.name, ifname_bytes(ifname), None)

    def _settle_chains(self, stage: HostStage, present: _Stage, *, uses_marks: bool) -> None:
        default = _chain_name(present.governed.get(ANY_INTERFACE))
        dispatch = HostDispatch(frozenset(present.governed.keys() - {ANY_INTERFACE}), default)
        chains = host.stage_chains(stage, dispatch, self._settings, uses_marks=uses_marks)
        for name in present.chains.keys() - {chain.name for chain in chains}:
            self._wanted.drop_chain(name)
        for chain in chains:
            self._wanted.want_chain(chain)
        present.chains = {chain.name: chain for chain in chains}

    # ---------------------------------------------------------------------------- questions

    @property
    def count(self) -> int:
        return len(self._endpoints)

    @property
    def active_count(self) -> int:
        """Those that govern an interface and whose policy is in the kernel."""
        keys = self._endpoints
        return sum(bool(self.governed_by(key)) and not self.problem(key) for key in keys)

    def governed_by(self, key: ResourceKey) -> tuple[str, ...]:
        """The interfaces this endpoint stands on, whether they exist or not; ("*",) for the one
        that has all the others."""
        remaining = self._assignment.remaining
        if remaining is not None and remaining.key == key:
            return (ANY_INTERFACE,)
        found = self._assignment.by_interface.items()
        return tuple(sorted(ifname for ifname, endpoint in found if endpoint.key == key))

    def problem(self, key: ResourceKey) -> str:
        """Why packets of its interfaces do not meet this endpoint's policy; "" when they do.

        A chain that the kernel refused is in place all the same, closed; a base chain is not."""
        for stage in self._stages_of(lambda found: found.endpoint.key == key):
            present = self._stages[stage.name]
            for name, chain in present.chains.items():
                if chain.base is not None and self._is_missing(name):
                    return f"chain {name} is not in the kernel"
            for ifname, found in present.governed.items():
                if found.endpoint.key == key and self._is_unsaid(stage, ifname):
                    return f"the policy of interface {ifname} is not in the kernel"
        return ""

    def _stages_of(self, wants: Callable[[_Governed], bool]) -> Iterator[HostStage]:
        for stage in host.STAGES:
            if any(map(wants, self._stages[stage.name].governed.values())):
                yield stage

    def _is_missing(self, chain: str) -> bool:
        return chain not in self._wanted.effective or self._wanted.chains.is_dirty(chain)

    def _is_unsaid(self, stage: HostStage, ifname: str) -> bool:
        if ifname == ANY_INTERFACE:
            return False
        return self._wanted.entries[stage.map.name].is_dirty(ifname_bytes(ifname))

    def dump(self) -> dict[str, object]:
        return {
            stage: {
                ifname: {"endpoint": found.endpoint.key.name, "chain": _chain_name(found)}
                for ifname, found in sorted(present.governed.items())
            }
            for stage, present in self._stages.items()
            if present.governed
        }


def _chain_name(found: _Governed | None) -> str:
    """The chain an interface is sent to; "" for none."""
    return found.governance.chain_name if found is not None and found.governance else ""


def _user(stage: HostStage, ifname: str) -> str:
    return f"{stage.name} {ifname}"
