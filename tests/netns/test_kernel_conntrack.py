"""felix.kernel.conntrack against a real conntrack table."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from felix.kernel.conntrack import KernelConntrack
from felix.kernel.worker import KernelWorker
from libcalico.netlink import run_in_namespace
from tests.support.netns import Namespace, NamespaceSet, add_addresses, can_ping, connect

# A rule on connections is what switches tracking on in a namespace.
TRACK = (
    "add table inet t; add chain inet t c { type filter hook output priority 0; }; "
    "add rule inet t c ct state new accept"
)
DNAT = (
    "add table ip n; add chain ip n o { type nat hook output priority -100; }; "
    "add rule ip n o ip daddr 203.0.113.9 dnat to 192.0.2.2"
)


@pytest.fixture
def tracking(netns: NamespaceSet) -> Namespace:
    node, other = netns.make("a"), netns.make("b")
    connect(node, "eth0", other, "eth0")
    add_addresses(node, "eth0", "192.0.2.1/24", "192.0.2.9/24", "fd00::1/64")
    add_addresses(other, "eth0", "192.0.2.2/24", "192.0.2.3/24", "fd00::2/64", "fd00::3/64")
    if not node.succeeds("nft", TRACK) or not node.succeeds("conntrack", "-L"):
        pytest.skip("no connection tracking here")
    return node


class Table:
    """The port in a namespace, and what `conntrack -L` says."""

    def __init__(self, node: Namespace) -> None:
        self._node = node
        # The worker's thread is born in the namespace and stays there.
        self._worker = run_in_namespace(node.path, KernelWorker)
        self.port = KernelConntrack(self._worker)

    async def start(self) -> None:
        def enter() -> None:
            self.port._socket = run_in_namespace(self._node.path, self.port.open_socket)

        await self._worker.run(enter)

    def lines(self) -> list[str]:
        listed = [self._node.run("conntrack", "-L", "-f", family) for family in ("ipv4", "ipv6")]
        return [line for text in listed for line in text.splitlines() if "src=" in line]

    def close(self) -> None:
        self.port.close()
        self._worker.close()


@pytest.fixture
async def table(tracking: Namespace) -> Iterator[Table]:
    made = Table(tracking)
    await made.start()
    yield made
    made.close()


@pytest.mark.parametrize(("address", "other"), [("192.0.2.2", "192.0.2.3"), ("fd00::2", "fd00::3")])
async def test_only_the_connections_of_the_address_go(tracking, table, address, other):
    assert can_ping(tracking, address)
    assert can_ping(tracking, other)
    assert await table.port.forget_addresses([address]) == 1
    left = table.lines()
    assert not any(f"dst={address} " in line for line in left)
    assert any(f"dst={other} " in line for line in left)
    assert await table.port.forget_addresses([address]) == 0, "nothing there is no failure"


async def test_an_address_that_only_the_reply_shows_is_found(tracking, table):
    """A service address was translated to the pod's: the original direction never names the pod."""
    tracking.run("nft", DNAT)
    tracking.run("ip", "route", "add", "203.0.113.9/32", "via", "192.0.2.2")
    assert can_ping(tracking, "203.0.113.9")
    assert any("dst=203.0.113.9" in line for line in table.lines())
    assert await table.port.forget_addresses(["192.0.2.2"]) == 1
    assert table.lines() == []


async def test_a_source_address_is_found(tracking, table):
    tracking.run("ping", "-c1", "-I", "192.0.2.9", "192.0.2.2")
    assert can_ping(tracking, "192.0.2.2")
    assert await table.port.forget_addresses(["192.0.2.9"]) == 1
    assert len(table.lines()) == 1


async def test_many_addresses_of_both_families_at_once(tracking, table):
    for address in ("192.0.2.2", "192.0.2.3", "fd00::2", "fd00::3"):
        assert can_ping(tracking, address)
    nobody = [f"198.51.100.{n}" for n in range(20)] + ["fd99::1"]
    assert await table.port.forget_addresses([*nobody, "192.0.2.2", "fd00::3"]) == 2
    left = table.lines()
    assert any("dst=192.0.2.3 " in line for line in left)
    assert any("dst=fd00::2 " in line for line in left)
    assert len(left) == 2
