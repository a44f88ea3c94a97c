"""felix.dataplane.uplinks: whose MTU counts."""

from __future__ import annotations

import re

import pytest

from felix.config import SCHEMA
from felix.dataplane.manager import InterfaceState
from felix.dataplane.uplinks import Uplinks
from libcalico.runtime.config import LiveConfig


@pytest.fixture
def uplinks() -> Uplinks:
    config = LiveConfig(SCHEMA).config
    return Uplinks(config.mtu_iface_pattern, ("cali", "ethpod"))


def say(uplinks: Uplinks, name: str, mtu_bytes: int) -> None:
    uplinks.on_interface(name, InterfaceState(name, 7, True, True, (), mtu_bytes))


def test_the_smallest_uplink_decides(uplinks):
    assert uplinks.mtu_bytes() == 0
    say(uplinks, "eth0", 9000)
    say(uplinks, "enp3s0", 1450)
    assert uplinks.mtu_bytes() == 1450
    say(uplinks, "enp3s0", 1500)
    assert uplinks.mtu_bytes() == 1500
    uplinks.on_interface("enp3s0", None)
    assert uplinks.dump() == {"eth0": 9000}


@pytest.mark.parametrize("name", ["lo", "docker0", "cali123", "ethpod1", "vxlan.calico"])
def test_interfaces_that_are_no_uplinks_do_not_count(uplinks, name):
    say(uplinks, name, 1280)
    assert uplinks.mtu_bytes() == 0


def test_an_mtu_that_is_not_known_is_not_zero(uplinks):
    say(uplinks, "eth0", 1500)
    say(uplinks, "eth1", 0)
    assert uplinks.mtu_bytes() == 1500


def test_the_pattern_is_the_administrators():
    uplinks = Uplinks(re.compile("^bond"), ("cali",))
    say(uplinks, "eth0", 1280)
    say(uplinks, "bond0", 9000)
    assert uplinks.mtu_bytes() == 9000
