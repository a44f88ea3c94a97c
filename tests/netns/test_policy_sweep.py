"""Connections when policy tightens, with PolicyConntrackSweep: real ones, through a whole felix."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from tests.support import calc
from tests.support.calc import rule
from tests.support.felix import NODE, basics, workload
from tests.support.felix_node import (
    A,
    B,
    FelixNode,
    skip_unless_possible,
)
from tests.support.netns import (
    Namespace,
    NamespaceSet,
    add_addresses,
    connect,
    eventually,
)

V4, V6 = "10.65.0.2", "fd00:65::2"
VIP = "203.0.113.9"
OPEN_PORT, OTHER_PORT = 8080, 9090
# How long nothing must come, where nothing may.
SILENCE_S = 1.0
DNAT = (
    "add table ip n; add chain ip n p { type nat hook prerouting priority -100; }; "
    f"add rule ip n p ip daddr {VIP} dnat to {V4}"
)
ONLY_OTHER = calc.np(
    "tight",
    selector="app == 'b'",
    types=("Ingress",),
    ingress=(rule(protocol="TCP", destination={"ports": (OTHER_PORT,)}),),
)

ALL_INTERFACES = calc.hep(
    "all", node=NODE, interface_name="*", labels={"role": "host"}, profiles=("kns.prod",)
)
HOST_TIGHT = calc.gnp(
    "host-tight",
    selector="role == 'host'",
    types=("Ingress",),
    ingress=(rule(protocol="TCP", destination={"ports": (OTHER_PORT,)}),),
)


@pytest.fixture
def node(netns: NamespaceSet, tmp_path: Path) -> FelixNode:
    skip_unless_possible("conntrack")
    made = FelixNode(netns, tmp_path)
    made.store(*basics(), workload("a", *A), workload("b", *B, labels={"app": "b"}))
    return made


class Connection:
    """Both ends of a TCP connection from pod a to pod b."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self._client, self._server = client, server

    def is_alive(self) -> bool:
        """Both ends can say something to the other."""
        return self.client_is_heard() and self._says(self._server, self._client)

    def client_is_heard(self) -> bool:
        return self._says(self._client, self._server)

    def server_is_heard(self) -> bool:
        return self._says(self._server, self._client)

    def _says(self, speaker: socket.socket, listener: socket.socket) -> bool:
        speaker.sendall(b"x")
        listener.settimeout(SILENCE_S)
        try:
            return bool(listener.recv(64))
        except TimeoutError:
            return False


@contextmanager
def connections(node: FelixNode, *targets: tuple[str, int]) -> Iterator[list[Connection]]:
    """One established connection to each (address as pod a knows it, port)."""
    with ExitStack() as stack:
        yield [stack.enter_context(between(node.a, node.b, *target)) for target in targets]


@contextmanager
def between(here: Namespace, there: Namespace, address: str, port: int) -> Iterator[Connection]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = _listen(there, family, port)
    with closing(listener):
        client = here.call(lambda: socket.create_connection((address, port), 20))
        listener.settimeout(20)
        server, _ = listener.accept()
    with client, server:
        yield Connection(client, server)


def _listen(pod: Namespace, family: int, port: int) -> socket.socket:
    def work() -> socket.socket:
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", port))
        made.listen()
        return made

    return pod.call(work)


def entries(node: FelixNode, port: int) -> int:
    """TCP entries of the connection table to a port, of both families."""
    listed = [node.ns.run("conntrack", "-L", "-p", "tcp", "-f", f) for f in ("ipv4", "ipv6")]
    return sum(f"dport={port} " in line for text in listed for line in text.splitlines())


def is_tight(node: FelixNode) -> bool:
    """The kernel has the policy: a new connection to the port gets no answer."""
    return "policy prod/tight" in node.ruleset()


def start(node: FelixNode, sweep: str) -> None:
    node.start(FELIX_POLICYCONNTRACKSWEEP=sweep)
    node.wait_ready()
    assert eventually(lambda: node.reach() == (True, True))


@pytest.mark.parametrize("address", [V4, V6])
def test_a_connection_that_is_denied_now_dies_and_its_neighbour_lives(node, address):
    start(node, "Enabled")
    with connections(node, (address, OPEN_PORT), (address, OTHER_PORT)) as (denied, allowed):
        assert denied.is_alive()
        assert allowed.is_alive()
        node.store(ONLY_OTHER)
        assert eventually(lambda: entries(node, OPEN_PORT) == 0, timeout_s=20), node.log()
        assert not denied.server_is_heard(), "not even from the side that policy lets talk"
        assert not denied.client_is_heard()
        assert allowed.is_alive()
        assert entries(node, OTHER_PORT) == 1
        assert entries(node, OPEN_PORT) == 0, "nothing brought it back"


def test_a_connection_through_a_translated_address_dies_too(node):
    start(node, "Enabled")
    node.ns.run("nft", DNAT)
    with connections(node, (VIP, OPEN_PORT), (VIP, OTHER_PORT)) as (denied, allowed):
        assert denied.is_alive()
        assert allowed.is_alive()
        node.store(ONLY_OTHER)
        assert eventually(lambda: entries(node, OPEN_PORT) == 0, timeout_s=20), node.log()
        assert not denied.server_is_heard()
        assert not denied.client_is_heard()
        assert allowed.is_alive()


def test_policy_that_tightened_while_felix_was_away_ends_connections_at_its_start(node):
    start(node, "Enabled")
    with connections(node, (V4, OPEN_PORT), (V6, OTHER_PORT)) as (denied, allowed):
        node.stop()
        node.store(ONLY_OTHER)
        assert denied.is_alive()
        node.start(FELIX_POLICYCONNTRACKSWEEP="Enabled")
        assert eventually(lambda: entries(node, OPEN_PORT) == 0, timeout_s=40), node.log()
        assert not denied.client_is_heard()
        assert allowed.is_alive()


def test_without_the_parameter_connections_outlive_the_policy_that_let_them_in(node):
    start(node, "Disabled")
    with connections(node, (V4, OPEN_PORT)) as (old,):
        node.store(ONLY_OTHER)
        assert eventually(lambda: is_tight(node), timeout_s=20), node.log()
        assert not node.a.succeeds("curl", "-s", "-m1", f"http://{V4}:{OPEN_PORT}")
        assert old.is_alive()
        assert entries(node, OPEN_PORT) >= 1


@pytest.mark.parametrize(
    ("ours", "theirs"), [("203.0.113.1", "203.0.113.7"), ("2001:db8:113::1", "2001:db8:113::7")]
)
def test_a_connection_of_the_node_itself_dies_when_its_host_endpoint_denies_it(
    node, netns, ours, theirs
):
    neighbour = netns.make("peer")
    connect(node.ns, "eth1", neighbour, "eth0")
    length = 64 if ":" in ours else 24
    for namespace, name, address in ((node.ns, "eth1", ours), (neighbour, "eth0", theirs)):
        namespace.sysctl(f"net/ipv6/conf/{name}/accept_dad", "0")
        add_addresses(namespace, name, f"{address}/{length}")
    node.store(ALL_INTERFACES)
    start(node, "Enabled")
    with (
        between(neighbour, node.ns, ours, OPEN_PORT) as denied,
        between(neighbour, node.ns, ours, OTHER_PORT) as allowed,
    ):
        assert denied.is_alive()
        node.store(HOST_TIGHT)
        assert eventually(lambda: entries(node, OPEN_PORT) == 0, timeout_s=20), node.log()
        assert not denied.client_is_heard()
        assert not denied.server_is_heard()
        assert allowed.is_alive()
        assert entries(node, OTHER_PORT) == 1
