"""What a bandwidth limit is in the kernel's terms: token buckets, and the interfaces they need.

Layer: felix.dataplane, pure. Used by endpoint_mgr (what an endpoint wants) and shaping_table.

    to the workload    root tbf on its interface
    from the workload  ingress qdisc on its interface ── everything ──► root tbf on an ifb, bwcali…

How a fresh process recognises what is ours: token buckets have the handle ca11:, redirections the
priority 0xca11, and the ifb is named by a hash of the workload's interface behind Calico's prefix.

A burst below the largest packet would let no such packet pass: it is raised to that. Tokens are
kept as time at the rate and at most for 4.29 s of it (libcalico.netlink.qdisc): Calico's default
burst of 512 MiB is that much on anything slower than 1 Gbit/s.

Source: Calico felix/dataplane/linux/qos/qos.go (directions, ifb names, 25 ms of queue); tc-tbf(8).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from felix.intent import DirectionLimits, QosControls
from libcalico.netlink import TokenBucket
from libcalico.netlink.qdisc import MAX_TICKS, TICK_NS

BUCKET_HANDLE = 0xCA110000
REDIRECT_PRIORITY = 0xCA11
IFB_PREFIX = "bwcali"
_IFNAME_CHARS = 15

_QUEUE_MS = 25
# Calico (and tc) let the whole burst queue too, which is half a gigabyte of kernel memory by
# default. Who has tokens does not queue: this much serves a burst at the peak rate.
_QUEUED_BURST_BYTES = 1 << 20
_MAX_QUEUE_BYTES = 2**32 - 1
_ETHERNET_HEADER_BYTES = 14
_UNKNOWN_MTU_BYTES = 1500


@dataclass(frozen=True, slots=True)
class Shape:
    """The buckets of one workload interface; None for no limit. `mtu_bytes` is the interface's."""

    ingress: TokenBucket | None
    egress: TokenBucket | None
    mtu_bytes: int


def shape_of(controls: QosControls, mtu_bytes: int) -> Shape | None:
    """None when neither direction is limited."""
    mtu_bytes = mtu_bytes or _UNKNOWN_MTU_BYTES
    ingress = token_bucket(controls.ingress, mtu_bytes)
    egress = token_bucket(controls.egress, mtu_bytes)
    return Shape(ingress, egress, mtu_bytes) if ingress or egress else None


def token_bucket(limits: DirectionLimits, mtu_bytes: int) -> TokenBucket | None:
    if not limits.bits_per_s:
        return None
    packet_bytes = mtu_bytes + _ETHERNET_HEADER_BYTES
    rate = max(1, limits.bits_per_s // 8)
    burst_bytes = max(packet_bytes, limits.burst_bits // 8)
    queue_bytes = rate * _QUEUE_MS // 1000 + min(burst_bytes, _QUEUED_BURST_BYTES)
    peak_rate = limits.peak_bits_per_s // 8
    if peak_rate <= rate:  # in whole bytes the two may be one
        peak_rate = 0
    peak_burst_bytes = max(packet_bytes, limits.peak_burst_bytes)
    return TokenBucket(
        rate=rate,
        burst_ticks=_ticks(burst_bytes, rate),
        limit_bytes=min(queue_bytes, _MAX_QUEUE_BYTES),
        peak_rate=peak_rate,
        peak_ticks=_ticks(peak_burst_bytes, peak_rate) if peak_rate else 0,
    )


def _ticks(size_bytes: int, rate: int) -> int:
    """How long so many bytes take, rounded up: the kernel rounds down when it converts back."""
    return min(-(-size_bytes * 10**9 // (rate * TICK_NS)), MAX_TICKS)


def ifb_name(ifname: str) -> str:
    """The interface through which we send what comes from a workload."""
    digest = hashlib.sha256(ifname.encode()).hexdigest()
    return (IFB_PREFIX + digest)[:_IFNAME_CHARS]
