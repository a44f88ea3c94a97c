"""Where the datastore is: calicoctl.cfg or the environment, exactly as Calico's clients read them.

Layer: datastore edge. Used by every process that opens the datastore.

    config = load(None, os.environ)     # calicoctl: /etc/calico/calicoctl.cfg, else this
    config = for_daemon(os.environ)     # a daemon: this if it names a datastore, else the file
    datastore = connect(config)

  I1  for `load` a file that exists decides alone: the environment is then ignored;
  I2  `CALICO_<NAME>` wins over the bare `<NAME>`;
  I3  files are read strictly: an unknown or repeated member refuses it (names match any case);
  I4  a daemon is configured by its environment, as Calico's are: a calicoctl.cfg that an operator
      keeps for another cluster must not move a node there. The file is only the last resort;
  I5  grpc and yaml are imported only when they are needed: the command line pays for each.

Source: reference/datamodel.md 6.3 (libcalico-go/lib/apiconfig, lib/backend/etcdv3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from libcalico.datastore.api import Datastore
from libcalico.datastore.tls import TlsConfig
from libcalico.errors import ConfigError, InvalidInput, NotSupported

if TYPE_CHECKING:
    from libcalico.datastore.etcd_link import EtcdConfig

DEFAULT_FILE = Path("/etc/calico/calicoctl.cfg")
ETCD = "etcdv3"
KUBERNETES = "kubernetes"

# Spec member: environment variable ("" where there is none).
_ETCD_MEMBERS = {
    "datastoreType": "DATASTORE_TYPE",
    "etcdEndpoints": "ETCD_ENDPOINTS",
    "etcdDiscoverySrv": "ETCD_DISCOVERY_SRV",
    "etcdUsername": "ETCD_USERNAME",
    "etcdPassword": "ETCD_PASSWORD",
    "etcdKeyFile": "ETCD_KEY_FILE",
    "etcdCertFile": "ETCD_CERT_FILE",
    "etcdCACertFile": "ETCD_CA_CERT_FILE",
    "etcdKey": "",
    "etcdCert": "",
    "etcdCACert": "",
}
# Accepted and kept by Calico for its Kubernetes driver; they do nothing here.
_KUBERNETES_MEMBERS = (
    "kubeconfig", "kubeconfigInline", "k8sAPIEndpoint", "k8sKeyFile", "k8sCertFile", "k8sCAFile",
    "k8sAPIToken", "k8sInsecureSkipTLSVerify", "k8sDisableNodePoll", "usePodCIDR", "k8sClientQPS",
    "k8sClientBurst", "k8sCurrentContext", "calicoAPIGroup",
)  # fmt: skip
_BY_LOWER_NAME = {name.lower(): name for name in (*_ETCD_MEMBERS, *_KUBERNETES_MEMBERS)}


class ConfigFileError(InvalidInput):
    """A configuration file is not acceptable; the text is Calico's."""


