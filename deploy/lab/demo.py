"""The demonstration: real packets show what the network does, and every step is checked.

Layer: edge. `make lab` ends with it. It can be run again and again: pods that exist are used, the
policy it applies is removed at the end. Returns False when any check did not hold.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from deploy.lab import pods, shell
from deploy.lab.cluster import Cluster, Say
from deploy.lab.topology import OUTSIDE_V4, OUTSIDE_V6

POLICY = """\
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata:
  name: web-from-frontend
  namespace: default
spec:
  selector: app == 'web'
  types: [Ingress]
  ingress:
    - action: Allow
      protocol: TCP
      source:
        selector: role == 'frontend'
      destination:
        ports: [80]
"""
SETTLE_S = 10.0


@dataclass(slots=True)
class Demo:
    cluster: Cluster
    say: Say
    failed: list[str] = field(default_factory=list)

    def run(self) -> bool:
        self._pods()
        self._ping_matrix()
        self._show_routing()
        self._http_and_nat()
        self._policy()
        self._closing()
        return not self.failed

    def _check(self, what: str, condition: Callable[[], bool], *, expect: bool = True) -> None:
        """Poll until the condition is as expected: a policy takes some milliseconds to arrive."""
        held = shell.wait_until(lambda: condition() is expect, timeout_s=SETTLE_S, every_s=0.2)
        self.say(f"  {'ok  ' if held else 'FAIL'}  {what}")
        if not held:
            self.failed.append(what)

    def _pods(self) -> None:
        self.say("pods: one web server, one front end, one other on every node in turn")
        workers = [machine.name for machine in self.cluster.topology.workers]
        wanted = [("web", {"app": "web"}), ("frontend", {"role": "frontend"})]
        wanted += [("other", {"role": "other"})]
        spread = [(*pod, node) for pod, node in zip(wanted, itertools.cycle(workers), strict=False)]
        spread += [(f"extra{i}", {"role": "extra"}, n) for i, n in enumerate(workers[3:], 4)]
        for name, labels, node in spread:
            pod = self.cluster.state.pods.get(name)
            if pod is None:
                pod = pods.add(self.cluster, name, node=node, labels=labels)
                if name == "web":
                    pods.serve_http(self.cluster, name)
            self.say(f"  {name:<10} on {pod.node:<7} {' '.join(pod.ips)}")

    def _ping_matrix(self) -> None:
        self.say("ping: every pod to every other pod")
        everyone = self.cluster.state.pods.values()
        for source, target in itertools.permutations(everyone, 2):
            for address in target.ips:
                self._check(
                    f"{source.name} ({source.node}) -> {target.name} ({target.node}) {address}",
                    lambda s=source.name, a=address: pods.can_ping(self.cluster, s, a),
                )

    def _show_routing(self) -> None:
        first = self.cluster.topology.workers[0]
        self.say(f"routing: the routes of {first.name} (proto bgp: learned), and its sessions")
        for family in ("-4", "-6"):
            listed = shell.run(["ip", family, "route"], namespace=first.namespace).stdout.decode()
            for line in listed.splitlines():
                if "proto bgp" in line or " cali" in line:
                    self.say(f"  {line.strip()}")
        for address, state in sorted(self.cluster.peers(first.name).items()):
            self.say(f"  session with {address}: {state}")

    def _http_and_nat(self) -> None:
        web = self.cluster.state.pods["web"]
        self.say("traffic: HTTP between pods, and to the outside with the node's address")
        for address in web.ips:
            for client in ("frontend", "other"):
                self._check(
                    f"{client} fetches {pods.url(address)}",
                    lambda c=client, a=address: pods.can_http(self.cluster, c, a),
                )
        outside = [OUTSIDE_V4] + ([OUTSIDE_V6] if self.cluster.state.options.ipv6 else [])
        for address in outside:
            self._check(
                f"frontend reaches the outside host {address} (masqueraded)",
                lambda a=address: pods.can_ping(self.cluster, "frontend", a),
            )

    def _policy(self) -> None:
        web = self.cluster.state.pods["web"]
        self.say("policy: only role == 'frontend' may reach port 80 of app == 'web'")
        self.say("  $ calicoctl apply -f - <<EOF")
        for line in POLICY.splitlines():
            self.say(f"    {line}")
        said = self.cluster.calicoctl("apply", "-f", "-", stdin=POLICY.encode())
        self.say(f"  {said.strip()}")
        for address in web.ips:
            for client, expect in (("other", False), ("frontend", True)):
                self._check(
                    f"{client} {'may' if expect else 'may not'} fetch {pods.url(address)}",
                    lambda c=client, a=address: pods.can_http(self.cluster, c, a, wait_s=1),
                    expect=expect,
                )
            self._check(
                f"frontend may not ping {address}",
                lambda a=address: pods.can_ping(self.cluster, "frontend", a, wait_s=1),
                expect=False,
            )
        said = self.cluster.calicoctl(
            "delete", "networkpolicy", "web-from-frontend", "-n", "default"
        )
        self.say(f"  {said.strip()}")
        for address in web.ips:
            self._check(
                f"other fetches {pods.url(address)} again",
                lambda a=address: pods.can_http(self.cluster, "other", a),
            )

    def _closing(self) -> None:
        if self.failed:
            self.say(f"{len(self.failed)} checks failed: " + "; ".join(self.failed))
            return
        web = self.cluster.state.pods["web"]
        other = self.cluster.state.pods["other"]
        self.say("all checks hold; the lab is running. Try this yourself:")
        for line in (
            "deploy/lab/lab status",
            "deploy/lab/lab calicoctl get nodes -o wide",
            "deploy/lab/lab calicoctl get workloadendpoints -o wide",
            "deploy/lab/lab calicoctl ipam show --show-blocks",
            f"deploy/lab/lab node exec {web.node} ip route",
            f"deploy/lab/lab node exec {web.node} nft list ruleset",
            f"deploy/lab/lab node exec {web.node} calicoctl node status",
            f"deploy/lab/lab exec other curl -s -m 2 {pods.url(web.ips[0])}",
            "deploy/lab/lab calicoctl apply -f deploy/lab/examples/deny-other.yaml",
            f"deploy/lab/lab exec other curl -s -m 2 {pods.url(web.ips[0])}      # now blocked",
            "deploy/lab/lab calicoctl delete -f deploy/lab/examples/deny-other.yaml",
            f"deploy/lab/lab pod add mine --node {other.node} --label role=frontend",
            f"deploy/lab/lab node restart --kill {web.node}                # traffic goes on",
            "make lab-down",
        ):
            self.say(f"  {self._addressed(line)}")

    def _addressed(self, line: str) -> str:
        """The line as it works for a lab of another name than the default."""
        name = self.cluster.state.name
        if name == "lab":
            return line
        return line.replace("lab/lab ", f"lab/lab --name {name} ").replace(
            "make lab-down", f"deploy/lab/lab --name {name} down"
        )


def run(cluster: Cluster, say: Say) -> bool:
    return Demo(cluster, say).run()
