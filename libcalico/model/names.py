"""Names several components must build alike: endpoints, interfaces, status files, handles.

Layer: libcalico.model, pure. Used by cni, felix, ipam, controllers and the CLI.

  NM1  `parse_endpoint_name(endpoint_name(ids)) == ids` for every identity that has a name;
  NM2  a name prefix finds candidates only: "pod--1" begins with the prefix of "pod", so every
       candidate is checked with `matches`.

Source: datamodel §1.7, §2.2, §5.6, §5.7; Calico libcalico-go/lib/names.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from urllib.parse import quote, unquote

from libcalico.errors import InvalidInput, ValidationError
from libcalico.model.endpoints import WorkloadEndpointSpec

K8S_ORCHESTRATOR = "k8s"
CNI_ORCHESTRATOR = "cni"
LIBNETWORK_ORCHESTRATOR = "libnetwork"

DEFAULT_INTERFACE_PREFIX = "cali"
DEFAULT_ALLOW_PROFILE = "projectcalico-default-allow"
NAMESPACE_PROFILE_PREFIX = "kns."
SERVICE_ACCOUNT_PROFILE_PREFIX = "ksa."
NAMESPACE_LABEL_PREFIX = "pcns."
SERVICE_ACCOUNT_LABEL_PREFIX = "pcsa."
# Policies made from Kubernetes NetworkPolicies; users may not touch them.
K8S_POLICY_PREFIX = "knp.default."
WINDOWS_RESERVED_HANDLE = "windows-reserved-ipam-handle"

# The spec attribute that is the third segment, by orchestrator ("" = any other one).
_THIRD_SEGMENT = {
    K8S_ORCHESTRATOR: "pod",
    CNI_ORCHESTRATOR: "container_id",
    LIBNETWORK_ORCHESTRATOR: "orchestrator",
}
_JSON_NAME = {"container_id": "containerID"}


def node_name(hostname: str) -> str:
    """A host name as node name: lower case, without surrounding white space."""
    return hostname.strip().lower()


@dataclass(frozen=True, slots=True)
class EndpointIds:
    """What identifies a workload endpoint; which members count depends on the orchestrator."""

    node: str = ""
    orchestrator: str = ""
    endpoint: str = ""
    workload: str = ""
    pod: str = ""
    container_id: str = ""

    @property
    def third_attribute(self) -> str:
        return _THIRD_SEGMENT.get(self.orchestrator, "workload")

    def segments(self) -> tuple[tuple[str, str], ...]:
        """(JSON field name, value) of the four name segments."""
        third = self.third_attribute
        return (
            ("node", self.node),
            ("orchestrator", self.orchestrator),
            (_JSON_NAME.get(third, third), str(getattr(self, third))),
            ("endpoint", self.endpoint),
        )

    def matches(self, name: str) -> bool:
        """Whether a name belongs to this identity; empty members match anything (NM2)."""
        parts = split_name(name)
        return len(parts) == 4 and all(
            not value or value == part
            for (_, value), part in zip(self.segments(), parts, strict=True)
        )


def endpoint_ids(spec: WorkloadEndpointSpec) -> EndpointIds:
    """The identity a spec states."""
    return EndpointIds(
        node=spec.node or "",
        orchestrator=spec.orchestrator or "",
        endpoint=spec.endpoint or "",
        workload=spec.workload or "",
        pod=spec.pod or "",
        container_id=spec.container_id or "",
    )


def endpoint_name(ids: EndpointIds) -> str:
    """The name of a workload endpoint. Errors: ValidationError with the JSON field."""
    return "-".join(_escape_segment(field, value) for field, value in ids.segments())


def endpoint_name_prefix(ids: EndpointIds) -> str:
    """The name up to the first member that is not given, with a trailing dash.

    With all four given it is the whole name. Check what it finds with `ids.matches` (NM2).
    """
    if not ids.node:
        raise ValidationError.of("node", None, "field should be assigned")
    parts: list[str] = []
    for field, value in ids.segments():
        if not value:
            return "-".join(parts) + "-"
        parts.append(_escape_segment(field, value))
    return "-".join(parts)


def _escape_segment(field: str, value: str) -> str:
    if not value:
        raise ValidationError.of(field, value, "field should be assigned")
    if value.startswith("-"):
        raise ValidationError.of(field, value, "field must not begin with a '-'")
    if value.endswith("-"):
        raise ValidationError.of(field, value, "field must not end with a '-'")
    return value.replace("-", "--")


def split_name(name: str) -> list[str]:
    """Split at single dashes and undouble the others."""
    parts: list[str] = []
    start, position = 0, 1
    while position < len(name):
        if name[position] != "-":
            position += 1
        elif name[position + 1 : position + 2] == "-":
            position += 2
        else:
            parts.append(name[start:position].replace("--", "-"))
            start = position + 1
            position = start
    parts.append(name[start:].replace("--", "-"))
    return parts


def parse_endpoint_name(name: str) -> EndpointIds:
    """The identity behind a complete name. Errors: InvalidInput."""
    parts = split_name(name)
    if len(parts) != 4 or "" in parts:
        raise InvalidInput(f"cannot parse {name}, verify that WorkloadEndpoint name is correct")
    node, orchestrator, third, endpoint = parts
    attribute = _THIRD_SEGMENT.get(orchestrator, "workload")
    if attribute == "orchestrator":
        return EndpointIds(node=node, orchestrator=orchestrator, endpoint=endpoint)
    ids = {attribute: third}
    return EndpointIds(node=node, orchestrator=orchestrator, endpoint=endpoint, **ids)


@dataclass(frozen=True, slots=True)
class FelixEndpointId:
    """The identity felix (and its status keys and files) uses: Calico's v1 key."""

    host: str
    orchestrator: str
    workload: str  # "<namespace>/<third name segment>"
    endpoint: str