@dataclass(frozen=True, slots=True)
class ConnectionConfig:
    """Raw settings, as given. `source` names the file or the environment, for messages."""

    source: str
    datastore_type: str = ""
    etcd_endpoints: str = ""
    etcd_discovery_srv: str = ""
    etcd_username: str = ""
    etcd_password: str = field(default="", repr=False)
    etcd_key_file: str = ""
    etcd_cert_file: str = ""
    etcd_ca_cert_file: str = ""
    etcd_key: str = field(default="", repr=False)
    etcd_cert: str = field(default="", repr=False)
    etcd_ca_cert: str = field(default="", repr=False)

    @property
    def effective_type(self) -> str:
        """Without a type, endpoints mean etcd and no endpoints mean Kubernetes."""
        if self.datastore_type:
            return self.datastore_type
        return ETCD if self.etcd_endpoints or self.etcd_discovery_srv else KUBERNETES

    @property
    def has_inline_certificates(self) -> bool:
        return bool(self.etcd_key or self.etcd_cert or self.etcd_ca_cert)

    def etcd(self) -> EtcdConfig:
        """Errors: ConfigError with Calico's texts for combinations that make no sense."""
        from libcalico.datastore.etcd_link import EtcdConfig

        if self.etcd_endpoints and self.etcd_discovery_srv:
            reason = (
                "multiple discovery or bootstrap options specified, "
                'use either "etcdEndpoints" or "etcdDiscoverySrv"'
            )
            raise ConfigError(self.source, "etcdEndpoints", reason)
        files = self.etcd_key_file or self.etcd_cert_file or self.etcd_ca_cert_file
        if self.has_inline_certificates and files:
            reason = "Cannot mix inline certificate-key and certificate / key files"
            raise ConfigError(self.source, "etcdCert", reason)
        endpoints = self._endpoints()
        # Calico ignores half a login rather than refusing it.
        has_login = bool(self.etcd_username and self.etcd_password)
        return EtcdConfig(
            endpoints=endpoints,
            username=self.etcd_username if has_login else "",
            password=self.etcd_password if has_login else "",
            tls=TlsConfig(
                ca_file=self.etcd_ca_cert_file,
                cert_file=self.etcd_cert_file,
                key_file=self.etcd_key_file,
                ca=self.etcd_ca_cert,
                cert=self.etcd_cert,
                key=self.etcd_key,
            ),
        )

    def _endpoints(self) -> tuple[str, ...]:
        if self.etcd_discovery_srv:
            from libcalico.datastore.srv import discover

            return discover(self.etcd_discovery_srv)
        found = tuple(part.strip() for part in self.etcd_endpoints.split(",") if part.strip())
        if not found:
            raise ConfigError(self.source, "etcdEndpoints", "no etcd endpoints specified")
        for endpoint in found:
            _check_endpoint(self.source, endpoint)
        return found


def from_environment(environ: Mapping[str, str]) -> ConnectionConfig:
    values: dict[str, str] = {}
    for member, variable in _ETCD_MEMBERS.items():
        raw = environ.get("CALICO_" + variable) or environ.get(variable) if variable else None
        if raw:
            values[_attribute(member)] = raw
    return ConnectionConfig("environment", **values)


def from_file(path: Path) -> ConnectionConfig:
    """Errors: ConfigFileError; OSError's text for a file that cannot be read."""
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigFileError(f"{path}: {getattr(err, 'strerror', None) or err}") from err
    return parse_file(content, str(path))


def load(path: Path | None, environ: Mapping[str, str]) -> ConnectionConfig:
    """`path` None or the default place: the environment when no such file exists (I1)."""
    chosen = DEFAULT_FILE if path is None else path
    if chosen == DEFAULT_FILE and not chosen.exists():
        return from_environment(environ)
    return from_file(chosen)


def for_daemon(environ: Mapping[str, str], default_file: Path = DEFAULT_FILE) -> ConnectionConfig:
    """calico-node and confd (I4). Errors: ConfigFileError."""
    found = from_environment(environ)
    names_etcd = found.etcd_endpoints or found.etcd_discovery_srv
    return found if names_etcd or not default_file.exists() else from_file(default_file)


