"""`calico-node`: register this host, then keep felix, confd and the BGP speaker running.

Layer: wiring. Console script `calico-node`.

    calico-node [run]                                  as systemd, containers and the lab run it
    calico-node install-cni --bin-dir D --conf-dir D   install the CNI executables and configuration
                                                       (--watch: and keep them installed)

Exit codes: 0 after SIGTERM; 1 with one line on stderr when something is wrong that waiting does not
mend (a bad variable, a duplicate address, a refused login). An absent datastore is waited for, with
one line a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from calicoctl.node import autodetect, install_cni, interfaces
from calicoctl.node.autodetect import HostInterface
from calicoctl.node.registration import (
    Addresses,
    Registrar,
    environment_for_daemons,
    stored_address,
)
from calicoctl.node.settings import AddressChoice, NodeSettings, load
from calicoctl.node.supervisor import Daemon, Supervisor
from calicoctl.node.tunnels import TunnelAddresses
from libcalico.datastore.api import Datastore
from libcalico.datastore.config import ConnectionConfig, connect, for_daemon, to_file_text
from libcalico.errors import ConfigError, SuiteError, Transient
from libcalico.model import Node
from libcalico.net import Interface, parse_interface
from libcalico.runtime import log, nodename, paths, supervise
from libcalico.runtime.backoff import Backoff, Throttle
from libcalico.runtime.debug import Dumps
from libcalico.runtime.files import replace_file
from libcalico.runtime.notify import Notifier
from libcalico.runtime.version import VERSION

LOG = log.get(__name__)
T = TypeVar("T")


def main(arguments: Sequence[str] | None = None) -> int:
    parsed = _parser().parse_args(arguments)
    log.setup(os.environ.get("CALICO_STARTUP_LOGLEVEL", "info"))
    try:
        if parsed.command == "install-cni":
            return _install_cni(parsed)
        return asyncio.run(run(os.environ))
    except SuiteError as err:
        print(f"calico-node: {err}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="calico-node", description="The Brindle node agent.")
    parser.add_argument("--version", action="version", version=VERSION)
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("run", help="register the node and run its daemons (the default)")
    installing = commands.add_parser("install-cni", help="install the CNI plugin")
    installing.add_argument("--bin-dir", type=Path, default=Path("/opt/cni/bin"))
    installing.add_argument("--conf-dir", type=Path, default=Path("/etc/cni/net.d"))
    said = "stay, and install again what is removed, replaced or changed at its source"
    installing.add_argument("--watch", action="store_true", help=said)
    return parser


def _install_cni(parsed: argparse.Namespace) -> int:
    folders = install_cni.Folders(parsed.bin_dir, parsed.conf_dir)
    for path in install_cni.once(folders, os.environ):
        print(f"installed {path}", flush=True)
    if not parsed.watch:
        return 0
    return supervise.run("calico-install-cni", lambda p: install_cni.watch(p, folders))


async def run(environ: Mapping[str, str]) -> int:
    """Start up, supervise until SIGTERM or SIGINT. Errors: SuiteError."""
    settings = load(environ, nodename.resolve(environ))
    connection = for_daemon(environ)
    supervisor, notifier = Supervisor(daemons(settings, connection, environ)), Notifier(environ)
    starting = asyncio.ensure_future(start_up(settings, connection, environ))

    def stop() -> None:
        notifier.stopping()
        starting.cancel()
        supervisor.stop()

    _handle_signals(supervisor, stop, log_dir=paths.log_dir(environ))
    feeding = asyncio.ensure_future(_feed_watchdog(notifier))
    try:
        await asyncio.wait({starting})
        if starting.cancelled():
            LOG.info("stopped while starting", node=settings.node_name)
            return 0
        starting.result()
        LOG.info("Calico node started successfully", node=settings.node_name)
        notifier.ready(f"node {settings.node_name}")
        async with _tunnel_addresses(settings, connection, environ):
            await supervisor.run()
        LOG.info("stopped", node=settings.node_name)
    finally:
        feeding.cancel()
        await asyncio.wait({feeding})
    return 0


@contextlib.asynccontextmanager
async def _tunnel_addresses(
    settings: NodeSettings, connection: ConnectionConfig, environ: Mapping[str, str]
) -> AsyncIterator[None]:
    """Beside the daemons: an error of this task must cost the node nothing else."""
    datastore = connect(connection)
    encrypts = environ.get("FELIX_WIREGUARDHOSTENCRYPTIONENABLED", "").lower() in ("true", "1")
    keeper = TunnelAddresses(datastore, settings.node_name, host_encryption=encrypts)
    keeping = asyncio.ensure_future(keeper.run())
    keeping.add_done_callback(_say_why)
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.wait({keeping})
        await datastore.close()


def _say_why(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        LOG.error("tunnel addresses are not kept any more", exc_info=task.exception())


def _handle_signals(supervisor: Supervisor, stop: Callable[[], None], *, log_dir: Path) -> None:
    """SIGHUP and SIGUSR1 go to every child (P4); SIGUSR1 also writes our own state."""
    dumps = Dumps("calico-node")
    dumps.register("daemons", supervisor.dump)

    def dump() -> None:
        supervisor.send_signal(signal.SIGUSR1)
        try:
            path = dumps.write(log_dir)
        except ConfigError as err:
            LOG.warning("state dump not written", error=err)
        else:
            LOG.info("state dump written", path=path)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, supervisor.send_signal, signal.SIGHUP)
    loop.add_signal_handler(signal.SIGUSR1, dump)


async def _feed_watchdog(notifier: Notifier) -> None:
    """As long as this event loop turns; each daemon's own health is the supervisor's business."""
    interval_s = notifier.watchdog_interval_s
    while interval_s is not None:
        notifier.alive()
        await asyncio.sleep(interval_s)


async def start_up(
    settings: NodeSettings, connection: ConnectionConfig, environ: Mapping[str, str]
) -> None:
    """Everything before the daemons run. Waits for the datastore as long as it takes."""
    datastore = connect(connection)
    try:
        await patiently(lambda: register(datastore, settings))
    finally:
        await datastore.close()
    write_node_name(nodename.nodename_file(environ), settings.node_name)
    write_connection(paths.cni_datastore_file(environ), connection)


async def patiently(work: Callable[[], Awaitable[T]]) -> T:
    """Try until the datastore answers, saying so once a minute."""
    backoff, throttle = Backoff(0.5, 10.0), Throttle(60.0)
    loop = asyncio.get_running_loop()
    while True:
        try:
            return await work()
        except Transient as err:
            if throttle.allows(loop.time()):
                LOG.warning("waiting for the datastore", reason=err)
            wait_s = backoff.next_s()
            LOG.debug("the datastore does not answer, trying again", wait_s=wait_s)
            await asyncio.sleep(wait_s)


async def register(datastore: Datastore, settings: NodeSettings) -> Node:
    registrar = Registrar(datastore, settings, version=VERSION)
    await registrar.initialise()
    host = interfaces.host_interfaces()
    found = choose_addresses(settings, await registrar.node(), host)
    node = await registrar.register(found)
    await registrar.ensure_pools([a for interface in host for a in interface.addresses])
    LOG.info("node registered", node=settings.node_name, ipv4=found.ipv4, ipv6=found.ipv6)
    return node


def choose_addresses(
    settings: NodeSettings, existing: Node | None, host: Sequence[HostInterface]
) -> Addresses:
    """Both families. Errors: ConfigError; a node that carries routes needs at least one address."""
    if settings.backend == "none":
        return Addresses()
    found = Addresses(
        choose_address(settings.ipv4, existing, host, 4),
        choose_address(settings.ipv6, existing, host, 6),
    )
    if found == Addresses():
        reason = "no IPv4 or IPv6 addresses configured or detected, required for Calico networking"
        raise ConfigError("environment", "IP", reason)
    for address in (found.ipv4, found.ipv6):
        if address is not None and not any(
            own.ip == address.ip for interface in host for own in interface.addresses
        ):
            LOG.warning("the node's address is on none of its interfaces", address=address)
    return found


def choose_address(
    choice: AddressChoice, existing: Node | None, host: Sequence[HostInterface], version: int
) -> Interface | None:
    """One family, by Calico's rules: an address that the Node object has is only ever replaced,
    never taken away. Errors: ConfigError when one is asked for and none qualifies."""
    kept = stored_address(existing, version)
    stored = parse_interface(kept) if kept else None
    if choice.fixed is not None:
        if choice.has_length:
            return choice.fixed
        return autodetect.with_length(choice.fixed, host)
    if not choice.is_wanted or (choice.keep_stored and stored is not None):
        return stored
    found = autodetect.detect(host, choice.method, version, interfaces.source_for)
    if found is None:
        if stored is None:
            raise autodetect.none_found(choice.method, version)
        LOG.warning("no address detected, keeping the one we had", address=stored)
        return stored
    address, interface = found
    LOG.info("address detected", address=address, ifname=interface, method=str(choice.method))
    return address


def write_node_name(path: Path, name: str) -> None:
    """What the CNI plugin and the next start read (datamodel 1.7). Errors: ConfigError."""
    _write(path, f"{name}\n", 0o644)


def write_connection(path: Path, connection: ConnectionConfig) -> None:
    """What the CNI plugin uses while felix is down. It runs in another folder, so relative places
    of certificates are made absolute. Errors: ConfigError."""
    files = ("etcd_key_file", "etcd_cert_file", "etcd_ca_cert_file")
    given = {name: getattr(connection, name) for name in files if getattr(connection, name)}
    places = {name: str(Path(value).absolute()) for name, value in given.items()}
    _write(path, to_file_text(replace(connection, **places)), 0o600)


def _write(path: Path, text: str, mode: int) -> None:
    try:
        replace_file(path, text.encode(), mode)
    except OSError as err:
        raise ConfigError("CALICO_LIB_DIR", str(path), err.strerror or str(err)) from err


def daemons(
    settings: NodeSettings, connection: ConnectionConfig, environ: Mapping[str, str]
) -> list[Daemon]:
    """felix always; confd and the BGP speaker where BGP carries the routes."""
    inherited = environment_for_daemons(settings, connection, environ)
    names = ["calico-felix"]
    if settings.has_bgp:
        names += ["calico-confd", "calico-bgp"] if not is_bird(settings) else ["calico-confd"]
    folder = Path(sys.executable).parent
    found = [Daemon(name, (str(folder / name),), inherited) for name in names]
    return [*found, bird(inherited)] if is_bird(settings) else found


def is_bird(settings: NodeSettings) -> bool:
    return settings.has_bgp and settings.bgp_engine == "bird"


def bird(environ: Mapping[str, str]) -> Daemon:
    """BIRD 2 with the file that confd renders for it. -R: after a crash it tells its neighbours
    that it kept forwarding. Errors: ConfigError when it is not installed."""
    executable = shutil.which("bird", path=environ.get("PATH", os.defpath) + ":/usr/sbin")
    if executable is None:
        raise ConfigError("environment", "CALICO_BGP_ENGINE", "there is no bird in PATH", "bird")
    run_dir = paths.run_dir(environ)
    file = run_dir / "bgp/bird.cfg"
    command = (executable, "-f", "-R", "-c", str(file), "-s", str(run_dir / "bird.ctl"))
    return Daemon("bird", command, environ, awaits=file)


if __name__ == "__main__":
    sys.exit(main())
