"""calico-bgp: wires files, RIB, sessions, kernel and control socket together.

Layer: top of bgp. Contains no decision about routes.

    confd ─► exabgp.conf, speaker.json ─► generation ─► rib, speaker
    speaker (ExaBGP's loop) ── every turn ─► signals, files, timers, flush, kernel

Signals: SIGHUP takes the files up again, SIGUSR1 writes a state dump into the log directory,
SIGTERM and SIGINT end the sessions (silently where graceful restart was negotiated) and the
process; kernel routes stay. Exit code 0 after a stop, 1 when it could not start, 129 when only a
new process can take over a change (listening addresses, kernel table).
"""

from __future__ import annotations

import argparse
import fcntl
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from bgp import codec, queries
from bgp.control import ControlServer, Request, required
from bgp.eventloop import EventLoop
from bgp.generation import Generation, GenerationFiles
from bgp.kernel.side import KernelSide
from bgp.metrics import MetricsConfig, MetricsPage, settings
from bgp.rib.rib import Rib
from bgp.speaker.engine import Speaker
from bgp.speaker.seams import EXABGP_VERSION
from libcalico.errors import ConfigError, ProgrammingFailed, RestartRequired
from libcalico.model.speaker import SpeakerConfig
from libcalico.runtime import log, paths
from libcalico.runtime.debug import Dumps
from libcalico.runtime.version import VERSION

LOG = log.get(__name__)

POLL_FILES_S = 1.0
SAY_WAITING_S = 60.0
PID_FILE, CONTROL_SOCKET = "calico-bgp.pid", "control.sock"


class Daemon:
    """One run, from the first generation to the stop."""

    def __init__(
        self, directory: Path, signals: Signals, metrics: MetricsConfig | None = None
    ) -> None:
        self._metrics_config = metrics or MetricsConfig()
        self._directory = directory
        self._signals = signals
        self._files = GenerationFiles(directory)
        self._started = time.time()
        self._poll_at = 0.0
        self._exit_code = 0
        self._digest = ""
        self.events = EventLoop()

    def run(self) -> int:
        self.events.on_readable(self._signals, self._signals.drain)
        generation = self._wait_for_generation()
        if generation is None:
            return 0
        now = time.monotonic()
        self._digest = generation.digest
        self._rib = Rib(generation.config, now=now)
        log.set_level(generation.config.log_severity)
        self._kernel = KernelSide(self._rib, self.events)
        self._kernel.start(now)
        self._speaker = Speaker(self._rib, self.events, on_turn=self._turn)
        control = ControlServer(self._directory / CONTROL_SOCKET, self.events, self._commands())
        self._control = control
        self._metrics = self._metrics_page()
        config = generation.config
        LOG.info("starting", node=config.node_name, router_id=config.router_id, version=VERSION)
        try:
            code = self._speaker.run(
                generation.neighbors, listen=listen_addresses(config), port=config.listen_port
            )
        finally:
            control.close()
            if self._metrics is not None:
                self._metrics.close()
            self._kernel.close()
            self.events.close()
        LOG.info("stopped, kernel routes stay", code=self._exit_code or code)
        return self._exit_code or code

    def _wait_for_generation(self) -> Generation | None:
        """Until confd has rendered both files; None when we are told to stop first."""
        say_at = 0.0
        while not self._signals.stop:
            found = self._poll_files()
            if found is not None:
                return found
            if time.monotonic() >= say_at:
                LOG.info(
                    "waiting for configuration", path=self._directory, reason=self._files.error
                )
                say_at = time.monotonic() + SAY_WAITING_S
            self._signals.wait(POLL_FILES_S)
        return None

    def _poll_files(self) -> Generation | None:
        if self._signals.reload:
            self._signals.reload = False
            self._files.look_again()
        try:
            return self._files.poll()
        except ConfigError as err:
            LOG.error("configuration refused, the last good one stays", reason=err)
            return None

    # -- one turn of the loop

    def _turn(self) -> None:
        now = time.monotonic()
        if self._signals.stop:
            self._speaker.stop()
            return
        if self._signals.dump:
            self._signals.dump = False
            self._write_dump()
        if self._signals.reload or now >= self._poll_at:
            self._poll_at = now + POLL_FILES_S
            self._control.tick(now)
            if self._metrics is not None:
                self._metrics.tick(now)
            generation = self._poll_files()
            if generation is not None:
                self._take_over(generation)
        rib = self._rib
        rib.tick(now)
        self._kernel.before_flush(now)
        changes = rib.flush()
        self._kernel.after_flush(changes, now)

    def _take_over(self, generation: Generation) -> None:
        try:
            check_restart(self._rib.config, generation.config)
            self._rib.configure(generation.config)
            self._kernel.reconfigure(generation.config)
            self._speaker.replace_neighbors(generation.neighbors)
        except RestartRequired as err:
            LOG.info("restarting", reason=err)
            self._exit_code = err.exit_code
            self._speaker.stop()
        except ConfigError as err:
            self._files.error = str(err)
            LOG.error("configuration not taken over", reason=err)
        else:
            self._digest = generation.digest
            log.set_level(generation.config.log_severity)
            peers = len(generation.config.peers)
            LOG.info("configuration taken over", digest=generation.digest[:12], peers=peers)

    # -- looking

    def _metrics_page(self) -> MetricsPage | None:
        """Errors: ConfigError, the address cannot be used."""
        config = self._metrics_config
        if not config.prometheus_metrics_enabled:
            return None
        return MetricsPage(config, self._rib, self._speaker.states, self.events)

    def _commands(self) -> dict[str, Any]:
        rib, writer = self._rib, self._kernel.writer

        def routes(request: Request) -> queries.Answer:
            family, limit = str(request.get("family", "")), request.get("limit", 1000)
            return queries.routes(rib, family=family, limit=limit if type(limit) is int else 1000)

        return {
            "peers": lambda _: queries.peers(rib, self._speaker.states()),
            "routes": routes,
            "route": lambda request: queries.route(rib, writer, required(request, "cidr")),
            "explain": lambda request: queries.explanation(
                rib, writer, required(request, "cidr"), str(request.get("peer", ""))
            ),
            "received": lambda request: queries.received(rib, required(request, "peer")),
            "advertised": lambda request: queries.advertised(rib, required(request, "peer")),
            "version": lambda _: self._version(),
        }

    def _version(self) -> queries.Answer:
        config = self._rib.config
        return {
            "version": VERSION,
            "exabgp": EXABGP_VERSION,
            "node": config.node_name,
            "router_id": config.router_id,
            "local_as": config.local_as,
            "pid": os.getpid(),
            "started": self._started,
            "generation": self._digest,
            "config_error": self._files.error,
            "restarting": self._rib.deferral.holds_kernel,
        }

    def _dumps(self) -> Dumps:
        rib, dumps = self._rib, Dumps("calico-bgp")
        dumps.register("speaker", self._version)
        dumps.register("peers", lambda: queries.peers(rib, self._speaker.states())["peers"])
        dumps.register("tables", lambda: queries.tables(rib))
        dumps.register("kernel", self._kernel.dump)
        dumps.register("routes", lambda: queries.routes(rib, limit=queries.ROUTES_AT_MOST))
        return dumps

    def _write_dump(self) -> None:
        try:
            path = self._dumps().write(paths.log_dir())
        except ConfigError as err:
            LOG.error("state dump failed", reason=err)
        else:
            LOG.info("state dump written", path=path)


