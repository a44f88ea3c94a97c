"""cni.hostnames: no two living endpoints share a host interface name."""

from __future__ import annotations

from dataclasses import replace

from cni.facts import NamesOf, Stored
from cni.hostnames import HostNames
from cni.identity import Workload
from libcalico.model import WorkloadEndpoint
from libcalico.model.endpoints import WorkloadEndpointSpec
from libcalico.model.keys import ResourceKey
from libcalico.model.meta import ObjectMeta
from libcalico.model.names import EndpointIds

ONE = Workload(
    ids=EndpointIds(node="n", orchestrator="cni", container_id="one", endpoint="eth0"),
    key=ResourceKey("WorkloadEndpoint", "n-cni-one-eth0", "default"),
    name_prefix="n-cni-one-",
    interface="cali0123456789a",
    handle_id="net.one",
    container_id="one",
    ifname="eth0",
)
OTHER = replace(ONE, key=ResourceKey("WorkloadEndpoint", "n-cni-other-eth0", "default"))


def stored(workload: Workload, name: str) -> Stored:
    spec = WorkloadEndpointSpec(interface_name=name)
    return Stored(workload.key, WorkloadEndpoint(metadata=ObjectMeta(name="x"), spec=spec), 1)


def test_a_free_name_is_kept():
    with HostNames().claimed(ONE, NamesOf()) as mine:
        assert mine == ONE


def test_the_name_of_another_endpoint_is_not_given_but_its_own_is():
    names = HostNames()
    with names.claimed(OTHER, NamesOf([stored(ONE, ONE.interface)])) as mine:
        # printf default.n-cni-other-eth0 | sha1sum
        assert mine.interface == "cali885b4af4abf"
    with names.claimed(ONE, NamesOf([stored(ONE, ONE.interface)])) as mine:
        assert mine.interface == ONE.interface


def test_two_requests_at_once_get_two_names():
    names = HostNames()
    with names.claimed(ONE, NamesOf()) as first, names.claimed(OTHER, NamesOf()) as second:
        assert first.interface != second.interface
    with names.claimed(OTHER, NamesOf()) as later:
        assert later.interface == OTHER.interface, "the claim ended with its block"


def test_a_second_hash_is_taken_when_the_first_is_taken_too():
    known = [stored(ONE, ONE.interface), stored(ONE, "cali885b4af4abf")]
    with HostNames().claimed(OTHER, NamesOf(known)) as mine:
        assert mine.interface not in {ONE.interface, "cali885b4af4abf"}
        assert len(mine.interface) == 15


def test_a_claim_that_two_containers_of_a_pod_hold_ends_with_the_first():
    names = HostNames()
    again = replace(ONE, container_id="two")
    with names.claimed(ONE, NamesOf()) as first:
        with names.claimed(again, NamesOf()) as second:
            assert first.interface == second.interface
        with names.claimed(OTHER, NamesOf()) as third:
            assert third.interface != first.interface
