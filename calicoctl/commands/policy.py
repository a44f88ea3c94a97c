"""policy explain: which rule decides about a packet; policy dry-run: whose verdicts would change.

Layer: edge; only reads. Both ask the tables that felix compiles (calicoctl.tables), which are held
against the evaluator of libcalico.policy.
"""

from __future__ import annotations

import json

import click

from calicoctl import dryrun, options
from calicoctl import explain as answers
from calicoctl.load import Given, placed
from calicoctl.main import UsageProblem
from calicoctl.select import Source, from_files
from calicoctl.session import Session, run
from libcalico.errors import NotFound, SuiteError, ValidationError
from libcalico.model import (
    FelixConfiguration,
    GlobalNetworkPolicy,
    GlobalNetworkSet,
    HostEndpoint,
    NetworkPolicy,
    NetworkSet,
    Node,
    Profile,
    Resource,
    StagedGlobalNetworkPolicy,
    StagedKubernetesNetworkPolicy,
    StagedNetworkPolicy,
    Tier,
    WorkloadEndpoint,
)
from libcalico.model.defaults import with_defaults
from libcalico.model.keys import identifier, key_of
from libcalico.model.validation import validate, validate_stored
from libcalico.policy.staged import with_staged
from libcalico.policy.world import Settings

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
# A host endpoint without expectedIPs has the addresses of its node.
_ADDRESSES: tuple[type[Resource], ...] = (Node,)
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
        objects = await believed(session, (*kinds, *_ADDRESSES))
        return objects, await _settings(session)

    resources, settings = run(ctx, config, work)
    first, second = (answers.find_end(text, resources) for text in (source, destination))
    packet = answers.packet_between(
        first, second, traffic, version=int(ip_version or 0), source_port=source_port or 0
    )
    objects = with_staged(resources) if staged else resources
    cluster = answers.Cluster.of(objects, settings, first, second)
    verdicts = answers.judge(cluster, first, second, packet)
    show = answers.as_json if output == "json" else answers.as_text
    click.echo(show(cluster.world, packet, verdicts))


@policy.command("dry-run")
@click.option("--delete", is_flag=True, help="As if the objects of -f were deleted.")
@click.option("--staged", is_flag=True, help="As if all staged policies were enforced.")
@click.option("--traffic", multiple=True, metavar="PROTO/PORT", help="Ask about this, not more.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
@options.crud
@click.pass_context
def dry_run(
    ctx: click.Context,
    source: Source,
    delete: bool,
    staged: bool,
    traffic: tuple[str, ...],
    output: str,
) -> None:
    """Say which pairs of workloads would change their verdict if the objects of -f were applied.

    Nothing is written. Without --traffic every kind of packet is asked about that the rules of a
    pair tell apart. Hosts are not asked about."""
    if not source.filename and not staged:
        raise UsageProblem("nothing to try: give --filename, --staged or both")
    given = from_files(source) if source.filename else []
    kinds: tuple[type[Resource], ...] = (*_KINDS, *_STAGED) if staged else _KINDS
    before = run(ctx, source.config, lambda session: believed(session, kinds))
    after = {key_of(resource): resource for resource in before}
    for item in given:
        resource = _as_stored(item)
        if not delete:
            after[key_of(resource)] = resource
        elif after.pop(key_of(resource), None) is None and isinstance(resource, kinds):
            raise placed(NotFound(identifier(key_of(resource))), item)
    changed = with_staged(after.values()) if staged else list(after.values())
    report = dryrun.compare(before, changed, traffic=traffic)
    for line in dryrun.doubts([item.resource for item in given], changed, staged=staged):
        click.echo(line, err=True)
    click.echo((_report_json if output == "json" else _report_text)(report))


def _as_stored(item: Given) -> Resource:
    """With the defaults that it would be stored with. Errors: InvalidInput, with its place."""
    try:
        resource = with_defaults(item.resource)
        validate(resource)
    except SuiteError as err:
        raise placed(err, item) from err
    return resource


def _report_text(report: dryrun.Report) -> str:
    lines = [
        f"{'denied -> allowed' if change.is_allowed else 'allowed -> denied'}:"
        f" {change.source} -> {change.destination}: {answers.describe(change.packet)}"
        for change in report.changes
    ]
    if not report.asked:
        lines.append("nothing was asked: no workload would be governed by anything else")
    return "\n".join([*lines, f"{len(report.changes)} of {report.asked} verdicts would change"])


def _report_json(report: dryrun.Report) -> str:
    changes = [
        {
            "source": change.source,
            "destination": change.destination,
            "packet": answers.packet_document(change.packet),
            "allowed": change.is_allowed,
        }
        for change in report.changes
    ]
    return json.dumps({"asked": report.asked, "changes": changes}, indent=2)


async def believed(session: Session, kinds: tuple[type[Resource], ...]) -> list[Resource]:
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
