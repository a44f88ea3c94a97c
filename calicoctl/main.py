"""`calicoctl`: the command tree, its global flags, and how errors reach the operator.

Layer: wiring. Console script `calicoctl`. Sub-commands live in calicoctl.commands and are imported
only when they are used, so that `calicoctl --help` and shell completion stay quick.

Exit codes: 0, or 1 with the error on stderr (datamodel 6.1). Usage errors are worded as cobra words
them, because people and scripts know those texts.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Sequence

import click

from libcalico.errors import SuiteError

LOG_LEVELS = ("panic", "fatal", "error", "warn", "info", "debug")
_COMMANDS = {
    "apply": ("calicoctl.commands.crud", "apply"),
    "bgp": ("calicoctl.commands.bgp", "bgp"),
    "create": ("calicoctl.commands.crud", "create"),
    "datastore": ("calicoctl.commands.datastore", "datastore"),
    "delete": ("calicoctl.commands.crud", "delete"),
    "get": ("calicoctl.commands.get", "get"),
    "ipam": ("calicoctl.commands.ipam.group", "ipam"),
    "label": ("calicoctl.commands.label", "label"),
    "node": ("calicoctl.commands.node", "node"),
    "patch": ("calicoctl.commands.patch", "patch"),
    "policy": ("calicoctl.commands.policy", "policy"),
    "replace": ("calicoctl.commands.crud", "replace"),
    "typha": ("calicoctl.commands.typha", "typha"),
    "validate": ("calicoctl.commands.crud", "validate"),
    "version": ("calicoctl.commands.version", "version"),
}


class LazyGroup(click.Group):
    """Knows the names of its commands; imports one when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = _COMMANDS.get(cmd_name)
        if entry is None:
            return None
        found = getattr(importlib.import_module(entry[0]), entry[1])
        assert isinstance(found, click.Command)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            raise UsageProblem(f'unknown command "{args[0]}" for "calicoctl"')
        return super().resolve_command(ctx, args)


class UsageProblem(SuiteError):
    """Wrong words on the command line; the text is cobra's."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return self.message


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-l", "--log-level", default="panic", show_default=True, help="Log level.")
@click.option("--context", default="", help="Accepted for compatibility (kubeconfig context).")
@click.option(
    "--allow-version-mismatch", is_flag=True, help="Go on when client and cluster differ."
)
@click.pass_context
def cli(ctx: click.Context, log_level: str, context: str, allow_version_mismatch: bool) -> None:
    """Manage Brindle (and Calico) network and policy configuration."""
    if log_level not in LOG_LEVELS:
        expected = ", ".join(LOG_LEVELS)
        raise UsageProblem(f"unknown log level: {log_level}, expected one of: {expected}")
    from libcalico.runtime import log

    log.setup(log_level)
    ctx.obj = {"allow_version_mismatch": allow_version_mismatch}


def main(arguments: Sequence[str] | None = None) -> None:
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code. No traceback ever reaches the operator for an expected error."""
    try:
        ended = cli.main(args=arguments, prog_name="calicoctl", standalone_mode=False)
    except click.Abort:
        return 130
    except click.UsageError as err:
        print(usage_text(err), file=sys.stderr)
        return 1
    except click.ClickException as err:
        print(err.format_message(), file=sys.stderr)
        return 1
    except SuiteError as err:
        print(err, file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader of a pipe has seen enough.
        sys.stderr.close()
        return 1
    # Click hands back the code of a command that left by ctx.exit(), and else what it returned.
    return ended if isinstance(ended, int) else 0


def usage_text(err: click.UsageError) -> str:
    """Click's usage errors in cobra's words."""
    said = err.format_message()
    if isinstance(err, click.NoSuchOption):
        option = err.option_name
        if option.startswith("--"):
            return f"unknown flag: {option}"
        return f"unknown shorthand flag: {option.lstrip('-')!r} in {option}"
    if isinstance(err, click.BadOptionUsage) and "requires an argument" in said:
        return f"flag needs an argument: {err.option_name}"
    path = err.ctx.command_path if err.ctx is not None else "calicoctl"
    unknown = re.match(r"No such command '([^']*)'", said)
    if unknown:
        return f'unknown command "{unknown[1]}" for "{path}"'
    if err.ctx is not None and (isinstance(err, click.MissingParameter) or "extra arg" in said):
        return _count_text(err.ctx, said, path)
    return said


def _count_text(ctx: click.Context, said: str, path: str) -> str:
    """Too few or too many arguments: `label` takes at least its three, others exactly theirs."""
    arguments = [p for p in ctx.command.params if isinstance(p, click.Argument)]
    extra = re.search(r"extra arguments? \((.*)\)", said)
    if extra and not arguments:
        return f'unknown command "{extra[1].split()[0]}" for "{path}"'
    received = sum(ctx.params.get(str(argument.name)) is not None for argument in arguments)
    received += len(extra[1].split()) if extra else 0
    if ctx.command.name == "label":
        return f"requires at least {len(arguments)} arg(s), only received {received}"
    return f"accepts {len(arguments)} arg(s), received {received}"


if __name__ == "__main__":
    main()
