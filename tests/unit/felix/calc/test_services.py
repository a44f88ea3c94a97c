"""felix.calc.services: sets of the endpoints of services (SV1 to SV3)."""

from __future__ import annotations

from felix.calc.services import ServiceIndex
from libcalico.compute.members import SetDelta
from libcalico.compute.rules import SetKind
from libcalico.model.kubernetes import KubernetesEndpointSlice
from tests.support.calc import endpoint_slice

WEB = ("prod", "web")
ONE = endpoint_slice("web-1", "web", "10.0.0.1", "fd00::1", ports=[("TCP", 80), ("UDP", 53)])
TWO = endpoint_slice("web-2", "web", "10.0.0.1", "10.0.0.2", ports=[("TCP", 80)])


def index(*slices) -> ServiceIndex:
    made = ServiceIndex()
    for key, value in slices:
        made.update_slice(key, value)
    return made


def flushed(services: ServiceIndex) -> dict[str, tuple[bool, set[str], set[str]]]:
    found = services.flush()
    assert all(isinstance(item, SetDelta) for item in found)
    return {item.set_id: (item.is_new, set(item.added), set(item.removed)) for item in found}


def test_a_destination_is_address_protocol_and_port():
    """SV2."""
    services = index(ONE)
    services.update_set("d", WEB, SetKind.IP_PORT)
    both = {f"{a},{p}" for a in ("10.0.0.1", "fd00::1") for p in ("tcp,80", "udp,53")}
    assert flushed(services) == {"d": (True, both, set())}
    assert services.members("d") == both


def test_a_source_is_an_address():
    """SV2."""
    services = index(ONE)
    services.update_set("s", WEB, SetKind.NET)
    assert flushed(services) == {"s": (True, {"10.0.0.1/32", "fd00::1/128"}, set())}


def test_an_address_of_two_slices_leaves_with_the_last():
    """SV2."""
    services = index(ONE, TWO)
    services.update_set("d", WEB, SetKind.IP_PORT)
    flushed(services)
    services.update_slice(ONE[0], None)
    gone = {"10.0.0.1,udp,53", "fd00::1,tcp,80", "fd00::1,udp,53"}
    assert flushed(services) == {"d": (False, set(), gone)}
    services.update_slice(TWO[0], None)
    assert flushed(services) == {"d": (False, set(), {"10.0.0.1,tcp,80", "10.0.0.2,tcp,80"})}
    assert services.members("d") == frozenset()


def test_a_service_nobody_knows_is_empty_until_a_slice_comes():
    """SV1."""
    services = index()
    services.update_set("d", WEB, SetKind.IP_PORT)
    assert flushed(services) == {"d": (True, set(), set())}
    services.update_slice(*TWO)
    assert flushed(services) == {"d": (False, {"10.0.0.1,tcp,80", "10.0.0.2,tcp,80"}, set())}


def test_a_slice_that_changes_its_service_leaves_the_old_one():
    services = index(TWO)
    services.update_set("d", WEB, SetKind.IP_PORT)
    services.update_set("o", ("prod", "other"), SetKind.NET)
    flushed(services)
    moved = endpoint_slice("web-2", "other", "10.0.0.9")
    services.update_slice(*moved)
    left = {"10.0.0.1,tcp,80", "10.0.0.2,tcp,80"}
    assert flushed(services) == {"d": (False, set(), left), "o": (False, {"10.0.0.9/32"}, set())}


def test_services_of_another_namespace_are_others():
    services = index(ONE)
    services.update_set("d", ("dev", "web"), SetKind.NET)
    assert flushed(services) == {"d": (True, set(), set())}


def test_the_same_slice_again_and_a_set_given_up_say_nothing():
    services = index(ONE)
    services.update_set("d", WEB, SetKind.NET)
    flushed(services)
    services.update_slice(*ONE)
    assert flushed(services) == {}
    services.update_slice(ONE[0], KubernetesEndpointSlice(metadata=ONE[1].metadata))
    services.delete_set("d")
    assert flushed(services) == {}
    assert services.members("d") == frozenset()


def test_dump_counts():
    services = index(ONE, TWO)
    services.update_set("d", WEB, SetKind.NET)
    flushed(services)
    assert services.dump() == {"endpoint_slices": 2, "service_sets": {"d": "prod/web: 3"}}
