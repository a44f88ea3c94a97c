"""ipam.sticky: what a claim is, and where it may be used."""

from __future__ import annotations

import pytest

from ipam.blocks import Holder
from ipam.sticky import Identity, Place, claim_of, is_claim, refusal
from libcalico.net import parse_ip
from tests.support.ipam import pool

WEB = Identity("net", "prod", "web.0", "eth0")
ADDRESS = parse_ip("10.0.0.5")
HERE = Place("n1", {"rack": "a"})
OTHER = pool("b", "10.1.0.0/24")


def test_handles_of_different_identities_differ_wherever_the_dots_are():
    """Networks and pods may have dots in their names; a container's handle has its first after the
    network's name."""
    others = [Identity("net.prod", "web", "0", "eth0"), Identity("net", "prod", "web.0", "net1")]
    handles = {identity.handle_id for identity in (WEB, *others)}
    assert len(handles) == 3
    assert not any(handle.startswith("sticky.") for handle in handles)


def test_a_claim_needs_its_handle_and_its_type():
    attributes = WEB.attributes("n1", "c1")
    assert is_claim(WEB.handle_id, attributes)
    assert is_claim(WEB.handle_id + "\rtail", attributes)
    assert not is_claim("sticky.c1", attributes)
    assert not is_claim(None, attributes)
    assert not is_claim(WEB.handle_id, {**attributes, "type": "other"})
    assert claim_of(Holder(WEB.handle_id, attributes).as_attribute()) == "net/prod/web.0/eth0"
    assert claim_of(Holder("net.c1", attributes).as_attribute()) is None
    assert claim_of(None) is None


def test_calicos_collector_has_nothing_to_check_a_claim_by():
    assert not {"pod", "namespace"} & WEB.attributes("n1", "c1").keys()


@pytest.mark.parametrize(
    ("given", "place", "reason"),
    [
        (None, HERE, "it is in no IP pool"),
        ({"enabled": False}, HERE, 'IP pool "a" (10.0.0.0/24) is disabled'),
        ({"allowed_uses": ("Tunnel",)}, HERE, 'is not allowed for use "Workload"'),
        ({"node_selector": "rack == 'b'"}, HERE, "does not select the node"),
        ({}, Place("n1", {}, (OTHER.cidr,)), "is not among the pools asked for"),
    ],
)
def test_a_refusal_names_address_node_pool_and_reason(given, place, reason):
    known = None if given is None else pool("a", "10.0.0.0/24", **given)
    text = refusal(known, ADDRESS, place)
    assert text.startswith("sticky address 10.0.0.5 cannot be used on node n1: ")
    assert reason in text


def test_a_pool_that_the_request_names_need_not_select_the_node():
    chosen = pool("a", "10.0.0.0/24", node_selector="rack == 'b'")
    assert refusal(chosen, ADDRESS, Place("n1", {}, (chosen.cidr,))) == ""
    assert refusal(pool("a", "10.0.0.0/24"), ADDRESS, HERE) == ""
