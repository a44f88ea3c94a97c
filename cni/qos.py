"""The limits a pod asks for in its annotations, as the WorkloadEndpoint records them.

Layer: pure. Used by cni.pod_annotations. Source: Calico libcalico-go/lib/backend/k8s/conversion
(handleQoSControlsAnnotations): its ranges and defaults.

As there, a limit that makes no sense never keeps a pod from starting: a number out of range is
moved to the nearest allowed one, anything else that is wrong is left out, and each is a problem
that the caller logs. Units: bits per second and bits, packets per second and packets; a minburst
is bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from libcalico.errors import ValidationError
from libcalico.model.endpoints import QoSControls
from libcalico.model.quantity import parse_quantity
from libcalico.model.scalars import parse_dscp

PREFIX = "qos.projectcalico.org/"
_KUBERNETES = {
    "ingress": "kubernetes.io/ingress-bandwidth",
    "egress": "kubernetes.io/egress-bandwidth",
}
_UINT32_MAX = 2**32 - 1


@dataclass(frozen=True, slots=True)
class _Limit:
    """One kind of limit, in both directions. `default` applies when `needs` is set alone."""

    annotation: str
    attribute: str
    lowest: int
    highest: int
    needs: str = ""
    default: int = 0


_LIMITS = (
    _Limit("Bandwidth", "bandwidth", 1_000, 10**15),
    _Limit("Burst", "burst", 1_000, _UINT32_MAX * 8, needs="bandwidth", default=4 * 2**30),
    _Limit("Peakrate", "peakrate", 1_010, 1_010 * 10**12, needs="bandwidth"),
    _Limit("Minburst", "minburst", 1_000, 100 * 10**6, needs="peakrate"),
    _Limit("PacketRate", "packet_rate", 1, 10_000),
    _Limit("PacketBurst", "packet_burst", 1, 10_000, needs="packet_rate", default=5),
    _Limit("MaxConnections", "max_connections", 1, _UINT32_MAX),
)


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """CNI's `runtimeConfig.bandwidth`: rates in bits per second, bursts in bits; 0 is unset."""

    rates: Mapping[str, int] = field(default_factory=dict)
    bursts: Mapping[str, int] = field(default_factory=dict)


def controls(
    annotations: Mapping[str, str], bandwidth: Bandwidth
) -> tuple[QoSControls | None, tuple[str, ...]]:
    """The controls (None when nothing is limited) and what was wrong. Annotations of Calico go
    before those of Kubernetes, these before the runtime's own numbers."""
    problems: list[str] = []
    values: dict[str, int | str] = {}
    for direction in ("ingress", "egress"):
        found = _asked(direction, annotations, bandwidth, problems)
        _settle(direction, found, problems)
        values |= {f"{direction}_{name}": value for name, value in found.items()}
    dscp = annotations.get(f"{PREFIX}dscp")
    if dscp is not None:
        try:
            parse_dscp(dscp)
            values["dscp"] = int(dscp) if dscp.isdigit() else dscp
        except ValidationError as err:
            problems.append(f"{PREFIX}dscp: {err}")
    return (QoSControls(**values) if values else None), tuple(problems)  # type: ignore[arg-type]


def _asked(
    direction: str, annotations: Mapping[str, str], bandwidth: Bandwidth, problems: list[str]
) -> dict[str, int]:
    found = {}
    runtimes = {"bandwidth": bandwidth.rates, "burst": bandwidth.bursts}
    for limit in _LIMITS:
        name, text = f"{PREFIX}{direction}{limit.annotation}", None
        if limit.attribute == "bandwidth" and name not in annotations:
            name = _KUBERNETES[direction]
        text = annotations.get(name)
        number = runtimes.get(limit.attribute, {}).get(direction, 0)
        if text is None and number:
            name, text = f"runtimeConfig.bandwidth.{direction}{limit.annotation}", str(number)
        if text is not None:
            value = _clamped(name, text, limit, problems)
            if value is not None:
                found[limit.attribute] = value
    return found


def _clamped(name: str, text: str, limit: _Limit, problems: list[str]) -> int | None:
    try:
        value = parse_quantity(text)
    except ValidationError as err:
        problems.append(f"{name}: {err}")
        return None
    allowed = max(limit.lowest, min(limit.highest, value))
    if allowed != value:
        problems.append(f"{name}: {text} is outside {limit.lowest} to {limit.highest}")
    return allowed


def _settle(direction: str, found: dict[str, int], problems: list[str]) -> None:
    """What one limit needs of another; then the defaults."""
    peak, rate = found.get("peakrate"), found.get("bandwidth")
    if peak is not None and rate is not None and peak <= rate:
        problems.append(f"{PREFIX}{direction}Peakrate: must be greater than the bandwidth")
        del found["peakrate"]
    for limit in _LIMITS:
        if not limit.needs or limit.needs in found:
            continue
        if found.pop(limit.attribute, None) is not None:
            problems.append(f"{PREFIX}{direction}{limit.annotation}: needs {limit.needs}")
    for limit in _LIMITS:
        if limit.default and limit.needs in found:
            found.setdefault(limit.attribute, limit.default)
