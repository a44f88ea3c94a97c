"""CNI results: one internal form, written in whichever version the runtime asked for.

Layer: pure. Used by cni.agent. Source: CNI SPEC 0.1.0 to 1.1.0 "Success"; conversion rules of
containernetworking/cni pkg/types.

Shapes by version:
  0.1.0, 0.2.0          ip4/ip6, the first address of each family only
  0.3.0, 0.3.1, 0.4.0   interfaces, ips with "version", routes
  1.0.0                 without ips[].version
  1.1.0                 interfaces[].mtu, socketPath, pciID; routes[].mtu, advmss, priority, table,
                        scope
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cni.skel import CniError, Code

Json = dict[str, Any]
ROUTE_OPTIONS = ("mtu", "advmss", "priority", "table", "scope")


@dataclass(frozen=True, slots=True)
class Interface:
    """`sandbox` is CNI_NETNS verbatim, "" for an interface of the host."""

    name: str
    mac: str = ""
    sandbox: str = ""
    mtu_bytes: int = 0
    socket_path: str = ""
    pci_id: str = ""


@dataclass(frozen=True, slots=True)
class IPConfig:
    """`address` with prefix length; `interface` an index into the result's interfaces."""

    address: str
    gateway: str = ""
    interface: int | None = None

    @property
    def version(self) -> int:
        return ipaddress.ip_interface(self.address).version


@dataclass(frozen=True, slots=True)
class RouteConfig:
    """`options` are the 1.1.0 members of ROUTE_OPTIONS, passed on from other plugins' results."""

    dst: str
    gateway: str = ""
    options: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """An ADD result. `dns` is passed through as given."""

    interfaces: tuple[Interface, ...] = ()
    ips: tuple[IPConfig, ...] = ()
    routes: tuple[RouteConfig, ...] = ()
    dns: Mapping[str, object] = field(default_factory=dict)

    def to_json(self, version: str) -> Json:
        """Errors: CniError when the version cannot express the result (0.2.0 without address)."""
        if version in ("0.1.0", "0.2.0"):
            return self._oldest(version)
        numbers = tuple(map(int, version.split(".")))
        is_newest = numbers >= (1, 1, 0)
        out: Json = {"cniVersion": version}
        if self.interfaces:
            out["interfaces"] = [_interface(item, is_newest) for item in self.interfaces]
        if self.ips:
            out["ips"] = [_ip(item, numbers < (1, 0, 0)) for item in self.ips]
        if self.routes:
            out["routes"] = [_route(item, is_newest) for item in self.routes]
        out["dns"] = dict(self.dns)
        return out

    def _oldest(self, version: str) -> Json:
        if not self.ips:
            raise CniError(Code.INCOMPATIBLE_VERSION, f"a {version} result needs an address")
        out: Json = {"cniVersion": version}
        for family in (4, 6):
            first = next((item for item in self.ips if item.version == family), None)
            if first is not None:
                entry: Json = {"ip": first.address}
                if first.gateway:
                    entry["gateway"] = first.gateway
                routes = [r for r in self.routes if _family(r.dst) == family]
                if routes:
                    entry["routes"] = [_route(route, False) for route in routes]
                out[f"ip{family}"] = entry
        out["dns"] = dict(self.dns)
        return out


def _family(cidr: str) -> int:
    return ipaddress.ip_network(cidr, strict=False).version


def _interface(item: Interface, is_newest: bool) -> Json:
    out: Json = {"name": item.name}
    if item.mac:
        out["mac"] = item.mac
    if is_newest and item.mtu_bytes:
        out["mtu"] = item.mtu_bytes
    if item.sandbox:
        out["sandbox"] = item.sandbox
    if is_newest and item.socket_path:
        out["socketPath"] = item.socket_path
    if is_newest and item.pci_id:
        out["pciID"] = item.pci_id
    return out


def _ip(item: IPConfig, has_version: bool) -> Json:
    out: Json = {"version": str(item.version)} if has_version else {}
    if item.interface is not None:
        out["interface"] = item.interface
    out["address"] = item.address
    if item.gateway:
        out["gateway"] = item.gateway
    return out


def _route(item: RouteConfig, is_newest: bool) -> Json:
    out: Json = {"dst": item.dst, "gw": item.gateway} if item.gateway else {"dst": item.dst}
    return out | dict(item.options) if is_newest else out


def parse(raw: object) -> Result:
    """A result of any version (a prevResult, or what an IPAM plugin printed).

    Errors: CniError with code 6 naming the member."""
    if not isinstance(raw, Mapping):
        raise CniError(Code.DECODE_FAILURE, "could not parse result: it is not a JSON object")
    try:
        if "ip4" in raw or "ip6" in raw:
            return _parse_oldest(raw)
        result = Result(
            interfaces=tuple(_parse_interface(item) for item in _list(raw, "interfaces")),
            ips=tuple(_parse_ip(item) for item in _list(raw, "ips")),
            routes=tuple(_parse_route(item) for item in _list(raw, "routes")),
            dns=_mapping(raw, "dns"),
        )
        for item in result.ips:
            if item.interface is not None and not 0 <= item.interface < len(result.interfaces):
                raise ValueError(f"ips[].interface {item.interface} is out of range")
        return result
    except (KeyError, TypeError, ValueError, AttributeError) as err:
        raise CniError(Code.DECODE_FAILURE, f"could not parse result: {err}") from None


def _list(raw: Mapping[str, Any], name: str) -> Sequence[Any]:
    found = raw.get(name) or ()
    if not isinstance(found, list | tuple):
        raise ValueError(f"{name} is not a list")
    return found


def _mapping(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = raw.get(name) or {}
    if not isinstance(found, Mapping):
        raise ValueError(f"{name} is not an object")
    return found


def _text(raw: Mapping[str, Any], name: str) -> str:
    found = raw.get(name)
    if not isinstance(found, str | None):
        raise ValueError(f"{name} is not a string")
    return found or ""


def _number(raw: Mapping[str, Any], name: str) -> int | None:
    found = raw.get(name)
    if isinstance(found, bool) or not isinstance(found, int | None):
        raise ValueError(f"{name} is not a number")
    return found


def _parse_interface(raw: Mapping[str, Any]) -> Interface:
    name = _text(raw, "name")
    if not name:
        raise ValueError("an interface has no name")
    return Interface(
        name,
        _text(raw, "mac"),
        _text(raw, "sandbox"),
        _number(raw, "mtu") or 0,
        _text(raw, "socketPath"),
        _text(raw, "pciID"),
    )


def _parse_ip(raw: Mapping[str, Any]) -> IPConfig:
    address = str(ipaddress.ip_interface(_text(raw, "address")))
    return IPConfig(address, _text(raw, "gateway"), _number(raw, "interface"))


def _parse_route(raw: Mapping[str, Any]) -> RouteConfig:
    dst = str(ipaddress.ip_network(_text(raw, "dst"), strict=False))
    numbers = ((name, _number(raw, name)) for name in ROUTE_OPTIONS)
    options = tuple((name, value) for name, value in numbers if value is not None)
    return RouteConfig(dst, _text(raw, "gw"), options)


def _parse_oldest(raw: Mapping[str, Any]) -> Result:
    ips, routes = [], []
    for name in ("ip4", "ip6"):
        entry = raw.get(name)
        if entry:
            address = str(ipaddress.ip_interface(_text(entry, "ip")))
            ips.append(IPConfig(address, _text(entry, "gateway")))
            routes += [_parse_route(route) for route in _list(entry, "routes")]
    return Result(ips=tuple(ips), routes=tuple(routes), dns=_mapping(raw, "dns"))
