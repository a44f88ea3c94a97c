"""ipam configure: change IPAM's settings.

Layer: edge; the texts are datamodel 6.8's. All values are read before anything is written.
"""

from __future__ import annotations

import re

import click
import msgspec

from calicoctl import options
from calicoctl.main import UsageProblem
from calicoctl.results import CommandFailed
from calicoctl.session import Session, run
from ipam.client import IpamClient
from ipam.client.settings import SettingsRefused
from libcalico.errors import DecodeError

# What Go's strconv.ParseBool reads.
_BOOLEANS = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}
_PERSISTENCE = ("Enabled", "Disabled")
_LARGEST = 2**31 - 1


@click.command()
@options.config
@click.option("--strictaffinity", default="", help="true or false.")
@click.option("--max-blocks-per-host", default="", help="A number; needs strict affinity.")
@click.option("--kubevirt-ip-persistence", default="", help="Enabled or Disabled.")
@click.option("--ip-cooldown-seconds", default="", help="Before an address is given out again.")
@click.pass_context
def configure(
    ctx: click.Context,
    config: str,
    strictaffinity: str,
    max_blocks_per_host: str,
    kubevirt_ip_persistence: str,
    ip_cooldown_seconds: str,
) -> None:
    """Change IPAM's settings."""
    changes: dict[str, object] = {}
    said = []
    if strictaffinity:
        strict = parse_strict(strictaffinity)
        changes["strict_affinity"] = strict
        said.append(f"Successfully set StrictAffinity to: {str(strict).lower()}")
    if max_blocks_per_host:
        limit = parse_limit(max_blocks_per_host)
        changes["max_blocks_per_host"] = limit
        said.append(f"Successfully set MaxBlocksPerHost to: {limit}")
    if kubevirt_ip_persistence:
        persistence = parse_persistence(kubevirt_ip_persistence)
        changes["kube_virt_vm_address_persistence"] = persistence
        said.append(f"Successfully set KubeVirtVMAddressPersistence to: {persistence}")
    if ip_cooldown_seconds:
        cooldown_s = parse_cooldown(ip_cooldown_seconds)
        changes["ip_cooldown_seconds"] = cooldown_s
        said.append(f"Successfully set IPCooldownSeconds to: {cooldown_s}")
    if not changes:
        raise CommandFailed("at least one configuration option must be specified")

    async def work(session: Session) -> None:
        settings = IpamClient(session.datastore).settings
        try:
            await settings.set(msgspec.structs.replace(await settings.get(), **changes))
        except (SettingsRefused, DecodeError) as err:
            raise CommandFailed(f"error: {err}") from err

    run(ctx, config, work)
    click.echo("\n".join(said))


def parse_strict(text: str) -> bool:
    if text not in _BOOLEANS:
        raise CommandFailed("invalid value. Use true or false to set strictaffinity")
    return _BOOLEANS[text]


def parse_limit(text: str) -> int:
    """0 is no limit; Calico would store a negative number too, which means nothing."""
    value = _number(text)
    if value is None:
        raise CommandFailed("invalid value for maxblockhost. Use a valid number")
    return value


def parse_persistence(text: str) -> str:
    if text not in _PERSISTENCE:
        raise CommandFailed("invalid value for --kubevirt-ip-persistence. Use Enabled or Disabled")
    return text


def parse_cooldown(text: str) -> int:
    value = _number(text)
    if value is None:
        raise UsageProblem(
            f'invalid argument "{text}" for "--ip-cooldown-seconds" flag: '
            f'strconv.ParseInt: parsing "{text}": invalid syntax'
        )
    return value


def _number(text: str) -> int | None:
    """A decimal number from 0 to 2147483647."""
    if not re.fullmatch(r"\+?[0-9]{1,10}", text):
        return None
    value = int(text)
    return value if value <= _LARGEST else None
