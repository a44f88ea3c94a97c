"""What every neighbour in these tests is: a node on a switch, running one BGP speaker.

`Fabric` makes nodes 10.99.0.N/24, fd99::N/64 on one bridge. `BgpNode` is the verbs scenarios are
written in; `speaker.CalicoBgp` and `bird.Bird` implement them.
"""

from __future__ import annotations

import abc
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from libcalico.netlink import LinkChange, change_link
from tests.support.netns import (
    Namespace,
    NamespaceSet,
    add_addresses,
    add_bridge,
    connect,
    eventually,
)

PATIENCE_S = 15.0


@dataclass(frozen=True, slots=True)
class Neighbour:
    """The other end of a session, as a node is configured with it."""

    address: str
    remote_as: int = 64512
    local_as: int = 64512
    password: str = ""
    is_passive: bool = False
    is_client: bool = False  # of ours, we are its reflector
    restart_s: int = 120
    hold_s: int = 90
    filters: tuple[str, ...] = ()
    ttl_security: bool = False


class Fabric:
    """A switch and the nodes on it."""

    def __init__(self, netns: NamespaceSet, directory: Path) -> None:
        self._netns = netns
        self._switch = netns.make("switch")
        self._bridge = add_bridge(self._switch, "br0").ifindex
        self.directory = directory
        self.nodes: list[BgpNode] = []

    def namespace(self, number: int) -> Namespace:
        """A namespace with eth0 on the switch, addresses 10.99.0.N and fd99::N."""
        made = self._netns.make(f"n{number}")
        made.sysctl("net/ipv6/conf/default/accept_dad", "0")
        connect(self._switch, f"p{number}", made, "eth0")
        port = self._switch.link(f"p{number}").ifindex
        self._switch.socket.execute(change_link(port, LinkChange(master=self._bridge)))
        add_addresses(made, "eth0", f"10.99.0.{number}/24", f"fd99::{number}/64")
        made.sysctl("net/ipv4/ip_forward", "1")
        return made

    def close(self) -> None:
        for node in self.nodes:
            node.close()


class BgpNode(abc.ABC):
    """One node with one speaker. `number` is the last octet of its addresses."""

    kind: ClassVar[str]

    def __init__(self, fabric: Fabric, number: int) -> None:
        self.number = number
        self.netns = fabric.namespace(number)
        self.directory = fabric.directory / f"{self.kind}{number}"
        self.directory.mkdir()
        self.process: subprocess.Popen[bytes] | None = None
        self._logs: list[object] = []
        fabric.nodes.append(self)

    @property
    def v4(self) -> str:
        return f"10.99.0.{self.number}"

    @property
    def v6(self) -> str:
        return f"fd99::{self.number}"

    @abc.abstractmethod
    def configure(self, *neighbours: Neighbour) -> None:
        """Write the configuration; a running speaker takes it over."""

    @abc.abstractmethod
    def command(self) -> list[str]:
        """The speaker, in the foreground."""

    @abc.abstractmethod
    def established(self, address: str) -> bool: ...

    @abc.abstractmethod
    def uptime_since(self, address: str) -> str:
        """A text that changes when the session is another one."""

    @abc.abstractmethod
    def learned(self) -> set[str]:
        """Prefixes in its table that came from a peer."""

    def environment(self) -> dict[str, str]:
        return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}

    def start(self) -> None:
        log = (self.directory / "log").open("ab")
        self._logs.append(log)
        options = {"env": self.environment(), "stdout": log, "stderr": log, "cwd": "/"}
        self.process = self.netns.spawn(*self.command(), **options)

    def kill(self) -> None:
        """SIGKILL: no goodbye."""
        self._end("kill")

    def stop(self) -> None:
        """SIGTERM: an orderly end."""
        assert self._end("terminate") == 0, self.log()

    def _end(self, how: str) -> int:
        assert self.process is not None, "start first"
        getattr(self.process, how)()
        code = self.process.wait(timeout=PATIENCE_S)
        self.process = None
        return code

    def close(self) -> None:
        if self.process is not None:
            self.kill()
        for log in self._logs:
            log.close()  # type: ignore[attr-defined]

    def log(self) -> str:
        return (self.directory / "log").read_text()

    # -- verbs

    def wait_established(self, *addresses: str) -> None:
        for address in addresses:
            assert eventually(lambda a=address: self.established(a), timeout_s=PATIENCE_S), (
                f"{self.kind}{self.number}: no session with {address}\n{self.log()}"
            )

    def wait_learned(self, *prefixes: str, timeout_s: float = PATIENCE_S) -> None:
        wanted = set(prefixes)
        assert eventually(lambda: wanted <= self.learned(), timeout_s=timeout_s), (
            f"{self.kind}{self.number}: {wanted - self.learned()} missing\n{self.log()}"
        )

    def wait_forgotten(self, *prefixes: str, timeout_s: float = PATIENCE_S) -> None:
        unwanted = set(prefixes)
        assert eventually(lambda: not unwanted & self.learned(), timeout_s=timeout_s), (
            f"{self.kind}{self.number}: {unwanted & self.learned()} still there\n{self.log()}"
        )

    def kernel(self, prefix: str) -> str:
        """`ip route show` of exactly this prefix, one line per route."""
        family = "-6" if ":" in prefix else "-4"
        shown = self.netns.run("ip", family, "route", "show", "exact", prefix)
        return "\n".join(line.strip() for line in shown.splitlines())

    def wait_kernel(self, prefix: str, *words: str, timeout_s: float = PATIENCE_S) -> None:
        """A kernel route of this prefix with all these words in it."""

        def is_there() -> bool:
            shown = self.kernel(prefix)
            return bool(shown) and all(word in shown for word in words)

        assert eventually(is_there, timeout_s=timeout_s), (
            f"{self.kind}{self.number}: {prefix}: {self.kernel(prefix)!r}\n{self.log()}"
        )

    def wait_no_kernel(self, prefix: str, *, timeout_s: float = PATIENCE_S) -> None:
        assert eventually(lambda: not self.kernel(prefix), timeout_s=timeout_s), (
            f"{self.kind}{self.number}: {prefix}: {self.kernel(prefix)!r}\n{self.log()}"
        )
