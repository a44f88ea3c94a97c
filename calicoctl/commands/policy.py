"""policy explain: which rule decides about a packet between two ends.

Layer: edge; only reads. The answer is libcalico.policy's: the evaluator that felix's rules are
tested against.
"""

from __future__ import annotations

import click

from calicoctl import explain as answers
from calicoctl import options
from calicoctl.session import Session, run
from libcalico.errors import NotFound, ValidationError
from libcalico.model import (
    FelixConfiguration,
    GlobalNetworkPolicy,
    GlobalNetworkSet,
    HostEndpoint,
    NetworkPolicy,
    NetworkSet,
    Profile,
    Resource,
    StagedGlobalNetworkPolicy,
    StagedKubernetesNetworkPolicy,
    StagedNetworkPolicy,
    Tier,
    WorkloadEndpoint,
)
from libcalico.model.validation import validate_stored
from libcalico.policy.staged import with_staged
from libcalico.policy.world import Settings, World, world_of

_KINDS: tuple[type[Resource], ...] = (
    WorkloadEndpoint,
    HostEndpoint,
    NetworkPolicy,
    GlobalNetworkPolicy,
    NetworkSet,
    GlobalNetworkSet,
    Profile,
    Tier,
)
_STAGED: tuple[type[Resource], ...] = (
    StagedNetworkPolicy,
    StagedGlobalNetworkPolicy,
    StagedKubernetesNetworkPolicy,
)


@click.group()
def policy() -> None:
    """Ask what policy does."""


@policy.command()
@click.argument("source", metavar="SRC")
@click.argument("destination", metavar="DST")
@click.argument("traffic", metavar="PROTO/PORT")
@click.option("--ip-version", type=click.Choice(["4", "6"]), help="When both ends have both.")
@click.option("--source-port", type=click.IntRange(1, 65535), help="When a rule asks for it.")
@click.option("--staged", is_flag=True, help="As if all staged policies were enforced.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
@options.config
@click.pass_context
def explain(
    ctx: click.Context,
    source: str,
    destination: str,
    traffic: str,
    ip_version: str | None,
    source_port: int | None,
    staged: bool,
    output: str,
    config: str,
) -> None:
    """Say whether a new connection from SRC to DST is allowed, and which rule decides.

    SRC and DST are NAMESPACE/POD, a host endpoint's name, or an address. PROTO/PORT is tcp/80,
    udp/53, icmp, icmp/TYPE/CODE or a protocol number. Rules are counted from 0."""

    async def work(session: Session) -> tuple[list[Resource], Settings]:
        kinds = (*_KINDS, *_STAGED) if staged else _KINDS
        return await _objects(session, kinds), await _settings(session)

    resources, settings = run(ctx, config, work)
    first, second = (answers.find_end(text, resources) for text in (source, destination))
    packet = answers.packet_between(
        first, second, traffic, version=int(ip_version or 0), source_port=source_port or 0
    )
    world: World = world_of(with_staged(resources) if staged else resources, settings=settings)
    verdicts = answers.judge(world, first, second, packet)
    show = answers.as_json if output == "json" else answers.as_text
    click.echo(show(world, packet, verdicts))


async def _objects(session: Session, kinds: tuple[type[Resource], ...]) -> list[Resource]:
    """All that felix would believe; what it would not is named and left out, as felix does."""
    found: list[Resource] = []
    for kind in kinds:
        listed = await session.resources.list(kind)
        for problem in listed.skipped:
            click.echo(f"ignored, as felix does: {problem}", err=True)
        for resource in listed.items:
            try:
                validate_stored(resource)
            except ValidationError as err:
                metadata = resource.metadata
                name = f"{metadata.namespace}/{metadata.name}".lstrip("/")
                click.echo(f"ignored, as felix does: {resource.kind} {name}: {err}", err=True)
                continue
            found.append(resource)
    return found


async def _settings(session: Session) -> Settings:
    try:
        stored = await session.resources.get(FelixConfiguration.kind, "default")
    except NotFound:
        return Settings()
    assert isinstance(stored, FelixConfiguration)
    return answers.settings_of(stored.spec)
