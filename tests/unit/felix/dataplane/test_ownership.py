"""felix.dataplane.ownership: the table of whose route is whose."""

from __future__ import annotations

import pytest

from felix.dataplane.ownership import RouteOwnership
from libcalico.netlink import Route

DEFAULT = RouteOwnership()
TOLERANT = RouteOwnership(remove_external_routes=False)
OWN_NUMBER = RouteOwnership(device_route_protocol=99, remove_external_routes=False)


@pytest.mark.parametrize(
    ("ownership", "protocol", "ifname", "is_ours"),
    [
        (DEFAULT, 80, "", True),
        (DEFAULT, 80, "eth0", True),
        (DEFAULT, 3, "cali1", True),
        (DEFAULT, 3, "eth0", False),
        (DEFAULT, 3, "", False),
        (DEFAULT, 4, "cali1", True),
        (DEFAULT, 4, "eth0", False),
        (DEFAULT, 2, "cali1", False),
        (DEFAULT, 186, "cali1", False),
        (DEFAULT, 12, "cali1", False),
        (DEFAULT, 186, "eth0", False),
        (TOLERANT, 3, "cali1", True),
        (TOLERANT, 4, "cali1", False),
        (OWN_NUMBER, 99, "eth0", True),
        (OWN_NUMBER, 3, "cali1", False),
        (OWN_NUMBER, 80, "eth0", False),
    ],
)
def test_whose_route_it_is(ownership, protocol, ifname, is_ours):
    route = Route("10.0.0.1/32", protocol=protocol)
    assert ownership.is_ours(route, ifname) is is_ours


@pytest.mark.parametrize(
    ("protocol", "ifname", "may"),
    [
        (186, "eth0", True),
        (12, "", True),
        (4, "eth0", False),
        (3, "eth0", False),
        (3, "cali1", True),
    ],
)
def test_what_may_be_overwritten(protocol, ifname, may):
    assert DEFAULT.may_overwrite(Route("10.0.0.1/32", protocol=protocol), ifname) is may


def test_several_interface_prefixes():
    ownership = RouteOwnership(("cali", "tap"))
    assert ownership.is_workload_interface("tap12")
    assert not ownership.is_workload_interface("eth0")
