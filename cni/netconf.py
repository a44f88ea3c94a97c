"""The network configuration of Calico's CNI plugin, parsed once into a typed value.

Layer: pure. Used by cni.agent. Source: Calico cni-plugin/pkg/types; reference/cni.md 2.
Member names are matched without case, as Go's decoder does: containerd writes the keys of
`runtimeConfig` in Go's spelling. Unknown members are ignored (the specification asks for it), known
ones of the wrong type are refused, also those that only felix or nobody acts on (DESIGN.md says
what each member does). Booleans that Calico takes as strings ("assign_ipv4": "true") are accepted
as both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cni import pod_annotations
from cni.pod_annotations import NO_WISHES, PodWishes, checked_mac, one_per_family
from cni.qos import Bandwidth
from cni.skel import CniError, Code, Request
from libcalico.errors import InvalidInput
from libcalico.net import parse_cidr, parse_interface, parse_ip

CALICO_IPAM = "calico-ipam"
HOST_LOCAL = "host-local"
DEFAULT_ROUTES = ("0.0.0.0/0", "::/0")
MAX_MTU = 65535
# The kernel's own limit (ETH_MAX_QUEUES in drivers is below it).
MAX_QUEUES = 4096


@dataclass(frozen=True, slots=True)
class IpamConfig:
    """`routes` are the destinations a pod gets instead of its default routes; with `sticky` the
    addresses are the workload's and outlive the container (ipam.sticky)."""

    type: str
    assign_ipv4: bool = True
    assign_ipv6: bool = False
    ipv4_pools: tuple[str, ...] = ()
    ipv6_pools: tuple[str, ...] = ()
    routes: tuple[str, ...] = ()
    sticky: bool = False


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Facts of the node that a configuration may override or demand. `mtu_bytes` 0: the node's."""

    name: str = ""
    name_file: str = ""
    name_file_optional: bool = False
    hostname: str = ""
    mtu_bytes: int = 0
    require_mtu_file: bool = False
    num_queues: int = 1
    readiness_gates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Features:
    """What an administrator allows pods to ask for."""

    ip_addrs_no_ipam: bool = False
    floating_ips: bool = False


@dataclass(frozen=True, slots=True)
class NetConf:
    """What of the configuration this plugin acts on.

    `labels` are the CNI convention `args.cni.labels` and Mesos'; `namespace` is Mesos'; `addresses`
    the addresses the pod's annotation or the runtime asked for, IPv4 first, without prefix length;
    `mac` likewise. `pod` is the rest of what the annotations say."""

    name: str
    ipam: IpamConfig
    node: NodeConfig = field(default_factory=NodeConfig)
    features: Features = field(default_factory=Features)
    policy_type: str = ""
    allow_ip_forwarding: bool = False
    include_default_routes: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    namespace: str = ""
    addresses: tuple[str, ...] = ()
    mac: str = ""
    pod: PodWishes = field(default_factory=PodWishes)
    dns: Mapping[str, object] = field(default_factory=dict)
    prev_result: object = None

    @property
    def is_kubernetes_policy(self) -> bool:
        return self.policy_type == "k8s"

    @property
    def routes(self) -> tuple[str, ...]:
        """What a pod can reach: everything, or what the configuration lists."""
        if not self.ipam.routes:
            return DEFAULT_ROUTES
        before = DEFAULT_ROUTES if self.include_default_routes else ()
        return tuple(dict.fromkeys(before + self.ipam.routes))


# Known members that change nothing here: felix has its own datastore connection and log, policy is
# always in place before an answer, and Windows is another world. A wrong type is a mistake all the
# same.
_TEXTS = (
    *("type", "mode", "vxlan_mac_prefix", "ipam_lock_file", "datastore_type", "etcd_endpoints"),
    *("etcd_discovery_srv", "etcd_scheme", "etcd_key_file", "etcd_cert_file", "etcd_ca_cert_file"),
    *("etcd_authority", "log_level", "log_file_path", "endpoint_status_dir", "calico_api_group"),
)
_NUMBERS = (
    *("vxlan_vni", "qps", "burst", "log_file_max_size", "log_file_max_age", "log_file_max_count"),
    *("policy_setup_timeout_seconds", "windows_pod_deletion_timestamp_timeout"),
)
_BOOLEANS = (
    *("windows_use_single_network", "windows_disable_default_deny_all_policy"),
    "windows_loopback_dsr",
)
_TEXTS_BY_MEMBER = {
    "policy": (
        *("k8s_api_root", "k8s_auth_token", "k8s_client_certificate", "k8s_client_key"),
        "k8s_certificate_authority",
    ),
    "kubernetes": ("kubeconfig", "k8s_api_root", "node_name"),
}


