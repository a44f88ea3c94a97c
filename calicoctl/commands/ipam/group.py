"""ipam: how full pools are, what was left behind, what must not have happened (datamodel 6.8).

Layer: wiring. One module for each command; here they are put together.
"""

from __future__ import annotations

import click

from calicoctl.commands.ipam.audit import audit
from calicoctl.commands.ipam.check import check
from calicoctl.commands.ipam.configure import configure
from calicoctl.commands.ipam.release import release
from calicoctl.commands.ipam.show import show
from calicoctl.commands.ipam.split import split


@click.group()
def ipam() -> None:
    """IP address management."""


for _command in (audit, check, configure, release, show, split):
    ipam.add_command(_command)
