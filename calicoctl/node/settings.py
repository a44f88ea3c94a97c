"""What calico-node is told: environment variables, parsed once.

Layer: pure (the environment is an argument). Used by calicoctl.node.main and .registration.
Names and meanings are Calico's (node/pkg/lifecycle/startup; datamodel 5.7, 6.10). A value that does
not parse is refused with the variable's name; nothing has been written then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from calicoctl.node.autodetect import Method, parse_method
from libcalico import selector
from libcalico.errors import ConfigError, InvalidInput
from libcalico.model.scalars import parse_as_number
from libcalico.net import AddressError, Interface, Network, parse_interface, parse_strict_cidr
from libcalico.runtime import parse

T = TypeVar("T")
SOURCE = "environment"
AUTODETECT = "autodetect"
ENGINES = ("exabgp", "bird")
BACKENDS = ("bird", "exabgp", "vxlan", "none")
ENCAPSULATIONS = ("Never", "Always", "CrossSubnet")
# Spellings of earlier releases that manifests still carry.
_OLD_ENCAPSULATIONS = {"off": "Never", "cross-subnet": "CrossSubnet"}
_BLOCK_SIZES = {4: (20, 32), 6: (116, 128)}


@dataclass(frozen=True, slots=True)
class AddressChoice:
    """How the node's address of one family is found.

    `fixed` an address that was given ("192.0.2.1/24", or without length: the interface's is
    taken); `is_wanted` False when none is looked for (IP=none, or IP6 unset); `keep_stored` when
    nothing was said: what the Node object has stays, and only without one the method decides."""

    fixed: Interface | None = None
    has_length: bool = False
    method: Method = field(default_factory=Method)
    is_wanted: bool = True
    keep_stored: bool = False


@dataclass(frozen=True, slots=True)
class PoolChoice:
    """A default pool of one family. `cidr` None: our choice; `is_wanted` False: none is made."""

    version: int
    cidr: Network | None = None
    is_wanted: bool = True
    block_size: int | None = None
    ipip_mode: str = "Never"
    vxlan_mode: str = "Never"
    nat_outgoing: bool = True
    node_selector: str = "all()"
    disable_bgp_export: bool = False


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Everything from the environment but where the datastore is."""

    node_name: str
    ipv4: AddressChoice
    ipv6: AddressChoice
    as_number: int | None
    backend: str
    pools: tuple[PoolChoice, ...]
    k8s_node_ref: str
    cluster_type: str
    check_duplicates: bool
    bgp_engine: str = "exabgp"

    @property
    def has_bgp(self) -> bool:
        return self.backend in ("bird", "exabgp")


def load(environ: Mapping[str, str], node_name: str) -> NodeSettings:
    """Errors: ConfigError naming the variable."""
    read = _Reader(environ)
    ipv6 = read.address(6)
    wants_pools = read.wants_pools()
    pools = (read.pool(4), read.pool(6)) if wants_pools else ()
    return NodeSettings(
        node_name=node_name,
        ipv4=read.address(4),
        ipv6=ipv6,
        as_number=read.as_number(),
        backend=read.one_of("CALICO_NETWORKING_BACKEND", BACKENDS, "bird"),
        pools=tuple(p for p in pools if p.version == 4 or ipv6.is_wanted or p.cidr is not None),
        k8s_node_ref=environ.get("CALICO_K8S_NODE_REF", ""),
        cluster_type=environ.get("CLUSTER_TYPE", ""),
        check_duplicates=not read.boolean("DISABLE_NODE_IP_CHECK", False),
        bgp_engine=read.one_of("CALICO_BGP_ENGINE", ENGINES, "exabgp"),
    )


