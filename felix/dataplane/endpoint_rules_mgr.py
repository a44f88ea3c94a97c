"""Local workloads into dispatch entries, source addresses, and the chains that govern them.

Layer: felix.dataplane, a manager. Pushes into the nft driver's wanted ruleset. (Interfaces, routes
and sysctls of the same endpoints are endpoint_mgr's.)

    interface --dispatch map--> endpoint chain --> tier chains --> policy chains
                                     |  (shared by endpoints governed alike)
                                     +--> profile chains

  G1  chains are kept while an endpoint uses them (governance_chains);
  G2  two endpoints that claim one interface (a pod replaced, its old endpoint not yet gone): the
      one whose key sorts first holds it, whatever order they came in; the other waits;
  G3  an endpoint's map entries, addresses and chains change in one transaction of the driver.
"""

from __future__ import annotations

from felix.dataplane.governance_chains import GovernanceChains
from felix.dataplane.nft_wanted import WantedRuleset
from felix.dataplane.qos_rules import DIRECTIONS, QosRules
from felix.intent import (
    Intent,
    WorkloadEndpointRemove,
    WorkloadEndpointUpdate,
)
from felix.rules import nat
from felix.rules.chain import Verdict, ifname_bytes
from felix.rules.dispatch import (
    EGRESS_MAP,
    INGRESS_MAP,
    SOURCE_NET_SETS,
    SOURCE_SETS,
    source_elements,
    source_net_elements,
)
from felix.rules.endpoints import Governance, endpoint_verdict
from felix.rules.sets import MapValue, SetSpec, address_bytes, family_of
from felix.rules.settings import RuleSettings
from libcalico.model.keys import ResourceKey

VERSIONS = (4, 6)
_MAPS = {"out": EGRESS_MAP.name, "in": INGRESS_MAP.name}


