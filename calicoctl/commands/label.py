"""label: set, change or remove one label of a stored object (datamodel 6.5).

Layer: edge.
"""

from __future__ import annotations

import re

import click
import msgspec

from calicoctl import kinds, options
from calicoctl.results import CommandFailed
from calicoctl.select import DEFAULT_NAMESPACE
from calicoctl.session import Session, metadata_of, refuse_write, run
from libcalico.errors import NotFound, RevisionConflict

ATTEMPTS = 5
_KEY = re.compile(
    r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


@click.command()
@click.argument("kind")
@click.argument("name")
@click.argument("label_text", metavar="KEY=VALUE|KEY")
@options.namespace
@options.config
@click.option("--overwrite", is_flag=True, help="Replace the value of an existing label.")
@click.option("--remove", is_flag=True, help="Remove the label.")
@click.pass_context
def label(
    ctx: click.Context,
    kind: str,
    name: str,
    label_text: str,
    namespace: str,
    config: str,
    overwrite: bool,
    remove: bool,
) -> None:
    """Add a label to a resource, change it with --overwrite, or --remove it."""
    found = kinds.find(kind)
    key, value = _parse(label_text, remove=remove)
    where = (namespace or DEFAULT_NAMESPACE) if found.info.namespaced else ""
    what = f"{kind} {name}"

    async def work(session: Session) -> str:
        for attempt in range(ATTEMPTS):
            try:
                stored = await session.resources.get(found.kind, name, where)
            except NotFound as err:
                raise CommandFailed(f"{what} not found") from err
            refuse_write(stored, "label")
            metadata = metadata_of(stored)
            labels = dict(metadata.labels)
            said = _change(labels, key, None if remove else value, what, overwrite=overwrite)
            changed = msgspec.structs.replace(metadata, labels=labels)
            try:
                await session.resources.update(msgspec.structs.replace(stored, metadata=changed))
            except RevisionConflict:
                if attempt == ATTEMPTS - 1:
                    raise
                continue
            return said
        raise AssertionError("unreachable")

    click.echo(run(ctx, config, work))


def _parse(text: str, *, remove: bool) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if remove:
        key, value = (text, "") if not equals else (key, value)
    elif not equals:
        raise CommandFailed(f"invalid label {text}")
    if not _KEY.fullmatch(key) or not _VALUE.fullmatch(value):
        raise CommandFailed(f"invalid label {text}")
    return key, value


def _change(
    labels: dict[str, str], key: str, value: str | None, what: str, *, overwrite: bool
) -> str:
    """Changes `labels`; returns the success message. Errors: CommandFailed."""
    present = labels.get(key)
    if value is None:
        if present is None:
            raise CommandFailed(f"cannot remove label of {what}, key {key} does not exist")
        del labels[key]
        return f"Successfully removed label {key} from {what}"
    if present is None:
        labels[key] = value
        return f"Successfully set label {key} on {what}"
    if not overwrite:
        raise CommandFailed(
            f"failed to update label of {what}, key {key} is already present. "
            "please use '--overwrite' to set a new value"
        )
    if present == value:
        raise CommandFailed(f"failed to update {what}, label not changed")
    labels[key] = value
    return f"Successfully updated label {key} on {what}"
