"""felix.rules.dispatch: elements keyed by interface."""

from __future__ import annotations

from ipaddress import ip_address

from felix.rules.chain import ifname_bytes
from felix.rules.dispatch import ALL_SETS, source_elements, source_net_elements


def test_every_address_of_a_workload_is_one_element_of_its_family():
    nets = ("10.65.0.2/32", "10.65.0.3/32", "fd00::2/128")
    name = ifname_bytes("cali1")
    assert source_elements("cali1", nets, 4) == {
        name + ip_address("10.65.0.2").packed,
        name + ip_address("10.65.0.3").packed,
    }
    assert source_elements("cali1", nets, 6) == {name + ip_address("fd00::2").packed}


def test_a_net_is_no_address():
    assert source_elements("cali1", ("10.65.0.0/24", "fd00::/64"), 4) == set()
    assert source_elements("cali1", ("10.65.0.0/24", "fd00::/64"), 6) == set()


def test_allowed_prefixes_are_intervals_within_one_name():
    name = ifname_bytes("cali1")
    assert source_net_elements("cali1", ("10.0.0.0/8", "10.1.0.0/16", "fd00::/8"), 4) == {
        name + ip_address("10.0.0.0").packed + name + ip_address("10.255.255.255").packed
    }


def test_sets_have_names_of_their_own():
    assert len({spec.name for spec in ALL_SETS}) == len(ALL_SETS)
