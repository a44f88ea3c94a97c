"""The network configuration that is installed for runtimes: ours, or a template of the operator's.

Layer: pure. Used by cni.install and `calico-node install-cni`. A template's placeholders are those
of Calico's installer (`__CNI_MTU__`, `__ETCD_ENDPOINTS__`, …; cni-plugin/pkg/install), so that the
`cni_network_config` of a Calico manifest works as it is. What it becomes must be a configuration
that a runtime takes: everything else is refused here, by one who is there to read it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from libcalico.errors import ConfigError

NETWORK_NAME = "k8s-pod-network"
CNI_VERSION = "1.0.0"
_PLACEHOLDER = re.compile(r"__[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*__")


def default_conflist(
    *, mtu_bytes: int = 0, assign_ipv6: bool = False, with_portmap: bool = False
) -> bytes:
    """calico, and portmap (hostPort) where that plugin is installed; the datastore's credentials
    stay with felix, and a pod's annotations come with the runtime's request."""
    calico: dict[str, object] = {
        "type": "calico",
        "log_level": "info",
        "mtu": mtu_bytes,
        "capabilities": {"io.kubernetes.cri.pod-annotations": True},
        "ipam": {
            "type": "calico-ipam",
            "assign_ipv4": "true",
            "assign_ipv6": "true" if assign_ipv6 else "false",
        },
    }
    portmap = {"type": "portmap", "snat": True, "capabilities": {"portMappings": True}}
    plugins = [calico, portmap] if with_portmap else [calico]
    conf = {"name": NETWORK_NAME, "cniVersion": CNI_VERSION, "plugins": plugins}
    return json.dumps(conf, indent=2).encode() + b"\n"


def render(template: str, values: Mapping[str, str], *, source: str) -> bytes:
    """Fill the placeholders in. `source` is where the template came from, for the errors.

    Errors: ConfigError for a placeholder without value, or a text that is no configuration."""
    for found in _PLACEHOLDER.findall(template):
        if found not in values:
            raise ConfigError(source, found, "there is no value for this placeholder")
    # Inside a JSON string, or in place of a number: escaped, without quotes.
    text = _PLACEHOLDER.sub(lambda match: json.dumps(values[match[0]])[1:-1], template)
    try:
        conf = json.loads(text)
    except ValueError as err:
        raise ConfigError(source, "network configuration", f"is not JSON: {err}") from err
    _check(conf, source)
    return text.rstrip().encode() + b"\n"


def _check(conf: object, source: str) -> None:
    if not isinstance(conf, dict):
        raise ConfigError(source, "network configuration", "must be a JSON object")
    if not isinstance(conf.get("name"), str) or not conf["name"]:
        raise ConfigError(source, "name", "the network has no name", conf.get("name"))
    if "plugins" not in conf:
        _check_plugin(conf, source, "type")
        return
    plugins = conf["plugins"]
    if not isinstance(plugins, list) or not plugins:
        raise ConfigError(source, "plugins", "must be a list of plugins")
    for index, plugin in enumerate(plugins):
        _check_plugin(plugin, source, f"plugins[{index}].type")


def _check_plugin(plugin: object, source: str, where: str) -> None:
    named = plugin.get("type") if isinstance(plugin, dict) else None
    if not isinstance(named, str) or not named:
        raise ConfigError(source, where, "must name a plugin", named)


def check_name(name: str, conflist: bytes) -> None:
    """Runtimes read a list of plugins from `*.conflist` and a single one from `*.conf` or `*.json`.

    Errors: ConfigError."""
    source, variable = "environment", "CNI_CONF_NAME"
    if "/" in name or name.startswith("."):
        raise ConfigError(source, variable, "must be the name of a file", name)
    wanted = (".conflist",) if "plugins" in json.loads(conflist) else (".conf", ".json")
    if not name.endswith(wanted):
        shown = " or ".join(wanted)
        raise ConfigError(source, variable, f"this configuration needs a name in {shown}", name)


def names_plugin(data: bytes, plugin: str) -> bool:
    """Whether a configuration runs that plugin. False for what is no configuration."""
    try:
        conf = json.loads(data)
    except ValueError:
        return False
    if not isinstance(conf, dict):
        return False
    plugins = conf.get("plugins")
    entries = plugins if isinstance(plugins, list) else [conf]
    return any(isinstance(entry, dict) and entry.get("type") == plugin for entry in entries)
