"""What the rules depend on besides intents: a frozen extract of felix's configuration.

Layer: pure. Made by the daemon (`RuleSettings.of(config)`), handed down to managers.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass

from felix.config import FelixConfig
from libcalico.runtime.parse import ProtoPort

_DEFAULTS = FelixConfig()


class DenyAction(enum.Enum):
    DROP = "Drop"
    REJECT = "Reject"


class HostAction(enum.Enum):
    """What happens to allowed traffic of a workload to its own host.

    ACCEPT and RETURN are the same in nf_tables: an accept of ours never overrides another table's
    drop, so the host's own firewall always has the last word."""

    DROP = "Drop"
    ACCEPT = "Accept"
    RETURN = "Return"


@dataclass(frozen=True, slots=True)
class LogRate:
    """`unit_s` is 1, 60, 3600 or 86400."""

    rate: int
    unit_s: int
    burst: int = 5


@dataclass(frozen=True, slots=True)
class Failsafe:
    """A port that no policy of a host endpoint closes; `net` limits the peer, "" is anybody."""

    protocol: int
    port: int
    net: str = ""


_PROTOCOLS = {"tcp": 6, "udp": 17, "sctp": 132}


def failsafes(ports: Iterable[ProtoPort]) -> tuple[Failsafe, ...]:
    return tuple(
        Failsafe(_PROTOCOLS[item.protocol], item.port, str(item.net) if item.net else "")
        for item in ports
    )


@dataclass(frozen=True, slots=True)
class Marks:
    """Bits of a packet's mark, for host endpoints only (felix.rules.host)."""

    # An untracked or preDNAT policy has allowed it: the stages after it do not ask again.
    allowed: int = 0x10000
    # Sent by this host to a translated destination: egress policy is asked when it leaves.
    owed: int = 0x20000

    @property
    def all(self) -> int:
        return self.allowed | self.owed

    @classmethod
    def of(cls, mask: int) -> Marks:
        """The two lowest bits of a mask that has as many."""
        allowed = mask & -mask
        rest = mask ^ allowed
        return cls(allowed, rest & -rest)


@dataclass(frozen=True, slots=True)
class IptablesSettings:
    """What only the iptables dataplane asks. See felix.config for the parameters."""

    is_in_use: bool = False
    mark_mask: int = 0xFFFF0000
    filter_accepts: bool = True
    mangle_accepts: bool = True

    @classmethod
    def of(cls, config: FelixConfig) -> IptablesSettings:
        return cls(
            config.nftables_mode == "Disabled",
            config.iptables_mark_mask,
            config.iptables_filter_allow_action == "ACCEPT",
            config.iptables_mangle_allow_action == "ACCEPT",
        )


@dataclass(frozen=True, slots=True)
class RuleSettings:
    """Names follow the FelixConfiguration fields they come from."""

    interface_prefixes: tuple[str, ...] = ("cali",)
    endpoint_to_host: HostAction = HostAction.DROP
    deny_action: DenyAction = DenyAction.DROP
    log_prefix: str = "calico-packet"
    log_rate: LogRate | None = None
    drops_invalid: bool = True
    vxlan_port: int = 4789
    allows_vxlan_from_workloads: bool = False
    allows_ipip_from_workloads: bool = False
    # Let workloads use the allowed source prefixes of their endpoint (workloadSourceSpoofing Any).
    allows_source_prefixes: bool = False
    # DHCP from workloads to this host (virtual machines whose host answers them).
    allows_dhcp_to_host: bool = False
    nat_ports: tuple[int, int] | None = None
    nat_outgoing_address: str | None = None
    nat_excludes_hosts: bool = False
    nat_interface_filter: str = ""
    translates_floating_ips: bool = False
    # Host endpoints.
    inbound_failsafes: tuple[Failsafe, ...] = failsafes(_DEFAULTS.failsafe_inbound_host_ports)
    outbound_failsafes: tuple[Failsafe, ...] = failsafes(_DEFAULTS.failsafe_outbound_host_ports)
    excluded_interfaces: tuple[re.Pattern[str], ...] = _DEFAULTS.interface_exclude
    marks: Marks = Marks()
    # A packet counter on every deciding rule (PolicyRuleCounters; see `nft list ruleset`).
    counts: bool = False
    # Runs of like rules as one lookup in a set of value combinations: what iptables does not have.
    folds: bool = True
    # Whether one entry of a map can be missing, refused by the kernel (HR6 of host.py). In iptables
    # it is a rule of a chain, and that is closed as a whole.
    guards_maps: bool = True
    iptables: IptablesSettings = IptablesSettings()

    def is_host_interface(self, name: str) -> bool:
        """Whether a host endpoint may stand on it (felix.host_interfaces HI4)."""
        if name.startswith(self.interface_prefixes):
            return False
        return not any(pattern.search(name) for pattern in self.excluded_interfaces)

    @classmethod
    def of(cls, config: FelixConfig) -> RuleSettings:
        ports, address = config.nat_port_range, config.nat_outgoing_address
        iptables = IptablesSettings.of(config)
        if iptables.is_in_use:
            deny, mask = config.iptables_filter_deny_action, config.iptables_mark_mask
        else:
            deny, mask = config.nftables_filter_deny_action, config.nftables_mark_mask
        return cls(
            interface_prefixes=config.interface_prefixes,
            endpoint_to_host=HostAction[config.default_endpoint_to_host_action.upper()],
            deny_action=DenyAction[deny.upper()],
            log_prefix=config.log_prefix,
            log_rate=parse_rate(config.log_action_rate_limit, config.log_action_rate_limit_burst),
            drops_invalid=not config.disable_conntrack_invalid_check,
            vxlan_port=config.vxlan_port,
            allows_vxlan_from_workloads=config.allow_vxlan_packets_from_workloads,
            allows_ipip_from_workloads=config.allow_ipip_packets_from_workloads,
            allows_source_prefixes=config.workload_source_spoofing == "Any",
            allows_dhcp_to_host=bool(config.openstack_region),
            nat_ports=(ports.first, ports.last) if ports else None,
            nat_outgoing_address=str(address) if address else None,
            nat_excludes_hosts=config.nat_outgoing_exclusions == "IPPoolsAndHostIPs",
            nat_interface_filter=config.iptables_nat_outgoing_interface_filter,
            translates_floating_ips=config.floating_ips == "Enabled",
            inbound_failsafes=failsafes(config.failsafe_inbound_host_ports),
            outbound_failsafes=failsafes(config.failsafe_outbound_host_ports),
            excluded_interfaces=config.interface_exclude,
            marks=Marks.of(mask),
            counts=config.policy_rule_counters == "Enabled",
            guards_maps=not iptables.is_in_use,
            # A folded rule would count for all that it stands for.
            folds=not iptables.is_in_use and config.policy_rule_counters != "Enabled",
            iptables=iptables,
        )


_UNITS_S = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}


def parse_rate(text: str, burst: int) -> LogRate | None:
    """ "5/second" (already validated by the configuration); empty: no limit."""
    if not text:
        return None
    count, _slash, unit = text.partition("/")
    return LogRate(int(count), _UNITS_S[unit], burst)
