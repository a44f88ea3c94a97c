"""The iptables dataplane put together: the managers of nftables over the iptables driver.

Layer: felix.dataplane. Used by the daemon, as nft_wiring is.

    made = iptables_dataplane(port, settings, options)
    managers += made.managers           # in this order
    drivers.append(made.table)
"""

from __future__ import annotations

from dataclasses import dataclass

from felix.dataplane.host_rules_mgr import HostRulesManager
from felix.dataplane.ipt_plan import TableState
from felix.dataplane.ipt_port import IptablesPort
from felix.dataplane.ipt_rules import IptRules
from felix.dataplane.ipt_sets import IpSets
from felix.dataplane.ipt_table import DEFAULTS, IptablesTable, IptOptions
from felix.dataplane.manager import Manager
from felix.dataplane.nft_wanted import WantedRuleset
from felix.dataplane.nft_wiring import nft_managers
from felix.dataplane.policy_mgr import PolicyManager
from felix.rules.ipt_layout import HookSettings
from felix.rules.settings import RuleSettings
from libcalico.runtime.clock import SYSTEM, Clock


@dataclass(frozen=True, slots=True)
class IptablesDataplane:
    """`host` is one of the managers, and wants to hear of interfaces; `policies` another."""

    table: IptablesTable
    managers: tuple[Manager, ...]
    policies: PolicyManager
    host: HostRulesManager


def iptables_dataplane(
    port: IptablesPort,
    settings: RuleSettings,
    options: IptOptions = DEFAULTS,
    *,
    clock: Clock = SYSTEM,
) -> IptablesDataplane:
    table = IptablesTable(port, HookSettings.of(settings), options, clock=clock)
    managers = nft_managers(table.wanted, settings)
    return IptablesDataplane(table, managers, managers.policies, managers.host)


def script(wanted: WantedRuleset, settings: RuleSettings) -> str:
    """What `ipset restore`, iptables-restore and ip6tables-restore would be given on an empty node,
    one after the other."""
    wanted.settle()
    rules = IptRules(wanted, HookSettings.of(settings))
    wishes = rules.build((4, 6))
    sets = IpSets(wanted, DEFAULTS.max_members)
    sets.want_literals(rules.literals)
    filling = sets.filling(frozenset())
    parts = ["# ipset\n" + (filling.text if filling is not None else "")]
    for (version, table), wish in wishes.items():
        state = TableState(version, table)
        state.want(wish.chains, wish.hooks)
        made = state.script()
        if made is not None:
            parts.append(f"# {'ip6tables' if version == 6 else 'iptables'}\n{made.text}")
    return "".join(parts)
