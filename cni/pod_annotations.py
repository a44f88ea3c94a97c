"""What a pod's annotations ask of the plugin.

Layer: pure. Used by cni.netconf. The annotations come with the request, in `runtimeConfig`, under
the capability "io.kubernetes.cri.pod-annotations" (containerd, cri-o); nothing is read from the
Kubernetes API. Annotations of the *namespace* come with no request, so they have no effect here.
Source: datamodel 2.3 "CNI inputs"; Calico cni-plugin/pkg/k8s/k8s.go, dataplane/linux.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from cni.qos import Bandwidth, controls
from cni.skel import CniError, Code
from libcalico.errors import InvalidInput
from libcalico.model.endpoints import QoSControls
from libcalico.net import parse_cidr, parse_ip

T = TypeVar("T")
PREFIX = "cni.projectcalico.org/"
_FAMILY_BY_NAME = {"IPv4": 4, "IPv6": 6}


@dataclass(frozen=True, slots=True)
class PodWishes:
    """Empty members: nothing was asked; so with `sticky` None. `families` are 4 and 6;
    `qos_problems` is for the log."""

    addresses: tuple[str, ...] = ()
    addresses_no_ipam: tuple[str, ...] = ()
    ipv4_pools: tuple[str, ...] = ()
    ipv6_pools: tuple[str, ...] = ()
    families: frozenset[int] = frozenset()
    mac: str = ""
    floating_ips: tuple[str, ...] = ()
    allowed_source_prefixes: tuple[str, ...] = ()
    sticky: bool | None = None
    qos: QoSControls | None = None
    qos_problems: tuple[str, ...] = ()


NO_WISHES = PodWishes()


def parse(annotations: Mapping[str, str], bandwidth: Bandwidth) -> PodWishes:
    """Errors: CniError code 7 naming the annotation."""
    if not annotations and not any((*bandwidth.rates.values(), *bandwidth.bursts.values())):
        return NO_WISHES
    reader = _Reader(annotations)
    addresses, no_ipam = reader.addresses("ipAddrs"), reader.addresses("ipAddrsNoIpam")
    if addresses and no_ipam:
        raise CniError(
            Code.INVALID_CONFIG,
            "can't have both annotations: 'ipAddrs' and 'ipAddrsNoIpam' in use at the same time",
        )
    qos, problems = controls(annotations, bandwidth)
    return PodWishes(
        addresses=one_per_family(addresses, f"annotation {PREFIX}ipAddrs"),
        addresses_no_ipam=one_per_family(no_ipam, f"annotation {PREFIX}ipAddrsNoIpam"),
        ipv4_pools=reader.strings("ipv4pools"),
        ipv6_pools=reader.strings("ipv6pools"),
        families=frozenset(reader.each("ipFamilies", _family)),
        mac=checked_mac(annotations.get(f"{PREFIX}hwAddr", ""), f"annotation {PREFIX}hwAddr"),
        floating_ips=reader.addresses("floatingIPs"),
        allowed_source_prefixes=reader.each("allowedSourcePrefixes", _cidr),
        sticky=reader.boolean("stickyIPs"),
        qos=qos,
        qos_problems=problems,
    )


class _Reader:
    def __init__(self, annotations: Mapping[str, str]) -> None:
        self._annotations = annotations

    def strings(self, name: str) -> tuple[str, ...]:
        """An empty annotation counts as none, as in Calico; an empty list is a mistake."""
        text = self._annotations.get(f"{PREFIX}{name}", "")
        if not text:
            return ()
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
            raise _bad(name, "must be a JSON list of strings", text)
        if not found:
            raise _bad(name, "the list is empty", text)
        return tuple(found)

    def each(self, name: str, convert: Callable[[str], T]) -> tuple[T, ...]:
        found = []
        for item in self.strings(name):
            try:
                found.append(convert(item))
            except InvalidInput as err:
                # The reason names the item.
                raise _bad(name, str(err)) from err
        return tuple(found)

    def boolean(self, name: str) -> bool | None:
        text = self._annotations.get(f"{PREFIX}{name}", "")
        if text not in ("", "true", "false"):
            raise _bad(name, 'must be "true" or "false"', text)
        return text == "true" if text else None

    def addresses(self, name: str) -> tuple[str, ...]:
        return self.each(name, lambda item: str(parse_ip(item)))


def _family(name: str) -> int:
    if name not in _FAMILY_BY_NAME:
        raise InvalidInput(f"must be IPv4 or IPv6, not {name!r}")
    return _FAMILY_BY_NAME[name]


def _cidr(text: str) -> str:
    return str(parse_cidr(text))


def _bad(name: str, reason: str, value: str = "") -> CniError:
    details = repr(value) if value else ""
    return CniError(Code.INVALID_CONFIG, f"annotation {PREFIX}{name}: {reason}", details)


def one_per_family(addresses: tuple[str, ...], where: str) -> tuple[str, ...]:
    """IPv4 first. Errors: CniError: CNI knows one address of a family."""
    ordered = sorted(dict.fromkeys(addresses), key=lambda address: ":" in address)
    if sum(":" in address for address in ordered) > 1 or len(ordered) > 2:
        raise _several(where)
    if len(ordered) == 2 and ":" not in ordered[1]:
        raise _several(where)
    return tuple(ordered)


def _several(where: str) -> CniError:
    return CniError(
        Code.INVALID_CONFIG, f"{where}: at most one address per family can be requested"
    )


def checked_mac(text: str, where: str) -> str:
    """Canonical, "" stays "". Errors: CniError for a text that is no unicast MAC."""
    if not text:
        return ""
    octets = text.replace("-", ":").split(":")
    digits = set("0123456789abcdefABCDEF")
    if len(octets) != 6 or not all(len(o) in (1, 2) and set(o) <= digits for o in octets):
        raise CniError(Code.INVALID_CONFIG, f"{where}: must be a MAC address", repr(text))
    packed = bytes(int(octet, 16) for octet in octets)
    if packed[0] & 1 or not any(packed):
        raise CniError(Code.INVALID_CONFIG, f"{where}: must be a unicast address", repr(text))
    return packed.hex(":")
