"""The network configuration of Calico's CNI plugin, parsed once into a typed value.

Layer: pure. Used by cni.agent. Source: Calico cni-plugin/pkg/types; reference/cni.md 2.
Member names are matched without case, as Go's decoder does: containerd writes the keys of
`runtimeConfig` in Go's spelling. Unknown members are ignored (the specification asks for it).
Booleans that Calico takes as strings ("assign_ipv4": "true") are accepted as both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cni.skel import CniError, Code, Request

CALICO_IPAM = "calico-ipam"


@dataclass(frozen=True, slots=True)
class IpamConfig:
    """`raw` is the ipam member as given, for delegates."""

    type: str
    assign_ipv4: bool = True
    assign_ipv6: bool = False
    ipv4_pools: tuple[str, ...] = ()
    ipv6_pools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NetConf:
    """What of the configuration this plugin acts on. `mtu_bytes` 0: the node's setting.

    `labels` are the CNI convention `args.cni.labels`; `addresses` the addresses the runtime asked
    for (`runtimeConfig.ips`, `args.cni.ips`, CNI_ARGS IP), without prefix length; `mac` likewise.
    `default_routes` False leaves the pod without a default route (include_default_routes)."""

    name: str
    ipam: IpamConfig
    mtu_bytes: int = 0
    node_name: str = ""
    is_kubernetes_policy: bool = False
    allow_ip_forwarding: bool = False
    default_routes: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
    addresses: tuple[str, ...] = ()
    mac: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    dns: Mapping[str, object] = field(default_factory=dict)
    prev_result: object = None


def parse(request: Request) -> NetConf:
    """Errors: CniError code 7 (or 6) naming the member."""
    top = Members(request.config, "")
    runtime = top.member("runtimeConfig")
    cni_args = top.member("args").member("cni")
    settings = top.member("container_settings")
    return NetConf(
        name=request.network,
        ipam=_ipam(top.member("ipam")),
        mtu_bytes=top.integer("mtu"),
        node_name=top.text("nodename") or top.text("hostname"),
        is_kubernetes_policy=top.member("policy").text("type") == "k8s",
        allow_ip_forwarding=settings.boolean("allow_ip_forwarding", False),
        default_routes=top.boolean("include_default_routes", True),
        labels=_labels(cni_args),
        addresses=_addresses(request, runtime, cni_args),
        mac=request.args.get("MAC", "") or runtime.text("mac"),
        annotations=_strings(runtime.member("io.kubernetes.cri.pod-annotations")),
        dns=_dns(runtime.member("dns")),
        prev_result=top.any("prevResult"),
    )


def _ipam(members: Members) -> IpamConfig:
    return IpamConfig(
        type=members.text("type"),
        assign_ipv4=members.boolean("assign_ipv4", True),
        assign_ipv6=members.boolean("assign_ipv6", False),
        ipv4_pools=members.strings("ipv4_pools"),
        ipv6_pools=members.strings("ipv6_pools"),
    )


def _labels(cni_args: Members) -> dict[str, str]:
    found = {}
    for entry in cni_args.sequence("labels"):
        pair = Members(entry, "args.cni.labels.")
        found[pair.text("key")] = pair.text("value")
    return found


def _addresses(request: Request, runtime: Members, cni_args: Members) -> tuple[str, ...]:
    single = request.args.get("IP", "")
    wanted = [single] if single else []
    wanted += [*runtime.strings("ips"), *cni_args.strings("ips")]
    return tuple(address.partition("/")[0] for address in wanted)


def _dns(members: Members) -> dict[str, object]:
    out: dict[str, object] = {}
    for source, target in (("servers", "nameservers"), ("searches", "search"), ("options",) * 2):
        values = members.strings(source)
        if values:
            out[target] = list(values)
    return out


def _strings(members: Members) -> dict[str, str]:
    return {name: value for name, value in members.items() if isinstance(value, str)}


class Members:
    """One JSON object; every getter names the member's path when the type is wrong."""

    def __init__(self, raw: object, path: str) -> None:
        if raw is None:
            raw = {}
        if not isinstance(raw, Mapping):
            raise CniError(Code.INVALID_CONFIG, f"{path.rstrip('.')}: must be an object", repr(raw))
        self._by_name: dict[str, Any] = {str(name).lower(): value for name, value in raw.items()}
        self._raw = raw
        self._path = path

    def items(self) -> Any:
        return self._raw.items()

    def any(self, name: str) -> Any:
        return self._by_name.get(name.lower())

    def member(self, name: str) -> Members:
        return Members(self.any(name), f"{self._path}{name}.")

    def text(self, name: str) -> str:
        value = self.any(name)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self._bad(name, "must be a string", value)
        return value

    def integer(self, name: str) -> int:
        value = self.any(name)
        if value is None:
            return 0
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self._bad(name, "must be a number, zero or more", value)
        return value

    def boolean(self, name: str, default: bool) -> bool:
        value = self.any(name)
        if value is None or value == "":
            return default
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        raise self._bad(name, 'must be "true" or "false"', value)

    def sequence(self, name: str) -> Sequence[Any]:
        value = self.any(name)
        if value is None:
            return ()
        if not isinstance(value, list):
            raise self._bad(name, "must be a list", value)
        return value

    def strings(self, name: str) -> tuple[str, ...]:
        found = self.sequence(name)
        if not all(isinstance(item, str) for item in found):
            raise self._bad(name, "must be a list of strings", found)
        return tuple(found)

    def _bad(self, name: str, reason: str, value: object) -> CniError:
        return CniError(Code.INVALID_CONFIG, f"{self._path}{name}: {reason}", repr(value))
