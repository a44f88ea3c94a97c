"""Names and addresses of a lab: who exists, in which namespace, under which address.

Layer: pure. Used by deploy.lab.cluster and tests. Addresses come from documentation ranges
(RFC 5737, RFC 3849), pods from 10.65.0.0/16 and fd65::/48, so nothing collides with a real site.

    brn-<lab>-switch   bridge br0, 192.0.2.1/24: the wire between all, and "the outside" for NAT
    brn-<lab>-etcd     192.0.2.2
    brn-<lab>-node1…   192.0.2.11…   one calico-node each
    brn-<lab>-rr1,rr2  192.0.2.201…  dedicated route reflectors (with --rr)
    brn-<lab>-p-<pod>  one per pod, made by `lab pod add`
"""

from __future__ import annotations

from dataclasses import dataclass

UNDERLAY_V4 = "192.0.2"
UNDERLAY_V6 = "2001:db8:0:1:"
OUTSIDE_V4 = f"{UNDERLAY_V4}.1"
OUTSIDE_V6 = f"{UNDERLAY_V6}:1"
POOL_V4 = "10.65.0.0/16"
POOL_V6 = "fd65::/48"
CLUSTER_ID = "244.0.0.1"
MAX_NODES = 100


@dataclass(frozen=True, slots=True)
class Machine:
    """One namespace on the wire. `octet` is the last part of both of its addresses."""

    name: str
    namespace: str
    octet: int

    @property
    def ipv4(self) -> str:
        return f"{UNDERLAY_V4}.{self.octet}"

    @property
    def ipv6(self) -> str:
        return f"{UNDERLAY_V6}:{self.octet:x}"


@dataclass(frozen=True, slots=True)
class Options:
    """What `lab up` was asked for; kept in the lab's state file."""

    nodes: int = 3
    rr: bool = False
    ipv6: bool = False
    dataplane: str = "nftables"


@dataclass(frozen=True, slots=True)
class Topology:
    """Everything that follows from a lab's name and options."""

    lab: str
    options: Options

    @property
    def switch(self) -> Machine:
        return Machine("switch", f"brn-{self.lab}-switch", 1)

    @property
    def etcd(self) -> Machine:
        return Machine("etcd", f"brn-{self.lab}-etcd", 2)

    @property
    def workers(self) -> tuple[Machine, ...]:
        return tuple(
            Machine(f"node{i}", f"brn-{self.lab}-node{i}", 10 + i)
            for i in range(1, self.options.nodes + 1)
        )

    @property
    def reflectors(self) -> tuple[Machine, ...]:
        if not self.options.rr:
            return ()
        return tuple(Machine(f"rr{i}", f"brn-{self.lab}-rr{i}", 200 + i) for i in (1, 2))

    @property
    def nodes(self) -> tuple[Machine, ...]:
        return self.workers + self.reflectors

    def node(self, name: str) -> Machine:
        for machine in self.nodes:
            if machine.name == name:
                return machine
        known = ", ".join(machine.name for machine in self.nodes)
        raise LookupError(f"no node {name!r} in lab {self.lab!r}; there are {known}")

    def pod_namespace(self, pod: str) -> str:
        return f"brn-{self.lab}-p-{pod}"

    @property
    def etcd_endpoint(self) -> str:
        return f"http://{self.etcd.ipv4}:2379"
