"""`calico-confd`: watch the datastore and the templates, keep the rendered files right.

Layer: wiring and edge. Console script `calico-confd`.

    calico-confd                    watch for ever (what calico-node runs)
    calico-confd -onetime           render once and end; exit 1 if any template failed
    calico-confd -noop              only say what would change
    calico-confd -keep-stage-file   keep what was checked beside the destination
    calico-confd -confdir DIR       templates in DIR/templates, resources in DIR/conf.d

  C1  nothing is written before the first in-sync: a half-read datastore would drop sessions;
  C2  templates are taken in order; when one fails (render, check, write) those behind it are not
      published in that pass, and every destination keeps its last good text;
  C3  a burst of changes is rendered once: after SETTLE_S of quiet, at the latest after MAX_WAIT_S;
  C4  what failed is tried again at the next change, and every RETRY_S;
  C6  a reload that failed is made again (C4), also when the file has not changed since;
  C5  whatever ends the synchronisation ends the process, with one line and exit code 1: confd never
      goes on with a view that nobody keeps current.
SIGHUP renders again, SIGUSR1 writes a state dump into the log directory.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from confd import bird
from confd.context import BgpContext, NodeIdentity, build
from confd.publish import CheckFailed, Publisher, ReloadFailed
from confd.render import Renderer, TemplateError
from confd.resources import TemplateResource, load
from confd.view import KINDS, DatastoreView
from libcalico.datastore.api import Datastore
from libcalico.datastore.config import connect, for_daemon
from libcalico.errors import ConfigError, InvalidInput
from libcalico.model.keys import affinities_prefix, path_of, prefix_of
from libcalico.model.meta import Resource
from libcalico.model.validation import validate_stored
from libcalico.runtime import log, nodename, paths, supervise
from libcalico.runtime.folderwatch import watching
from libcalico.runtime.notify import Notifier
from libcalico.runtime.supervise import Process
from libcalico.syncer import choice, streams
from libcalico.syncer.api import SyncStatus, Update
from libcalico.syncer.typha import TyphaSyncer
from libcalico.syncer.watcher import WatchSyncer

LOG = log.get(__name__)
SETTLE_S, MAX_WAIT_S, RETRY_S = 0.05, 0.5, 30.0
SHIPPED = Path(__file__).parent
SHIPPED_FOR_BIRD = SHIPPED / "bird_set"
DEFAULT_SECRETS = "/etc/calico/secrets"


@dataclass(frozen=True, slots=True)
class Options:
    onetime: bool = False
    noop: bool = False
    keep_stage: bool = False
    confdir: Path = SHIPPED


@dataclass(slots=True)
class Counters:
    """For the state dump. `failed` holds the last error of each resource that is not in force."""

    passes: int = 0
    written: int = 0
    failed: dict[str, str] = field(default_factory=dict)


class Confd:
    """Renders one view into files. `render` is one pass and returns whether all is in force."""

    def __init__(
        self,
        view: DatastoreView,
        identity: NodeIdentity,
        options: Options,
        environ: Mapping[str, str],
    ) -> None:
        self._view = view
        self._identity = identity
        self._environ = environ
        self._renderer = Renderer(options.confdir / "templates")
        self._publisher = Publisher(environ, noop=options.noop, keep_stage=options.keep_stage)
        self._resources_dir = options.confdir / "conf.d"
        self._is_for_bird = engine_of(environ) == "bird"
        self._to_reload: dict[str, TemplateResource] = {}
        self._warned: tuple[str, ...] = ()
        self._said_problems: dict[str, str] = {}
        self.counters = Counters()

    async def render_aside(self) -> bool:
        """`render` in a thread, of the view as it is now: the loop may change it meanwhile."""
        return await asyncio.to_thread(self._render, self._view.copy())

    def render(self) -> bool:
        """Blocking: runs check commands."""
        return self._render(self._view)

    def _render(self, view: DatastoreView) -> bool:
        self.counters.passes += 1
        self._warn_of_problems(view)
        try:
            resources = load(self._resources_dir, self._places())
            context = build(view, self._identity, self._secret)
        except (InvalidInput, ValueError) as err:
            return self._failed("configuration", err)
        if context is None:
            LOG.info(
                "no BGP configuration yet: the node is not registered", node=self._identity.name
            )
            return False
        if self._is_for_bird:
            context = bird.speakable(context)
        self._warn(context)
        return self._publish(resources, context)

    def _publish(self, resources: Sequence[TemplateResource], context: BgpContext) -> bool:
        rendered: dict[str, str] = {}
        written = 0
        variables = {"bgp": context, "speaker": context.speaker, "rendered": rendered}
        for resource in resources:
            try:
                rendered[resource.src] = self._renderer.render(resource.src, variables)
                if self._publisher.publish(resource, rendered[resource.src]):
                    self._to_reload[resource.name] = resource
                    written += 1
            except (TemplateError, CheckFailed, OSError) as err:
                return self._failed(resource.name, err)
        self.counters.written += written
        return self._reload()

    def _reload(self) -> bool:
        for name, resource in list(self._to_reload.items()):
            try:
                self._publisher.reload(resource)
            except ReloadFailed as err:
                return self._failed(name, err)
            del self._to_reload[name]
        self.counters.failed.clear()
        return True

    def _failed(self, name: str, err: Exception) -> bool:
        if self.counters.failed.get(name) != str(err):
            LOG.error("not in force, the last good files stay", resource=name, error=err)
        self.counters.failed = {name: str(err)}
        return False

    def _warn_of_problems(self, view: DatastoreView) -> None:
        """Each invalid object once per reason; the others count as if it were not there (V3)."""
        problems = {path_of(key): why for key, why in view.problems.items()}
        for name, why in problems.items():
            if self._said_problems.get(name) != why:
                LOG.warning("an invalid object is ignored", key=name, error=why)
        self._said_problems = problems

    def _warn(self, context: BgpContext) -> None:
        for warning in context.warnings:
            if warning not in self._warned:
                LOG.warning("BGP configuration", reason=warning)
        self._warned = context.warnings

    def _places(self) -> dict[str, str]:
        return {
            "run_dir": str(paths.run_dir(self._environ)),
            "lib_dir": str(paths.lib_dir(self._environ)),
            "bin_dir": str(Path(sys.executable).parent),
        }

    def _secret(self, name: str, key: str) -> str | None:
        """A password file: one secret a folder, one key a file; a final newline does not count."""
        if any(part in ("", ".", "..") or "/" in part or "\0" in part for part in (name, key)):
            return None  # the names come from the datastore: no other place is reached by them
        folder = Path(self._environ.get("CALICO_SECRETS_DIR", DEFAULT_SECRETS))
        try:
            return (folder / name / key).read_text(encoding="utf-8").rstrip("\n")
        except (OSError, UnicodeDecodeError):
            return None

    @property
    def is_in_sync(self) -> bool:
        return self._view.in_sync

    def dump(self) -> dict[str, object]:
        counters = self.counters
        return {
            "view": self._view.dump(),
            "passes": counters.passes,
            "written": counters.written,
            "failed": dict(counters.failed),
            "warnings": list(self._warned),
        }


class ChangeSink:
    """Feeds the view and tells the render loop that something may have changed."""

    def __init__(self, view: DatastoreView, changed: asyncio.Event) -> None:
        self._view = view
        self._changed = changed

    def on_updates(self, updates: Sequence[Update]) -> None:
        before = self._view.generation
        self._view.on_updates(updates)
        if self._view.generation != before:
            self._changed.set()

    def on_status(self, status: SyncStatus) -> None:
        self._view.on_status(status)
        if status is SyncStatus.IN_SYNC:
            self._changed.set()


class NotInForce(InvalidInput):
    """-onetime could not bring everything into force."""

    def __init__(self, failed: Mapping[str, str]) -> None:
        super().__init__(failed)
        self.failed = dict(failed)

    def __str__(self) -> str:
        if not self.failed:
            return "nothing rendered: the node has no BGP configuration yet"
        return "not in force: " + "; ".join(f"{name}: {why}" for name, why in self.failed.items())


async def start(process: Process, options: Options) -> None:
    """supervise's start function; with -onetime the process ends after one pass."""
    environ = process.environ
    identity = identity_of(environ)
    view = DatastoreView(_validated)
    confd = Confd(view, identity, options, environ)
    changed = asyncio.Event()
    datastore = connect(for_daemon(environ))
    prefixes = [prefix_of(kind) for kind in KINDS]
    prefixes += [affinities_prefix(identity.name, version) for version in (4, 6)]
    following = choice.Following(streams.BGP, prefixes, identity.name)
    typha = choice.from_environment(environ)
    syncer = choice.syncer(typha, datastore, following, ChangeSink(view, changed))
    process.on_reload(changed.set)
    process.dumps.register("confd", confd.dump)
    process.dumps.register("syncer", syncer.dump)
    process.spawn("syncer", lambda: _synchronise(datastore, syncer))
    if options.onetime:
        process.spawn("render", lambda: _once(process, confd, changed))
    else:
        process.spawn("render", lambda: _watch(process, confd, changed, confdir=options.confdir))


