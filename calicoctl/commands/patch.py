"""patch: change some members of a stored object, by strategic merge.

Layer: edge around `merged`, which is pure. Calico implements the strategic merge only; for kinds
without merge keys (all of ours) that is RFC 7386: objects merge, null removes, lists replace.
"""

from __future__ import annotations

from typing import Any

import click

from calicoctl import kinds, options
from calicoctl.main import UsageProblem
from calicoctl.results import CommandFailed
from calicoctl.select import DEFAULT_NAMESPACE
from calicoctl.session import Session, metadata_of, refuse_write, run
from libcalico.errors import SuiteError
from libcalico.model.codec import to_shown
from libcalico.model.documents import resource_from

PATCH_TYPES = ("strategic", "json", "merge")


@click.command()
@click.argument("kind")
@click.argument("name")
@options.namespace
@options.config
@click.option("-p", "--patch", "text", default="", help="The patch, as JSON or YAML.")
@click.option("-t", "--type", "patch_type", default="strategic", show_default=True)
@click.pass_context
def patch(
    ctx: click.Context,
    kind: str,
    name: str,
    namespace: str,
    config: str,
    text: str,
    patch_type: str,
) -> None:
    """Change members of a resource: patch KIND NAME -p '{"spec": …}'."""
    if patch_type not in PATCH_TYPES:
        raise UsageProblem(f"unknown patch type {patch_type!r}: one of {', '.join(PATCH_TYPES)}")
    if patch_type == "json":
        raise CommandFailed("hit error: only strategic and merge patches are implemented")
    found = kinds.find(kind)
    change = _parse(text)
    where = (namespace or DEFAULT_NAMESPACE) if found.info.namespaced else ""

    async def work(session: Session) -> None:
        try:
            stored = await session.resources.get(found.kind, name, where)
            refuse_write(stored, "patch")
            await session.resources.update(patched(stored, change))
        except SuiteError as err:
            raise CommandFailed(f"hit error: {err}") from err

    run(ctx, config, work)
    click.echo(f"Successfully patched 1 '{found.kind}' resource")


def _parse(text: str) -> dict[str, Any]:
    import yaml

    if not text:
        raise UsageProblem('required flag(s) "patch" not set')
    try:
        change = yaml.safe_load(text)
    except yaml.YAMLError as err:
        reason = " ".join(str(err).split())
        raise CommandFailed(f"hit error: performing strategic merge patch: {reason}") from err
    if not isinstance(change, dict):
        raise CommandFailed("hit error: performing strategic merge patch: not an object")
    return change


def patched(stored: Any, change: dict[str, Any]) -> Any:
    """The changed object; its identity (kind, name, namespace, uid) cannot be patched away.

    Errors: InvalidInput naming the field."""
    shown = merged(to_shown(stored), change)
    resource = resource_from(shown)
    metadata = metadata_of(stored)
    if (resource.kind, metadata_of(resource).name) != (stored.kind, metadata.name):
        raise CommandFailed("creating resource from patched data: kind and name cannot be changed")
    return resource


def merged(target: Any, change: Any) -> Any:
    """RFC 7386."""
    if not isinstance(change, dict):
        return change
    result = dict(target) if isinstance(target, dict) else {}
    for member, value in change.items():
        if value is None:
            result.pop(member, None)
        else:
            result[member] = merged(result.get(member), value)
    return result
