"""ipam.requests: what callers see of a partial result."""

from __future__ import annotations

from ipaddress import ip_address, ip_interface

import pytest

from ipam.requests import (
    WINDOWS_RESERVED,
    Assignments,
    AutoAssigned,
    Failure,
    HostReserved,
    Release,
    Released,
)
from libcalico.errors import BadSequenceNumber, PoolExhausted


@pytest.mark.parametrize(
    ("messages", "reserved", "text"),
    [
        ((), None, "Assigned 1 out of 2 requested IPv4 addresses"),
        (("No IPs available in pools: [10.0.0.0/30]", "second"), None,
         "Assigned 1 out of 2 requested IPv4 addresses; No IPs available in pools: [10.0.0.0/30]"
         "; second"),
        ((), WINDOWS_RESERVED,
         "Assigned 1 out of 2 requested IPv4 addresses; HostReservedAttr: "
         "windows-reserved-ipam-handle"),
    ],
)  # fmt: skip
def test_too_few_addresses_are_an_error_in_calicos_words(
    messages: tuple[str, ...], reserved: HostReserved | None, text: str
):
    got = Assignments(
        version=4, requested=2, addresses=(ip_interface("10.0.0.1/30"),), messages=messages,
        reserved=reserved,
    )  # fmt: skip
    error = AutoAssigned(v4=got).partial_error()
    assert isinstance(error, PoolExhausted)
    assert str(error) == text


def test_enough_addresses_of_both_families_are_no_error():
    v4 = Assignments(version=4, requested=1, addresses=(ip_interface("10.0.0.1/30"),))
    v6 = Assignments(version=6, requested=1, addresses=(ip_interface("fd00::1/122"),))
    both = AutoAssigned(v4, v6)
    assert both.partial_error() is None
    assert [str(address) for address in both.addresses] == ["10.0.0.1/30", "fd00::1/122"]
    short = AutoAssigned(v4, Assignments(version=6, requested=1))
    assert str(short.partial_error()) == "Assigned 0 out of 1 requested IPv6 addresses"


def test_the_first_failure_of_a_release_can_be_raised():
    request = Release(address=ip_address("10.0.0.1"))
    Released().raise_failed()
    failed = Released(failed=(Failure(request, BadSequenceNumber("10.0.0.1", 1, 2)),))
    with pytest.raises(BadSequenceNumber):
        failed.raise_failed()
