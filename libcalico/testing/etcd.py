"""A real etcd on loopback for tests and benchmarks: one or several members, TLS, users.

Layer: testing. Used by tests/support/etcd.py (pytest fixtures) and the benchmarks.

    with EtcdCluster(directory) as etcd:
        endpoint = etcd.endpoints

Every member runs under `setpriv --pdeathsig KILL`: it dies with the process that started it,
whatever happens to that. Data is not meant to survive: keep `directory` on a temporary file system.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from libcalico.testing.certs import Identity

_START_TIMEOUT_S = 30.0
_COMMAND_TIMEOUT_S = 30.0
_POLL_S = 0.02
_FREEZE_S = 10.0


@dataclass(frozen=True, slots=True)
class EtcdTls:
    """Serve TLS and demand client certificates of the same authority."""

    ca: Path
    server: Identity
    client: Identity


@dataclass(frozen=True, slots=True)
class EtcdOptions:
    tls: EtcdTls | None = None
    extra_arguments: tuple[str, ...] = ()
    progress_interval_s: float | None = None
    # Elections fast enough for tests that kill leaders; etcd's own default is ten times slower.
    heartbeat_ms: int = 50
    election_ms: int = 500


def is_installed() -> bool:
    return shutil.which("etcd") is not None and shutil.which("etcdctl") is not None


def free_ports(count: int) -> tuple[int, ...]:
    """Loopback ports that nobody listens on just now."""
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return tuple(sock.getsockname()[1] for sock in sockets)
    finally:
        for sock in sockets:
            sock.close()


class EtcdMember:
    """One etcd process. `start`, `kill`, `freeze` and `start` again: the data directory stays."""

    def __init__(self, name: str, directory: Path, options: EtcdOptions) -> None:
        self.name = name
        self._directory = directory
        self._options = options
        self._client_port, self.peer_port, self._health_port = free_ports(3)
        self._process: subprocess.Popen[bytes] | None = None
        self._initial_cluster = ""

    @property
    def endpoint(self) -> str:
        scheme = "http" if self._options.tls is None else "https"
        return f"{scheme}://127.0.0.1:{self._client_port}"

    @property
    def peer_url(self) -> str:
        return f"http://127.0.0.1:{self.peer_port}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError(f"etcd {self.name} is not running")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, initial_cluster: str = "") -> None:
        """Start without waiting for it to be ready."""
        self._initial_cluster = initial_cluster or self._initial_cluster
        self._directory.mkdir(parents=True, exist_ok=True)
        with (self._directory / "log").open("ab") as sink:
            self._process = subprocess.Popen(
                self._command(), stdout=sink, stderr=sink, stdin=subprocess.DEVNULL, env=_environ()
            )

    def wait_ready(self, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Until the member serves and knows a leader."""
        deadline = time.monotonic() + timeout_s
        while not self.is_healthy():
            if not self.is_running or time.monotonic() > deadline:
                raise RuntimeError(f"etcd {self.name} did not start:\n{self.log_tail()}")
            time.sleep(_POLL_S)

    def is_healthy(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._health_port, timeout=2)
        try:
            connection.request("GET", "/health")
            answer: dict[str, str] = json.loads(connection.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError):
            return False
        finally:
            connection.close()
        return answer.get("health") == "true"

    def kill(self) -> None:
        """SIGKILL, as a power cut."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, as an orderly shutdown."""
        self._end(signal.SIGTERM)

    def freeze(self) -> None:
        """The process hangs: connections stay open and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)
        # Its threads stop one by one; until the last has, something may still answer.
        threads = Path(f"/proc/{self.pid}/task")
        deadline = time.monotonic() + _FREEZE_S
        while not all(_is_stopped(thread) for thread in threads.iterdir()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"process {self.pid} does not stop")
            time.sleep(_POLL_S / 10)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def log_tail(self) -> str:
        try:
            return (self._directory / "log").read_text(errors="replace")[-4000:]
        except OSError:
            return ""

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(number)
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _command(self) -> list[str]:
        options = self._options
        arguments = [
            "setpriv", "--pdeathsig", "KILL", "--", "etcd",
            "--name", self.name,
            "--data-dir", str(self._directory / "data"),
            "--listen-client-urls", self.endpoint,
            "--advertise-client-urls", self.endpoint,
            "--listen-peer-urls", self.peer_url,
            "--initial-advertise-peer-urls", self.peer_url,
            "--initial-cluster", self._initial_cluster,
            "--listen-metrics-urls", f"http://127.0.0.1:{self._health_port}",
            "--heartbeat-interval", str(options.heartbeat_ms),
            "--election-timeout", str(options.election_ms),
            "--logger", "zap", "--log-level", "warn",
        ]  # fmt: skip
        if options.progress_interval_s is not None:
            arguments += [
                "--experimental-watch-progress-notify-interval",
                f"{int(options.progress_interval_s * 1000)}ms",
            ]
        if options.tls is not None:
            arguments += [
                "--cert-file", str(options.tls.server.certificate),
                "--key-file", str(options.tls.server.key),
                "--trusted-ca-file", str(options.tls.ca),
                "--client-cert-auth",
            ]  # fmt: skip
        return [*arguments, *options.extra_arguments]


class EtcdCluster:
    """`size` members that know each other."""

    def __init__(
        self, directory: Path, *, size: int = 1, options: EtcdOptions | None = None
    ) -> None:
        self._options = options or EtcdOptions()
        self._directory = directory
        self.members = tuple(
            EtcdMember(f"m{index}", directory / f"m{index}", self._options) for index in range(size)
        )

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(member.endpoint for member in self.members)

    def start(self) -> None:
        initial = ",".join(f"{member.name}={member.peer_url}" for member in self.members)
        for member in self.members:
            member.start(initial)
        for member in self.members:
            member.wait_ready()

    def stop(self) -> None:
        for member in self.members:
            member.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def leader(self) -> EtcdMember:
        status = json.loads(self.ctl("endpoint", "status", "-w", "json"))
        by_endpoint = {member.endpoint: member for member in self.members}
        for entry in status:
            header = entry["Status"]["header"]
            if header["member_id"] == entry["Status"].get("leader"):
                return by_endpoint[entry["Endpoint"]]
        raise RuntimeError("the cluster has no leader")

    def ctl(self, *arguments: str, user: str = "", endpoints: Sequence[str] = ()) -> str:
        """Run etcdctl; RuntimeError with its words when it fails."""
        command = ["etcdctl", "--endpoints", ",".join(endpoints or self.endpoints), *arguments]
        if user:
            command += ["--user", user]
        if self._options.tls is not None:
            command += [
                "--cacert", str(self._options.tls.ca),
                "--cert", str(self._options.tls.client.certificate),
                "--key", str(self._options.tls.client.key),
            ]  # fmt: skip
        done = subprocess.run(
            command, capture_output=True, timeout=_COMMAND_TIMEOUT_S, check=False, env=_environ()
        )
        if done.returncode:
            raise RuntimeError(
                f"etcdctl {arguments} failed: {done.stderr.decode(errors='replace')}"
            )
        return done.stdout.decode()

    def enable_auth(self, root_password: str) -> None:
        """Users from now on; `root` may do everything."""
        self.ctl("user", "add", f"root:{root_password}")
        self.ctl("user", "grant-role", "root", "root")
        self.ctl("auth", "enable")

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


def _is_stopped(thread: Path) -> bool:
    try:
        state = (thread / "stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:  # it ended
        return True
    return state in "TtZX"


def _environ() -> dict[str, str]:
    """Ours without ETCD_* (each is a flag to etcd) and without proxies, plus the v3 API."""
    kept = {k: v for k, v in os.environ.items() if not k.upper().startswith(("ETCD", "HTTP"))}
    return {**kept, "ETCDCTL_API": "3"}
