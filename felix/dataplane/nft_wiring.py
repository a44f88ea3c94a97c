"""The nftables dataplane put together: driver, managers in their order, and what is always there.

Layer: felix.dataplane. Called by the daemon:

    nft = nft_dataplane(NftKernel.in_namespace(), RuleSettings.of(config))
    managers += nft.managers            # in this order
    drivers.append(nft.table)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from felix.dataplane.endpoint_rules_mgr import EndpointRulesManager
from felix.dataplane.governance_chains import GovernanceChains
from felix.dataplane.host_rules_mgr import HostRulesManager
from felix.dataplane.ipset_mgr import IpSetManager
from felix.dataplane.manager import Manager
from felix.dataplane.masq_mgr import MasqManager
from felix.dataplane.nft_port import NftPort
from felix.dataplane.nft_table import NftTable
from felix.dataplane.nft_wanted import WantedRuleset
from felix.dataplane.policy_mgr import PolicyBook, PolicyManager
from felix.rules import dispatch, nat, static
from felix.rules.settings import RuleSettings
from libcalico.runtime.clock import SYSTEM, Clock


@dataclass(frozen=True, slots=True)
class NftDataplane:
    """`host` is one of the managers, and wants to hear of interfaces; `policies` another."""

    table: NftTable
    managers: tuple[Manager, ...]
    policies: PolicyManager
    host: HostRulesManager


def nft_dataplane(port: NftPort, settings: RuleSettings, *, clock: Clock = SYSTEM) -> NftDataplane:
    table = NftTable(port, clock=clock)
    managers = nft_managers(table.wanted, settings)
    return NftDataplane(table, managers, managers.policies, managers.host)


class RuleManagers(NamedTuple):
    """In the order they run."""

    ip_sets: IpSetManager
    policies: PolicyManager
    endpoints: EndpointRulesManager
    pools: MasqManager
    host: HostRulesManager


def nft_managers(wanted: WantedRuleset, settings: RuleSettings) -> RuleManagers:
    """Managers that fill `wanted`, which gets the fixed chains and sets at once."""
    want_static(wanted, settings)
    book = PolicyBook()
    chains = GovernanceChains(wanted, settings, book)
    return RuleManagers(
        IpSetManager(wanted),
        PolicyManager(wanted, settings, book),
        EndpointRulesManager(wanted, settings, chains),
        MasqManager(wanted),
        HostRulesManager(wanted, settings, chains),
    )


def want_static(wanted: WantedRuleset, settings: RuleSettings) -> None:
    """Base chains and the sets they look up: there as long as the table is."""
    for spec in (*dispatch.ALL_SETS, *nat.OUTGOING_SETS):
        # A missing element of these closes one workload (or leaves one address untranslated),
        # so a refused element does not have to close everybody.
        wanted.want_set(spec, isolates_elements=True)
    for chain in (*static.chains(settings), nat.outgoing_chain(settings)):
        wanted.want_chain(chain)
    if settings.translates_floating_ips:
        for spec in nat.FLOATING_SETS:
            wanted.want_set(spec, isolates_elements=True)
        for chain in nat.floating_chains():
            wanted.want_chain(chain)
