"""cni.veth: which of the two names is taken, when the kernel says only that one is."""

from __future__ import annotations

import errno
from typing import Any, cast

import pytest

from cni import veth
from cni.skel import CniError
from libcalico.errors import ProgrammingFailed
from libcalico.netlink import Link, NetlinkSocket, Query, Request

WIRE = veth.PodWire("cali0", "eth0", "/run/netns/x", ("10.65.0.2",), 1400, "02:00:00:00:00:02")
STALE = Link(7, "cali0", kind="veth", mac=veth.HOST_MAC)


class Kernel:
    """Refuses to create as often as told, and shows each time what has the host's name."""

    def __init__(self, refusals: int, shown: list[Link | None]) -> None:
        self.refusals, self.shown = refusals, shown
        self.done: list[str] = []

    def execute(self, *requests: Request) -> None:
        (request,) = requests
        if request.operation == "create veth" and self.refusals:
            self.refusals -= 1
            raise ProgrammingFailed("create veth", "cali0", errno.EEXIST, "File exists")
        self.done.append(request.operation)

    def query_one(self, query: Query[Any]) -> Link:
        found = self.shown.pop(0)
        if found is None:
            raise ProgrammingFailed("get link", "cali0", errno.ENODEV, "No such device")
        return found


@pytest.mark.parametrize(
    ("refusals", "shown", "done"),
    [
        (0, [], ["create veth"]),
        (1, [STALE], ["delete link", "create veth"]),
        # Gone between the refusal and the look at it: a namespace that is being taken down.
        (1, [None], ["create veth"]),
        (2, [None, STALE], ["delete link", "create veth"]),
    ],
)
def test_a_dead_endpoints_name_is_taken_over_whenever_it_goes(refusals, shown, done):
    kernel = Kernel(refusals, shown)
    veth._create_pair(cast(NetlinkSocket, kernel), WIRE, 9, 1400)
    assert kernel.done == done


def test_a_name_that_is_taken_in_the_pod_is_said_when_nobody_has_the_hosts():
    kernel = Kernel(2, [None, None])
    with pytest.raises(CniError, match=r"container veth name \(eth0\) already exists"):
        veth._create_pair(cast(NetlinkSocket, kernel), WIRE, 9, 1400)
    assert kernel.done == []


def test_an_interface_that_is_no_pods_is_left_alone():
    kernel = Kernel(1, [Link(7, "cali0", kind="bridge", mac="02:00:00:00:00:09")])
    with pytest.raises(CniError, match="is no pod's"):
        veth._create_pair(cast(NetlinkSocket, kernel), WIRE, 9, 1400)
    assert kernel.done == []