def to_environment(config: ConnectionConfig, environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` for a child process that shall use this connection, whatever spelling it was given
    in. Inline certificates have no variable: then the child finds the file that has them."""
    variables = {member: name for member, name in _ETCD_MEMBERS.items() if name}
    spellings = {prefix + name for name in variables.values() for prefix in ("", "CALICO_")}
    others = {name: value for name, value in environ.items() if name not in spellings}
    if config.has_inline_certificates:
        return others
    given = {name: str(getattr(config, _attribute(m))) for m, name in variables.items()}
    return others | {name: value for name, value in given.items() if value}


def to_file_text(config: ConnectionConfig) -> str:
    """A calicoctl.cfg that `parse_file` reads as the same connection. It may hold a password."""
    import yaml

    values = {member: str(getattr(config, _attribute(member))) for member in _ETCD_MEMBERS}
    document = {
        "apiVersion": "projectcalico.org/v3",
        "kind": "CalicoAPIConfig",
        "metadata": {},
        "spec": {member: value for member, value in values.items() if value},
    }
    return str(yaml.safe_dump(document, sort_keys=False, width=1_000_000))


def parse_file(content: str, source: str) -> ConnectionConfig:
    """The text of a calicoctl.cfg: YAML or JSON, strict (I3)."""
    document = _strict_mapping(content, source)
    version = document.pop("apiVersion", None)
    if version != "projectcalico.org/v3":
        raise ConfigFileError(f"invalid config file: unknown APIVersion '{version or ''}'")
    kind = document.pop("kind", None)
    if kind != "CalicoAPIConfig":
        raise ConfigFileError(
            f"invalid config file: expected kind 'CalicoAPIConfig', got '{kind or ''}'"
        )
    document.pop("metadata", None)
    spec = document.pop("spec", None) or {}
    if document:
        raise _syntax_error(source, f'json: unknown field "{next(iter(document))}"')
    if not isinstance(spec, dict):
        raise _syntax_error(source, "json: cannot unmarshal spec into an object")
    return ConnectionConfig(source, **_spec_values(spec, source))


def connect(config: ConnectionConfig) -> Datastore:
    """Open the datastore; nothing is sent until the first call. Call inside the event loop."""
    if config.effective_type == KUBERNETES:
        reason = f"set etcdEndpoints (ETCD_ENDPOINTS) to use datastoreType {ETCD}"
        raise NotSupported("connect", f"datastoreType {KUBERNETES}", reason)
    if config.effective_type != ETCD:
        reason = f"unknown datastore type: {config.effective_type}"
        raise ConfigError(config.source, "datastoreType", reason)
    from libcalico.datastore.etcd import EtcdDatastore

    return EtcdDatastore(config.etcd())


def _spec_values(spec: dict[str, Any], source: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for given, raw in spec.items():
        member = _BY_LOWER_NAME.get(str(given).lower())
        if member is None:
            raise _syntax_error(source, f'json: unknown field "{given}"')
        if isinstance(raw, dict | list):
            what = "object" if isinstance(raw, dict) else "array"
            raise _syntax_error(
                source,
                f"json: cannot unmarshal {what} into Go struct field "
                f"CalicoAPIConfigSpec.spec.{member} of type string",
            )
        if member in _ETCD_MEMBERS and raw is not None:
            values[_attribute(member)] = str(raw)
    return values


def _strict_mapping(content: str, source: str) -> dict[str, Any]:
    import yaml

    class Loader(yaml.SafeLoader):
        """Refuses a key that is given twice, as Calico does."""

    def mapping(loader: Loader, node: yaml.MappingNode) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f'key "{key.value}" already set in map', key.start_mark
                )
            seen.add(key.value)
        return loader.construct_mapping(node, deep=True)

    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    try:
        found = yaml.load(content, Loader)
    except yaml.YAMLError as err:
        raise _syntax_error(source, f"yaml: {' '.join(str(err).split())}") from err
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise _syntax_error(source, "json: cannot unmarshal into an object")
    lower = {"apiversion": "apiVersion", "kind": "kind", "metadata": "metadata", "spec": "spec"}
    return {lower.get(str(name).lower(), str(name)): value for name, value in found.items()}


def _syntax_error(source: str, reason: str) -> ConfigFileError:
    return ConfigFileError(
        f"syntax error in {source}: failed to parse config as YAML/JSON: "
        f"error unmarshaling JSON: while decoding JSON: {reason}"
    )


def _check_endpoint(source: str, endpoint: str) -> None:
    scheme, found, rest = endpoint.partition("://")
    host = rest if found else endpoint
    if found and scheme not in ("http", "https"):
        raise ConfigError(source, "etcdEndpoints", "expected http:// or https://", endpoint)
    if not host.strip("/") or "/" in host.strip("/"):
        raise ConfigError(source, "etcdEndpoints", "expected scheme://host:port", endpoint)


def _attribute(member: str) -> str:
    """etcdCACertFile -> etcd_ca_cert_file: the one place that knows both spellings."""
    return _ATTRIBUTE_BY_LOWER[member.lower()]


_ATTRIBUTE_BY_LOWER = {f.name.replace("_", ""): f.name for f in fields(ConnectionConfig)}
