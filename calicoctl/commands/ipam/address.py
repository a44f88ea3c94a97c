"""The option `--ip` of ipam show and ipam release.

Layer: pure.
"""

from __future__ import annotations

from calicoctl.results import CommandFailed
from libcalico.net import Address, AddressError, parse_ip


def parse_address(text: str) -> Address:
    """Errors: CommandFailed, in Calico's words (datamodel 6.1)."""
    try:
        return parse_ip(text)
    except AddressError as err:
        raise CommandFailed(
            f"Error executing command: invalid IP address specified: {text}"
        ) from err
