"""Which syncer a process gets: from the datastore itself, or from typha where one is configured.

Layer: syncer edge. Used by felix (its own parameters) and confd (the same variables, FELIX_TYPHA…).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from libcalico.datastore.api import Datastore
from libcalico.datastore.peer_tls import PeerIdentity, PeerTls
from libcalico.datastore.tls import TlsConfig
from libcalico.errors import ConfigError
from libcalico.runtime import parse
from libcalico.runtime.clock import SYSTEM, Clock
from libcalico.runtime.config import LiveConfig, Schema, environment_layer, param
from libcalico.syncer.api import SpansSink, SyncSink
from libcalico.syncer.spans import SpansSyncer
from libcalico.syncer.streams import SPANS
from libcalico.syncer.typha import TyphaOptions, TyphaSyncer
from libcalico.syncer.typhas import Finder, Target, parse_targets
from libcalico.syncer.watcher import WatchSyncer

PREFIX = "FELIX_TYPHA"


@dataclass(frozen=True, slots=True)
class TyphaClientConfig:
    """What felix's table calls Typha…; times in seconds. Without `addr` there is no typha."""

    addr: tuple[Target, ...] = param((), parse=parse_targets, doc="host:port, comma-separated.")
    mode: str = param(
        "full",
        parse=parse.one_of("full", "spans"),
        doc="spans: felix takes what concerns its node; nothing to others.",
    )
    read_timeout_s: float = param(30.0, parse=parse.seconds, doc="Silence that ends it.")
    write_timeout_s: float = param(10.0, parse=parse.seconds, doc="Time to write one message.")
    key_file: str = param("", parse=parse.text, doc="Client key.")
    cert_file: str = param("", parse=parse.text, doc="Client certificate.")
    ca_file: str = param("", parse=parse.text, name="CAFile", doc="CA certificate.")
    cn: str = param("", parse=parse.text, name="CN", doc="Common name typha must show.")
    uri_san: str = param("", parse=parse.text, name="URISAN", doc="URI SAN typha must show.")


def from_environment(environ: Mapping[str, str]) -> TyphaClientConfig:
    """Errors: ConfigError."""
    tolerated = ("K8sServiceName", "K8sNamespace")
    schema = Schema.of(TyphaClientConfig, prefix=PREFIX, tolerated=tolerated)
    return LiveConfig(schema, [environment_layer(schema, environ)]).config


@dataclass(frozen=True, slots=True)
class Following:
    """What a process follows: `prefixes` of the datastore, all within typha's `stream`."""

    stream: str
    prefixes: Sequence[str]
    node: str


def syncer(
    typha: TyphaClientConfig,
    datastore: Datastore,
    following: Following,
    sink: SyncSink,
    *,
    clock: Clock = SYSTEM,
) -> WatchSyncer | TyphaSyncer:
    """Errors: ConfigError for certificates that are missing or cannot be used."""
    if not typha.addr:
        return WatchSyncer(datastore, following.prefixes, sink, clock=clock)
    options = _options(typha, following.stream, following.node)
    finder = Finder(typha.addr, datastore)
    return TyphaSyncer(finder, following.prefixes, sink, options, clock=clock)


def spans_syncer(
    typha: TyphaClientConfig,
    datastore: Datastore,
    node: str,
    sink: SpansSink,
    *,
    clock: Clock = SYSTEM,
) -> SpansSyncer:
    """What concerns a node, from a typha that computes spans. Errors: ConfigError."""
    if not typha.addr:
        reason = "spans come from typha: set TyphaAddr, or leave the mode at full"
        raise ConfigError("typha", "TyphaMode", reason, typha.mode)
    options = _options(typha, SPANS, node)
    return SpansSyncer(Finder(typha.addr, datastore), sink, options, clock=clock)


def _options(typha: TyphaClientConfig, stream: str, node: str) -> TyphaOptions:
    return TyphaOptions(
        stream,
        node,
        tls=_tls(typha),
        read_timeout_s=typha.read_timeout_s,
        write_timeout_s=typha.write_timeout_s,
    )


def _tls(typha: TyphaClientConfig) -> PeerTls | None:
    if typha.ca_file or typha.cert_file or typha.key_file:
        files = TlsConfig(typha.ca_file, typha.cert_file, typha.key_file)
        return PeerTls(files, PeerIdentity(typha.cn, typha.uri_san), is_server=False)
    if any(target.is_tls for target in typha.addr):
        reason = "no certificates are configured: set them, or say tcp:// to go without TLS"
        raise ConfigError("typha", "TyphaAddr", reason)
    return None
