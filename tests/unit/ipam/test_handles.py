"""ipam.handles: counting addresses by handle (datamodel §2.2, §2.6.5, §2.8)."""

from __future__ import annotations

import json

import pytest

from ipam import handles
from ipam.errors import HandleLimitReached, HandleMismatch
from ipam.handles import Tunnel
from libcalico.model import codec
from libcalico.model.ipam import Handle

V4, V6 = "10.10.3.64/26", "fd00:10::/122"


def test_a_new_handle_is_stored_as_calico_stores_it():
    handle = handles.increment(None, "h", V4, 1)
    assert json.loads(codec.encode(handle)) == {"block": {V4: 1}, "deleted": False}


def test_counts_add_up_by_block():
    handle = handles.increment(handles.increment(None, "h", V4, 2), "h", V4, 1)
    assert handles.increment(handle, "h", V6, 1).block == {V4: 3, V6: 1}


def test_a_handle_that_counts_nothing_is_gone():
    handle = Handle(block={V4: 2, V6: 1})
    left = handles.decrement(handle, "h", V4, 2)
    assert left == Handle(block={V6: 1})
    assert handles.decrement(left, "h", V6, 1) is None
    assert handles.decrement(handle, "h", V4, 1) == Handle(block={V4: 1, V6: 1})


@pytest.mark.parametrize(
    ("handle", "text"),
    [
        (None, "Tried to decrement block 10.10.3.64/26 by 2 but it isn't linked to handle h"),
        (Handle(block={V6: 2}),
         "Tried to decrement block 10.10.3.64/26 by 2 but it isn't linked to handle h"),
        (Handle(block={V4: 1}),
         "Tried to decrement block 10.10.3.64/26 by 2 but it only has 1 addresses on handle h"),
    ],
)  # fmt: skip
def test_what_is_not_counted_cannot_be_taken_off(handle: Handle | None, text: str):
    with pytest.raises(HandleMismatch) as refused:
        handles.decrement(handle, "h", V4, 2)
    assert str(refused.value) == text


def test_a_limited_handle_holds_so_many_of_each_family():
    handle = handles.increment(None, "vm", V4, 1, max_alloc=1)
    handle = handles.increment(handle, "vm", V6, 1, max_alloc=1)
    with pytest.raises(HandleLimitReached) as refused:
        handles.increment(handle, "vm", "10.10.3.0/26", 1, max_alloc=1)
    assert str(refused.value) == (
        "handle vm already has 1 allocation(s), cannot allocate more (maxAlloc=1)"
    )


@pytest.mark.parametrize(
    ("tunnel", "handle", "kind", "version"),
    [
        (Tunnel.IPIP, "ipip-tunnel-addr-n1", "ipipTunnelAddress", 4),
        (Tunnel.VXLAN, "vxlan-tunnel-addr-n1", "vxlanTunnelAddress", 4),
        (Tunnel.VXLAN_V6, "vxlan-v6-tunnel-addr-n1", "vxlanV6TunnelAddress", 6),
        (Tunnel.WIREGUARD, "wireguard-tunnel-addr-n1", "wireguardTunnelAddress", 4),
        (Tunnel.WIREGUARD_V6, "wireguard-v6-tunnel-addr-n1", "wireguardV6TunnelAddress", 6),
    ],
)
def test_tunnels_have_calicos_handles_and_attributes(
    tunnel: Tunnel, handle: str, kind: str, version: int
):
    assert tunnel.handle("n1") == handle
    assert tunnel.attributes("n1") == {"node": "n1", "type": kind}
    assert tunnel.version == version
