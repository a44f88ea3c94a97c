"""Datastore keys <-> paths, both ways from one table.

Layer: libcalico.model, pure. Used by datastore users, syncers, ipam and the CLI.

  K1  `parse(path_of(key)) == key` for every key whose parts hold no "/" (names are stored raw);
  K2  `parse` never raises: what is not one of ours, or has the wrong number of segments for the
      scope of its kind, is None and is skipped on list and watch;
  K3  a CIDR in a key is canonical and written with "-" for its "/"; parts of v1-style keys are
      escaped (% -> %25, / -> %2f), resource names are not.

Source: datamodel §1.1, §1.6; Calico libcalico-go/lib/backend/model.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from msgspec import Struct

from libcalico.errors import InvalidInput
from libcalico.model.kinds import KIND_BY_NAME, KIND_BY_PLURAL
from libcalico.model.meta import Resource
from libcalico.net import AddressError, parse_strict_cidr

ROOT = "/calico/"
RESOURCES_PREFIX = "/calico/resources/v3/projectcalico.org/"
IPAM_PREFIX = "/calico/ipam/v2/"
BLOCKS_PREFIX = "/calico/ipam/v2/assignment/"
HANDLES_PREFIX = "/calico/ipam/v2/handle/"
HOST_AFFINITIES_PREFIX = "/calico/ipam/v2/host/"
VIRTUAL_AFFINITIES_PREFIX = "/calico/ipam/v2/virtual/"
POLICY_REALIZATION_PREFIX = "/calico/felix/v2/policy-realization/"

NO_REGION = "no-region"


class UnknownKind(InvalidInput):
    """There is no such kind."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind

    def __str__(self) -> str:
        return f"resource type '{self.kind}' is not supported"


class _Key(Struct, frozen=True, order=True, cache_hash=True, gc=False):
    """Base: compared by value, hash computed once (keys index everything)."""


class ResourceKey(_Key, frozen=True):
    """A v3 object. `namespace` is "" for the kinds without one."""

    kind: str
    name: str
    namespace: str = ""


class BlockKey(_Key, frozen=True):
    """An IPAM block; `cidr` is canonical text."""

    cidr: str


class BlockAffinityKey(_Key, frozen=True):
    """IPAM's affinity of a block to a host, or to a virtual owner such as `load-balancer`."""

    host: str
    cidr: str
    affinity_type: str = "host"


class HandleKey(_Key, frozen=True):
    """An IPAM handle."""

    handle_id: str


class IpamConfigKey(_Key, frozen=True):
    """The IPAM settings that IPAM reads (not the v3 IPAMConfiguration)."""


class IpamHostKey(_Key, frozen=True):
    """Legacy empty marker, deleted with the node."""

    host: str


class FelixStatusKey(_Key, frozen=True):
    """Felix is alive on `host`; carries a lease. `region` is "" for none."""

    host: str
    region: str = ""


class FelixLastReportedKey(_Key, frozen=True):
    """The last status felix reported, without a lease."""

    host: str
    region: str = ""


class WorkloadEndpointStatusKey(_Key, frozen=True):
    """up, down or error of one workload endpoint."""

    host: str
    orchestrator: str
    workload: str
    endpoint: str
    region: str = ""


class HostEndpointStatusKey(_Key, frozen=True):
    """up, down or error of one host endpoint."""

    host: str
    endpoint: str


class PolicyRealizationKey(_Key, frozen=True):
    """How far `host` enforces what policies say; carries a lease. Ours: Calico has no such key, and
    no region is called "policy-realization"."""

    host: str
    region: str = ""


class SubnetKey(_Key, frozen=True):
    """A DHCP subnet (OpenStack)."""

    subnet_id: str
    region: str = ""


class NeutronElectionKey(_Key, frozen=True):
    """The election record of the Neutron driver (OpenStack)."""

    region: str = ""


Key = (
    ResourceKey
    | BlockKey
    | BlockAffinityKey
    | HandleKey
    | IpamConfigKey
    | IpamHostKey
    | FelixStatusKey
    | FelixLastReportedKey
    | WorkloadEndpointStatusKey
    | HostEndpointStatusKey
    | PolicyRealizationKey
    | SubnetKey
    | NeutronElectionKey
)


