"""felix.rules.settings: felix's configuration as the rules see it."""

from __future__ import annotations

import re

from felix.config import SCHEMA
from felix.rules.settings import (
    DenyAction,
    Failsafe,
    HostAction,
    IptablesSettings,
    LogRate,
    Marks,
    RuleSettings,
    parse_rate,
)
from libcalico.runtime.config import LiveConfig, environment_layer


def settings_of(**environment: str) -> RuleSettings:
    layer = environment_layer(SCHEMA, {f"FELIX_{k}": v for k, v in environment.items()})
    return RuleSettings.of(LiveConfig(SCHEMA, [layer]).config)


def test_defaults_of_the_configuration_are_the_defaults_here():
    assert settings_of() == RuleSettings()


def test_every_parameter_reaches_the_rules():
    assert settings_of(
        INTERFACEPREFIX="cali,tap",
        DEFAULTENDPOINTTOHOSTACTION="ACCEPT",
        NFTABLESFILTERDENYACTION="REJECT",
        LOGPREFIX="x",
        LOGACTIONRATELIMIT="7/minute",
        LOGACTIONRATELIMITBURST="9",
        DISABLECONNTRACKINVALIDCHECK="true",
        VXLANPORT="8472",
        ALLOWVXLANPACKETSFROMWORKLOADS="true",
        ALLOWIPIPPACKETSFROMWORKLOADS="true",
        WORKLOADSOURCESPOOFING="Any",
        OPENSTACKREGION="r1",
        NATPORTRANGE="1000:2000",
        NATOUTGOINGADDRESS="192.0.2.77",
        NATOUTGOINGEXCLUSIONS="IPPoolsAndHostIPs",
        IPTABLESNATOUTGOINGINTERFACEFILTER="eth+",
        FLOATINGIPS="Enabled",
        FAILSAFEINBOUNDHOSTPORTS="tcp:192.0.2.0/24:22,sctp:9",
        FAILSAFEOUTBOUNDHOSTPORTS="none",
        INTERFACEEXCLUDE="eth9",
        NFTABLESMARKMASK="0xf0",
        POLICYRULECOUNTERS="Enabled",
    ) == RuleSettings(
        interface_prefixes=("cali", "tap"),
        endpoint_to_host=HostAction.ACCEPT,
        deny_action=DenyAction.REJECT,
        log_prefix="x",
        log_rate=LogRate(7, 60, 9),
        drops_invalid=False,
        vxlan_port=8472,
        allows_vxlan_from_workloads=True,
        allows_ipip_from_workloads=True,
        allows_source_prefixes=True,
        allows_dhcp_to_host=True,
        nat_ports=(1000, 2000),
        nat_outgoing_address="192.0.2.77",
        nat_excludes_hosts=True,
        nat_interface_filter="eth+",
        translates_floating_ips=True,
        inbound_failsafes=(Failsafe(6, 22, "192.0.2.0/24"), Failsafe(132, 9)),
        outbound_failsafes=(),
        excluded_interfaces=(re.compile("^eth9$"),),
        marks=Marks(0x10, 0x20),
        counts=True,
        folds=False,
    )


def test_marks_are_the_lowest_bits_of_the_mask():
    assert Marks.of(0xFFFF0000) == Marks(0x10000, 0x20000)
    assert Marks.of(0x80000001) == Marks(1, 0x80000000)
    assert Marks.of(0x80000001).all == 0x80000001


def test_rates_are_per_unit():
    assert parse_rate("", 5) is None
    assert parse_rate("3/day", 5) == LogRate(3, 86400, 5)


def test_with_iptables_its_own_parameters_count():
    made = settings_of(
        NFTABLESMODE="Disabled",
        IPTABLESFILTERDENYACTION="Reject",
        IPTABLESFILTERALLOWACTION="Return",
        IPTABLESMARKMASK="0xff",
    )
    assert made.deny_action is DenyAction.REJECT
    assert (made.marks.allowed, made.marks.owed) == (1, 2)
    assert not made.folds
    assert not made.guards_maps
    assert made.iptables == IptablesSettings(True, 0xFF, filter_accepts=False)
    assert settings_of().folds
    assert settings_of().guards_maps
    assert not settings_of().iptables.is_in_use
