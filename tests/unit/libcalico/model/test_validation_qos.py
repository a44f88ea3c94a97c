"""libcalico.model.validation_qos: what writers may say about limits; readers take what there is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from libcalico.model.codec import decode
from libcalico.model.validation import problems


def failures(controls: dict[str, Any], *, is_stored: bool = False) -> list[str]:
    spec = {"interfaceName": "cali0", "ipNetworks": ["10.0.0.1/32"], "qosControls": controls}
    metadata = {"name": "x", "namespace": "prod"}
    document = {"kind": "WorkloadEndpoint", "metadata": metadata, "spec": spec}
    endpoint = decode("WorkloadEndpoint", json.dumps(document).encode(), 1)
    return [error.detail() for error in problems(endpoint, is_stored=is_stored)]


FULL = {
    "Bandwidth": 10**6,
    "Burst": 10**5,
    "Peakrate": 2 * 10**6,
    "Minburst": 1500,
    "PacketRate": 100,
    "PacketBurst": 5,
    "MaxConnections": 10,
}
LIMITS = {
    "Burst": (1000, 34_359_738_360),
    "Minburst": (1000, 100_000_000),
    "PacketRate": (1, 10_000),
    "PacketBurst": (1, 10_000),
    "MaxConnections": (1, 4_294_967_295),
}


def controls(direction: str, **members: int) -> dict[str, int]:
    return {direction + name: value for name, value in (FULL | members).items()}


@pytest.mark.parametrize("direction", ["ingress", "egress"])
@pytest.mark.parametrize("name", LIMITS)
def test_a_value_is_within_its_range(direction, name):
    smallest, largest = LIMITS[name]
    field = direction.capitalize() + name
    for value in (smallest, largest):
        assert failures(controls(direction, **{name: value})) == []
    for value in (-1, largest + 1, *([smallest - 1] if smallest > 1 else [])):
        expected = f"{field} = '{value}' (must be between {smallest} and {largest})"
        assert failures(controls(direction, **{name: value})) == [expected]


@pytest.mark.parametrize("direction", ["ingress", "egress"])
def test_rates_are_within_their_ranges(direction):
    field = direction.capitalize()
    assert failures(controls(direction, Bandwidth=1000, Peakrate=1010)) == []
    assert failures(controls(direction, Bandwidth=10**15, Peakrate=1_010_000_000_000_000)) == []
    assert failures(controls(direction, Bandwidth=999)) == [
        f"{field}Bandwidth = '999' (must be between 1000 and 1000000000000000)"
    ]
    assert failures(controls(direction, Peakrate=1_010_000_000_000_001)) == [
        f"{field}Peakrate = '1010000000000001' (must be between 1010 and 1010000000000000)"
    ]


@pytest.mark.parametrize("direction", ["ingress", "egress"])
def test_a_burst_needs_its_rate(direction):
    def alone(name: str, value: int) -> list[str]:
        return failures({direction + name: value})

    field = direction.capitalize()
    assert alone("Burst", 1000) == [
        f"{field}Burst = '1000' ({direction} bandwidth must be specified too)"
    ]
    assert alone("Peakrate", 5000) == [
        f"{field}Peakrate = '5000' ({direction} bandwidth must be specified too)"
    ]
    assert alone("Minburst", 1500) == [
        f"{field}Minburst = '1500' ({direction} peakrate must be specified too)"
    ]
    assert alone("PacketBurst", 5) == [
        f"{field}PacketBurst = '5' ({direction} packet rate must be specified too)"
    ]


@pytest.mark.parametrize("direction", ["ingress", "egress"])
def test_a_peak_rate_is_above_the_bandwidth(direction):
    field = direction.capitalize()
    assert failures(controls(direction, Peakrate=10**6)) == [
        f"{field}Peakrate = '1000000' (must be greater than {direction} bandwidth)"
    ]


def test_zero_is_no_limit():
    assert failures({"ingressBandwidth": 0, "egressBurst": 0, "egressMaxConnections": 0}) == []


def test_readers_take_what_is_stored():
    beyond = {"ingressPacketRate": 100_000, "egressBurst": 5, "egressMaxConnections": -1}
    assert len(failures(beyond)) == 4
    assert failures(beyond, is_stored=True) == []