class EndpointRulesManager:
    """Manager. Runs after PolicyManager, whose book says which policies go into tier chains."""

    def __init__(
        self, wanted: WantedRuleset, settings: RuleSettings, chains: GovernanceChains
    ) -> None:
        self._wanted = wanted
        self._settings = settings
        self._chains = chains
        self._endpoint_by_key: dict[ResourceKey, WorkloadEndpointUpdate] = {}
        self._claims: dict[str, set[ResourceKey]] = {}
        self._dirty_interfaces: set[str] = set()
        self._held: dict[str, WorkloadEndpointUpdate] = {}
        self._governances_of: dict[str, tuple[str, ...]] = {}
        self._floating: dict[str, str] = {}  # external to internal
        self._hairpins: dict[str, str] = {}  # internal to external
        self._qos = QosRules(wanted, settings)

    def on_intent(self, intent: Intent) -> None:
        if isinstance(intent, WorkloadEndpointUpdate):
            self._forget(intent.key)
            self._endpoint_by_key[intent.key] = intent
            self._claims.setdefault(intent.interface, set()).add(intent.key)
            self._dirty_interfaces.add(intent.interface)
        elif isinstance(intent, WorkloadEndpointRemove):
            self._forget(intent.key)

    def _forget(self, key: ResourceKey) -> None:
        before = self._endpoint_by_key.pop(key, None)
        if before is not None:
            claims = self._claims[before.interface]
            claims.discard(key)
            if not claims:
                del self._claims[before.interface]
            self._dirty_interfaces.add(before.interface)

    def complete_deferred_work(self) -> None:
        for ifname in sorted(self._dirty_interfaces):
            self._settle(ifname, self._holder(ifname))
        if self._settings.translates_floating_ips and self._dirty_interfaces:
            self._settle_floating()
        self._dirty_interfaces.clear()
        self._chains.rewrite_changed()

    def _holder(self, ifname: str) -> WorkloadEndpointUpdate | None:
        """G2."""
        claims = self._claims.get(ifname)
        if not claims:
            return None
        return self._endpoint_by_key[min(claims, key=_sort_key)]

    # --------------------------------------------------------------------------- one interface

    def _settle(self, ifname: str, endpoint: WorkloadEndpointUpdate | None) -> None:
        self._settle_sources(ifname, self._held.get(ifname), endpoint)
        if endpoint is None:
            self._held.pop(ifname, None)
        else:
            self._held[ifname] = endpoint
        self._qos.settle(ifname, endpoint)
        governances = () if endpoint is None else self._governances(endpoint)
        names = tuple(governance.chain_name for governance in governances)
        for governance in governances:
            self._chains.use(governance, ifname)
        for name in set(self._governances_of.pop(ifname, ())) - set(names):
            self._chains.unuse(name, ifname)
        if names:
            self._governances_of[ifname] = names
        self._settle_entries(ifname, endpoint, governances)

    def _governances(self, endpoint: WorkloadEndpointUpdate) -> tuple[Governance, ...]:
        return tuple(
            Governance.of(
                direction,
                endpoint.tiers,
                endpoint.profiles,
                before=self._qos.connections_chain(endpoint.interface, direction),
            )
            for direction in DIRECTIONS
        )

    def _settle_entries(
        self,
        ifname: str,
        endpoint: WorkloadEndpointUpdate | None,
        governances: tuple[Governance, ...],
    ) -> None:
        key = ifname_bytes(ifname)
        if endpoint is None:
            for map_name in _MAPS.values():
                self._wanted.want_entry(map_name, key, None)
            return
        comment = f"{endpoint.key.namespace}/{endpoint.key.name}".lstrip("/")
        for governance in governances:
            verdict: Verdict = endpoint_verdict(endpoint, governance)
            value = MapValue(verdict, comment=comment)
            self._wanted.want_entry(_MAPS[governance.direction], key, value)

    def _settle_sources(
        self,
        ifname: str,
        before: WorkloadEndpointUpdate | None,
        after: WorkloadEndpointUpdate | None,
    ) -> None:
        if before and after and _sources(before) == _sources(after):
            return
        for version in VERSIONS:
            old = source_elements(ifname, before.nets if before else (), version)
            new = source_elements(ifname, after.nets if after else (), version)
            self._wanted.change_members(SOURCE_SETS[version].name, new - old, old - new)
            old = source_net_elements(ifname, _prefixes(before), version)
            new = source_net_elements(ifname, _prefixes(after), version)
            self._wanted.change_members(SOURCE_NET_SETS[version].name, new - old, old - new)

    # ------------------------------------------------------------------------ floating addresses

    def _settle_floating(self) -> None:
        """One external address leads to one workload: of several claims the first key wins.
        A workload that reaches itself gets the external one that sorts first, as in Calico."""
        floating: dict[str, str] = {}
        for endpoint in sorted(self._held.values(), key=lambda held: _sort_key(held.key)):
            for mapping in endpoint.nats:
                floating.setdefault(mapping.external_ip, mapping.internal_ip)
        # By internal address: when its external one changes, or one of two goes, the entry stays.
        hairpins = {floating[external]: external for external in sorted(floating, reverse=True)}
        for external in _changed(self._floating, floating):
            self._want_translation(nat.FLOATING, external, floating.get(external))
        for internal in _changed(self._hairpins, hairpins):
            self._want_translation(nat.HAIRPINS, internal, hairpins.get(internal))
        for internal in self._hairpins.keys() ^ hairpins.keys():
            self._want_pair(address_bytes(internal), family_of(internal), internal in hairpins)
        self._floating, self._hairpins = floating, hairpins

    def _want_translation(self, maps: dict[int, SetSpec], address: str, to: str | None) -> None:
        value = None if to is None else MapValue(data=address_bytes(to))
        self._wanted.want_entry(maps[family_of(address)].name, address_bytes(address), value)

    def _want_pair(self, inside: bytes, version: int, is_wanted: bool) -> None:
        pair = {inside + inside}
        added, removed = (pair, set()) if is_wanted else (set(), pair)
        self._wanted.change_members(nat.HAIRPIN_PAIRS[version].name, added, removed)

    def dump(self) -> dict[str, object]:
        return {
            "interfaces": {ifname: str(held.key) for ifname, held in self._held.items()},
            "contested": {
                ifname: sorted(map(str, claims))
                for ifname, claims in self._claims.items()
                if len(claims) > 1
            },
            "qos": self._qos.dump(),
            "endpoint_chains": self._chains.dump(),
        }


def _changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    """The keys whose values differ, or that only one of them has."""
    return {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


def _sources(endpoint: WorkloadEndpointUpdate) -> tuple[tuple[str, ...], ...]:
    return endpoint.nets, endpoint.allowed_source_prefixes


def _prefixes(endpoint: WorkloadEndpointUpdate | None) -> tuple[str, ...]:
    return () if endpoint is None else endpoint.allowed_source_prefixes


def _sort_key(key: ResourceKey) -> tuple[str, str, str]:
    return key.namespace, key.name, key.kind
