"""cni.qos: limits asked for in annotations, with Calico's ranges and defaults."""

from __future__ import annotations

import pytest

from cni.qos import Bandwidth, controls
from libcalico.model.endpoints import QoSControls

NOTHING = Bandwidth()


def of(bandwidth=NOTHING, **annotations):
    given = {f"qos.projectcalico.org/{name}": value for name, value in annotations.items()}
    return controls(given, bandwidth)


def test_without_annotations_there_is_nothing():
    assert controls({"other": "1"}, NOTHING) == (None, ())


def test_every_limit_of_both_directions():
    found, problems = of(
        ingressBandwidth="1M",
        ingressBurst="2M",
        ingressPeakrate="3M",
        ingressMinburst="1500",
        ingressPacketRate="100",
        ingressPacketBurst="7",
        ingressMaxConnections="50",
        egressBandwidth="4M",
        egressPacketRate="10",
        dscp="AF11",
    )
    assert problems == ()
    assert found == QoSControls(
        ingress_bandwidth=1_000_000,
        ingress_burst=2_000_000,
        ingress_peakrate=3_000_000,
        ingress_minburst=1500,
        ingress_packet_rate=100,
        ingress_packet_burst=7,
        ingress_max_connections=50,
        egress_bandwidth=4_000_000,
        egress_burst=4 * 2**30,
        egress_packet_rate=10,
        egress_packet_burst=5,
        dscp="AF11",
    )


def test_calicos_annotation_goes_before_kubernetes_and_this_before_the_runtimes_number():
    runtimes = Bandwidth(rates={"ingress": 3000, "egress": 4000}, bursts={"egress": 5000})
    given = {
        "kubernetes.io/ingress-bandwidth": "2k",
        "kubernetes.io/egress-bandwidth": "6k",
        "qos.projectcalico.org/ingressBandwidth": "1k",
    }
    found, problems = controls(given, runtimes)
    assert problems == ()
    assert (found.ingress_bandwidth, found.egress_bandwidth) == (1000, 6000)
    assert found.egress_burst == 5000
    found, _ = controls({}, runtimes)
    assert (found.ingress_bandwidth, found.egress_bandwidth) == (3000, 4000)


@pytest.mark.parametrize(
    ("text", "value"), [("1", 1000), ("999P", 10**15), ("0", 1000), ("-5", 1000)]
)
def test_a_number_out_of_range_is_moved_into_it(text, value):
    found, problems = of(ingressBandwidth=text)
    assert found.ingress_bandwidth == value
    (problem,) = problems
    assert problem.startswith("qos.projectcalico.org/ingressBandwidth: ")
    assert "outside 1000 to" in problem


@pytest.mark.parametrize(
    ("annotations", "problem"),
    [
        ({"ingressBandwidth": "fast"}, "ingressBandwidth"),
        ({"ingressBurst": "2M"}, "ingressBurst: needs bandwidth"),
        ({"egressPeakrate": "2M"}, "egressPeakrate: needs bandwidth"),
        ({"ingressMinburst": "2k"}, "ingressMinburst: needs peakrate"),
        ({"egressPacketBurst": "5"}, "egressPacketBurst: needs packet_rate"),
        ({"dscp": "64"}, "dscp"),
        ({"dscp": "XX"}, "dscp"),
    ],
)
def test_what_makes_no_sense_is_left_out_and_said(annotations, problem):
    found, problems = of(**annotations)
    assert found is None
    assert problem in "; ".join(problems)


def test_a_peakrate_below_the_bandwidth_takes_its_minburst_along():
    found, problems = of(ingressBandwidth="2M", ingressPeakrate="2M", ingressMinburst="1500")
    assert (found.ingress_peakrate, found.ingress_minburst) == (None, None)
    assert found.ingress_bandwidth == 2_000_000
    assert len(problems) == 2


def test_a_numeric_dscp_is_a_number():
    assert of(dscp="46")[0] == QoSControls(dscp=46)
