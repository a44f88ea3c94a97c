"""The word usePodCidr in a host-local configuration, and the pod networks put in its place.

Layer: pure. Used by cni.add (the Node object's podCIDRs) and cni.addresses (any valid network: for
DEL host-local goes by the container, but it must be able to parse its configuration).
Source: Calico cni-plugin/internal/pkg/utils (ReplaceHostLocalIPAMPodCIDRs).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from cni.netconf import HOST_LOCAL
from cni.skel import CniError, Code, Request

ANY_CIDRS = ("0.0.0.0/0", "::/0")
_VERSION_BY_WORD = {"usepodcidr": 4, "usepodcidripv6": 6}


def needs_pod_cidrs(config: Mapping[str, Any]) -> bool:
    return any(_word(part) for part in _parts(config))


def with_pod_cidrs(request: Request, cidrs: Sequence[str], node: str) -> Request:
    """The request with the words replaced. Errors: CniError when a family has no network."""
    config = deepcopy(dict(request.config))
    for part in _parts(config):
        version = _VERSION_BY_WORD.get(_word(part))
        if version is None:
            continue
        found = next((cidr for cidr in cidrs if (":" in cidr) == (version == 6)), None)
        if found is None:
            raise CniError(
                Code.INVALID_CONFIG,
                f"ipam.subnet: {part['subnet']} found, but Node {node} has no IPv{version}"
                " pod CIDR",
                "status.podCIDRs of the Node is what Kubernetes gave it; without Kubernetes"
                " write the subnet itself",
            )
        part["subnet"] = found
    return replace(request, config=config, stdin=json.dumps(config).encode())


def _word(part: Mapping[str, Any]) -> str:
    subnet = part.get("subnet")
    lower = subnet.lower() if isinstance(subnet, str) else ""
    return lower if lower in _VERSION_BY_WORD else ""


def _parts(config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every object that may have a subnet: ipam itself, and its ranges (a list of lists)."""
    ipam = config.get("ipam")
    if not isinstance(ipam, dict) or ipam.get("type") != HOST_LOCAL:
        return
    yield ipam
    ranges = ipam.get("ranges")
    for inner in ranges if isinstance(ranges, list) else ():
        for part in inner if isinstance(inner, list) else ():
            if isinstance(part, dict):
                yield part