class _Layout(NamedTuple):
    """One row of the table: a key class and its path.

    In the path `{x}` is attribute x raw, `{x:esc}` escaped, `{x:region}` as a region segment,
    `{x:cidr}` a CIDR and `{ip}` the family of that CIDR ("ipv4").
    """

    key: type[Key]
    path: str
    # Attributes this path implies, beyond those it spells out.
    fixed: tuple[tuple[str, str], ...] = ()


_TABLE: tuple[_Layout, ...] = (
    _Layout(BlockKey, "/calico/ipam/v2/assignment/{ip}/block/{cidr:cidr}"),
    _Layout(
        BlockAffinityKey,
        "/calico/ipam/v2/host/{host}/{ip}/block/{cidr:cidr}",
        (("affinity_type", "host"),),
    ),
    _Layout(
        BlockAffinityKey,
        "/calico/ipam/v2/virtual/{host}/{ip}/block/{cidr:cidr}",
        (("affinity_type", "virtual"),),
    ),
    _Layout(HandleKey, "/calico/ipam/v2/handle/{handle_id}"),
    _Layout(IpamConfigKey, "/calico/ipam/v2/config"),
    _Layout(IpamHostKey, "/calico/ipam/v2/host/{host}"),
    _Layout(FelixStatusKey, "/calico/felix/v2/{region:region}/host/{host}/status"),
    _Layout(
        FelixLastReportedKey, "/calico/felix/v2/{region:region}/host/{host}/last_reported_status"
    ),
    _Layout(
        WorkloadEndpointStatusKey,
        "/calico/felix/v2/{region:region}/host/{host}"
        "/workload/{orchestrator:esc}/{workload:esc}/endpoint/{endpoint:esc}",
    ),
    _Layout(HostEndpointStatusKey, "/calico/felix/v1/host/{host}/endpoint/{endpoint:esc}"),
    _Layout(
        PolicyRealizationKey, "/calico/felix/v2/policy-realization/{region:region}/host/{host}"
    ),
    _Layout(SubnetKey, "/calico/dhcp/v2/{region:region}/subnet/{subnet_id}"),
    _Layout(NeutronElectionKey, "/calico/openstack/v2/{region:region}/neutron_election"),
)

_PLACEHOLDER = re.compile(r"\{(\w+)(?::(\w+))?\}")


def escape(part: str) -> str:
    """Escape one identifier of a v1-style key."""
    return part.replace("%", "%25").replace("/", "%2f")


def unescape(part: str) -> str:
    """The reverse of `escape`."""
    return part.replace("%2f", "/").replace("%25", "%")


def _encode_part(value: str, form: str | None) -> str:
    if form == "cidr":
        return value.replace("/", "-", 1)
    if form == "region":
        return "region-" + value if value else NO_REGION
    return escape(value) if form == "esc" else value


def _decode_part(text: str, form: str | None) -> str | None:
    """One path segment -> the attribute, None when it cannot be one."""
    if form == "cidr":
        return _decode_cidr(text)
    if form == "region":
        if text == NO_REGION:
            return ""
        return text.removeprefix("region-") if text.startswith("region-") else None
    return unescape(text) if form == "esc" else text


def _decode_cidr(text: str) -> str | None:
    cidr = text.replace("-", "/", 1)
    try:
        return cidr if str(parse_strict_cidr(cidr)) == cidr else None
    except AddressError:
        return None


def family_segment(cidr: str) -> str:
    """The "ipv4" or "ipv6" a path names beside a CIDR."""
    return "ipv6" if ":" in cidr else "ipv4"


class _Codec:
    """One compiled row of the table."""

    def __init__(self, layout: _Layout) -> None:
        self.key_type = layout.key
        self.fixed = dict(layout.fixed)
        self._path = layout.path
        self._forms: list[tuple[str, str | None]] = [
            (match[1], match[2]) for match in _PLACEHOLDER.finditer(layout.path)
        ]
        pattern, position = "", 0
        for match in _PLACEHOLDER.finditer(layout.path):
            pattern += re.escape(layout.path[position : match.start()]) + "([^/]+)"
            position = match.end()
        self._regex = re.compile(pattern + re.escape(layout.path[position:]))

    def path_of(self, key: Key) -> str:
        def part(match: re.Match[str]) -> str:
            if match[1] == "ip":
                return family_segment(getattr(key, "cidr"))  # noqa: B009 - only keys with a cidr
            return _encode_part(getattr(key, match[1]), match[2])

        return _PLACEHOLDER.sub(part, self._path)

    def parse(self, path: str) -> Key | None:
        match = self._regex.fullmatch(path)
        if match is None:
            return None
        parts: dict[str, str] = dict(self.fixed)
        for (name, form), text in zip(self._forms, match.groups(), strict=True):
            value = _decode_part(text, form)
            if value is None:
                return None
            parts[name] = value
        family = parts.pop("ip", None)
        if family is not None and family != family_segment(parts["cidr"]):
            return None
        return self.key_type(**parts)


