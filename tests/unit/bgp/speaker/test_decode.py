"""bgp.speaker.decode: ExaBGP reads what our encoder writes, and stumbles gracefully."""

from __future__ import annotations

import pytest

from bgp.rib.attributes import (
    AS_SEQUENCE,
    AS_SET,
    Malformed,
    PathAttributes,
    Segment,
    UnknownAttribute,
    encode,
)
from bgp.speaker.decode import decode_attributes, decoder

FULL = PathAttributes(
    origin=2,
    as_path=(Segment(AS_SEQUENCE, (64512, 4200000001)), Segment(AS_SET, (1, 2))),
    next_hop=bytes([192, 0, 2, 1]),
    med=7,
    local_pref=2147482623,
    atomic_aggregate=True,
    aggregator=(4200000001, bytes([10, 0, 0, 1])),
    communities=(0xFFFFFF01, 0xFC000064),
    originator_id=bytes([1, 1, 1, 1]),
    cluster_list=(bytes([2, 2, 2, 2]), bytes([3, 3, 3, 3])),
    ext_communities=(bytes.fromhex("0002fc0000000001"),),
    large_communities=((4200000001, 2, 3),),
    unknown=(UnknownAttribute(0xE0, 200, b"\x01\x02"),),
)


@pytest.mark.parametrize("asn4", [True, False])
def test_everything_we_encode_is_read_back_the_same(asn4):
    section = encode(FULL, asn4=asn4, with_next_hop=True)
    assert decode_attributes(section, asn4=asn4) == FULL


def test_a_route_with_the_least_attributes():
    least = PathAttributes(next_hop=bytes([192, 0, 2, 1]))
    assert decoder(asn4=True)(encode(least, asn4=True, with_next_hop=True)) == least


MALFORMED = {
    "origin value": "40010103",
    "origin length": "4001020000",
    "as path cut": "400203020200",
    "as path segment type": "4002060901 00000001".replace(" ", ""),
    "next hop length": "40030501020304ff",
    "med length": "800403000000",
    "local pref length": "40050200ff",
    "originator length": "800903010101",
    "cluster list length": "800a0501010101ff",
    "community length": "c00803ff0102",
    "extended community length": "c01004ff010203",
    "large community length": "c02004ff010203",
    "origin flags": "c0010100",
    "cluster list flags": "400a0100",
    "originator flags": "400904 01010101".replace(" ", ""),
    "community flags": "800804fc000001",
    "large community flags": "8020 0c 000000010000000200000003".replace(" ", ""),
    "unknown well-known": "40c80101",
    "empty community": "c00800",
}


@pytest.mark.parametrize("section", MALFORMED.values(), ids=MALFORMED.keys())
def test_rfc_7606_treat_as_withdraw(section):
    assert isinstance(decode_attributes(bytes.fromhex(section), asn4=True), Malformed)


DISCARDED = {"aggregator length": "c00703010203", "atomic aggregate length": "40060100"}


@pytest.mark.parametrize("section", DISCARDED.values(), ids=DISCARDED.keys())
def test_rfc_7606_attribute_discard(section):
    good = encode(PathAttributes(), asn4=True, with_next_hop=False)
    found = decode_attributes(good + bytes.fromhex(section), asn4=True)
    assert found == PathAttributes()


def test_an_unknown_non_transitive_attribute_goes_no_further():
    good = encode(PathAttributes(), asn4=True, with_next_hop=False)
    assert decode_attributes(good + bytes.fromhex("80c80101"), asn4=True) == PathAttributes()
