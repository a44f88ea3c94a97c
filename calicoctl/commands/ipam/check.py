"""ipam check: IPAM's records against everything that uses addresses (datamodel 6.9).

Layer: edge. Exit code 0 whatever is found. Calico asks a Kubernetes API for pods and services; we
know pods by their WorkloadEndpoints, and take the addresses of services to be in use.
"""

from __future__ import annotations

import time
from pathlib import Path

import click

from calicoctl import options
from calicoctl.checktext import FIRST_LINES, Detail, lines
from calicoctl.results import CommandFailed
from calicoctl.session import Session, run
from ipam.check import Findings
from ipam.check import check as find
from ipam.client.inventory import read_inventory
from ipam.report import encode, report_of
from libcalico.runtime.files import replace_file
from libcalico.runtime.version import VERSION

# For the operator and whoever may write here; Calico leaves it to the umask.
_REPORT_MODE = 0o644


@click.command()
@options.config
@click.option("--show-all-ips", is_flag=True, help="Every address that is looked at.")
@click.option("--show-problem-ips", is_flag=True, help="Addresses leaked, or used without IPAM.")
@click.option("-o", "--output", default="", help="File for the report that release reads.")
@click.option("--kubeconfig", default="", help="Accepted for compatibility, not used.")
@click.pass_context
def check(
    ctx: click.Context,
    config: str,
    show_all_ips: bool,
    show_problem_ips: bool,
    output: str,
    kubeconfig: str,
) -> None:
    """Check the integrity of IPAM's records against what uses addresses."""
    if kubeconfig:
        click.echo("--kubeconfig is not used: no Kubernetes API is asked", err=True)
    click.echo("\n".join(FIRST_LINES))
    findings = run(ctx, config, _find)
    for line in lines(findings, Detail(show_all_ips, show_problem_ips)):
        click.echo(line)
    if output:
        _write(findings, output)


async def _find(session: Session) -> Findings:
    return find(await read_inventory(session.datastore), time.time())


def _write(findings: Findings, output: str) -> None:
    """Errors: CommandFailed."""
    hidden = findings.hidden_users
    if hidden:
        raise CommandFailed(
            f"the report is not written, what {len(hidden)} unreadable objects use would look "
            f"leaked in it: {hidden[0]}"
        )
    path, data = Path(output), encode(report_of(findings, VERSION))
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            path.write_bytes(data)  # /dev/stdout, a pipe: nothing that may be replaced
        else:
            replace_file(path, data, _REPORT_MODE)
    except OSError as err:
        raise CommandFailed(f"cannot write the report {output}: {err.strerror}") from err
