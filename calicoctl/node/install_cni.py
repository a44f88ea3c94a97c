"""`calico-node install-cni`: the CNI executables and configuration, once or for ever.

Layer: wiring and edge (files). Used by calicoctl.node.main. Names, meanings and defaults of the
environment variables are Calico's (cni-plugin/pkg/install):

  CNI_CONF_NAME            the configuration's file (10-calico.conflist)
  CNI_OLD_CONF_NAME        one that it replaces, removed (10-calico.conflist)
  CNI_NETWORK_CONFIG       a template to install instead of ours; CNI_NETWORK_CONFIG_FILE a file
                           with one, and wins
  CNI_NET_DIR              the configuration's folder as the runtime sees it, for paths in it, when
                           --conf-dir is where a container has it mounted
  CNI_MTU                  0: the node's
  SKIP_CNI_BINARIES        executables that are not installed, comma separated
  UPDATE_CNI_BINARIES      false: executables that are there stay
  TLS_ASSETS_DIR           etcd-ca, etcd-cert and etcd-key in it are copied to calico-tls beside the
                           configuration (/calico-secrets)

No kubeconfig is written: the plugin talks to felix.

  W1  --watch installs again whatever is removed or replaced, and when template, certificates or
      executables of ours change; at most twice a second, and every RECHECK_S without being told;
  W2  the first installation must work, or the process ends; a later one is tried again.
SIGHUP has --watch look at once; SIGTERM ends it and leaves everything installed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import cni
from cni import conflist, install
from cni.install import Installation
from libcalico.errors import ConfigError
from libcalico.runtime import log, nodename, parse, paths
from libcalico.runtime.folderwatch import watching
from libcalico.runtime.supervise import Process

LOG = log.get(__name__)
SETTLE_S, RECHECK_S, RETRY_S = 0.5, 60.0, 5.0
# A plugin of containernetworking that hostPort needs; part of our list only where it is installed.
PORTMAP_FOLDERS = (Path("/opt/cni/bin"), Path("/usr/lib/cni"))
DEFAULT_SECRETS = "/calico-secrets"
_SOURCE = "environment"
# In TLS_ASSETS_DIR; its placeholder; the variable that names the same file of a host.
_CERTIFICATES = (
    ("etcd-ca", "__ETCD_CA_CERT_FILE__", "ETCD_CA_CERT_FILE"),
    ("etcd-cert", "__ETCD_CERT_FILE__", "ETCD_CERT_FILE"),
    ("etcd-key", "__ETCD_KEY_FILE__", "ETCD_KEY_FILE"),
)
# Placeholder, variable, value without one.
_PLAIN = (
    ("__LOG_LEVEL__", "LOG_LEVEL", "info"),
    ("__LOG_FILE_PATH__", "LOG_FILE_PATH", "/var/log/calico/cni/cni.log"),
    ("__LOG_FILE_MAX_SIZE__", "LOG_FILE_MAX_SIZE", "100"),
    ("__LOG_FILE_MAX_AGE__", "LOG_FILE_MAX_AGE", "30"),
    ("__LOG_FILE_MAX_COUNT__", "LOG_FILE_MAX_COUNT", "10"),
    ("__DATASTORE_TYPE__", "DATASTORE_TYPE", "etcdv3"),
    ("__ETCD_ENDPOINTS__", "ETCD_ENDPOINTS", ""),
    ("__ETCD_DISCOVERY_SRV__", "ETCD_DISCOVERY_SRV", ""),
    ("__KUBERNETES_SERVICE_HOST__", "KUBERNETES_SERVICE_HOST", ""),
    ("__KUBERNETES_SERVICE_PORT__", "KUBERNETES_SERVICE_PORT", ""),
)


@dataclass(frozen=True, slots=True)
class Folders:
    bin_dir: Path
    conf_dir: Path


def once(folders: Folders, environ: Mapping[str, str]) -> list[Path]:
    """Returns what changed. Errors: ConfigError."""
    return install.put_in_place(plan(folders, environ))


def plan(folders: Folders, environ: Mapping[str, str]) -> Installation:
    """From the environment and the files it names. Errors: ConfigError."""
    certificates = _certificates(environ)
    text = _conflist(folders, environ, certificates)
    name = environ.get("CNI_CONF_NAME") or install.CONFLIST
    conflist.check_name(name, text)
    skipped = environ.get("SKIP_CNI_BINARIES", "").split(",")
    return Installation(
        folders.bin_dir,
        folders.conf_dir,
        socket_path=paths.cni_socket(environ),
        lib_dir=paths.lib_dir(environ),
        conflist=text,
        name=name,
        old_name=environ.get("CNI_OLD_CONF_NAME") or install.CONFLIST,
        skipped=frozenset(word.strip() for word in skipped),
        keep_existing=not _boolean(environ, "UPDATE_CNI_BINARIES", True),
        certificates=certificates,
    )


def _conflist(
    folders: Folders, environ: Mapping[str, str], certificates: Mapping[str, bytes]
) -> bytes:
    mtu_bytes = _mtu(environ)
    source, template = "CNI_NETWORK_CONFIG", environ.get("CNI_NETWORK_CONFIG", "")
    if file := environ.get("CNI_NETWORK_CONFIG_FILE", ""):
        source, template = file, _text(Path(file), "CNI_NETWORK_CONFIG_FILE")
    if template:
        net_dir = Path(environ.get("CNI_NET_DIR") or folders.conf_dir)
        values = _placeholders(environ, net_dir, certificates)
        values["__CNI_MTU__"] = str(mtu_bytes)
        return conflist.render(template, values, source=source)
    return conflist.default_conflist(
        mtu_bytes=mtu_bytes,
        assign_ipv6=environ.get("IP6", "none").lower() not in ("", "none"),
        with_portmap=any(
            (folder / "portmap").exists() for folder in (folders.bin_dir, *PORTMAP_FOLDERS)
        ),
    )


def _placeholders(
    environ: Mapping[str, str], net_dir: Path, certificates: Mapping[str, bytes]
) -> dict[str, str]:
    values = {place: environ.get(name) or default for place, name, default in _PLAIN}
    for name, place, variable in _CERTIFICATES:
        given = environ.get(variable, "")
        copied = str(net_dir / install.TLS_FOLDER / name)
        values[place] = copied if name in certificates else given and str(Path(given).absolute())
    node = environ.get("KUBERNETES_NODE_NAME") or nodename.resolve(environ)
    values["__KUBERNETES_NODE_NAME__"] = node
    values["__KUBECONFIG_FILEPATH__"] = str(net_dir / "calico-kubeconfig")
    return values


def _certificates(environ: Mapping[str, str]) -> dict[str, bytes]:
    """The files of TLS_ASSETS_DIR that are there; one that was named must be."""
    named = environ.get("TLS_ASSETS_DIR", "")
    folder = Path(named or DEFAULT_SECRETS)
    if named and not folder.is_dir():
        raise ConfigError(_SOURCE, "TLS_ASSETS_DIR", "there is no such folder", named)
    places = {name: folder / name for name, _, _ in _CERTIFICATES}
    return {n: _read(path, "TLS_ASSETS_DIR") for n, path in places.items() if path.exists()}


def _read(path: Path, variable: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as err:
        raise ConfigError(_SOURCE, variable, err.strerror or str(err), str(path)) from err


def _text(path: Path, variable: str) -> str:
    try:
        return _read(path, variable).decode()
    except UnicodeDecodeError as err:
        raise ConfigError(_SOURCE, variable, f"is not UTF-8: {err.reason}", str(path)) from err


def _mtu(environ: Mapping[str, str]) -> int:
    raw = environ.get("CNI_MTU") or "0"
    try:
        return parse.integer(0, 65535)(raw)
    except ValueError as err:
        raise ConfigError(_SOURCE, "CNI_MTU", str(err), raw) from err


def _boolean(environ: Mapping[str, str], name: str, default: bool) -> bool:
    raw = environ.get(name, "")
    try:
        return parse.boolean(raw) if raw else default
    except ValueError as err:
        raise ConfigError(_SOURCE, name, str(err), raw) from err


async def watch(process: Process, folders: Folders) -> None:
    """supervise's start function of `--watch`, after `once` has worked (W2)."""
    changed = asyncio.Event()
    process.on_reload(changed.set)
    process.spawn("install", lambda: _for_ever(process.environ, folders, changed))
    process.notifier.ready("CNI plugin installed")


