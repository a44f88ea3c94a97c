"""What endpoints and network sets contribute to label indexes and address sets.

Layer: pure. Used by felix.calc (every node's graph) and by typha's spans (one for the cluster).

What an object contributes (reference/datamodel.md 1.9, 3.4, 5.2):
  labels     the object's own; of a workload without `pcns.*` and `pcsa.*`, which only profiles may
             give, with `projectcalico.org/serviceaccount` from serviceAccountName, and with its
             namespace where a foreign writer left it out; of a NetworkSet with its namespace
  parents    the profiles it lists; of a NetworkSet the profile `kns.<namespace>`
  addresses  ipNetworks, expectedIPs or nets, canonical and masked, a /0 as its two halves;
             never the external side of a NAT
  ports      named ports of workload and host endpoints

Source: Calico libcalico-go/lib/backend/syncersv1/updateprocessors/{workloadendpoint,networkset,
hostendpoint}processor.go.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from libcalico import net
from libcalico.compute.members import EndpointPort
from libcalico.model import (
    EndpointPort as HostPort,
)
from libcalico.model import (
    GlobalNetworkSet,
    HostEndpoint,
    NetworkSet,
    WorkloadEndpoint,
    WorkloadEndpointPort,
)
from libcalico.model.meta import NAMESPACE_LABEL, SERVICE_ACCOUNT_LABEL
from libcalico.model.names import (
    NAMESPACE_LABEL_PREFIX,
    SERVICE_ACCOUNT_LABEL_PREFIX,
    namespace_profile_name,
)
from libcalico.model.scalars import protocol_number

_INHERITED_ONLY = (NAMESPACE_LABEL_PREFIX, SERVICE_ACCOUNT_LABEL_PREFIX)
_PORT_PROTOCOL_BY_NUMBER = {6: "tcp", 17: "udp", 132: "sctp"}
# A canonical IPv4 host, by far the most frequent address: ipaddress would cost five times as much.
_OCTET = r"(?:0|[1-9]\d?|1\d\d|2[0-4]\d|25[0-5])"
_HOST_V4 = re.compile(rf"{_OCTET}\.{_OCTET}\.{_OCTET}\.{_OCTET}(/32)?", re.ASCII)


class Contribution(NamedTuple):
    """What one object adds to the label index and to address sets. (A tuple: there are many.)"""

    labels: Mapping[str, str]
    parents: tuple[str, ...]
    addresses: tuple[str, ...]
    ports: tuple[EndpointPort, ...] = ()


def cidr(text: str) -> str:
    """A bare address or a CIDR -> canonical, masked CIDR text. Errors: AddressError."""
    match = _HOST_V4.fullmatch(text)
    if match is not None:
        return text if match[1] else text + "/32"
    return str(net.parse_cidr_or_ip(text))


def cidrs(texts: Iterable[str]) -> tuple[str, ...]:
    """Each once, in the given order."""
    return tuple(dict.fromkeys(map(cidr, texts)))


def set_members(texts: Sequence[str]) -> tuple[str, ...]:
    """As `cidrs`, with a /0 split into its two halves (rules.SetKind.NET)."""
    if len(texts) == 1 and _is_canonical_host(texts[0]):
        return (texts[0],)
    members: dict[str, None] = {}
    for text in cidrs(texts):
        if text.endswith("/0"):
            halves = net.split_catch_all(net.parse_cidr(text))
            members.update(dict.fromkeys(map(str, halves)))
        else:
            members[text] = None
    return tuple(members)


def of_workload(namespace: str, endpoint: WorkloadEndpoint) -> Contribution | None:
    """None when it has no address: such an endpoint does not exist yet (datamodel 1.9)."""
    spec = endpoint.spec
    if not spec.ip_networks:
        return None
    return Contribution(
        _workload_labels(namespace, endpoint),
        spec.profiles,
        set_members(spec.ip_networks),
        named_ports(spec.ports) if spec.ports else (),
    )


def of_host_endpoint(endpoint: HostEndpoint) -> Contribution:
    spec = endpoint.spec
    return Contribution(
        endpoint.metadata.labels,
        spec.profiles,
        set_members(spec.expected_ips),
        named_ports(spec.ports),
    )


def of_network_set(networks: NetworkSet, namespace: str) -> Contribution:
    return Contribution(
        networks.metadata.labels | {NAMESPACE_LABEL: namespace},
        (namespace_profile_name(namespace),),
        set_members(networks.spec.nets),
    )


def of_global_network_set(networks: GlobalNetworkSet) -> Contribution:
    return Contribution(networks.metadata.labels, (), set_members(networks.spec.nets))


def named_ports(ports: Iterable[WorkloadEndpointPort | HostPort]) -> tuple[EndpointPort, ...]:
    """The ports that rules can name. A host port mapping needs no name and offers none."""
    found = []
    for port in ports:
        protocol = _PORT_PROTOCOL_BY_NUMBER.get(protocol_number(port.protocol))
        if port.name and protocol is not None:
            found.append(EndpointPort(port.name, protocol, port.port))
    return tuple(found)


def unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _is_canonical_host(text: str) -> bool:
    match = _HOST_V4.fullmatch(text)
    return match is not None and match[1] is not None


def _workload_labels(namespace: str, endpoint: WorkloadEndpoint) -> Mapping[str, str]:
    """Own labels; nobody can pretend to be of another namespace or service account."""
    labels = endpoint.metadata.labels
    account = endpoint.spec.service_account_name
    forged = [label for label in labels if label.startswith(_INHERITED_ONLY)]
    labelled = not account or labels.get(SERVICE_ACCOUNT_LABEL) == account
    if labelled and not forged and NAMESPACE_LABEL in labels:
        return labels  # kept as it is, not copied: there may be 250,000 of them
    own = {label: value for label, value in labels.items() if label not in forged}
    # Calico's client writes this label; a foreign writer may have left it out.
    own.setdefault(NAMESPACE_LABEL, namespace)
    if account:
        own[SERVICE_ACCOUNT_LABEL] = account
    return own
