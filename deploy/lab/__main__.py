"""The `lab` command: `deploy/lab/lab up|down|status|demo|pod|exec|node|calicoctl`.

Layer: edge. Exit codes: 0 done, 1 it failed (one line on stderr), 2 wrong usage; `exec`, `node
exec` and `calicoctl` become the program they run, so theirs is what you get.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import click

from deploy.lab import cluster, demo, pods, shell, state
from deploy.lab.cluster import BIN
from deploy.lab.shell import LabError
from deploy.lab.topology import MAX_NODES, Options

PASS_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False}
command_line = click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)


def say(line: str) -> None:
    click.echo(line)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--name", default="lab", show_default=True, help="Which lab; several can be up.")
@click.pass_context
def main(ctx: click.Context, name: str) -> None:
    """A Brindle cluster of network namespaces on this machine."""
    if not name.isalnum() or len(name) > 12:
        raise LabError(f"--name {name!r}: letters and digits only, at most 12")
    ctx.obj = name


@main.command()
@click.option("--nodes", default=3, show_default=True, type=click.IntRange(1, MAX_NODES))
@click.option("--rr", is_flag=True, help="Two route reflectors instead of the full mesh.")
@click.option("--ipv6", is_flag=True, help="Dual stack: pods and sessions in both families.")
@click.option("--dataplane", default="nftables", type=click.Choice(["nftables"]))
@click.pass_obj
def up(name: str, nodes: int, rr: bool, ipv6: bool, dataplane: str) -> None:
    """Make the lab: switch, etcd, nodes; ends when all BGP sessions are up."""
    began = time.monotonic()
    options = Options(nodes=nodes, rr=rr, ipv6=ipv6, dataplane=dataplane)
    cluster.up(name, options, lambda line: say(f"[lab] {line}"))
    say(f"[lab] up after {time.monotonic() - began:.1f} s; logs under {cluster.ROOT / name}")


@main.command()
@click.pass_obj
def down(name: str) -> None:
    """Remove the lab whole: processes, namespaces, files."""
    with state.exclusive(name):
        cluster.destroy(name, lambda line: say(f"[lab] {line}"))


@main.command(name="demo")
@click.pass_obj
def run_demo(name: str) -> None:
    """Pods, pings, HTTP, a policy that blocks and allows; every step checked."""
    with state.exclusive(name):
        holds = demo.run(cluster.attach(name), lambda line: say(f"[demo] {line}"))
    if not holds:
        raise LabError("the demonstration found something wrong (see above)")


@main.command()
@click.pass_obj
def status(name: str) -> None:
    """Processes, sessions and pods."""
    lab = cluster.attach(name)
    for role, process in sorted(lab.state.processes.items()):
        runs = "running" if shell.is_running(process) else "NOT RUNNING"
        say(f"{role:<12} pid {process[0]:<8} {runs}")
    for node in lab.topology.nodes:
        missing = lab.expected_peers(node) - lab.established(node.name)
        said = f"all {len(lab.expected_peers(node))} sessions established"
        say(
            f"{node.name:<12} BGP " + (f"MISSING {', '.join(sorted(missing))}" if missing else said)
        )
    for pod in lab.state.pods.values():
        labels = ",".join(f"{key}={value}" for key, value in pod.labels.items())
        say(f"{'pod ' + pod.name:<24} {pod.node:<8} {' '.join(pod.ips):<16} {labels}".rstrip())


@main.group()
def pod() -> None:
    """Add and delete pods through the CNI plugin."""


@pod.command(name="add")
@click.argument("pod_name")
@click.option("--node", required=True)
@click.option("--namespace", default="default", show_default=True)
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE")
@click.option("--http", is_flag=True, help="Start a web server on port 80 in it.")
@click.pass_obj
def pod_add(
    name: str, pod_name: str, node: str, namespace: str, labels: tuple[str, ...], http: bool
) -> None:
    pairs = dict(_pair(label) for label in labels)
    with state.exclusive(name):
        lab = cluster.attach(name)
        made = pods.add(lab, pod_name, node=node, namespace=namespace, labels=pairs)
        if http:
            pods.serve_http(lab, pod_name)
    say(f"pod {made.name} on {made.node}: {' '.join(made.ips)}")


def _pair(label: str) -> tuple[str, str]:
    key, equals, value = label.partition("=")
    if not equals or not key:
        raise LabError(f"--label {label!r}: expected KEY=VALUE")
    return key, value


@pod.command(name="del")
@click.argument("pod_name")
@click.pass_obj
def pod_del(name: str, pod_name: str) -> None:
    with state.exclusive(name):
        pods.delete(cluster.attach(name), pod_name)
    say(f"pod {pod_name} deleted")


@pod.command(name="ip")
@click.argument("pod_name")
@click.pass_obj
def pod_ip(name: str, pod_name: str) -> None:
    """The pod's first address, for scripts."""
    lab = cluster.attach(name)
    if pod_name not in lab.state.pods:
        raise LabError(f"no pod {pod_name!r}")
    say(lab.state.pods[pod_name].ips[0])


@main.command(name="exec", context_settings=PASS_ON)
@click.argument("pod_name")
@command_line
@click.pass_obj
def exec_in_pod(name: str, pod_name: str, command: tuple[str, ...]) -> None:
    """Run a command in a pod's network namespace."""
    lab = cluster.attach(name)
    _become(lab.in_pod(pod_name, command), lab.environment())


@main.group()
def node() -> None:
    """Look into a node, or restart its daemons."""


@node.command(name="exec", context_settings=PASS_ON)
@click.argument("node_name")
@command_line
@click.pass_obj
def exec_in_node(name: str, node_name: str, command: tuple[str, ...]) -> None:
    """Run a command on a node, with the node's environment."""
    lab = cluster.attach(name)
    _become(lab.in_node(node_name, command), lab.environment(lab.topology.node(node_name)))


@node.command(name="restart")
@click.argument("node_name")
@click.option("--kill", is_flag=True, help="SIGKILL everything instead of stopping in order.")
@click.pass_obj
def node_restart(name: str, node_name: str, kill: bool) -> None:
    """Restart a node's daemons; its pods keep their network meanwhile."""
    with state.exclusive(name):
        cluster.attach(name).restart_node(node_name, kill=kill)
    say(f"{node_name} is ready again")


@main.command(name="calicoctl", context_settings=PASS_ON)
@command_line
@click.pass_obj
def run_calicoctl(name: str, command: tuple[str, ...]) -> None:
    """calicoctl against the lab's datastore."""
    lab = cluster.attach(name)
    namespace = lab.topology.etcd.namespace
    _become(shell.enter(namespace, [str(BIN / "calicoctl"), *command]), lab.environment())


def _become(command: list[str], env: dict[str, str]) -> None:
    terminal = {key: os.environ[key] for key in ("TERM", "PWD") if key in os.environ}
    sys.stdout.flush()
    os.execvpe(command[0], command, env | terminal)


def entry() -> int:
    try:
        main(prog_name=Path("deploy/lab/lab").name, standalone_mode=False)
    except click.ClickException as err:
        err.show()
        return 2
    except click.Abort:
        return 130
    except (LabError, LookupError) as err:
        print(f"lab: {err}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(entry())