class Signals:
    """What has been asked for by signal; a descriptor that is readable when something has."""

    def __init__(self) -> None:
        self.stop = self.reload = self.dump = False
        self._reader, self._writer = socket.socketpair()
        for end in (self._reader, self._writer):
            end.setblocking(False)

    def install(self) -> None:
        """Main thread only."""
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, self._handle)

    def close(self) -> None:
        for end in (self._reader, self._writer):
            end.close()

    def fileno(self) -> int:
        return self._reader.fileno()

    def drain(self) -> None:
        """Forget the wake-up; the flags say what it was."""
        try:
            self._reader.recv(4096)
        except BlockingIOError:
            return

    def wait(self, seconds: float) -> None:
        """Sleep until a signal or the time."""
        self._reader.settimeout(seconds)
        try:
            self._reader.recv(4096)
        except TimeoutError:
            return
        finally:
            self._reader.setblocking(False)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            self.stop = True
        elif number == signal.SIGHUP:
            self.reload = True
        else:
            self.dump = True


def check_restart(old: SpeakerConfig, new: SpeakerConfig) -> None:
    """Errors: RestartRequired for what a running process cannot change."""
    for name in ("listen_port", "listen_addresses"):
        if getattr(old, name) != getattr(new, name):
            raise RestartRequired(f"{name} changed")
    if (old.kernel.table, old.kernel.protocol) != (new.kernel.table, new.kernel.protocol):
        raise RestartRequired("kernel table or protocol changed")


def listen_addresses(config: SpeakerConfig) -> tuple[str, ...]:
    """Where to listen; every address when none is given (IPv6 only where the host has it)."""
    if config.listen_addresses:
        return config.listen_addresses
    return ("0.0.0.0", "::") if Path("/proc/net/if_inet6").exists() else ("0.0.0.0",)


def write_pid_file(path: Path) -> int:
    """Returns the descriptor whose lock says that we live. Errors: OSError, somebody else does."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(fd, 0)
        os.write(fd, f"{os.getpid()}\n".encode())
    except OSError:
        os.close(fd)
        raise
    return fd


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="calico-bgp", description=__doc__.splitlines()[0])
    parser.add_argument("--version", action="version", version=f"calico-bgp {VERSION}")
    parser.add_argument(
        "command",
        nargs="?",
        choices=("decode", "encode"),
        help="not the daemon: messages from hexadecimal text to JSON lines, or back",
    )
    parser.add_argument("message", nargs="?", default="-", help="standard input when it is -")
    parser.add_argument("--as2", action="store_true", help="AS numbers of two bytes on the wire")
    given = parser.parse_args(argv)
    if given.command:
        return codec.main(given.command, given.message, asn4=not given.as2)
    return serve()


def serve() -> int:
    """The daemon; returns its exit code."""
    log.setup()
    try:
        metrics = settings(os.environ)
    except ConfigError as err:
        LOG.error("cannot start", reason=err)
        return 1
    directory = paths.bgp_dir()
    signals = Signals()
    signals.install()
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        pid_fd = write_pid_file(directory / PID_FILE)
    except OSError as err:
        LOG.error("cannot start, is another calico-bgp running?", path=directory, reason=err)
        return 1
    try:
        return Daemon(directory, signals, metrics).run()
    except (ConfigError, ProgrammingFailed, OSError) as err:
        LOG.error("cannot go on", reason=err, exc_info=True)
        return 1
    finally:
        (directory / PID_FILE).unlink(missing_ok=True)
        os.close(pid_fd)


if __name__ == "__main__":
    sys.exit(main())