class _Reader:
    """Typed access; an empty variable counts as absent."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def address(self, version: int) -> AddressChoice:
        variable = "IP" if version == 4 else "IP6"
        raw = self._environ.get(variable, "").strip()
        method = self._method(f"{variable}_AUTODETECTION_METHOD", version)
        if raw.lower() == "none" or (version == 6 and not raw):
            return AddressChoice(is_wanted=False, method=method)
        if raw.lower() == AUTODETECT:
            return AddressChoice(method=method)
        if not raw:
            return AddressChoice(method=method, keep_stored=True)
        bits = 32 if version == 4 else 128
        try:
            fixed = parse_interface(raw if "/" in raw else f"{raw}/{bits}")
        except AddressError as err:
            raise ConfigError(SOURCE, variable, "is not an address", raw) from err
        if fixed.version != version:
            raise ConfigError(SOURCE, variable, f"is not an IPv{version} address", raw)
        return AddressChoice(fixed=fixed, has_length="/" in raw, method=method)

    def _method(self, variable: str, version: int) -> Method:
        raw = self._environ.get(variable, "")
        try:
            return parse_method(raw, version)
        except ValueError as err:
            raise ConfigError(SOURCE, variable, str(err), raw) from err

    def as_number(self) -> int | None:
        raw = self._environ.get("AS", "")
        if not raw:
            return None
        return self._parsed("AS", raw, parse_as_number)

    def wants_pools(self) -> bool:
        if not self.boolean("NO_DEFAULT_POOLS", False):
            return True
        for variable in ("CALICO_IPV4POOL_CIDR", "CALICO_IPV6POOL_CIDR"):
            if self._environ.get(variable):
                raise ConfigError(SOURCE, variable, "cannot be set beside NO_DEFAULT_POOLS")
        return False

    def pool(self, version: int) -> PoolChoice:
        prefix = f"CALICO_IPV{version}POOL_"
        raw = self._environ.get(prefix + "CIDR", "")
        if raw.lower() == "none":
            return PoolChoice(version, is_wanted=False)
        cidr = self._parsed(prefix + "CIDR", raw, parse_strict_cidr) if raw else None
        if cidr is not None and cidr.version != version:
            raise ConfigError(SOURCE, prefix + "CIDR", f"is not an IPv{version} CIDR", raw)
        size = self._environ.get(prefix + "BLOCK_SIZE", "")
        low, high = _BLOCK_SIZES[version]
        vxlan = self.one_of(prefix + "VXLAN", ENCAPSULATIONS, "Never")
        ipip = self.one_of(prefix + "IPIP", ENCAPSULATIONS, "Never") if version == 4 else "Never"
        if "Never" not in (ipip, vxlan):
            raise ConfigError(SOURCE, prefix + "VXLAN", "IPIP and VXLAN cannot both be enabled")
        return PoolChoice(
            version,
            cidr,
            block_size=self._parsed(prefix + "BLOCK_SIZE", size, parse.integer(low, high))
            if size
            else None,
            nat_outgoing=self.boolean(prefix + "NAT_OUTGOING", version == 4),
            node_selector=self.selector(prefix + "NODE_SELECTOR"),
            disable_bgp_export=self.boolean(prefix + "DISABLE_BGP_EXPORT", False),
            ipip_mode=ipip,
            vxlan_mode=vxlan,
        )

    def boolean(self, variable: str, default: bool) -> bool:
        raw = self._environ.get(variable, "")
        return self._parsed(variable, raw, parse.boolean) if raw else default

    def selector(self, variable: str) -> str:
        raw = self._environ.get(variable, "") or "all()"
        self._parsed(variable, raw, selector.parse)
        return raw

    def one_of(self, variable: str, choices: tuple[str, ...], default: str) -> str:
        raw = self._environ.get(variable, "")
        if choices is ENCAPSULATIONS:
            raw = _OLD_ENCAPSULATIONS.get(raw.lower(), raw)
        return self._parsed(variable, raw, parse.one_of(*choices)) if raw else default

    @staticmethod
    def _parsed(variable: str, raw: str, parser: Callable[[str], T]) -> T:
        try:
            return parser(raw)
        except (ValueError, InvalidInput) as err:
            raise ConfigError(SOURCE, variable, str(err), raw) from err
