"""node status: is Calico running here, and how are its BGP sessions (datamodel 6.10)?

node drain and undrain are in calicoctl.commands.drain.

Layer: edge (processes of this network namespace, calico-bgp's control socket).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from calicoctl.boxes import draw
from calicoctl.commands.drain import drain, undrain
from calicoctl.results import CommandFailed
from libcalico.runtime import paths, unixsocket

HEADERS = ("PEER ADDRESS", "PEER TYPE", "STATE", "SINCE", "INFO")
PEER_TYPES = {"mesh": "node-to-node mesh", "node": "node specific", "global": "global"}
_NAMES = frozenset({"calico-felix", "calico-node"})
_TIMEOUT_S = 5.0


@click.group()
def node() -> None:
    """Calico on this host."""


node.add_command(drain)
node.add_command(undrain)


@node.command()
def status() -> None:
    """Show whether Calico runs here, and its BGP sessions."""
    if os.geteuid() != 0:
        raise CommandFailed("Need super user privileges: Operation not permitted")
    if not is_running():
        raise CommandFailed("Calico process is not running.")
    click.echo("Calico process is running.")
    peers = ask_speaker(paths.bgp_dir() / "control.sock")
    if peers is None:
        click.echo("\nThe BGP backend process (calico-bgp) is not running.")
        return
    for version in (4, 6):
        click.echo(f"\nIPv{version} BGP status")
        rows = [_row(peer) for peer in peers if (":" in peer["address"]) == (version == 6)]
        click.echo(draw(HEADERS, rows) if rows else f"No IPv{version} peers found.")


def is_running() -> bool:
    """A daemon of ours in this network namespace: several nodes may share a machine."""
    here = os.stat("/proc/self/ns/net").st_ino
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            arguments = (entry / "cmdline").read_bytes().split(b"\0")[:2]
            is_here = (entry / "ns/net").stat().st_ino == here
        except OSError:
            continue
        # A Python program has its interpreter in argv[0] and its own name behind it.
        if is_here and any(Path(os.fsdecode(a)).name in _NAMES for a in arguments):
            return True
    return False


def ask_speaker(control: Path) -> Sequence[dict[str, Any]] | None:
    """The sessions of calico-bgp; None when it does not answer. Errors: CommandFailed."""
    try:
        answer = unixsocket.ask(control, {"command": "peers"}, _TIMEOUT_S)
    except unixsocket.NoAnswer:
        return None
    except unixsocket.BadAnswer as err:
        raise CommandFailed(str(err)) from err
    if "peers" not in answer:
        raise CommandFailed(f"calico-bgp gave an unexpected answer: {answer}")
    found: Sequence[dict[str, Any]] = answer["peers"]
    return found


def _row(peer: dict[str, Any]) -> list[str]:
    state = str(peer.get("state", ""))
    is_up = state.lower() == "established"
    info = state.capitalize()
    if is_up:
        received = peer.get("received", 0)
        info = f"Established, {received} routes received, {peer.get('sent', 0)} sent"
    elif peer.get("last_error"):
        info = f"{info}: {peer['last_error']}"
    kind = PEER_TYPES.get(str(peer.get("kind", "")), str(peer.get("kind", "")))
    return [str(peer["address"]), kind, "up" if is_up else "start", _since(peer), info]


def _since(peer: dict[str, Any]) -> str:
    """The time of day within the last day, else the date, as birdc shows it."""
    since = peer.get("since")
    if not isinstance(since, int | float) or not since:
        return ""
    moment = datetime.fromtimestamp(since, UTC)
    is_recent = (datetime.now(UTC) - moment).days == 0
    return moment.strftime("%H:%M:%S" if is_recent else "%Y-%m-%d")
