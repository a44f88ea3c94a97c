"""typha query: which policies apply to an endpoint, and on how many nodes each is needed.

Layer: edge; only reads. Asks the datastore, not a typha: the answer comes from the engine that
typha's spans are made of (typha.spans), run here over the whole cluster.
"""

from __future__ import annotations

import click

from calicoctl import explain, options, spans
from calicoctl.commands.policy import believed
from calicoctl.session import run
from libcalico.model import Node


@click.group()
def typha() -> None:
    """Ask what nodes need of the cluster."""


@typha.group()
def query() -> None:
    """Ask about one object."""


@query.command()
@click.argument("name", metavar="ENDPOINT")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
@options.config
@click.pass_context
def endpoint(ctx: click.Context, name: str, output: str, config: str) -> None:
    """Name the policies that select ENDPOINT, staged ones too, with the size of their spans.

    ENDPOINT is NAMESPACE/POD, a host endpoint's name, or an address of either."""
    resources = run(ctx, config, lambda session: believed(session, (*spans.KINDS, Node)))
    end = explain.find_end(name, resources)
    if end.endpoint is None:
        raise explain.BadQuestion(f"{name}: no endpoint has this address")
    cluster = spans.ClusterSpans()
    cluster.load(resources)
    cluster.index.flush()
    for key, why in cluster.problems.items():
        click.echo(f"ignored, as felix does: {key}: {why}", err=True)
    show = spans.as_json if output == "json" else spans.as_text
    click.echo(show(spans.describe(cluster, end.endpoint)))