def parse(request: Request) -> NetConf:
    """Errors: CniError code 7 (2 for a value nothing here can do) naming the member."""
    top = Members(request.config, "")
    _check_the_rest(top)
    runtime = top.member("runtimeConfig")
    cni_args = top.member("args").member("cni")
    mesos_labels = _mesos_labels(top)
    labels = _labels(cni_args)
    namespace = mesos_labels.pop("projectcalico.org/namespace", "")
    labels |= {_sanitized(name): _sanitized(value) for name, value in mesos_labels.items()}
    features = top.member("feature_control")
    conf = NetConf(
        name=request.network,
        ipam=_ipam(top.member("ipam")),
        node=_node(top),
        features=Features(
            ip_addrs_no_ipam=features.boolean("ip_addrs_no_ipam", False),
            floating_ips=features.boolean("floating_ips", False),
        ),
        policy_type=top.member("policy").text("type"),
        allow_ip_forwarding=top.member("container_settings").boolean("allow_ip_forwarding", False),
        include_default_routes=top.boolean("include_default_routes", False),
        labels=labels,
        namespace=namespace,
        addresses=_addresses(request, runtime, cni_args),
        mac=checked_mac(request.args.get("MAC", ""), "CNI_ARGS MAC")
        or checked_mac(runtime.text("mac"), "runtimeConfig.mac"),
        pod=pod_annotations.parse(_annotations(runtime), _bandwidth(runtime.member("bandwidth"))),
        dns=_dns(runtime.member("dns")),
        prev_result=top.any("prevResult"),
    )
    return _as_the_pod_wishes(conf)


def parse_for_delete(request: Request) -> NetConf:
    """Only what DEL needs, and of that what can be read: the mistake that made an ADD fail must not
    keep its pod from going. Never raises: what is not as it should be counts as absent."""
    top = Members(request.config, "")
    return NetConf(
        name=request.network,
        ipam=IpamConfig(type=readable(lambda: top.member("ipam").text("type"))),
        node=NodeConfig(name=readable(lambda: top.text("nodename").strip())),
        policy_type=readable(lambda: top.member("policy").text("type")),
        namespace=readable(lambda: _mesos_labels(top).get("projectcalico.org/namespace", "")),
    )


def readable(read: Callable[[], str]) -> str:
    """What `read` finds, "" when that is of the wrong type."""
    try:
        return read()
    except CniError:
        return ""


def _mesos_labels(top: Members) -> dict[str, str]:
    info = top.member("args").member("org.apache.mesos").member("network_info")
    return _labels(info.member("labels"))


def _check_the_rest(top: Members) -> None:
    for names, check in ((_TEXTS, top.text), (_NUMBERS, top.integer), (_BOOLEANS, top.boolean)):
        for name in top.present(names):
            check(name)
    for member in top.present(_TEXTS_BY_MEMBER):
        inner = top.member(member)
        for name in inner.present(_TEXTS_BY_MEMBER[member]):
            inner.text(name)
    device = top.text("device_type")
    if device not in ("", "veth"):
        raise CniError(Code.UNSUPPORTED_FIELD, 'device_type: only "veth" is supported', device)
    dataplane = top.member("dataplane_options").text("type")
    if dataplane not in ("", "linux"):
        raise CniError(
            Code.UNSUPPORTED_FIELD, 'dataplane_options.type: only "linux" is supported', dataplane
        )


