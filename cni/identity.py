"""Who a CNI request is about: names derived from the request, nothing looked up.

Layer: pure. Used by cni.agent. Source: Calico cni-plugin (reference/cni.md 2), datamodel 1.7.
A request is Kubernetes' exactly when CNI_ARGS names both the pod and its namespace; podman gives a
pod name alone and stays orchestrator "cni".
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cni.netconf import NetConf
from cni.skel import CniError, Code, Request
from ipam.sticky import Identity
from libcalico.errors import ValidationError
from libcalico.model.keys import ResourceKey
from libcalico.model.names import (
    DEFAULT_INTERFACE_PREFIX,
    EndpointIds,
    cni_handle_id,
    cni_interface_name,
    endpoint_name,
    endpoint_name_prefix,
    k8s_interface_name,
)

KUBERNETES = "k8s"
CNI = "cni"
DEFAULT_NAMESPACE = "default"
# RFC 1123, as Kubernetes restricts names; anything else could leave its place in a datastore key.
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
# What podman and Docker allow as a container's name.
_NAME = re.compile(r"[a-zA-Z0-9][-_.a-zA-Z0-9]{0,252}")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Workload:
    """`key` is the WorkloadEndpoint's, `name_prefix` finds all endpoints of the same workload,
    `interface` the host side's name, `handle_id` IPAM's handle of this attachment, `name` what the
    runtime calls the pod, "" when it does not say."""

    ids: EndpointIds
    key: ResourceKey
    name_prefix: str
    interface: str
    handle_id: str
    container_id: str
    ifname: str
    interface_prefix: str = DEFAULT_INTERFACE_PREFIX
    name: str = ""

    @property
    def is_kubernetes(self) -> bool:
        return self.ids.orchestrator == KUBERNETES

    def is_same_workload(self, name: str) -> bool:
        """Whether an endpoint name belongs to this workload (a prefix match alone would lie)."""
        others = EndpointIds(
            node=self.ids.node,
            orchestrator=self.ids.orchestrator,
            pod=self.ids.pod,
            container_id=self.ids.container_id,
        )
        return others.matches(name)


def identify(request: Request, conf: NetConf, *, node: str, prefix: str) -> Workload:
    """`node` is felix's node name unless the configuration overrides it; `prefix` felix's first
    InterfacePrefix. Errors: CniError when a name cannot be part of an endpoint name."""
    node = conf.node.name or node
    pod = request.args.get("K8S_POD_NAME", "")
    namespace = request.args.get("K8S_POD_NAMESPACE", "")
    if pod and namespace:
        _check("K8S_POD_NAMESPACE", namespace, _LABEL)
        _check("K8S_POD_NAME", pod, _SUBDOMAIN)
        ids = EndpointIds(node=node, orchestrator=KUBERNETES, pod=pod, endpoint=request.ifname)
        interface = k8s_interface_name(namespace, pod, prefix=prefix)
    else:
        prefix = DEFAULT_INTERFACE_PREFIX
        namespace = conf.namespace or DEFAULT_NAMESPACE
        _check("the namespace", namespace, _LABEL)
        ids = EndpointIds(
            node=node,
            orchestrator=CNI,
            container_id=request.container_id,
            endpoint=request.ifname,
        )
        interface = cni_interface_name(request.container_id)
    workload = EndpointIds(
        node=node, orchestrator=ids.orchestrator, pod=ids.pod, container_id=ids.container_id
    )
    try:
        name, name_prefix = endpoint_name(ids), endpoint_name_prefix(workload)
    except ValidationError as err:
        raise CniError(Code.INVALID_ENVIRONMENT, str(err)) from err
    return Workload(
        ids=ids,
        key=ResourceKey("WorkloadEndpoint", name, namespace),
        name_prefix=name_prefix,
        interface=interface,
        handle_id=cni_handle_id(request.network, request.container_id),
        container_id=request.container_id,
        ifname=request.ifname,
        interface_prefix=prefix,
        name=pod,
    )


def sticky_identity(network: str, workload: Workload) -> Identity:
    """Whose sticky addresses the attachment gets. Errors: CniError 7 without a name that outlives
    the container, 4 for one that is no name."""
    if not workload.name:
        said = "ipam.sticky: the runtime names no pod (K8S_POD_NAME), and a container id is no"
        raise CniError(Code.INVALID_CONFIG, f"{said} identity")
    _check("K8S_POD_NAME", workload.name, _NAME)
    return Identity(network, workload.key.namespace, workload.name, workload.ifname)


def _check(what: str, name: str, pattern: re.Pattern[str]) -> None:
    if not pattern.fullmatch(name):
        raise CniError(Code.INVALID_ENVIRONMENT, f"{what}: not a valid name", repr(name))
