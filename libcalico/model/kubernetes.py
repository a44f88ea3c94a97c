"""Kubernetes objects that policy reads as they are: the EndpointSlices of Services.

Layer: libcalico.model, pure. Used by felix.calc and libcalico.policy for `services` in rules.

These are no v3 kinds: nobody stores them in etcd (datamodel §1.1: in Calico they exist as keys in
the memory of the Kubernetes syncers only), so they are not in `kinds.KINDS` and have no path. A
Kubernetes datastore hands them over as updates, under the key
`ResourceKey("KubernetesEndpointSlice", name, namespace)`.

Source: discovery.k8s.io/v1; Calico felix/serviceindex/serviceindex.go.
"""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec import field

from libcalico import net
from libcalico.errors import InvalidInput
from libcalico.model.meta import Model, ObjectMeta, Resource

SERVICE_NAME_LABEL = "kubernetes.io/service-name"
# What a port without a protocol speaks, and the only ones a Service can have.
_DEFAULT_PROTOCOL = "TCP"
_PROTOCOLS = frozenset({"TCP", "UDP", "SCTP"})
_FQDN = "FQDN"


class SlicePort(Model, frozen=True, kw_only=True):
    """`protocol` is TCP, UDP or SCTP."""

    protocol: str = _DEFAULT_PROTOCOL
    port: int


class KubernetesEndpointSlice(Resource, frozen=True, kw_only=True, tag="KubernetesEndpointSlice"):
    """Some of the endpoints of one Service: every address answers at every port.

    All addresses count, also of endpoints that are not ready: whether a pod may be talked to is not
    for its readiness probe to say. A port without a number (all ports) names no port."""

    kind: ClassVar[str] = "KubernetesEndpointSlice"

    addresses: tuple[str, ...] = ()
    ports: tuple[SlicePort, ...] = field(default=())

    @property
    def service(self) -> tuple[str, str]:
        """(namespace, name)."""
        return self.metadata.namespace, self.metadata.labels.get(SERVICE_NAME_LABEL, "")


def endpoint_slice(k8s: dict[str, Any]) -> KubernetesEndpointSlice:
    """A discovery.k8s.io/v1 EndpointSlice. Errors: InvalidInput, with the place.

    Slices of host names (addressType FQDN) hold no address."""
    metadata = _object(k8s.get("metadata"), "metadata")
    labels = _object(metadata.get("labels"), "metadata.labels")
    name, namespace = metadata.get("name"), metadata.get("namespace")
    if not isinstance(name, str) or not isinstance(namespace, str) or not (name and namespace):
        raise InvalidInput("an EndpointSlice without name or namespace")
    addresses: list[str] = []
    if k8s.get("addressType") != _FQDN:
        for index, endpoint in enumerate(_list(k8s.get("endpoints"), "endpoints")):
            addresses += _addresses(endpoint, f"endpoints[{index}]")
    ports = [_port(port, f"ports[{i}]") for i, port in enumerate(_list(k8s.get("ports"), "ports"))]
    return KubernetesEndpointSlice(
        metadata=ObjectMeta(
            name=name, namespace=namespace, labels={str(k): str(v) for k, v in labels.items()}
        ),
        addresses=tuple(dict.fromkeys(addresses)),
        ports=tuple(port for port in ports if port is not None),
    )


def _addresses(endpoint: Any, place: str) -> list[str]:
    found = _list(_object(endpoint, place).get("addresses"), f"{place}.addresses")
    try:
        return [str(net.parse_ip(address if isinstance(address, str) else "")) for address in found]
    except net.AddressError as err:
        raise InvalidInput(f"{place}.addresses: {err}") from err


def _port(value: Any, place: str) -> SlicePort | None:
    given = _object(value, place)
    port, protocol = given.get("port"), given.get("protocol") or _DEFAULT_PROTOCOL
    if protocol not in _PROTOCOLS:
        raise InvalidInput(f"{place}.protocol: {protocol!r} is not TCP, UDP or SCTP")
    if port is None:
        return None
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port <= 65535:
        raise InvalidInput(f"{place}.port: {port!r} is no port")
    return SlicePort(protocol=protocol, port=port)


def _object(value: Any, place: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidInput(f"{place} is not an object")
    return value


def _list(value: Any, place: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise InvalidInput(f"{place} is not a list")
    return value
