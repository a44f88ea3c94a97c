"""Options that several commands share, with Calico's names and defaults (datamodel 6.2).

Layer: wiring. Used by calicoctl.commands.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from calicoctl.select import Source

DEFAULT_CONFIG = "/etc/calico/calicoctl.cfg"
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

config: Decorator = click.option(
    "-c", "--config", default=DEFAULT_CONFIG, show_default=True, help="Connection settings."
)
namespace: Decorator = click.option(
    "-n", "--namespace", default="", help="Namespace of namespaced resources."
)
filename: Decorator = click.option(
    "-f", "--filename", default="", help="File, directory, or - for standard input."
)
recursive: Decorator = click.option(
    "-R", "--recursive", is_flag=True, help="Also the sub-directories of -f."
)
skip_empty: Decorator = click.option(
    "--skip-empty", is_flag=True, help="Files without any resource are no error."
)


def crud(command: Callable[..., Any]) -> Callable[..., Any]:
    """-f -R --skip-empty -c -n; the command gets them as one `source`."""

    @functools.wraps(command)
    def with_source(
        *args: Any,
        filename: str,
        recursive: bool,
        skip_empty: bool,
        config: str,
        namespace: str,
        **others: Any,
    ) -> Any:
        source = Source(filename, recursive, skip_empty, config, namespace)
        return command(*args, source=source, **others)

    decorated: Callable[..., Any] = with_source
    for option in (namespace, config, skip_empty, recursive, filename):
        decorated = option(decorated)
    return decorated