async def _for_ever(environ: Mapping[str, str], folders: Folders, changed: asyncio.Event) -> None:
    is_quiet = False
    while True:
        with watching(_watched(folders, environ), changed):
            # Before looking: what changes from here on is looked at again.
            changed.clear()
            installed = await _look(environ, folders)
            if installed:
                # Once more: there may be folders now that were not there to be watched.
                changed.set()
            elif installed is not None and not is_quiet:
                LOG.info("everything is installed, watching", path=folders.conf_dir)
            is_quiet = installed == []
            with suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S if installed is None else RECHECK_S):
                    await changed.wait()
        await asyncio.sleep(SETTLE_S)


async def _look(environ: Mapping[str, str], folders: Folders) -> list[Path] | None:
    """Install what is not right; returns those files, or None when that failed."""
    try:
        installed = await asyncio.to_thread(once, folders, environ)
    except ConfigError as err:
        LOG.warning("the CNI plugin is not as it should be, trying again", error=err)
        return None
    for path in installed:
        LOG.info("installed", path=path)
    return installed


def _watched(folders: Folders, environ: Mapping[str, str]) -> list[Path]:
    """Where it is installed, and where it comes from."""
    lib_dir = paths.lib_dir(environ)
    found = [folders.bin_dir, folders.conf_dir, folders.conf_dir / install.TLS_FOLDER]
    found += [lib_dir / "cni-client", Path(cni.__file__).parent]
    found.append(Path(environ.get("TLS_ASSETS_DIR") or DEFAULT_SECRETS))
    if file := environ.get("CNI_NETWORK_CONFIG_FILE", ""):
        found.append(Path(file).parent)
    return found
