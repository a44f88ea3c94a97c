"""QoS controls of a workload: ranges, what needs what, and the defaults of what is left out.

Layer: libcalico.model, pure. Users: validation (writers only, see WRITERS_CHECKS), felix.calc.

Calico has these rules where it reads pod annotations, not in its validator, and its felix takes
what is stored as it finds it. So writers are held to them here, readers are not: an OpenStack
port with a packet rate above 10,000 is no reason to cut the port off.

Source: Calico libcalico-go/lib/backend/k8s/conversion/workload_endpoint_default.go.
"""

from __future__ import annotations

from libcalico.model.endpoints import QoSControls
from libcalico.model.validation_rules import Report

_U32 = 2**32 - 1
# Bits, and bits a second: a little more than 4 Gi is the most that tbf's 32-bit bytes can say.
MAX_BURST_BITS = _U32 * 8
DEFAULT_BURST_BITS = 4 << 30
DEFAULT_PACKET_BURST = 5
MAX_CONNECTIONS = _U32

# (attribute, JSON name, smallest, largest); 0 and absent are no limit.
_RANGES = (
    ("bandwidth", "Bandwidth", 1_000, 10**15),
    ("burst", "Burst", 1_000, MAX_BURST_BITS),
    ("peakrate", "Peakrate", 1_010, 1_010 * 10**12),
    ("minburst", "Minburst", 1_000, 100 * 10**6),
    ("packet_rate", "PacketRate", 1, 10_000),
    ("packet_burst", "PacketBurst", 1, 10_000),
    ("max_connections", "MaxConnections", 1, MAX_CONNECTIONS),
)
# (what is there, what it needs)
_NEEDS = (
    (("burst", "Burst"), ("bandwidth", "bandwidth")),
    (("peakrate", "Peakrate"), ("bandwidth", "bandwidth")),
    (("minburst", "Minburst"), ("peakrate", "peakrate")),
    (("packet_burst", "PacketBurst"), ("packet_rate", "packet rate")),
)


def check_qos(controls: QoSControls, report: Report) -> None:
    for direction in ("ingress", "egress"):
        _check_direction(controls, direction, report)


def _check_direction(controls: QoSControls, direction: str, report: Report) -> None:
    def value(attribute: str) -> int:
        found: int | None = getattr(controls, f"{direction}_{attribute}")
        return found or 0

    prefix = direction.capitalize()
    for attribute, name, smallest, largest in _RANGES:
        if value(attribute) and not smallest <= value(attribute) <= largest:
            reason = f"must be between {smallest} and {largest}"
            report.reason(prefix + name, value(attribute), reason)
    for (attribute, name), (needed, words) in _NEEDS:
        if value(attribute) and not value(needed):
            reason = f"{direction} {words} must be specified too"
            report.reason(prefix + name, value(attribute), reason)
    if value("bandwidth") and 0 < value("peakrate") <= value("bandwidth"):
        reason = f"must be greater than {direction} bandwidth"
        report.reason(prefix + "Peakrate", value("peakrate"), reason)


# What is asked of writers and not of what is stored already (validation VA4).
WRITERS_CHECKS = frozenset({check_qos})
