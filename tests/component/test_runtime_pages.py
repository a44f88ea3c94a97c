"""libcalico.runtime: the HTTP pages over real sockets, and messages to the service manager."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libcalico.errors import ConfigError
from libcalico.runtime.health import Health, HealthServer
from libcalico.runtime.httpd import HttpServer, Response
from libcalico.runtime.metrics import Metrics, MetricsServer, MetricsTls
from libcalico.runtime.notify import Notifier
from libcalico.testing.certs import Authority


async def exchange(
    server: HttpServer, request: bytes, *, tls: ssl.SSLContext | None = None
) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.ports[0], ssl=tls)
    writer.write(request)
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    return (int(head.split()[1]) if head else 0), body


async def get(server: HttpServer, path: str, **options: ssl.SSLContext) -> tuple[int, bytes]:
    request = f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    return await exchange(server, request, **options)


@pytest.fixture
async def pages() -> AsyncIterator[HttpServer]:
    server = HttpServer("127.0.0.1", 0, {"/page": lambda request: Response(200, b"hello\n")})
    await server.start()
    yield server
    await server.stop()


async def test_a_page_is_served_and_others_are_not_found(pages: HttpServer):
    assert await get(pages, "/page") == (200, b"hello\n")
    assert await get(pages, "/page?x=1") == (200, b"hello\n")
    assert (await get(pages, "/other"))[0] == 404


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"HEAD /page HTTP/1.0\r\n\r\n", 200),
        (b"POST /page HTTP/1.1\r\n\r\n", 405),
        (b"nonsense\r\n\r\n", 400),
        (b"GET /page SPDY/9\r\n\r\n", 400),
        (b"GET /page HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n", 0),
    ],
)
async def test_odd_requests_get_an_answer_or_a_closed_door(
    pages: HttpServer, request_bytes: bytes, status: int
):
    found, body = await exchange(pages, request_bytes)
    assert found == status
    if request_bytes.startswith(b"HEAD"):
        assert body == b""


async def test_a_crowd_of_idle_connections_does_not_grow_without_bound(pages: HttpServer):
    idle = [await asyncio.open_connection("127.0.0.1", pages.ports[0]) for _ in range(64)]
    late_reader, late_writer = await asyncio.open_connection("127.0.0.1", pages.ports[0])
    async with asyncio.timeout(3):  # well before the idle ones time out
        assert await late_reader.read() == b""
    for _, writer in (*idle, (late_reader, late_writer)):
        writer.close()
        await writer.wait_closed()
    assert (await get(pages, "/page"))[0] == 200


async def test_a_name_with_several_addresses_needs_only_one_that_works():
    server = HttpServer("localhost", 0, {})
    await server.start()
    assert server.ports
    await server.stop()


async def test_a_port_in_use_is_one_clear_error(pages: HttpServer):
    with pytest.raises(ConfigError, match="in use"):
        await HttpServer("127.0.0.1", pages.ports[0], {}).start()


async def test_health_pages_follow_the_reports():
    health = Health()
    health.register("calc")
    server = HealthServer(health, "127.0.0.1", 0)
    await server.start()
    assert [(await get(server, f"/{page}"))[0] for page in ("liveness", "readiness")] == [200, 503]
    health.report("calc")
    assert (await get(server, "/readiness"))[0] == 200
    health.report("calc", live=False, detail="stuck")
    status, body = await get(server, "/liveness")
    assert status == 503
    assert b"stuck" in body
    await server.stop()


async def test_metrics_are_served_in_prometheus_text():
    metrics = Metrics()
    routes = metrics.counter("felix_routes_programmed", "Routes written.", ["family"])
    routes.labels("ipv4").inc(3)
    metrics.gauge_from("felix_config_error", "Parameters in trouble.", lambda: 2.0)
    metrics.latency("felix_apply_seconds", "One apply.").observe(0.02)
    server = MetricsServer(metrics, "127.0.0.1", 0)
    await server.start()
    status, body = await get(server, "/metrics")
    text = body.decode()
    assert status == 200
    assert 'felix_routes_programmed_total{family="ipv4"} 3.0' in text
    assert "felix_config_error 2.0" in text
    assert 'felix_apply_seconds_bucket{le="0.025"} 1.0' in text
    assert "process_resident_memory_bytes" in text
    await server.stop()


def test_two_registries_do_not_meet():
    for _ in range(2):
        Metrics(process=False).counter("same_name", "doc")


async def test_metrics_over_tls_can_demand_a_client_certificate(tmp_path: Path):
    authority = Authority(tmp_path)
    mine, client = authority.issue("server"), authority.issue("client")
    tls = MetricsTls(str(mine.certificate), str(mine.key), str(authority.certificate))
    server = MetricsServer(Metrics(process=False), "127.0.0.1", 0, tls=tls)
    await server.start()
    context = ssl.create_default_context(cafile=str(authority.certificate))
    # With TLS 1.3 the server's refusal comes after the client thinks the handshake is done.
    with contextlib.suppress(ssl.SSLError, ConnectionError):
        assert await get(server, "/metrics", tls=context) == (0, b"")
    context.load_cert_chain(client.certificate, client.key)
    assert (await get(server, "/metrics", tls=context))[0] == 200
    await server.stop()


async def test_metrics_over_tls_can_do_without_a_client_certificate_but_not_with_a_bad_one(
    tmp_path: Path,
):
    authority, other = Authority(tmp_path / "ours"), Authority(tmp_path / "others")
    mine, client, stranger = (
        authority.issue("server"),
        authority.issue("client"),
        other.issue("client"),
    )
    tls = MetricsTls(
        str(mine.certificate),
        str(mine.key),
        str(authority.certificate),
        is_client_optional=True,
    )
    server = MetricsServer(Metrics(process=False), "127.0.0.1", 0, tls=tls)
    await server.start()

    def context() -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(authority.certificate))

    assert (await get(server, "/metrics", tls=context()))[0] == 200
    known, unknown = context(), context()
    known.load_cert_chain(client.certificate, client.key)
    assert (await get(server, "/metrics", tls=known))[0] == 200
    unknown.load_cert_chain(stranger.certificate, stranger.key)
    with contextlib.suppress(ssl.SSLError, ConnectionError):
        assert await get(server, "/metrics", tls=unknown) == (0, b"")
    await server.stop()


async def test_renewed_certificates_of_the_metrics_page_are_shown_after_a_reload(tmp_path: Path):
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    first, second = old.issue("server"), new.issue("server")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def install(issued) -> None:
        certificate.write_bytes(Path(issued.certificate).read_bytes())
        key.write_bytes(Path(issued.key).read_bytes())

    async def is_trusted(authority: Authority) -> bool:
        context = ssl.create_default_context(cafile=str(authority.certificate))
        try:
            return (await get(server, "/metrics", tls=context))[0] == 200
        except (OSError, IndexError):  # refused, or between two listeners
            return False

    async def until(authority: Authority) -> None:
        deadline = asyncio.get_running_loop().time() + 5
        while not await is_trusted(authority):
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.01)

    install(first)
    tls = MetricsTls(str(certificate), str(key))
    server = MetricsServer(Metrics(process=False), "127.0.0.1", 0, tls=tls)
    running = asyncio.create_task(server.run())
    await until(old)
    assert not server.reload_certificates(), "nothing has changed"
    install(second)
    assert await is_trusted(old), "nobody has asked yet"
    assert server.reload_certificates()
    await until(new)
    assert not await is_trusted(old)
    certificate.write_text("rubbish")
    with pytest.raises(ConfigError):
        server.reload_certificates()
    assert await is_trusted(new), "the old ones stay in use"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_a_missing_metrics_certificate_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match="nowhere"):
        MetricsTls(str(tmp_path / "nowhere"), str(tmp_path / "key")).context()


def test_the_service_manager_is_told(tmp_path: Path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        environ = {
            "NOTIFY_SOCKET": str(tmp_path / "notify"),
            "WATCHDOG_USEC": "4000000",
            "WATCHDOG_PID": str(os.getpid()),
        }
        notifier = Notifier(environ)
        notifier.ready("in sync")
        notifier.alive()
        notifier.stopping()
        received = [manager.recv(4096) for _ in range(3)]
        assert received == [b"READY=1\nSTATUS=in sync", b"WATCHDOG=1", b"STOPPING=1"]
        assert notifier.watchdog_interval_s == 2.0
        assert Notifier({**environ, "WATCHDOG_PID": "1"}).watchdog_interval_s is None


def test_an_abstract_notify_socket_works_too():
    name = f"brindle-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name)
        Notifier({"NOTIFY_SOCKET": "@" + name}).ready()
        assert manager.recv(4096) == b"READY=1"


def test_without_a_service_manager_nothing_happens(tmp_path: Path):
    Notifier({}).ready()
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready()
