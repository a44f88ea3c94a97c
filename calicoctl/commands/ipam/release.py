"""ipam release: one address, or everything that reports of `ipam check` call leaked.

Layer: edge; the texts are datamodel 6.8's. `ipam.report` decides what may go.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from calicoctl import options
from calicoctl.commands.ipam.address import parse_address
from calicoctl.main import UsageProblem
from calicoctl.results import CommandFailed
from calicoctl.session import Session, run
from ipam import leaks
from ipam.client import IpamClient
from ipam.client.fanout import for_each
from ipam.report import Report, ReportedHandle, common_leaks, compare, decode, judge
from ipam.requests import Failure, Release, Released
from libcalico.errors import NotFound, RevisionConflict, SuiteError, Transient
from libcalico.model.cluster import ClusterInformation
from libcalico.model.keys import HandleKey, identifier, path_of
from libcalico.net import Address
from libcalico.runtime.version import VERSION

MAX_REPORT_BYTES = 1 << 30
_REFUSED_SHOWN = 10


@click.command()
@options.config
@click.option("--ip", "address", default="", help="The address to release.")
@click.option(
    "--from-report",
    "reports",
    multiple=True,
    help="Report of ipam check; only what all of several call leaked goes.",
)
@click.option("--force", is_flag=True, help="Another version's report, or an unlocked datastore.")
@click.pass_context
def release(
    ctx: click.Context, config: str, address: str, reports: tuple[str, ...], force: bool
) -> None:
    """Release addresses that nothing uses any more."""
    files = [name for given in reports for name in given.split(",") if name]
    if address and files:
        raise UsageProblem(
            "if any flags in the group [ip from-report] are set none of the others can be; "
            "[from-report ip] were all set"
        )
    if files:
        given = {name: decode(_read(name), name) for name in files}

        async def from_reports(session: Session) -> None:
            await _release_leaks(session, given, force=force)

        run(ctx, config, from_reports)
        click.echo("You may now unlock the data store.")
        return
    if not address:
        raise UsageProblem("at least one of the flags in the group [ip from-report] is required")
    parsed = parse_address(address)

    async def one(session: Session) -> Released:
        return await IpamClient(session.datastore).release_ips([Release(address=parsed)])

    released = run(ctx, config, one)
    if released.failed:
        error = released.failed[0].error
        raise CommandFailed(f"error: {error}") from error
    if released.unallocated:
        raise CommandFailed(f"IP address {parsed} is not assigned")
    click.echo(f"Successfully released IP address {parsed}")


def _read(name: str) -> bytes:
    path = Path(name)
    try:
        if path.stat().st_size > MAX_REPORT_BYTES:
            raise CommandFailed(f"{name}: larger than {MAX_REPORT_BYTES} bytes")
        return path.read_bytes()
    except OSError as err:
        raise CommandFailed(f"open {name}: {(err.strerror or str(err)).lower()}") from err


async def _release_leaks(session: Session, given: dict[str, Report], *, force: bool) -> None:
    cluster = await session.resources.get(ClusterInformation, "default")
    for warning in judge(given, cluster, VERSION, force=force):
        click.echo(warning)
    leftovers = common_leaks(given)
    ipam = IpamClient(session.datastore)
    error: SuiteError | None = None
    if leftovers.addresses:
        error = await _release_addresses(ipam, leftovers.addresses)
    else:
        click.echo("Report didn't contain any leaked IPs to clean up.")
    if leftovers.handles:
        await _delete_handles(ipam, leftovers.handles)
    else:
        click.echo("Report didn't contain any handles to clean up.")
    if error is not None:
        raise error


async def _release_addresses(ipam: IpamClient, reported: Sequence[Release]) -> SuiteError | None:
    """Returns why something may be left that has not changed: the datastore went away."""
    click.echo(f"Releasing {len(reported)} old IPs...")
    present = compare(reported, await ipam.blocks())
    done = await ipam.release_ips(present.same)
    failed = release_text(present.changed, done)
    if failed:
        click.echo(failed)
    click.echo(f"Released {len(done.released)} IPs successfully")
    gone = len(present.gone) + len(done.unallocated)
    if gone:
        click.echo(f"{gone} addresses marked as leaked in the report had already been cleaned up.")
    return next((f.error for f in done.failed if isinstance(f.error, Transient)), None)


def release_text(changed: Sequence[Address], done: Released) -> str:
    """The one line about addresses that were not released; "" when all were."""
    reasons = [f"update conflict: {address}" for address in changed]
    reasons += [_reason(failure) for failure in done.failed]
    if not reasons:
        return ""
    text = "; ".join(reasons[:_REFUSED_SHOWN])
    if len(reasons) > _REFUSED_SHOWN:
        text += f"; and {len(reasons) - _REFUSED_SHOWN} more"
    return (
        f"An error occurred while releasing some IPs: {text}.  "
        "Problems are often caused by an out-of-date IPAM report.  "
        "Try regenerating the IPAM report and retry."
    )


def _reason(failure: Failure) -> str:
    address, text = str(failure.request.address), str(failure.error)
    return text if address in text else f"{address}: {text}"


async def _delete_handles(ipam: IpamClient, reported: Sequence[ReportedHandle]) -> None:
    """Each is deleted only as the version the report saw, and only while no block names it: a
    Calico writer counts a handle up before it writes the block."""
    click.echo(f"Deleting {len(reported)} handles...")
    click.echo("Key: '.' = Deleted OK; 'x' = skip, handle missing/changed.")
    idle = set(leaks.check_handles(await ipam.blocks(), [handle.id for handle in reported]).idle)

    async def delete(handle: ReportedHandle) -> SuiteError | None:
        try:
            await _delete_handle(ipam, handle, is_idle=handle.id in idle)
        except SuiteError as err:
            if not isinstance(err, NotFound | RevisionConflict):
                click.echo(f"\nDeleting handle {handle.id} failed: {err}.")
                return err
            click.echo("x", nl=False)
            return err
        click.echo(".", nl=False)
        return None

    errors = [err for err in await for_each(delete, reported) if err is not None]
    skipped = sum(isinstance(err, NotFound | RevisionConflict) for err in errors)
    click.echo()
    click.echo(
        f"Released {len(reported) - len(errors)} handles; {skipped} skipped; "
        f"{len(errors) - skipped} errors."
    )


async def _delete_handle(ipam: IpamClient, handle: ReportedHandle, *, is_idle: bool) -> None:
    """Errors: NotFound, RevisionConflict, DatastoreUnavailable."""
    key = HandleKey(handle.id)
    if not (is_idle and handle.revision.isdecimal() and handle.revision.isascii()):
        raise RevisionConflict(identifier(key))
    await ipam.records.datastore.delete(path_of(key), mod_revision=int(handle.revision))
