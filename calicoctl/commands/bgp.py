"""bgp: what the speaker of this node knows: peers, routes, what is told to whom, and why.

Layer: edge (calico-bgp's control socket; the answers are documented in bgp/DESIGN.md); only reads.
-o json and yaml print the answer as it is; tables show what fits a line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from calicoctl.output import table
from calicoctl.results import CommandFailed
from libcalico.runtime import paths, unixsocket

TIMEOUT_S = 30.0
MOST_ROUTES = 10_000
Answer = dict[str, Any]
_ROUTE = ("CIDR", "NEXT HOP", "FROM", "LOCAL PREF", "MED", "AS PATH", "COMMUNITIES")
_output = click.option(
    "-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table"
)


@click.group()
def bgp() -> None:
    """Ask the BGP speaker of this node."""


@bgp.command()
@_output
def peers(output: str) -> None:
    """Every session and its state."""
    _show(ask("peers"), output, _peers)


@bgp.command()
@click.option("--family", type=click.Choice(["ipv4", "ipv6"]), help="Only this family.")
@click.option("--limit", type=click.IntRange(0, MOST_ROUTES), default=1000, show_default=True)
@_output
def routes(family: str | None, limit: int, output: str) -> None:
    """The paths in use, best first."""
    _show(ask("routes", family=family or "", limit=limit), output, _routes)


@bgp.command()
@click.argument("cidr")
@_output
def route(cidr: str, output: str) -> None:
    """All paths of one prefix."""
    _show(ask("route", cidr=cidr), output, _route)


@bgp.command()
@click.argument("peer")
@_output
def advertised(peer: str, output: str) -> None:
    """What a peer has been told."""
    _show(ask("advertised", peer=peer), output, _flat)


@bgp.command()
@click.argument("peer")
@_output
def received(peer: str, output: str) -> None:
    """What a peer has told us, before the import filters."""
    _show(ask("received", peer=peer), output, _flat)


@bgp.command()
@click.argument("prefix")
@click.option("--peer", default="", help="Only this peer.")
@_output
def explain(prefix: str, peer: str, output: str) -> None:
    """Why a path won, and who is told of it: which filter or rule decides."""
    _show(ask("explain", cidr=prefix, peer=peer), output, _explain)


def ask(command: str, **members: Any) -> Answer:
    """Errors: CommandFailed in one line."""
    control = paths.bgp_dir() / "control.sock"
    try:
        answer = unixsocket.ask(control, {"command": command, **members}, TIMEOUT_S)
    except unixsocket.NoAnswer as err:
        raise CommandFailed(f"calico-bgp is not running here ({err})") from err
    except unixsocket.BadAnswer as err:
        raise CommandFailed(str(err)) from err
    if "error" in answer:
        raise CommandFailed(str(answer["error"]))
    return answer


def _show(answer: Answer, output: str, to_text: Callable[[Answer], str]) -> None:
    if output == "json":
        click.echo(json.dumps(answer, indent=2, ensure_ascii=False))
    elif output == "yaml":
        import yaml

        click.echo(yaml.safe_dump(answer, sort_keys=False, allow_unicode=True), nl=False)
    else:
        try:
            click.echo(to_text(answer), nl=False)
        except (KeyError, TypeError, AttributeError) as err:
            raise CommandFailed(f"calico-bgp gave an unexpected answer: {err!r}") from err


def _peers(answer: Answer) -> str:
    rows = [
        [
            peer["name"],
            peer["address"],
            str(peer["remote_as"]),
            peer["state"],
            _moment(peer["since"]),
            str(peer["received"]),
            str(peer["sent"]),
            peer["last_error"] or "-",
        ]
        for peer in answer["peers"]
    ]
    return table(
        ("NAME", "ADDRESS", "AS", "STATE", "SINCE", "RECEIVED", "SENT", "LAST ERROR"), rows
    )


def _routes(answer: Answer) -> str:
    rows = [
        _row(path, route["cidr"] if number == 0 else "")
        for route in answer["routes"]
        for number, path in enumerate(route["paths"])
    ]
    shown = table(_ROUTE, rows)
    if answer["truncated"]:
        shown += f"{len(answer['routes'])} of {answer['total']} prefixes, see --limit\n"
    return shown


def _route(answer: Answer) -> str:
    rows = [[*_row(path, answer["cidr"]), _use(path)] for path in answer["paths"]]
    return table((*_ROUTE, "USE"), rows) + _kernel(answer["kernel"])


def _use(path: Mapping[str, Any]) -> str:
    if "refused" in path:
        return f"refused: {path['refused']}"
    if not path["reachable"]:
        return "unreachable"
    return "best" if path["best"] else "used" if path["selected"] else "-"


def _flat(answer: Answer) -> str:
    return table(_ROUTE, [_row(path, path["cidr"]) for path in answer["routes"]])


def _explain(answer: Answer) -> str:
    rows = [[*_row(path, answer["cidr"]), path["outcome"]] for path in answer["paths"]]
    told = [
        [peer["name"], peer["peer"], "yes" if peer["told"] else "no", peer["why"]]
        for peer in answer["peers"]
    ]
    shown = table((*_ROUTE, "OUTCOME"), rows) + _kernel(answer["kernel"])
    return shown + table(("PEER", "ADDRESS", "TOLD", "WHY"), told)


def _row(path: Mapping[str, Any], cidr: str) -> list[str]:
    communities = [*path["communities"], *path["large_communities"]]
    return [
        cidr,
        path["next_hop"] or "-",
        path.get("local") or path.get("from") or "-",
        _number(path["local_pref"]),
        _number(path["med"]),
        path["as_path"] or "-",
        ",".join(communities) or "-",
    ]


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _kernel(route: Mapping[str, Any] | None) -> str:
    if route is None:
        return "Kernel: no route of ours\n\n"
    hops: Sequence[Mapping[str, Any]] = route["next_hops"]
    via = ", ".join(hop["gateway"] or f"interface {hop['ifindex']}" for hop in hops)
    return f"Kernel: {route['type']} metric {route['metric']}{' via ' if via else ''}{via}\n\n"


def _moment(since: float) -> str:
    if not since:
        return "-"
    return datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
