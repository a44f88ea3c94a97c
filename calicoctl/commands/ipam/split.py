"""ipam split: one pool into equal smaller ones, while the datastore is locked (datamodel 6.8).

Layer: edge. Blocks and affinities stay as they are, and pods go on.
"""

from __future__ import annotations

import re

import click

from calicoctl import options
from calicoctl.results import CommandFailed
from calicoctl.session import Session, run
from ipam.client.poolsplit import split_pool
from ipam.report import is_locked
from libcalico.errors import SuiteError, Transient
from libcalico.model.cluster import ClusterInformation
from libcalico.model.ippool import IPPool


@click.command()
@click.argument("number")
@options.config
@click.option("--cidr", default="", help="The pool to split, by its CIDR.")
@click.option("--name", default="", help="The pool to split, by its name.")
@click.pass_context
def split(ctx: click.Context, number: str, config: str, cidr: str, name: str) -> None:
    """Split an IP pool into NUMBER smaller ones; NUMBER is a power of two."""
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", number):
        raise CommandFailed(
            f"error reading number to split IP pools into. {number} is not a valid number: "
            f'strconv.Atoi: parsing "{number}": invalid syntax'
        )
    if not cidr and not name:
        raise CommandFailed(
            "no name or CIDR provided. Provide a name or CIDR to denote the IP pool to split"
        )

    async def work(session: Session) -> tuple[str, tuple[IPPool, ...]]:
        await _require_lock(session)
        pool = name or await _name_of(session, cidr)
        await _require_pool(session, pool)
        return pool, await split_pool(session.datastore, pool, int(number))

    pool, parts = run(ctx, config, work)
    click.echo(split_text(pool, parts), nl=False)


def split_text(pool: str, parts: tuple[IPPool, ...]) -> str:
    """Calico's words, which have no newline after the first and the last sentence."""
    created = "".join(
        f"Created {part.metadata.name} with CIDR {part.spec.cidr}.\n" for part in parts
    )
    return (
        f"IP Pool {pool} was successfully split into {len(parts)} smaller pools.{created}"
        "Please refer to the documentation for final steps."
    )


async def _require_lock(session: Session) -> None:
    try:
        cluster = await session.resources.get(ClusterInformation, "default")
    except Transient:
        raise
    except SuiteError as err:
        raise CommandFailed(f"error while checking if datastore was locked: {err}") from err
    if not is_locked(cluster):
        raise CommandFailed(
            "datastore is not locked. Run the `calicoctl datastore migrate lock` command "
            "in order split the IP pools"
        )


async def _name_of(session: Session, cidr: str) -> str:
    for pool in await session.resources.list(IPPool):
        if pool.spec.cidr == cidr:
            return pool.metadata.name
    raise CommandFailed(f"unable to find IP pool  covering the specified CIDR {cidr}")


async def _require_pool(session: Session, name: str) -> None:
    try:
        await session.resources.get(IPPool, name)
    except Transient:
        raise
    except SuiteError as err:
        raise CommandFailed(f"unable to find IP pool with name {name}: {err}") from err
