"""datastore migrate lock and unlock: stop felix and CNI from acting while the store is worked on.

Layer: edge; the texts are datamodel 6.10's. The lock is ClusterInformation's datastoreReady: every
felix and every CNI call, ours and Calico's, refuses to go on while it is false.
"""

from __future__ import annotations

import click
from msgspec.structs import replace

from calicoctl import options
from calicoctl.results import CommandFailed
from calicoctl.session import UPDATE_ATTEMPTS, Session, run
from libcalico.errors import RevisionConflict, SuiteError, Transient
from libcalico.model.cluster import ClusterInformation


@click.group()
def datastore() -> None:
    """Work on the datastore as a whole."""


@datastore.group()
def migrate() -> None:
    """Take the datastore out of use for a while."""


@migrate.command()
@options.config
@click.pass_context
def lock(ctx: click.Context, config: str) -> None:
    """Lock the datastore: pods and policies keep working as they are, changes have no effect."""

    async def work(session: Session) -> None:
        try:
            await session.resources.ensure_initialized()
        except Transient:
            raise
        except SuiteError as err:
            raise CommandFailed(
                f"unable to initialize cluster information for the datastore migration: {err}"
            ) from err
        await _set_ready(session, False, "locking")

    run(ctx, config, work)
    click.echo("Datastore locked.")


@migrate.command()
@options.config
@click.pass_context
def unlock(ctx: click.Context, config: str) -> None:
    """Unlock the datastore."""

    async def work(session: Session) -> None:
        await _set_ready(session, True, "unlocking")

    run(ctx, config, work)
    click.echo("Datastore unlocked.")


async def _set_ready(session: Session, is_ready: bool, doing: str) -> None:
    for attempt in range(UPDATE_ATTEMPTS):
        try:
            stored = await session.resources.get(ClusterInformation, "default")
        except Transient:
            raise
        except SuiteError as err:
            raise CommandFailed(f"error retrieving ClusterInformation for {doing}: {err}") from err
        wanted = replace(stored, spec=replace(stored.spec, datastore_ready=is_ready))
        try:
            await session.resources.update(wanted)
        except Transient:
            raise
        except SuiteError as err:
            if isinstance(err, RevisionConflict) and attempt < UPDATE_ATTEMPTS - 1:
                continue
            raise CommandFailed(f"error updating ClusterInformation for {doing}: {err}") from err
        return
