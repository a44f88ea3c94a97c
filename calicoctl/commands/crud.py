"""create, apply, replace, delete, validate: the commands that write objects, or would.

Layer: edge. Objects are processed in order; all but replace go on after an error (datamodel 6.4).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import click

from calicoctl import kinds, options
from calicoctl.load import Given, placed
from calicoctl.main import UsageProblem
from calicoctl.results import Outcome
from calicoctl.select import Source, from_files, from_names
from calicoctl.session import Session, run
from libcalico.errors import AlreadyExists, NotFound, SuiteError
from libcalico.model.defaults import with_defaults
from libcalico.model.meta import Resource
from libcalico.model.validation import validate as validate_resource

Operation = Callable[[Session, Resource], Awaitable[object]]


def _given(source: Source) -> list[Given]:
    if not source.filename:
        raise UsageProblem('required flag(s) "filename" not set')
    return from_files(source)


def _report(outcome: Outcome) -> None:
    """Success to stdout; then the error, if there is one, ends the command."""
    said = outcome.stdout()
    if said:
        click.echo(said)
    error = outcome.error()
    if error is not None:
        raise error


def _write(
    ctx: click.Context, config: str, verb: str, resources: Sequence[Given], operation: Operation
) -> None:
    if not resources:
        click.echo("No resources specified")
        return

    async def work(session: Session) -> Outcome:
        if verb != "delete":
            await _initialise(session)
        return await _each(session, verb, resources, operation)

    _report(run(ctx, config, work))


async def _initialise(session: Session) -> None:
    """As Calico's calicoctl does before it writes; what fails here fails again below, by name."""
    try:
        await session.resources.ensure_initialized()
    except SuiteError:
        return


async def _each(
    session: Session, verb: str, resources: Sequence[Given], operation: Operation
) -> Outcome:
    outcome = Outcome(verb, [given.resource.kind for given in resources])
    for given in resources:
        try:
            await operation(session, given.resource)
        except SuiteError as err:
            outcome.errors.append(placed(err, given))
            if verb == "replace":
                # Calico counts the failed object as handled here, and stops (6.5).
                outcome.handled += 1
                break
        else:
            outcome.handled += 1
    return outcome


@click.command()
@options.crud
@click.option("--skip-exists", is_flag=True, help="Objects that exist already are no error.")
@click.pass_context
def create(ctx: click.Context, source: Source, skip_exists: bool) -> None:
    """Create resources from a file or from standard input."""

    async def operation(session: Session, resource: Resource) -> None:
        try:
            await session.create(resource)
        except AlreadyExists:
            if not skip_exists:
                raise

    _write(ctx, source.config, "create", _given(source), operation)


@click.command()
@options.crud
@click.pass_context
def apply(ctx: click.Context, source: Source) -> None:
    """Create resources, or replace those that exist."""
    _write(ctx, source.config, "apply", _given(source), Session.apply)


@click.command()
@options.crud
@click.pass_context
def replace(ctx: click.Context, source: Source) -> None:
    """Replace existing resources."""
    _write(ctx, source.config, "replace", _given(source), Session.update)


@click.command()
@click.argument("kind", required=False, default="")
@click.argument("names", nargs=-1)
@options.crud
@click.option("-s", "--skip-not-exists", is_flag=True, help="Absent objects are no error.")
@click.pass_context
def delete(
    ctx: click.Context,
    kind: str,
    names: tuple[str, ...],
    source: Source,
    skip_not_exists: bool,
) -> None:
    """Delete resources by KIND and NAME, or those of a file."""

    async def operation(session: Session, resource: Resource) -> None:
        try:
            await session.delete(resource)
        except NotFound:
            if not skip_not_exists:
                raise

    if source.filename:
        given = _given(source)
    elif kind and names:
        given = from_names(kinds.find(kind), names, source.namespace)
    else:
        raise UsageProblem("delete needs KIND and NAME, or -f FILENAME")
    _write(ctx, source.config, "delete", given, operation)


@click.command()
@options.crud
def validate(source: Source) -> None:
    """Check resources without a datastore."""
    given = _given(source)
    outcome = Outcome("validate", [entry.resource.kind for entry in given])
    for entry in given:
        try:
            validate_resource(with_defaults(entry.resource))
        except SuiteError as err:
            outcome.errors.append(placed(err, entry))
        else:
            outcome.handled += 1
    _report(outcome)
