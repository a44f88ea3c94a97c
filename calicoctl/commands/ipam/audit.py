"""ipam audit: proof from etcd's history that no address was ever held by two.

Layer: edge. Calico has no such command. `ipam.audit` says what is checked. Exit code 0 when nothing
was found, 1 when something was; what cannot be replayed is an error, never "no violation".
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import aclosing

import click
import msgspec

from calicoctl import options
from calicoctl.main import UsageProblem
from calicoctl.output import OutputError
from calicoctl.session import Session, run
from ipam.audit import Looked, Violation
from ipam.client.history import History

REVISION = click.IntRange(min=1)


@click.command()
@options.config
@click.option("--from", "first", type=REVISION, help="Begin with the state at this revision.")
@click.option("--to", "last", type=REVISION, help="The last revision to look at.")
@click.option("--watch", is_flag=True, help="Go on, as changes come, until interrupted.")
@click.option("-o", "--output", default="", help="json: an object for each line.")
@click.pass_context
def audit(
    ctx: click.Context,
    config: str,
    first: int | None,
    last: int | None,
    watch: bool,
    output: str,
) -> None:
    """Replay what etcd remembers, or watch, and prove that no address was held by two and that
    every block had one owner. Without options: everything that is still in etcd's history."""
    if output not in ("", "json"):
        raise OutputError(f"unrecognized output format '{output}'")
    if watch and last is not None:
        raise UsageProblem(
            "if any flags in the group [to watch] are set none of the others can be; "
            "[to watch] were all set"
        )
    is_json = bool(output)
    count = 0

    async def work(session: Session) -> History:
        nonlocal count
        history = History(session.datastore)
        found = history.follow(first, _interrupted()) if watch else history.replay(first, last)
        async with aclosing(found) as batches:
            async for violations in batches:
                count += len(violations)
                for violation in violations:
                    click.echo(violation_line(violation, is_json))
        return history

    history = run(ctx, config, work)
    looked = history.auditor.looked()
    click.echo(summary_line(history.first, history.last, looked, count, is_json))
    ctx.exit(1 if count else 0)


def _interrupted() -> asyncio.Event:
    """Set by SIGINT and SIGTERM: then comes the summary."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return stop


def violation_line(violation: Violation, is_json: bool) -> str:
    return msgspec.json.encode(violation).decode() if is_json else str(violation)


def summary_line(first: int, last: int, looked: Looked, count: int, is_json: bool) -> str:
    if is_json:
        summary = {"from": first, "to": last, **msgspec.to_builtins(looked), "violations": count}
        return msgspec.json.encode(summary).decode()
    verdict = "no violation" if not count else f"{count} violation" + "s" * (count > 1)
    return (
        f"Audited revisions {first} to {last}: {looked.revisions} with changes of IPAM or "
        f"endpoints, {looked.blocks} blocks, {looked.addresses} addresses; {verdict}"
    )
