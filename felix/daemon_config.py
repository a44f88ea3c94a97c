"""Where felix's configuration comes from, and what happens when it changes.

Layer: felix.daemon. Local layers are read at start; the datastore's are read before anything is
built (so that nothing is built twice) and followed afterwards by the syncer.

SIGHUP has the file read again; one that is not good is named and changes nothing.

A changed parameter that needs a new process ends this one with RestartRequired (exit code 129), and
so does a datastore that is locked (ClusterInformation datastoreReady false): the new process waits
for it. The kernel stays as it is meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from felix.config import DEFAULT_FILE, SCHEMA, FelixConfig, etcd_environment
from felix.config_datastore import DatastoreSettings
from libcalico.datastore.api import Datastore
from libcalico.datastore.config import ConnectionConfig, for_daemon
from libcalico.errors import ConfigError, DecodeError, RestartRequired, Transient, Unauthorized
from libcalico.model import ClusterInformation, FelixConfiguration, Node
from libcalico.model.codec import decode
from libcalico.model.keys import ResourceKey, parse, path_of, prefix_of
from libcalico.runtime import log, nodename
from libcalico.runtime.backoff import Backoff, Throttle
from libcalico.runtime.clock import Clock
from libcalico.runtime.config import Changes, Layer, LiveConfig, environment_layer, file_layer
from libcalico.syncer.api import SyncStatus, Update

LOG = log.get(__name__)

_RETRY_FIRST_S, _RETRY_LIMIT_S = 0.2, 5.0
_CLUSTER = ResourceKey(ClusterInformation.kind, "default")
Ready = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """What can be known without a datastore."""

    live: LiveConfig[FelixConfig]
    node: str
    connection: ConnectionConfig
    path: Path | None = None


def local_layers(environ: Mapping[str, str], path: Path | None) -> list[Layer]:
    """The file (required when it was named) and the environment. Errors: ConfigError."""
    return [local_file(path), environment_layer(SCHEMA, environ)]


def local_file(path: Path | None) -> Layer:
    """Errors: ConfigError."""
    chosen = Path(DEFAULT_FILE) if path is None else path
    return file_layer(chosen, required=path is not None)


def read_local(environ: Mapping[str, str], path: Path | None) -> LocalSettings:
    """Errors: ConfigError, InvalidInput for a bad calicoctl.cfg."""
    live = LiveConfig(SCHEMA, local_layers(environ, path))
    node = live.config.felix_hostname or nodename.resolve(environ)
    own = etcd_environment(live.config, environ)
    return LocalSettings(live, node, for_daemon(own), path)


class ConfigWatcher:
    """SyncSink: keeps the configuration current, asks for a restart where that is needed."""

    def __init__(self, live: LiveConfig[FelixConfig], node: str) -> None:
        self._live = live
        self._settings = DatastoreSettings(node)
        self._listeners: list[Callable[[Changes], None]] = []
        self._is_ready = True
        self.restart_reason: RestartRequired | None = None
        self._on_restart: Callable[[RestartRequired], None] | None = None

    def add_listener(self, listener: Callable[[Changes], None]) -> None:
        """Told of changes that need no restart."""
        self._listeners.append(listener)

    def on_restart(self, action: Callable[[RestartRequired], None]) -> None:
        self._on_restart = action

    def on_updates(self, updates: Sequence[Update]) -> None:
        for update in updates:
            if update.key == _CLUSTER:
                self._on_cluster(update.value)
        if self._settings.on_updates(updates):
            self._apply()

    def on_status(self, status: SyncStatus) -> None:
        """Values count as they come; a re-list says them again."""

    def preload(self, updates: Sequence[Update]) -> None:
        """What was read before anything was built: nothing has to be restarted for it."""
        if self._settings.on_updates(updates):
            self._live.set_layers(self._settings.layers())

    def reload_file(self, path: Path | None) -> None:
        """Read the file again. A bad one is named, and what was read before stays in force."""
        try:
            changes = self._live.set_layer(local_file(path))
        except ConfigError as err:
            LOG.error("configuration file not taken over", error=str(err))
        else:
            self._take(changes)

    def _apply(self) -> None:
        changes = self._live.set_layers(self._settings.layers())
        for name, problem in self._settings.problems.items():
            LOG.warning("FelixConfiguration ignored", key=name, error=problem)
        self._take(changes)

    def _take(self, changes: Changes) -> None:
        try:
            changes.raise_if_restart()
        except RestartRequired as err:
            self._restart(err)
            return
        if changes:
            LOG.info("configuration changed", count=len(changes.changed))
            for listener in self._listeners:
                listener(changes)

    def _on_cluster(self, value: object) -> None:
        """Absent counts as ready: a datastore that loses its ClusterInformation is a mistake that
        must not stop every node at once."""
        is_ready = not isinstance(value, ClusterInformation) or is_datastore_ready(value)
        if self._is_ready and not is_ready:
            self._restart(RestartRequired("the datastore was locked (datastoreReady is false)"))
        self._is_ready = is_ready

    def _restart(self, reason: RestartRequired) -> None:
        self.restart_reason = self.restart_reason or reason
        if self._on_restart is not None:
            self._on_restart(reason)

    def dump(self) -> dict[str, object]:
        return self._live.dump()


def is_datastore_ready(value: ClusterInformation) -> bool:
    return value.spec.datastore_ready is not False


async def wait_for_datastore(datastore: Datastore, node: str, *, clock: Clock) -> list[Update]:
    """The datastore's word on this node's configuration; waits as long as it takes.

    One line a minute says what is waited for."""
    backoff = Backoff(_RETRY_FIRST_S, _RETRY_LIMIT_S)
    throttle = Throttle()
    while True:
        try:
            updates = await _read(datastore, node)
        except (Transient, Unauthorized) as err:
            why = str(err)
        else:
            why = _why_not_ready(updates)
            if not why:
                return updates
        if throttle.allows(clock.monotonic()):
            LOG.warning("waiting for the datastore", error=why)
        await clock.sleep(backoff.next_s())


def _why_not_ready(updates: Sequence[Update]) -> str:
    cluster = next((update.value for update in updates if update.key == _CLUSTER), None)
    if not isinstance(cluster, ClusterInformation):
        return "it is not initialised: there is no ClusterInformation"
    return "" if is_datastore_ready(cluster) else "it is locked (datastoreReady is false)"


async def _read(datastore: Datastore, node: str) -> list[Update]:
    listed = await datastore.list(prefix_of(FelixConfiguration.kind))
    kvs = list(listed.kvs)
    for key in (_CLUSTER, ResourceKey(Node.kind, node)):
        found = await datastore.get(path_of(key))
        if found is not None:
            kvs.append(found)
    updates = []
    for kv in kvs:
        parsed = parse(kv.key)
        if parsed is None:
            continue
        try:
            value = decode(parsed, kv.value, kv.mod_revision)
        except DecodeError as err:
            LOG.warning("a stored value does not parse, treated as absent", error=str(err))
            continue
        updates.append(Update(parsed, value, kv.mod_revision))
    return updates


def check_local(environ: Mapping[str, str], path: Path | None) -> list[str]:
    """Every problem of file and environment, for `check-config`."""
    try:
        layers = local_layers(environ, path)
        problems = [str(problem) for problem in SCHEMA.check(layers)]
        if not problems:
            read_local(environ, path)
    except ConfigError as err:
        return [str(err)]
    return problems
