"""version: the client's, and what the cluster says about itself (datamodel 6.10).

Layer: edge.
"""

from __future__ import annotations

import time

import click

from calicoctl import options
from calicoctl.results import CommandFailed
from calicoctl.session import Session, run
from libcalico.errors import SuiteError
from libcalico.model import ClusterInformation
from libcalico.model.scalars import seconds
from libcalico.runtime.version import GIT_COMMIT, VERSION


@click.command()
@options.config
@click.option("--poll", default="0s", help="Ask again at this interval until the cluster answers.")
@click.option("--client", is_flag=True, help="Only the client's version.")
@click.pass_context
def version(ctx: click.Context, config: str, poll: str, client: bool) -> None:
    """Show the versions of client and cluster."""
    if client:
        click.echo(VERSION)
        return
    click.echo(f"Client Version:    {VERSION}")
    click.echo(f"Git commit:        {GIT_COMMIT}")
    interval_s = seconds(poll)
    while True:
        try:
            information = run(ctx, config, _information, checks_version=False)
        except SuiteError as err:
            if interval_s:
                time.sleep(interval_s)
                continue
            reason = f"unable to retrieve Cluster Version or Type: {err}"
            raise CommandFailed(reason) from err
        click.echo(f"Cluster Version:   {information.spec.calico_version or 'unknown'}")
        click.echo(f"Cluster Type:      {information.spec.cluster_type or 'unknown'}")
        return


async def _information(session: Session) -> ClusterInformation:
    found = await session.resources.get("ClusterInformation", "default")
    assert isinstance(found, ClusterInformation)
    return found
