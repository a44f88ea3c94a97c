"""node drain, node undrain: take a node out of the routing of the others without losing a packet.

Layer: edge. The state is an annotation of the Node (libcalico.model.node), so it survives restarts
of everything; confd hands it to calico-bgp, which does what it says (RFC 8326):

    drain     graceful-shutdown: all the node announces is the last resort
              … wait, others move to their other paths …
              withdrawn: the node announces nothing
    undrain   announced as always

Interrupted while it waits, the node stays at graceful-shutdown: nothing is lost, `drain` goes on.
"""

from __future__ import annotations

import time

import click
import msgspec

from calicoctl import options
from calicoctl.results import CommandFailed
from calicoctl.session import Session, metadata_of, run
from libcalico.errors import NotFound, RevisionConflict
from libcalico.model.node import DRAIN_ANNOTATION
from libcalico.model.speaker import Drain

ATTEMPTS = 5
# confd, a flush and the slowest peer's kernel: seconds. Peers that batch may need more.
WAIT_S = 30.0


@click.command()
@click.argument("name", metavar="NODE")
@options.config
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0, max=3600),
    default=WAIT_S,
    show_default=True,
    help="Seconds between announcing the shutdown and withdrawing the routes.",
)
@click.pass_context
def drain(ctx: click.Context, name: str, config: str, wait_s: float) -> None:
    """Move traffic away from a node (RFC 8326), then withdraw its routes."""
    if _set(ctx, config, name, Drain.GRACEFUL_SHUTDOWN) is Drain.WITHDRAWN:
        click.echo(f"Node {name} is drained already")
        return
    click.echo(f"Node {name} announces its shutdown, its routes go in {wait_s:g} s", err=True)
    time.sleep(wait_s)
    if _set(ctx, config, name, Drain.WITHDRAWN) is Drain.NONE:
        raise CommandFailed(f"node {name} was undrained meanwhile")
    click.echo(f"Successfully drained node {name}")


@click.command()
@click.argument("name", metavar="NODE")
@options.config
@click.pass_context
def undrain(ctx: click.Context, name: str, config: str) -> None:
    """Bring a drained node back."""
    if _set(ctx, config, name, Drain.NONE) is Drain.NONE:
        click.echo(f"Node {name} is not drained")
    else:
        click.echo(f"Successfully undrained node {name}")


def _set(ctx: click.Context, config: str, name: str, wanted: Drain) -> Drain:
    """What the node's state was before. Errors: CommandFailed."""

    async def work(session: Session) -> Drain:
        for _ in range(ATTEMPTS):
            try:
                stored = await session.resources.get("Node", name)
            except NotFound as err:
                raise CommandFailed(f"Node {name} not found") from err
            metadata = metadata_of(stored)
            before = _state(metadata.annotations.get(DRAIN_ANNOTATION, ""))
            if not _is_next(before, wanted):
                return before
            annotations = {k: v for k, v in metadata.annotations.items() if k != DRAIN_ANNOTATION}
            if wanted is not Drain.NONE:
                annotations[DRAIN_ANNOTATION] = wanted.value
            changed = msgspec.structs.replace(metadata, annotations=annotations)
            try:
                await session.resources.update(msgspec.structs.replace(stored, metadata=changed))
            except RevisionConflict:
                continue
            return before
        raise CommandFailed(f"Node {name} changes all the time, try again")

    return run(ctx, config, work)


def _state(text: str) -> Drain:
    """A value nobody understands counts as the first step, so that undrain removes it."""
    try:
        return Drain(text)
    except ValueError:
        return Drain.GRACEFUL_SHUTDOWN


def _is_next(before: Drain, wanted: Drain) -> bool:
    """Withdrawn only after its announcement; a drained node is not announced again."""
    if wanted is Drain.GRACEFUL_SHUTDOWN:
        return before is not Drain.WITHDRAWN
    return before is not Drain.NONE
