"""BIRD 2 (Debian's) as a node."""

from __future__ import annotations

import re
import subprocess

from tests.peers.base import BgpNode, Fabric, Neighbour

_HEAD = """
log stderr all;
router id {router_id};
protocol device {{ scan time 1; }}
protocol direct {{ ipv4; ipv6; }}
protocol static s4 {{ ipv4; {static4} }}
protocol static s6 {{ ipv6; {static6} }}
protocol kernel k4 {{
  ipv4 {{ export filter {{ if source ~ [RTS_STATIC, RTS_DEVICE] then reject; accept; }}; }};
  persist; scan time 1; metric 0; merge paths on;
}}
protocol kernel k6 {{
  ipv6 {{ export filter {{ if source ~ [RTS_STATIC, RTS_DEVICE] then reject; accept; }}; }};
  persist; scan time 1; metric 0; merge paths on;
}}
"""

_PEER = """
protocol bgp {name} {{
  local {local} as {local_as};
  neighbor {address} as {remote_as};
  {passive} {password} {client} {ttl}
  hold time {hold_s};
  graceful restart {restart};
  connect delay time 1; connect retry time 1; error wait time 1, 2;
  {extra}
  ipv4 {{ import all; export filter {{ if source ~ [RTS_STATIC, RTS_BGP] then accept; reject; }};
          {next_hop4} }};
  ipv6 {{ import all; export filter {{ if source ~ [RTS_STATIC, RTS_BGP] then accept; reject; }};
          {next_hop6} }};
}}
"""


class Bird(BgpNode):
    """`routes`: static prefixes it announces."""

    kind = "bird"

    def __init__(
        self, fabric: Fabric, number: int, *, routes: tuple[str, ...] = (), extra: str = ""
    ) -> None:
        super().__init__(fabric, number)
        self.routes = routes
        self.extra = extra

    def configure(self, *neighbours: Neighbour) -> None:
        static4 = " ".join(f"route {r} blackhole;" for r in self.routes if ":" not in r)
        static6 = " ".join(f"route {r} blackhole;" for r in self.routes if ":" in r)
        text = _HEAD.format(router_id=self.v4, static4=static4, static6=static6)
        text += "".join(self._render(neighbour) for neighbour in neighbours)
        (self.directory / "bird.conf").write_text(text)
        if self.process is not None:
            self.birdc("configure")

    def _render(self, neighbour: Neighbour) -> str:
        is_v6 = ":" in neighbour.address
        # The other family's next hop cannot be taken from the session's address.
        next_hop4 = f"next hop address {self.v4};" if is_v6 else ""
        next_hop6 = "" if is_v6 else f"next hop address {self.v6};"
        return _PEER.format(
            name=protocol_name(neighbour.address),
            local=self.v6 if is_v6 else self.v4,
            local_as=neighbour.local_as,
            address=neighbour.address,
            remote_as=neighbour.remote_as,
            passive="passive on;" if neighbour.is_passive else "",
            password=f'password "{neighbour.password}";' if neighbour.password else "",
            client="rr client;" if neighbour.is_client else "",
            ttl="direct; ttl security on;" if neighbour.ttl_security else "",
            hold_s=neighbour.hold_s,
            restart=f"on; graceful restart time {neighbour.restart_s}"
            if neighbour.restart_s
            else "off",
            extra=self.extra,
            next_hop4=next_hop4,
            next_hop6=next_hop6,
        )

    def command(self) -> list[str]:
        conf, sock = self.directory / "bird.conf", self.directory / "bird.ctl"
        # -R as Calico starts it: after a restart it says that it kept forwarding.
        return ["bird", "-f", "-R", "-c", str(conf), "-s", str(sock)]

    def birdc(self, *words: str) -> str:
        """Its answer; nothing while it is not there (yet)."""
        sock = self.directory / "bird.ctl"
        try:
            return self.netns.run("birdc", "-s", str(sock), *words)
        except subprocess.CalledProcessError:
            return ""

    def established(self, address: str) -> bool:
        return "Established" in self._protocol(address)

    def uptime_since(self, address: str) -> str:
        """The time of the last state change, from `show protocols`."""
        return self._protocol(address)

    def _protocol(self, address: str) -> str:
        shown = self.birdc("show", "protocols", protocol_name(address))
        return next((line for line in shown.splitlines() if " BGP " in line), "")

    def learned(self) -> set[str]:
        shown = self.birdc("show", "route", "where source = RTS_BGP")
        return set(re.findall(r"^([0-9a-f.:]+/\d+)\s", shown, re.MULTILINE))

    def route(self, prefix: str) -> str:
        """Everything BIRD knows of one prefix."""
        return self.birdc("show", "route", prefix, "all")

    def announce(self, *routes: str) -> None:
        """Change the static routes; `configure` again to apply."""
        self.routes = routes


def protocol_name(address: str) -> str:
    return "p_" + address.replace(".", "_").replace(":", "_")
