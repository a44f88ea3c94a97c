"""Our own speaker as a node: renders the two files as confd would, asks the control socket."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import msgspec

from libcalico.model.speaker import (
    KernelExport,
    LocalBlock,
    PeerOptions,
    PoolExport,
    SpeakerConfig,
)
from tests.peers.base import BgpNode, Fabric, Neighbour

REPOSITORY = Path(__file__).resolve().parents[2]
POOLS = (PoolExport(cidr="10.65.0.0/16"), PoolExport(cidr="fd65::/48"))

_NEIGHBOUR = """
neighbor {address} {{
  router-id {router_id};
  local-address {local};
  local-as {local_as};
  peer-as {remote_as};
  hold-time {hold_s};
  {passive}{password}{ttl}
  capability {{ route-refresh enable; {restart} }}
  family {{ ipv4 unicast; ipv6 unicast; }}
}}
"""


class CalicoBgp(BgpNode):
    """calico-bgp in a namespace."""

    kind = "calico"

    def __init__(self, fabric: Fabric, number: int, *, blocks: tuple[str, ...] = ()) -> None:
        super().__init__(fabric, number)
        self.bgp_dir = self.directory / "bgp"
        self.bgp_dir.mkdir()
        self.settings_of_environment: dict[str, str] = {}
        self.settings = SpeakerConfig(
            exabgp_sha256="",
            node_name=f"node{number}",
            router_id=self.v4,
            local_as=64512,
            ipv4_address=self.v4,
            ipv6_address=self.v6,
            pools=POOLS,
            blocks=tuple(LocalBlock(cidr=cidr) for cidr in blocks),
            kernel=KernelExport(),
            log_severity="Debug",
        )

    def set_blocks(self, *cidrs: str) -> None:
        blocks = tuple(LocalBlock(cidr=cidr) for cidr in cidrs)
        self.settings = msgspec.structs.replace(self.settings, blocks=blocks)

    def configure(self, *neighbours: Neighbour) -> None:
        peers = tuple(self._options(neighbour) for neighbour in neighbours)
        self.settings = msgspec.structs.replace(self.settings, peers=peers)
        self.publish("".join(self._render(neighbour) for neighbour in neighbours) or "# none\n")

    def publish(self, conf: str) -> None:
        """exabgp.conf first, speaker.json last, both by rename; then the signal."""
        digest = hashlib.sha256(conf.encode()).hexdigest()
        self.settings = msgspec.structs.replace(self.settings, exabgp_sha256=digest)
        self._put("exabgp.conf", conf.encode())
        self._put("speaker.json", msgspec.json.encode(self.settings))
        if self.process is not None:
            os.kill(self.pid, signal.SIGHUP)

    def _put(self, name: str, content: bytes) -> None:
        scratch = self.bgp_dir / f".{name}"
        scratch.write_bytes(content)
        scratch.rename(self.bgp_dir / name)

    def _options(self, neighbour: Neighbour) -> PeerOptions:
        name = "Mesh_" + neighbour.address.replace(".", "_").replace(":", "_")
        return PeerOptions(
            name=name,
            address=neighbour.address,
            kind="mesh",
            remote_as=neighbour.remote_as,
            local_as=neighbour.local_as,
            rr_client=neighbour.is_client,
            cluster_id=self.v4 if neighbour.is_client else "",
            filters=neighbour.filters,
            restart_time_s=neighbour.restart_s,
        )

    def _render(self, neighbour: Neighbour) -> str:
        restart = f"graceful-restart {neighbour.restart_s};" if neighbour.restart_s else ""
        return _NEIGHBOUR.format(
            address=neighbour.address,
            router_id=self.v4,
            local=self.v6 if ":" in neighbour.address else self.v4,
            local_as=neighbour.local_as,
            remote_as=neighbour.remote_as,
            hold_s=neighbour.hold_s,
            passive="passive true; " if neighbour.is_passive else "passive false; ",
            password=f'md5-password "{neighbour.password}";' if neighbour.password else "",
            restart=restart,
            ttl="outgoing-ttl 255; incoming-ttl 255;" if neighbour.ttl_security else "",
        )

    def command(self) -> list[str]:
        return [sys.executable, "-m", "bgp.daemon"]

    def environment(self) -> dict[str, str]:
        return {
            **super().environment(),
            "PYTHONPATH": str(REPOSITORY),
            "CALICO_RUN_DIR": str(self.directory),
            "CALICO_LOG_DIR": str(self.directory),
            **self.settings_of_environment,
        }

    @property
    def pid(self) -> int:
        return int((self.bgp_dir / "calico-bgp.pid").read_text())

    def ask(self, command: str, **members: Any) -> dict[str, Any]:
        """One request on the control socket; {} while there is none."""
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(5)
            try:
                sock.connect(str(self.bgp_dir / "control.sock"))
            except (FileNotFoundError, ConnectionRefusedError):
                return {}
            sock.sendall(json.dumps({"command": command, **members}).encode() + b"\n")
            answer = sock.makefile("rb").readline()
        found: dict[str, Any] = json.loads(answer or b"{}")
        return found

    def peer(self, address: str) -> dict[str, Any]:
        peers = self.ask("peers").get("peers", [])
        return next((peer for peer in peers if peer["address"] == address), {})

    def established(self, address: str) -> bool:
        return bool(self.peer(address).get("state") == "Established")

    def uptime_since(self, address: str) -> str:
        return str(self.peer(address)["since"])

    def learned(self) -> set[str]:
        routes = self.ask("routes", limit=10_000).get("routes", [])
        return {route["cidr"] for route in routes if "local" not in route["paths"][0]}
