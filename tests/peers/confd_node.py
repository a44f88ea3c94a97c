"""A node as calico-node runs it: datastore content through confd into either engine."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from confd.context import NodeIdentity
from confd.daemon import Confd, Options, shipped
from confd.view import DatastoreView
from libcalico.model.ipam import BlockAffinity
from libcalico.model.keys import BlockAffinityKey, key_of
from libcalico.model.meta import Resource
from libcalico.syncer.api import SyncStatus, Update
from tests.peers.base import Fabric
from tests.peers.bird import Bird
from tests.peers.speaker import REPOSITORY, CalicoBgp

NAME = "n1"


def view_of(resources: Iterable[Resource], blocks: Iterable[str]) -> DatastoreView:
    made = DatastoreView()
    made.on_updates([Update(key_of(resource), resource, 1) for resource in resources])
    confirmed = BlockAffinity(state="confirmed")
    made.on_updates([Update(BlockAffinityKey(NAME, cidr), confirmed, 1) for cidr in blocks])
    made.on_status(SyncStatus.IN_SYNC)
    return made


class _Rendered:
    """The verb both engines share; `directory` is the run directory."""

    engine = ""

    def render(self, view: DatastoreView) -> None:
        environ = {
            "CALICO_RUN_DIR": str(self.directory),  # type: ignore[attr-defined]
            "CALICO_SECRETS_DIR": str(self.directory / "secrets"),  # type: ignore[attr-defined]
            "CALICO_BGP_ENGINE": self.engine,
            "PYTHONPATH": str(REPOSITORY),
            "PATH": os.environ["PATH"] + ":/usr/sbin",
        }
        options = Options(confdir=shipped(self.engine))
        confd = Confd(view, NodeIdentity(NAME), options, environ)
        assert confd.render(), confd.counters.failed

    def give_secret(self, name: str, key: str, value: str) -> None:
        path = self.directory / "secrets" / name / key  # type: ignore[attr-defined]
        path.parent.mkdir(parents=True)
        path.write_text(value)


class ExabgpNode(_Rendered, CalicoBgp):
    engine = "exabgp"


class BirdNode(_Rendered, Bird):
    engine = "bird"

    def command(self) -> list[str]:
        file, sock = self.directory / "bgp/bird.cfg", self.directory / "bird.ctl"
        return ["bird", "-f", "-R", "-c", str(file), "-s", str(sock)]

    def established(self, address: str) -> bool:
        name = address.replace(".", "_").replace(":", "_")
        shown = self.birdc("show", "protocols").splitlines()
        return any(f"_{name} " in line and "Established" in line for line in shown)


def make(engine: str, fabric: Fabric, number: int) -> ExabgpNode | BirdNode:
    return BirdNode(fabric, number) if engine == "bird" else ExabgpNode(fabric, number)


def kernel_of(node: ExabgpNode | BirdNode) -> set[str]:
    """Routes of the speaker. Each engine has its own protocol number, which is left out, and what
    `ip` shows only of some kinds."""
    found = set()
    for family in ("-4", "-6"):
        for protocol in ("bird", "bgp"):
            shown = node.netns.run("ip", family, "route", "show", "proto", protocol)
            extra = r" +(pref medium|dev lo|error \S+)"
            found |= {re.sub(extra, "", line).strip() for line in shown.splitlines()}
    return found


def heard_by(neighbour: Bird, address: str) -> dict[str, tuple[str, ...]]:
    """What a BIRD neighbour has from `address`: attributes by prefix."""
    condition = f'where proto ~ "*_{address.replace(".", "_").replace(":", "_")}"'
    shown = neighbour.birdc("show", "route", "all", condition)
    found: dict[str, tuple[str, ...]] = {}
    prefix = ""
    for line in shown.splitlines():
        begins = re.match(r"([0-9a-f.:]+/\d+)\s", line)
        prefix = begins.group(1) if begins else prefix
        if begins:
            found.setdefault(prefix, ())
        if line.strip().startswith("BGP."):
            found[prefix] = (*found[prefix], line.strip())
    return found
