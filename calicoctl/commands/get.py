"""get: objects by kind and name, or those a file names, in any output format.

Layer: edge. What is found is printed even when something else is missing; every error is a line on
stderr and makes the exit code 1 (datamodel 6.5, 6.6). A stored value that does not parse is left
out of a list with a warning on stderr: the daemons treat it as absent, and who looks must hear so.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from calicoctl import kinds, options
from calicoctl.kinds import CliKind, Environment
from calicoctl.main import UsageProblem
from calicoctl.output import OutputError, Printer, Result, parse_format
from calicoctl.realization import Realization
from calicoctl.results import CommandFailed
from calicoctl.select import DEFAULT_NAMESPACE, Source, from_files
from calicoctl.session import Session, metadata_of, run
from libcalico.errors import DecodeError, NotFound, SuiteError
from libcalico.model import BGPConfiguration, codec
from libcalico.model.codec import to_shown
from libcalico.model.keys import POLICY_REALIZATION_PREFIX, PolicyRealizationKey, parse
from libcalico.model.realization import PolicyRealization

DEFAULT_AS = "64512"
_EXPORTED_AWAY = (
    "namespace",
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)


@click.command()
@click.argument("kind", required=False, default="")
@click.argument("names", nargs=-1)
@options.crud
@click.option("-o", "--output", default="ps", show_default=True, help="ps|wide|name|yaml|json|…")
@click.option("-A", "--all-namespaces", is_flag=True, help="Of every namespace.")
@click.option("-a", "all_namespaces_old", is_flag=True, hidden=True)
@click.option("--export", is_flag=True, help="Without what only this cluster knows.")
@click.pass_context
def get(
    ctx: click.Context,
    kind: str,
    names: tuple[str, ...],
    source: Source,
    output: str,
    all_namespaces: bool,
    all_namespaces_old: bool,
    export: bool,
) -> None:
    """Show resources: get KIND [NAME…], or get -f FILE.

    Output formats: ps, wide, name, yaml, json, custom-columns=A,B, go-template=…,
    go-template-file=…
    """
    everywhere = all_namespaces or all_namespaces_old
    if everywhere and source.namespace:
        raise UsageProblem(
            "cannot use both --namespace and --all-namespaces flags at the same time"
        )
    printer = parse_format(output, _read_template)
    if source.filename:
        wanted = [
            (kinds.BY_NAME[r.kind], metadata_of(r).name, metadata_of(r).namespace)
            for r, _ in from_files(source)
            if r.kind in kinds.BY_NAME
        ]
    elif kind:
        wanted = _queries(kinds.find(kind), names, source.namespace, everywhere=everywhere)
    else:
        raise UsageProblem("get needs KIND, or -f FILENAME")

    async def work(session: Session) -> tuple[list[Result], list[SuiteError], Environment]:
        results, errors = await _find(session, wanted, export=export)
        needs_as = any(result.kind.kind == "Node" for result in results)
        as_number = await _global_as(session) if needs_as or "config" in output else ""
        realization = await _realization(session) if _asks_nodes(printer, results) else None
        return results, errors, Environment(as_number, realization)

    results, errors, environment = run(ctx, source.config, work)
    has_namespaces = everywhere or bool(source.namespace)
    shown = Printer(printer.format, printer.argument, has_namespaces, environment)
    if results:
        click.echo(shown.render(results), nl=False)
    if errors:
        raise CommandFailed("\n".join(map(str, errors)))


Query = tuple[CliKind, str, str]


def _queries(
    kind: CliKind, names: Sequence[str], namespace: str, *, everywhere: bool
) -> list[Query]:
    """(kind, name, namespace) of each query; name "" lists. Errors: CommandFailed."""
    if not kind.info.namespaced and namespace:
        raise CommandFailed(
            "namespace should not be specified for a non-namespaced resource. "
            f"{kind.kind} is not a namespaced resource"
        )
    if names and everywhere and kind.info.namespaced:
        raise CommandFailed("cannot use --all-namespace flag for getting a single resource")
    where = ""
    if kind.info.namespaced and not everywhere:
        where = namespace or DEFAULT_NAMESPACE
    return [(kind, name, where) for name in names] or [(kind, "", where)]


async def _find(
    session: Session, wanted: Sequence[Query], *, export: bool
) -> tuple[list[Result], list[SuiteError]]:
    results: list[Result] = []
    errors: list[SuiteError] = []
    for kind, name, namespace in wanted:
        try:
            results.append(await _query(session, kind, name, namespace, export=export))
        except SuiteError as err:
            errors.append(err)
    return results, errors


async def _query(
    session: Session, kind: CliKind, name: str, namespace: str, *, export: bool
) -> Result:
    if not name:
        listed = await session.resources.list(kind.kind, namespace)
        for err in listed.skipped:
            click.echo(f"warning: {err.key} is skipped, it does not parse: {err.reason}", err=True)
        items = [to_shown(resource) for resource in listed.items]
        return Result(kind, items, True, str(listed.revision))
    shown = to_shown(await session.resources.get(kind.kind, name, namespace))
    if export:
        shown["metadata"] = {
            member: value
            for member, value in shown["metadata"].items()
            if member not in _EXPORTED_AWAY
        }
    return Result(kind, [shown], False)


async def _global_as(session: Session) -> str:
    """The cluster's AS number; "" when it cannot be read."""
    try:
        found: Any = await session.resources.get("BGPConfiguration", "default")
    except NotFound:
        return DEFAULT_AS
    except SuiteError:
        return ""
    assert isinstance(found, BGPConfiguration)
    return str(found.spec.as_number or DEFAULT_AS)


_NODE_COLUMNS = frozenset({"REALIZED", "COMPUTED"})


def _asks_nodes(printer: Printer, results: Sequence[Result]) -> bool:
    """Whether a column shows what nodes say of policies."""
    asked = {heading.strip().upper() for heading in printer.argument.split(",")}
    return any(
        _NODE_COLUMNS & set(result.kind.wide if printer.format == "wide" else asked)
        for result in results
    )


async def _realization(session: Session) -> Realization | None:
    """The reports of all nodes, in one range; None, and a warning, when they cannot be read."""
    try:
        listed = await session.datastore.list(POLICY_REALIZATION_PREFIX)
    except SuiteError as err:
        click.echo(f"warning: what nodes say of policies cannot be read: {err}", err=True)
        return None
    by_node: dict[str, PolicyRealization] = {}
    for kv in listed.kvs:
        key = parse(kv.key)
        if not isinstance(key, PolicyRealizationKey):
            continue
        try:
            found = codec.decode_as(PolicyRealization, key, kv.value, kv.mod_revision)
        except DecodeError as err:
            # A node that says nothing we understand counts, as one that enforces nothing (RC2).
            click.echo(f"warning: what node {key.host} says does not parse: {err}", err=True)
            found = PolicyRealization()
        by_node[key.host] = found
    return Realization(by_node)


def _read_template(path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as err:
        reason = getattr(err, "strerror", None) or str(err)
        raise OutputError(f"cannot read template file {path}: {reason}") from err
