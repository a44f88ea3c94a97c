"""felix.config_parse: the forms that only Felix parameters have."""

from __future__ import annotations

import pytest

from felix import config_parse as forms
from felix.config_parse import NamedTimeout, TableRange
from libcalico.runtime.parse import PortRange


@pytest.mark.parametrize(
    ("parse", "raw", "value"),
    [
        (forms.interface_name, " eth0.7 ", "eth0.7"),
        (forms.interface_filter, "docker+", "docker+"),
        (forms.interface_prefixes, "cali, tap", ("cali", "tap")),
        (forms.region, "region-1", "region-1"),
        (forms.node_port_ranges, "30000:32767,80", (PortRange(30000, 32767), PortRange(80, 80))),
        (forms.table_range, "1-250", TableRange(1, 250)),
        (forms.table_ranges, "1-1, 300-400", (TableRange(1, 1), TableRange(300, 400))),
        (forms.table_ranges, "1-65535", (TableRange(1, 65535),)),
        (forms.dscp, "ef", 46),
        (forms.dscp, "10", 10),
        (forms.health_timeouts, "calc graph=1m", (NamedTimeout("calc graph", 60.0),)),
        (forms.conntrack_timeouts, "udptimeout=Auto", (("UDPTimeout", "Auto"),)),
        (forms.feature_overrides, "A=true,B=false,C=", (("A", True), ("B", False))),
        (forms.rate_limit, "9999/day", "9999/day"),
        (forms.log_prefix, "%t/%p: drop", "%t/%p: drop"),
        (forms.optional(forms.dscp), "1", 1),
    ],
)
def test_accepted(parse, raw, value):
    assert parse(raw) == value


@pytest.mark.parametrize(
    ("parse", "raw", "reason"),
    [
        (forms.interface_name, "a/b", "interface name"),
        (forms.interface_filter, "much-too-long-for-linux", "interface filter"),
        (forms.interface_prefixes, " , ", "at least one"),
        (forms.interface_prefixes, "fifteen-letters", "14"),
        (forms.region, "r" * 47, "too long"),
        (forms.region, "Region", "DNS label"),
        (forms.node_port_ranges, ",".join(map(str, range(1, 9))), "too long"),
        (forms.node_port_ranges, "http", "whole number"),
        (forms.table_range, "1", "min-max"),
        (forms.table_range, "0-9", "min must be >= 1"),
        (forms.table_range, "9-8", "greater than max"),
        (forms.table_range, "1-251", "1..250"),
        (forms.table_ranges, "1-40000,50000-80000", "too many"),
        (forms.table_ranges, "4294967295-4294967296", "32-bit"),
        (forms.dscp, "AF99", "DSCP"),
        (forms.health_timeouts, "a/b=1s", "reporter name"),
        (forms.health_timeouts, "a=-1s", "negative"),
        (forms.conntrack_timeouts, "X=1s", "unknown timeout"),
        (forms.conntrack_timeouts, "UDPTimeout=soon", "duration"),
        (forms.feature_overrides, "A=maybe", "true or false"),
        (forms.rate_limit, "5/week", "rate"),
        (forms.log_prefix, 'a"b', "letters"),
    ],
)
def test_refused_with_a_reason(parse, raw, reason):
    with pytest.raises(ValueError, match=reason):
        parse(raw)


def test_a_mark_mask_of_iptables_has_room_for_five():
    assert forms.iptables_mark_mask("0x1f") == 0x1F
    with pytest.raises(ValueError, match="at least 5 bits"):
        forms.iptables_mark_mask("0xf")


def test_a_mark_mask_has_room_for_two_marks():
    assert forms.mark_mask("0xffff0000") == 0xFFFF0000
    assert forms.mark_mask("3") == 3
    for raw in ("0x10000", "0"):
        with pytest.raises(ValueError, match="at least"):
            forms.mark_mask(raw)
