"""bgp.metrics: the page of a speaker, over a real socket in the turns of our event loop."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from bgp.eventloop import EventLoop
from bgp.metrics import REQUEST_S, MetricsConfig, MetricsPage, settings
from bgp.speaker.engine import SessionState
from libcalico.errors import ConfigError
from tests.unit.bgp.builders import options, speaker


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@pytest.fixture
def events() -> Iterator[EventLoop]:
    made = EventLoop()
    yield made
    made.close()


@pytest.fixture
def page(events: EventLoop) -> Iterator[tuple[MetricsPage, int]]:
    rib, (one, _) = speaker(options("10.0.0.2"), options("fd00::3", remote_as=65001))
    one.announce("10.65.2.0/26", "10.65.3.0/26")
    rib.flush()
    port = free_port()
    config = MetricsConfig(prometheus_metrics_port=port)
    states = {"10.0.0.2": SessionState("ESTABLISHED", 1000.5, 90)}
    made = MetricsPage(config, rib, lambda: states, events)
    yield made, port
    made.close()


def fetch(events: EventLoop, port: int, request: bytes) -> str:
    with socket.create_connection(("127.0.0.1", port), 5) as sock:
        sock.sendall(request)
        sock.settimeout(0.01)
        received = b""
        for _ in range(500):
            events.run_ready()
            try:
                data = sock.recv(1 << 16)
            except TimeoutError:
                continue
            if not data:
                return received.decode()
            received += data
    raise AssertionError("no end")


def test_the_numbers_of_each_peer(events: EventLoop, page: tuple[MetricsPage, int]):
    shown = fetch(events, page[1], b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    assert shown.startswith("HTTP/1.1 200 OK\r\n")
    peer = '{name="p10.0.0.2",peer="10.0.0.2"}'
    for line in (
        f"bgp_peer_up{peer} 1.0",
        f"bgp_peer_state_since_seconds{peer} 1000.5",
        f"bgp_peer_routes_received{peer} 2.0",
        f"bgp_peer_updates_received_total{peer} 1.0",
        f"bgp_peer_updates_malformed_total{peer} 0.0",
        'bgp_peer_routes_advertised{name="pfd00::3",peer="fd00::3"} 2.0',
        'bgp_routes_selected{family="ipv4"} 2.0',
    ):
        assert line in shown.splitlines()


def test_other_requests_are_refused(events: EventLoop, page: tuple[MetricsPage, int]):
    assert " 404 " in fetch(events, page[1], b"GET / HTTP/1.1\r\n\r\n")
    assert " 405 " in fetch(events, page[1], b"POST /metrics HTTP/1.1\r\n\r\n")
    assert " 400 " in fetch(events, page[1], b"\xff\r\n\r\n")
    assert fetch(events, page[1], b"x" * 9000) == ""


def test_a_visitor_that_says_nothing_is_dropped(events: EventLoop, page: tuple[MetricsPage, int]):
    made, port = page
    with socket.create_connection(("127.0.0.1", port), 5) as sock:
        sock.settimeout(5)
        events.run_ready()
        made.tick(1.0)
        made.tick(1.0 + REQUEST_S)
        sock.setblocking(False)
        with pytest.raises(BlockingIOError):
            sock.recv(1)
        made.tick(1.1 + REQUEST_S)
        sock.settimeout(5)
        assert sock.recv(1) == b""


def test_settings_come_from_the_environment():
    assert not settings({}).prometheus_metrics_enabled
    found = settings({"BGP_PROMETHEUSMETRICSENABLED": "true", "BGP_PROMETHEUSMETRICSPORT": "1"})
    assert (found.prometheus_metrics_enabled, found.prometheus_metrics_port) == (True, 1)
    with pytest.raises(ConfigError, match="many"):
        settings({"BGP_PROMETHEUSMETRICSPORT": "many"})


def test_an_address_that_is_taken_is_named(page: tuple[MetricsPage, int], events: EventLoop):
    config = MetricsConfig(prometheus_metrics_port=page[1])
    rib, _ = speaker(options("10.0.0.2"))
    with pytest.raises(ConfigError, match=f"127.0.0.1:{page[1]}"):
        MetricsPage(config, rib, dict, events)
