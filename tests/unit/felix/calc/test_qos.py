"""felix.calc.qos: stored controls as limits; nothing stored can make the dataplane refuse."""

from __future__ import annotations

import pytest

from felix.calc.qos import qos_controls
from felix.intent import NO_QOS, DirectionLimits, QosControls
from libcalico.model import QoSControls


def test_no_controls_are_no_limits():
    assert qos_controls(None) == NO_QOS
    assert qos_controls(QoSControls(ingress_bandwidth=0, egress_packet_rate=0)) == NO_QOS


def test_each_direction_gets_its_own_limits():
    stored = QoSControls(
        ingress_bandwidth=10_000_000,
        ingress_burst=800_000,
        ingress_peakrate=20_000_000,
        ingress_minburst=3000,
        ingress_packet_rate=100,
        ingress_packet_burst=7,
        ingress_max_connections=5,
        egress_bandwidth=1_000_000,
        egress_burst=80_000,
        egress_peakrate=2_000_000,
        egress_minburst=2000,
        egress_packet_rate=50,
        egress_packet_burst=8,
        egress_max_connections=6,
        dscp="AF11",
    )
    assert qos_controls(stored) == QosControls(
        DirectionLimits(10_000_000, 800_000, 20_000_000, 3000, 100, 7, 5),
        DirectionLimits(1_000_000, 80_000, 2_000_000, 2000, 50, 8, 6),
        dscp=10,
    )


def test_bursts_have_defaults():
    limits = qos_controls(QoSControls(ingress_bandwidth=1000, ingress_packet_rate=1)).ingress
    assert (limits.burst_bits, limits.packet_burst) == (4 * 1024**3, 5)


@pytest.mark.parametrize(
    "stored",
    [
        QoSControls(ingress_burst=1000),
        QoSControls(ingress_peakrate=1_000_000),
        QoSControls(ingress_minburst=1500),
        QoSControls(ingress_packet_burst=10),
        QoSControls(ingress_bandwidth=-1, ingress_packet_rate=-1, ingress_max_connections=-1),
    ],
)
def test_what_lacks_what_it_needs_is_left_out(stored):
    assert qos_controls(stored).ingress == DirectionLimits()


def test_a_peak_rate_is_above_the_bandwidth_or_none():
    stored = QoSControls(ingress_bandwidth=5000, ingress_peakrate=5000, ingress_minburst=2000)
    limits = qos_controls(stored).ingress
    assert (limits.bits_per_s, limits.peak_bits_per_s, limits.peak_burst_bytes) == (5000, 0, 0)


def test_what_is_too_large_is_the_largest_possible():
    huge = 1 << 62
    stored = QoSControls(
        ingress_bandwidth=huge,
        ingress_burst=huge,
        ingress_packet_rate=huge,
        ingress_packet_burst=huge,
        ingress_max_connections=huge,
    )
    u32 = 2**32 - 1
    expected = DirectionLimits(10**18, u32 * 8, 0, 0, 10**9, u32, u32)
    assert qos_controls(stored).ingress == expected


def test_class_zero_is_a_mark_too():
    assert qos_controls(QoSControls(dscp="CS0")).dscp == 0
    assert qos_controls(QoSControls(dscp=46)).dscp == 46