async def _synchronise(datastore: Datastore, syncer: WatchSyncer | TyphaSyncer) -> None:
    try:
        await syncer.run()
    finally:
        await datastore.close()


async def _once(process: Process, confd: Confd, changed: asyncio.Event) -> None:
    while not confd.is_in_sync:
        await changed.wait()
        changed.clear()
    if not await confd.render_aside():
        raise NotInForce(confd.counters.failed)
    process.stop()


async def _watch(process: Process, confd: Confd, changed: asyncio.Event, *, confdir: Path) -> None:
    with watching((confdir / "templates", confdir / "conf.d"), changed):
        await _for_ever(confd, changed, process.notifier)


async def _for_ever(confd: Confd, changed: asyncio.Event, notifier: Notifier) -> None:
    is_in_force, is_ready = True, False
    while True:
        try:
            async with asyncio.timeout(None if is_in_force else RETRY_S):
                await changed.wait()
        except TimeoutError:
            LOG.debug("trying again what failed")
        await _settled(changed)
        if confd.is_in_sync:
            is_in_force = await confd.render_aside()
        if confd.is_in_sync and not is_ready:
            notifier.ready()
            is_ready = True


async def _settled(changed: asyncio.Event) -> None:
    """Wait for the end of a burst, but not for ever (C3)."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + MAX_WAIT_S
    changed.clear()
    while loop.time() < deadline:
        try:
            async with asyncio.timeout(SETTLE_S):
                await changed.wait()
        except TimeoutError:
            return
        changed.clear()


def _validated(value: object) -> None:
    """V3 of the view: what is no v3 resource (an affinity) needs no validation."""
    if isinstance(value, Resource):
        validate_stored(value)


def identity_of(environ: Mapping[str, str]) -> NodeIdentity:
    prefixes = environ.get("FELIX_INTERFACEPREFIX", "cali").split(",")
    return NodeIdentity(
        name=nodename.resolve(environ),
        router_id=environ.get("CALICO_ROUTER_ID", ""),
        interface_prefixes=tuple(prefix.strip() for prefix in prefixes if prefix.strip()),
    )


def engine_of(environ: Mapping[str, str]) -> str:
    """CALICO_BGP_ENGINE. Errors: ConfigError."""
    engine = environ.get("CALICO_BGP_ENGINE", "") or "exabgp"
    if engine not in ("exabgp", "bird"):
        reason = "must be exabgp or bird"
        raise ConfigError("environment", "CALICO_BGP_ENGINE", reason, engine)
    return engine


def shipped(engine: str) -> Path:
    """The folder of our own templates for this engine."""
    return SHIPPED_FOR_BIRD if engine == "bird" else SHIPPED


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="calico-confd", description="Render BGP configuration.")
    parser.add_argument("-onetime", "--onetime", action="store_true")
    parser.add_argument("-watch", "--watch", action="store_true", help="the default")
    parser.add_argument("-noop", "--noop", action="store_true")
    parser.add_argument("-keep-stage-file", "--keep-stage-file", action="store_true")
    parser.add_argument("-confdir", "--confdir", type=Path, default=None)
    parsed = parser.parse_args(arguments)
    log.setup(os.environ.get("CONFD_LOGLEVEL", "info"))
    try:
        confdir = parsed.confdir or shipped(engine_of(os.environ))
        options = Options(parsed.onetime, parsed.noop, parsed.keep_stage_file, confdir)
        _check_folders(options.confdir)
    except ConfigError as err:
        print(f"calico-confd: {err}", file=sys.stderr)  # noqa: T201 - the one line of a bad start
        return 1
    return supervise.run("calico-confd", lambda process: start(process, options))


def _check_folders(confdir: Path) -> None:
    for part in ("templates", "conf.d"):
        if not (confdir / part).is_dir():
            raise ConfigError("command line", "-confdir", f"has no folder {part}", confdir)


if __name__ == "__main__":
    sys.exit(main())