def felix_endpoint_id(namespace: str, name: str) -> FelixEndpointId:
    """The v1 identity of a WorkloadEndpoint. Errors: InvalidInput."""
    parts = split_name(name)
    if len(parts) != 4 or not namespace:
        raise InvalidInput("not enough information provided to create v1 Workload Endpoint Key")
    node, orchestrator, third, endpoint = parts
    return FelixEndpointId(node, orchestrator, f"{namespace}/{third}", endpoint)


def status_file_name(ids: FelixEndpointId) -> str:
    """The file that tells CNI an endpoint is ready, in <run_dir>/endpoint-status."""
    parts = (ids.orchestrator, ids.workload, ids.endpoint)
    # What Go's url.PathEscape leaves alone.
    return " ".join(quote(part, safe="$&+:=@") for part in parts)


def parse_status_file_name(host: str, name: str) -> FelixEndpointId | None:
    """The endpoint a status file is about, None for a foreign file."""
    parts = name.split(" ")
    if len(parts) != 3:
        return None
    orchestrator, workload, endpoint = map(unquote, parts)
    return FelixEndpointId(host, orchestrator, workload, endpoint)


def k8s_interface_name(namespace: str, pod: str, *, prefix: str = DEFAULT_INTERFACE_PREFIX) -> str:
    """The host side interface of a pod. `prefix` is the first of FELIX_INTERFACEPREFIX."""
    digest = hashlib.sha1(f"{namespace}.{pod}".encode(), usedforsecurity=False).hexdigest()
    return prefix + digest[:11]


def cni_interface_name(container_id: str) -> str:
    """The host side interface of a container outside Kubernetes."""
    return DEFAULT_INTERFACE_PREFIX + container_id[:11]


def cni_handle_id(network: str, container_id: str) -> str:
    """The IPAM handle of a CNI attachment."""
    return f"{network}.{container_id}"


_TUNNEL_HANDLE_BY_TYPE = {
    "ipipTunnelAddress": "ipip-tunnel-addr-",
    "vxlanTunnelAddress": "vxlan-tunnel-addr-",
    "vxlanV6TunnelAddress": "vxlan-v6-tunnel-addr-",
    "wireguardTunnelAddress": "wireguard-tunnel-addr-",
    "wireguardV6TunnelAddress": "wireguard-v6-tunnel-addr-",
}
TUNNEL_ADDRESS_TYPES = tuple(_TUNNEL_HANDLE_BY_TYPE)


def tunnel_handle_id(tunnel_type: str, node: str) -> str:
    """The IPAM handle of a node's tunnel address; `tunnel_type` is the attribute `type`."""
    return _TUNNEL_HANDLE_BY_TYPE[tunnel_type] + node


def normal_handle_id(handle_id: str) -> str:
    """A handle as it is compared: cut at the first carriage return (datamodel §2.2)."""
    return handle_id.partition("\r")[0]


def namespace_profile_name(namespace: str) -> str:
    return NAMESPACE_PROFILE_PREFIX + namespace


def service_account_profile_name(namespace: str, service_account: str) -> str:
    return f"{SERVICE_ACCOUNT_PROFILE_PREFIX}{namespace}.{service_account}"


def k8s_policy_name(name: str) -> str:
    """The NetworkPolicy made from the Kubernetes NetworkPolicy `name`."""
    return K8S_POLICY_PREFIX + name


def auto_host_endpoint_name(node: str) -> str:
    return node + "-auto-hep"
