"""The part of the kubelet that starts and stops pod sandboxes: a client of the CRI.

Used by tests/runtimes. The Container Runtime Interface is gRPC over a unix socket
(k8s.io/cri-api, pkg/apis/runtime/v1/api.proto). The few messages needed here are described by a
table of their fields instead of generated code, which would need a compiler of the right version;
numbers and types are the interface's, fields nobody reads are left out (protobuf skips them).
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "runtime.v1"
DEADLINE_S = 60.0
_SCALARS = {"string": 9, "bool": 8, "int32": 5, "int64": 3, "uint32": 13}  # FieldDescriptorProto

# message: fields as "number type name"; "*" before the type: repeated; "map": string to string.
_MESSAGES = {
    "PodSandboxMetadata": "1 string name, 2 string uid, 3 string namespace, 4 uint32 attempt",
    "PortMapping": "1 int32 protocol, 2 int32 container_port, 3 int32 host_port, 4 string host_ip",
    "LinuxPodSandboxConfig": "1 string cgroup_parent",
    "PodSandboxConfig": "1 PodSandboxMetadata metadata, 2 string hostname, 3 string log_directory,"
    " 5 *PortMapping port_mappings, 6 map labels, 7 map annotations, 8 LinuxPodSandboxConfig linux",
    "RunPodSandboxRequest": "1 PodSandboxConfig config",
    "RunPodSandboxResponse": "1 string pod_sandbox_id",
    "StopPodSandboxRequest": "1 string pod_sandbox_id",
    "StopPodSandboxResponse": "",
    "RemovePodSandboxRequest": "1 string pod_sandbox_id",
    "RemovePodSandboxResponse": "",
    "PodSandboxStatusRequest": "1 string pod_sandbox_id, 2 bool verbose",
    "PodIP": "1 string ip",
    "PodSandboxNetworkStatus": "1 string ip, 2 *PodIP additional_ips",
    "PodSandboxStatus": "1 string id, 2 PodSandboxMetadata metadata, 3 int32 state,"
    " 5 PodSandboxNetworkStatus network",
    "PodSandboxStatusResponse": "1 PodSandboxStatus status, 2 map info",
    "PodSandbox": "1 string id, 2 PodSandboxMetadata metadata, 3 int32 state",
    "ListPodSandboxRequest": "",
    "ListPodSandboxResponse": "1 *PodSandbox items",
    "StatusRequest": "1 bool verbose",
    "RuntimeCondition": "1 string type, 2 bool status, 3 string reason, 4 string message",
    "RuntimeStatus": "1 *RuntimeCondition conditions",
    "StatusResponse": "1 RuntimeStatus status",
}


def _describe() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(
        name="brindle/cri.proto", package=PACKAGE, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for text in filter(None, fields.split(",")):
            _add_field(message, *text.split())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


def _add_field(message: descriptor_pb2.DescriptorProto, number: str, kind: str, name: str) -> None:
    made = message.field.add(name=name, number=int(number), label=1)
    if kind == "map":
        # On the wire a map is a repeated message of key (1) and value (2).
        entry = message.nested_type.add(name=name.capitalize() + "Entry")
        entry.field.add(name="key", number=1, type=9, label=1)
        entry.field.add(name="value", number=2, type=9, label=1)
        entry.options.map_entry = True
        made.type, made.label = 11, 3
        made.type_name = f".{PACKAGE}.{message.name}.{entry.name}"
    elif kind in _SCALARS:
        made.type = _SCALARS[kind]  # type: ignore[assignment]
    else:
        made.type, made.type_name = 11, f".{PACKAGE}.{kind.lstrip('*')}"
        made.label = 3 if kind.startswith("*") else 1


_POOL = _describe()


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))


@dataclass(frozen=True, slots=True)
class Pod:
    """What the kubelet would say of a pod. `ports` are (host port, container port), TCP."""

    name: str
    namespace: str = "prod"
    annotations: Mapping[str, str] = field(default_factory=dict)
    ports: Sequence[tuple[int, int]] = ()
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class SandboxStatus:
    """`netns` is the namespace's path on the runtime's machine, `cni_result` our answer to ADD."""

    is_ready: bool
    addresses: tuple[str, ...]
    netns: str
    cni_result: Mapping[str, Any]


class CriError(AssertionError):
    """The runtime refused; `code` is gRPC's."""

    def __init__(self, method: str, error: grpc.RpcError) -> None:
        super().__init__(f"{method}: {error.code().name}: {error.details()}")
        self.code: grpc.StatusCode = error.code()


class Cri:
    """RuntimeService of one runtime. `cgroup` is the parent group of every sandbox."""

    def __init__(self, socket: Path, *, cgroup: str) -> None:
        # A unix socket's path has 107 bytes at most, and one below /proc/<pid>/root stays short.
        self._channel = grpc.insecure_channel(
            f"unix://{socket}", options=[("grpc.enable_http_proxy", 0)]
        )
        self._cgroup = cgroup

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._channel.close()

    def call(self, method: str, *, deadline_s: float = DEADLINE_S, **fields: Any) -> Any:
        """Errors: CriError."""
        run = self._channel.unary_unary(
            f"/{PACKAGE}.RuntimeService/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=_message(f"{method}Response").FromString,
        )
        try:
            return run(_message(f"{method}Request")(**fields), timeout=deadline_s)
        except grpc.RpcError as err:
            raise CriError(method, err) from err

    def run(self, pod: Pod, *, deadline_s: float = DEADLINE_S) -> str:
        """Returns the sandbox id, which is the plugin's CNI_CONTAINERID."""
        config = {
            "metadata": {
                "name": pod.name,
                "namespace": pod.namespace,
                "uid": pod.uid,
                "attempt": pod.attempt,
            },
            "hostname": pod.name,
            "port_mappings": [
                {"host_port": host, "container_port": container} for host, container in pod.ports
            ],
            "annotations": dict(pod.annotations),
            "linux": {"cgroup_parent": f"/{self._cgroup}"},
        }
        made = self.call("RunPodSandbox", config=config, deadline_s=deadline_s)
        return str(made.pod_sandbox_id)

    def status(self, sandbox: str) -> SandboxStatus:
        answer = self.call("PodSandboxStatus", pod_sandbox_id=sandbox, verbose=True)
        network = answer.status.network
        info = json.loads(answer.info["info"])
        namespaces = info["runtimeSpec"]["linux"]["namespaces"]
        found = [entry.get("path", "") for entry in namespaces if entry["type"] == "network"]
        return SandboxStatus(
            is_ready=answer.status.state == 0,
            addresses=tuple(a for a in (network.ip, *(x.ip for x in network.additional_ips)) if a),
            netns=found[0],
            cni_result=info.get("cniResult") or {},
        )

    def sandboxes(self) -> dict[str, str]:
        """Pod name by sandbox id, of all that the runtime remembers."""
        return {item.id: item.metadata.name for item in self.call("ListPodSandbox").items}

    def stop(self, sandbox: str) -> None:
        self.call("StopPodSandbox", pod_sandbox_id=sandbox)

    def remove(self, sandbox: str) -> None:
        self.call("RemovePodSandbox", pod_sandbox_id=sandbox)

    def network_problem(self) -> str:
        """Empty when the runtime has a network configuration it can use, else its message."""
        for condition in self.call("Status").status.conditions:
            if condition.type == "NetworkReady":
                return "" if condition.status else str(condition.message)
        return "no NetworkReady condition"


def socket_of(root: Path) -> Path:
    """containerd's socket on the machine whose file system `root` is."""
    found = root / "run/containerd/containerd.sock"
    assert len(os.fsencode(found)) < 108, found
    return found
