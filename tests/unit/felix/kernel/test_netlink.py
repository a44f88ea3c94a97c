"""felix.kernel.netlink: encoding of batches and reading of refusals. (Real kernel: tests/netns.)"""

from __future__ import annotations

import errno
from collections.abc import Sequence

import pytest

from felix.dataplane.ports import RouteWrite
from felix.kernel.netlink import KernelRoutes
from felix.kernel.worker import KernelWorker
from libcalico.netlink import (
    NextHop,
    Query,
    Refusal,
    Route,
    RouteType,
    delete_route,
    device_route,
    replace_route,
)


class Socket:
    """Stands in for NetlinkSocket: keeps what was sent, refuses what it is told to."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.refuse: dict[int, Refusal] = {}
        self.asked: list[Query[object]] = []

    def transact_messages(self, messages: Sequence[bytes]) -> dict[int, Refusal]:
        self.sent = list(messages)
        return self.refuse

    def query(self, query: Query[object]) -> list[object]:
        self.asked.append(query)
        return ["answer"]


@pytest.fixture
def socket() -> Socket:
    return Socket()


@pytest.fixture
async def routes(socket: Socket):
    worker = KernelWorker()
    yield KernelRoutes(worker, socket)  # type: ignore[arg-type]
    worker.close()


def batch() -> list[RouteWrite]:
    """Kinds repeat, so that templates are made and used, in both families and both operations."""
    writes = []
    for n in range(5):
        writes += [
            RouteWrite(device_route(f"10.0.0.{n}/32", 7, protocol=3, metric=1024)),
            RouteWrite(device_route(f"fd00::{n}/128", 7, protocol=3, metric=1024)),
            RouteWrite(device_route(f"10.0.1.{n}/32", 7, protocol=3), is_delete=True),
            RouteWrite(device_route(f"10.0.2.{n}/32", n + 1, protocol=3)),
            RouteWrite(Route(f"10.1.{n}.0/24", (NextHop(7, "192.0.2.1"),), protocol=80)),
            RouteWrite(Route(f"10.1.{n}.64/26", (NextHop(7, "192.0.2.1"),), protocol=80)),
            RouteWrite(Route(f"10.2.{n}.0/24", type=RouteType.BLACKHOLE, protocol=80)),
        ]
    return writes


async def test_a_batch_is_encoded_message_by_message_as_if_each_were_alone(socket, routes):
    writes = batch()
    assert await routes.write_routes(writes) == {}
    build = {True: delete_route, False: replace_route}
    assert socket.sent == [build[w.is_delete](w.route).message for w in writes]


async def test_refusals_name_the_operation_and_the_destination(socket, routes):
    writes = batch()[:3]
    socket.refuse = {0: Refusal(errno.ENODEV, ""), 2: Refusal(errno.EBUSY, "no")}
    refused = await routes.write_routes(writes)
    assert {i: (f.operation, f.key, f.errno) for i, f in refused.items()} == {
        0: ("replace route", "10.0.0.0/32", errno.ENODEV),
        2: ("delete route", "10.0.1.0/32", errno.EBUSY),
    }


@pytest.mark.parametrize("number", [errno.ESRCH, errno.ENODEV])
async def test_deleting_what_is_not_there_is_no_failure_but_replacing_over_nothing_is(
    socket, routes, number
):
    writes = batch()[:3]
    socket.refuse = {0: Refusal(number, ""), 2: Refusal(number, "")}
    assert set(await routes.write_routes(writes)) == {0}


async def test_a_listing_goes_to_the_kernel(socket, routes):
    assert await routes.list_routes(2, frozenset({186})) == ["answer"]
    assert socket.asked[0].operation == "list routes"