_CODECS = tuple(_Codec(layout) for layout in _TABLE)


def path_of(key: Key) -> str:
    """The path of a key. Errors: UnknownKind; InvalidInput for a namespace on a global kind."""
    if isinstance(key, ResourceKey):
        return _resource_path(key)
    for codec in _CODECS:
        if type(key) is codec.key_type and all(
            getattr(key, name) == value for name, value in codec.fixed.items()
        ):
            return codec.path_of(key)
    raise InvalidInput(f"no datastore path for {key!r}")


def _resource_path(key: ResourceKey) -> str:
    info = KIND_BY_NAME.get(key.kind)
    if info is None:
        raise UnknownKind(key.kind)
    if info.namespaced != bool(key.namespace):
        reason = "needs a namespace" if info.namespaced else "is not namespaced"
        raise InvalidInput(f"{key.kind} {reason}: {identifier(key)}")
    if info.namespaced:
        return f"{RESOURCES_PREFIX}{info.plural}/{key.namespace}/{key.name}"
    return f"{RESOURCES_PREFIX}{info.plural}/{key.name}"


def parse(path: str) -> Key | None:
    """The key of a path, None when it is not one of ours (K2)."""
    if path.startswith(RESOURCES_PREFIX):
        return _parse_resource(path)
    for codec in _CODECS:
        key = codec.parse(path)
        if key is not None:
            return key
    return None


def _parse_resource(path: str) -> ResourceKey | None:
    parts = path[len(RESOURCES_PREFIX) :].split("/")
    info = KIND_BY_PLURAL.get(parts[0])
    if info is None or "" in parts:
        return None
    if info.namespaced:
        return ResourceKey(info.kind, parts[2], parts[1]) if len(parts) == 3 else None
    return ResourceKey(info.kind, parts[1]) if len(parts) == 2 else None


def prefix_of(kind: str, namespace: str | None = None) -> str:
    """Where the objects of a kind live, with the trailing slash that keeps siblings out."""
    info = KIND_BY_NAME.get(kind)
    if info is None:
        raise UnknownKind(kind)
    if namespace and not info.namespaced:
        raise InvalidInput(f"{kind} is not namespaced")
    return RESOURCES_PREFIX + info.plural + "/" + (f"{namespace}/" if namespace else "")


def blocks_prefix(version: int) -> str:
    """Where the IPAM blocks of one family live."""
    return f"{BLOCKS_PREFIX}ipv{version}/block/"


def affinities_prefix(host: str, version: int, affinity_type: str = "host") -> str:
    """Where IPAM's block affinities of one host and family live."""
    return f"{IPAM_PREFIX}{affinity_type}/{host}/ipv{version}/block/"


def key_of(resource: Resource) -> ResourceKey:
    """The key a resource is stored under."""
    metadata = resource.metadata
    return ResourceKey(resource.kind, metadata.name, metadata.namespace)


def identifier(key: Key) -> str:
    """The text errors use: Kind(name), Kind(namespace/name), or the Calico key's own form."""
    if isinstance(key, ResourceKey):
        name = f"{key.namespace}/{key.name}" if key.namespace else key.name
        return f"{key.kind}({name})"
    if isinstance(key, BlockKey):
        return f"BlockKey(cidr={key.cidr})"
    if isinstance(key, BlockAffinityKey):
        return (
            f"BlockAffinityKey(cidr={key.cidr}, host={key.host}, affinityType={key.affinity_type})"
        )
    if isinstance(key, HandleKey):
        return f"IPAMHandleKey(id={key.handle_id})"
    if isinstance(key, IpamConfigKey):
        return "IPAMConfigKey()"
    values = ", ".join(str(getattr(key, name)) for name in key.__struct_fields__)
    return f"{type(key).__name__}({values})"