def _node(top: Members) -> NodeConfig:
    return NodeConfig(
        name=top.text("nodename").strip(),
        name_file=top.text("nodename_file"),
        name_file_optional=top.boolean("nodename_file_optional", False),
        hostname=top.text("hostname").strip(),
        mtu_bytes=top.integer("mtu", highest=MAX_MTU),
        require_mtu_file=top.boolean("require_mtu_file", False),
        # Calico takes everything below 1 as 1.
        num_queues=max(1, top.integer("num_queues", highest=MAX_QUEUES)),
        readiness_gates=_gates(top),
    )


def _gates(top: Members) -> tuple[str, ...]:
    found = top.strings("readiness_gates")
    for index, url in enumerate(found):
        if not re.fullmatch(r"https?://[^\s/]+(/\S*)?", url):
            where = f"readiness_gates[{index}]"
            raise CniError(Code.INVALID_CONFIG, f"{where}: must be an http or https URL", repr(url))
    return found


def _ipam(members: Members) -> IpamConfig:
    return IpamConfig(
        type=members.text("type"),
        assign_ipv4=members.boolean("assign_ipv4", True),
        assign_ipv6=members.boolean("assign_ipv6", False),
        ipv4_pools=members.strings("ipv4_pools"),
        ipv6_pools=members.strings("ipv6_pools"),
        routes=_routes(members),
        sticky=members.boolean("sticky", False),
    )


def _routes(ipam: Members) -> tuple[str, ...]:
    """Destinations only: a pod's wire has one other end, whatever gateway is written there."""
    found = []
    for index, entry in enumerate(ipam.sequence("routes")):
        where = f"ipam.routes[{index}]."
        text = Members(entry, where).text("dst")
        if text:
            try:
                found.append(str(parse_cidr(text)))
            except InvalidInput as err:
                raise CniError(Code.INVALID_CONFIG, f"{where}dst: {err}") from err
    return tuple(found)


def _labels(members: Members) -> dict[str, str]:
    found = {}
    for entry in members.sequence("labels"):
        pair = Members(entry, f"{members.path}labels.")
        found[pair.text("key")] = pair.text("value")
    return found


def _sanitized(text: str) -> str:
    """A Mesos label may hold any text; a label of ours may not."""
    return re.sub(r"[^-_.a-zA-Z0-9/]", "-", text).strip("-_./")


def _addresses(request: Request, runtime: Members, cni_args: Members) -> tuple[str, ...]:
    single = request.args.get("IP", "")
    wanted = [("CNI_ARGS IP", single)] if single else []
    wanted += [("runtimeConfig.ips", text) for text in runtime.strings("ips")]
    wanted += [("args.cni.ips", text) for text in cni_args.strings("ips")]
    found = []
    for where, text in wanted:
        try:
            found.append(str(parse_interface(text).ip if "/" in text else parse_ip(text)))
        except InvalidInput as err:
            raise CniError(Code.INVALID_CONFIG, f"{where}: {err}") from err
    # podman says the same address in two places.
    return one_per_family(tuple(found), "/".join(dict.fromkeys(where for where, _ in wanted)))


def _annotations(runtime: Members) -> dict[str, str]:
    return runtime.member("io.kubernetes.cri.pod-annotations").all_texts()


def _bandwidth(members: Members) -> Bandwidth:
    return Bandwidth(
        rates={name: members.integer(f"{name}Rate") for name in ("ingress", "egress")},
        bursts={name: members.integer(f"{name}Burst") for name in ("ingress", "egress")},
    )


def _dns(members: Members) -> dict[str, object]:
    out: dict[str, object] = {}
    for source, target in (("servers", "nameservers"), ("searches", "search"), ("options",) * 2):
        values = members.strings(source)
        if values:
            out[target] = list(values)
    domain = members.text("domain")
    return out | {"domain": domain} if domain else out


