"""felix.dataplane.shaping: limits as token buckets."""

from __future__ import annotations

from felix.dataplane.shaping import Shape, ifb_name, shape_of, token_bucket
from felix.intent import NO_QOS, DirectionLimits, QosControls
from libcalico.netlink import TokenBucket
from libcalico.netlink.qdisc import MAX_TICKS


def test_no_limit_is_no_shape():
    assert shape_of(NO_QOS, 1500) is None
    assert token_bucket(DirectionLimits(packets_per_s=1, connections=1), 1500) is None


def test_rate_burst_and_queue():
    """1 Mbit/s is 125,000 bytes a second; 10,000 bytes take 80 ms, which are 1,250,000 ticks."""
    found = token_bucket(DirectionLimits(bits_per_s=1_000_000, burst_bits=80_000), 1500)
    assert found == TokenBucket(125_000, 1_250_000, 3125 + 10_000)


def test_directions_are_apart():
    limits = DirectionLimits(bits_per_s=1_000_000, burst_bits=80_000)
    bucket = token_bucket(limits, 1400)
    assert shape_of(QosControls(egress=limits), 1400) == Shape(None, bucket, 1400)
    assert shape_of(QosControls(ingress=limits), 1400) == Shape(bucket, None, 1400)


def test_a_burst_holds_the_largest_packet():
    found = token_bucket(DirectionLimits(bits_per_s=1_000_000, burst_bits=1000), 1500)
    assert found is not None
    assert found.burst_ticks * 64 * found.rate // 10**9 >= 1514
    assert found.limit_bytes == 3125 + 1514


def test_the_default_burst_neither_overflows_nor_queues_as_a_whole():
    limits = DirectionLimits(bits_per_s=1_000_000, burst_bits=4 << 30)
    found = token_bucket(limits, 1500)
    assert found == TokenBucket(125_000, MAX_TICKS, 3125 + (1 << 20))


def test_a_peak_rate_has_its_own_bucket():
    limits = DirectionLimits(
        bits_per_s=1_000_000, burst_bits=80_000, peak_bits_per_s=2_000_000, peak_burst_bytes=100
    )
    found = token_bucket(limits, 1500)
    assert found is not None
    assert (found.peak_rate, found.peak_ticks) == (250_000, -(-1514 * 10**9 // (250_000 * 64)))


def test_a_peak_rate_that_is_no_byte_faster_is_none():
    limits = DirectionLimits(bits_per_s=8000, burst_bits=80_000, peak_bits_per_s=8001)
    found = token_bucket(limits, 1500)
    assert found is not None
    assert (found.peak_rate, found.peak_ticks) == (0, 0)


def test_the_largest_rate_fits():
    found = token_bucket(DirectionLimits(bits_per_s=10**18, burst_bits=8 * (2**32 - 1)), 1500)
    assert found is not None
    assert (found.rate, found.limit_bytes) == (125 * 10**15, 2**32 - 1)
    assert found.burst_ticks >= 1


def test_an_ifb_is_named_after_its_interface():
    assert ifb_name("cali1") != ifb_name("cali2")
    assert len(ifb_name("cali1")) == 15
    assert ifb_name("cali1").startswith("bwcali")
