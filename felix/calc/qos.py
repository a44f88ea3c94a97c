"""The QoS controls of a stored workload as limits that can be programmed.

Layer: felix.calc, pure. Used by endpoints.py.

What is stored has not been held to Calico's ranges (libcalico.model.validation_qos): here it is
brought into what kernel and tools can take, and what needs something that is not there is left
out, as Calico does when it reads the annotations of a pod.
"""

from __future__ import annotations

from felix.intent import NO_QOS, DirectionLimits, QosControls
from libcalico.model import QoSControls
from libcalico.model.scalars import parse_dscp
from libcalico.model.validation_qos import (
    DEFAULT_BURST_BITS,
    DEFAULT_PACKET_BURST,
    MAX_BURST_BITS,
    MAX_CONNECTIONS,
)

_MAX_BITS_PER_S = 10**18
# nft's limit counts in nanoseconds a packet: it cannot tell faster rates apart.
_MAX_PACKETS_PER_S = 10**9
_MAX_BYTES = _MAX_PACKET_BURST = 2**32 - 1


def qos_controls(stored: QoSControls | None) -> QosControls:
    if stored is None:
        return NO_QOS
    return QosControls(
        ingress=_limits(
            bandwidth=_bandwidth(stored.ingress_bandwidth, stored.ingress_burst),
            peak=(stored.ingress_peakrate, stored.ingress_minburst),
            packets=_packets(stored.ingress_packet_rate, stored.ingress_packet_burst),
            connections=stored.ingress_max_connections,
        ),
        egress=_limits(
            bandwidth=_bandwidth(stored.egress_bandwidth, stored.egress_burst),
            peak=(stored.egress_peakrate, stored.egress_minburst),
            packets=_packets(stored.egress_packet_rate, stored.egress_packet_burst),
            connections=stored.egress_max_connections,
        ),
        dscp=None if stored.dscp is None else parse_dscp(stored.dscp),
    )


def _limits(
    *,
    bandwidth: tuple[int, int],
    peak: tuple[int | None, int | None],
    packets: tuple[int, int],
    connections: int | None,
) -> DirectionLimits:
    peak_rate = _within(peak[0], _MAX_BITS_PER_S)
    has_peak = 0 < bandwidth[0] < peak_rate
    return DirectionLimits(
        bits_per_s=bandwidth[0],
        burst_bits=bandwidth[1],
        peak_bits_per_s=peak_rate if has_peak else 0,
        peak_burst_bytes=_within(peak[1], _MAX_BYTES) if has_peak else 0,
        packets_per_s=packets[0],
        packet_burst=packets[1],
        connections=_within(connections, MAX_CONNECTIONS),
    )


def _bandwidth(rate: int | None, burst: int | None) -> tuple[int, int]:
    bits_per_s = _within(rate, _MAX_BITS_PER_S)
    if not bits_per_s:
        return 0, 0
    return bits_per_s, _within(burst, MAX_BURST_BITS) or DEFAULT_BURST_BITS


def _packets(rate: int | None, burst: int | None) -> tuple[int, int]:
    packets_per_s = _within(rate, _MAX_PACKETS_PER_S)
    if not packets_per_s:
        return 0, 0
    return packets_per_s, _within(burst, _MAX_PACKET_BURST) or DEFAULT_PACKET_BURST


def _within(value: int | None, largest: int) -> int:
    """0 for no limit, which is also what a negative one means."""
    return min(max(value or 0, 0), largest)