def _as_the_pod_wishes(conf: NetConf) -> NetConf:
    """The pod's annotations go before the configuration, if it allows what they ask."""
    pod, features = conf.pod, conf.features
    if pod is NO_WISHES and not conf.ipam.sticky:
        return conf
    uses_calico = conf.ipam.type == CALICO_IPAM
    for name, addresses in (("ipAddrs", pod.addresses), ("ipAddrsNoIpam", pod.addresses_no_ipam)):
        if addresses and not uses_calico:
            said = f"{name} is not compatible with configured IPAM: {conf.ipam.type}"
            raise CniError(Code.INVALID_CONFIG, said)
    if pod.addresses_no_ipam and not features.ip_addrs_no_ipam:
        raise CniError(Code.INVALID_CONFIG, "requested feature is not enabled: ip_addrs_no_ipam")
    if pod.floating_ips and not features.floating_ips:
        raise CniError(Code.INVALID_CONFIG, "requested feature is not enabled: floating_ips")
    ipam = conf.ipam
    if pod.sticky is not None:
        ipam = replace(ipam, sticky=pod.sticky)
    if ipam.sticky:
        _check_sticky(ipam, pod)
    if pod.families:
        ipam = replace(ipam, assign_ipv4=4 in pod.families, assign_ipv6=6 in pod.families)
    ipam = replace(
        ipam,
        ipv4_pools=pod.ipv4_pools or ipam.ipv4_pools,
        ipv6_pools=pod.ipv6_pools or ipam.ipv6_pools,
    )
    addresses = pod.addresses or conf.addresses
    return replace(conf, ipam=ipam, addresses=addresses, mac=pod.mac or conf.mac)


def _check_sticky(ipam: IpamConfig, pod: PodWishes) -> None:
    """Errors: CniError: only our own IPAM can keep an address for somebody."""
    if ipam.type != CALICO_IPAM:
        said = f"ipam.sticky is not compatible with configured IPAM: {ipam.type}"
        raise CniError(Code.INVALID_CONFIG, said)
    if pod.addresses_no_ipam:
        raise CniError(Code.INVALID_CONFIG, "ipam.sticky is not compatible with ipAddrsNoIpam")


class Members:
    """One JSON object; every getter names the member's path when the type is wrong."""

    def __init__(self, raw: object, path: str) -> None:
        if raw is None:
            raw = {}
        # Nearly always a dict: to ask for the abstract kind takes longer than all the rest.
        if not isinstance(raw, dict) and not isinstance(raw, Mapping):
            raise CniError(Code.INVALID_CONFIG, f"{path.rstrip('.')}: must be an object", repr(raw))
        self._by_name: dict[str, Any] = {str(name).lower(): value for name, value in raw.items()}
        self._raw = raw
        self.path = path

    def present(self, names: Iterable[str]) -> list[str]:
        """Those of `names` (in small letters) that are given."""
        return [name for name in names if name in self._by_name]

    def any(self, name: str) -> Any:
        return self._by_name.get(name.lower()) if self._by_name else None

    def member(self, name: str) -> Members:
        return Members(self.any(name), f"{self.path}{name}.")

    def text(self, name: str) -> str:
        value = self.any(name)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self._bad(name, "must be a string", value)
        return self._encodable(name, value)

    def all_texts(self) -> dict[str, str]:
        """Names as given: for a mapping whose names are data."""
        for name, value in self._raw.items():
            if not isinstance(value, str):
                raise self._bad(name, "must be a string", value)
            self._encodable(name, value)
        return dict(self._raw)

    def integer(self, name: str, *, highest: int = 2**63 - 1) -> int:
        value = self.any(name)
        if value is None:
            return 0
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self._bad(name, "must be a number, zero or more", value)
        if value > highest:
            raise self._bad(name, f"must be at most {highest}", value)
        return value

    def boolean(self, name: str, default: bool = False) -> bool:
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
        return tuple(self._encodable(name, item) for item in found)

    def _encodable(self, name: str, value: str) -> str:
        """JSON can write half a surrogate pair, which no file or datastore can hold."""
        try:
            value.encode()
        except UnicodeEncodeError:
            raise self._bad(name, "is not valid Unicode", value) from None
        return value

    def _bad(self, name: str, reason: str, value: object) -> CniError:
        return CniError(Code.INVALID_CONFIG, f"{self.path}{name}: {reason}", repr(value))
