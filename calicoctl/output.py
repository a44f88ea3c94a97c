"""Objects to text: table, wide, names, custom columns, YAML, JSON, Go template (datamodel 6.6).

Layer: pure. Used by calicoctl.commands.get. What is printed is what Calico prints, to the trailing
blanks: people cut columns out of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calicoctl.kinds import CliKind, Environment
from libcalico.errors import SuiteError

MIN_WIDTH, PADDING = 5, 3
_WITH_ARGUMENT = ("custom-columns", "go-template")
_FORMATS = ("ps", "wide", "name", "yaml", "json", *_WITH_ARGUMENT)
_NO_ENVIRONMENT = Environment()
Shown = Mapping[str, Any]


class OutputError(SuiteError):
    """The -o option cannot be served; the text is the message."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class Result:
    """What one query found. A list query has `items` and the list's resourceVersion; a named one
    exactly one item and `is_list` False."""

    kind: CliKind
    items: Sequence[Shown]
    is_list: bool
    resource_version: str = ""

    def to_object(self) -> Shown:
        """The single object, or the `<Kind>List` around the items."""
        if not self.is_list:
            return self.items[0]
        return {
            "apiVersion": "projectcalico.org/v3",
            "items": list(self.items),
            "kind": self.kind.info.list_kind,
            "metadata": {"resourceVersion": self.resource_version},
        }


@dataclass(frozen=True, slots=True)
class Printer:
    """A parsed -o option. `argument` is what follows the "="."""

    format: str
    argument: str = ""
    show_namespace: bool = False
    environment: Environment = _NO_ENVIRONMENT

    def render(self, results: Sequence[Result]) -> str:
        """Errors: OutputError."""
        render = _RENDERERS[self.format]
        return render(self, results)


def parse_format(raw: str, read_file: Callable[[str], str]) -> Printer:
    """`read_file` gives the text of a go-template-file. Errors: OutputError with Calico's text."""
    name, _, argument = (raw or "ps").partition("=")
    if name == "custom-columns" and not argument:
        raise OutputError("need to specify at least one column")
    if name == "go-template" and not argument:
        raise OutputError("need to specify a template")
    if name == "go-template-file":
        if not argument:
            raise OutputError("need to specify a template file")
        return Printer("go-template", read_file(argument))
    if name not in _FORMATS or (argument and name not in _WITH_ARGUMENT):
        raise OutputError(f"unrecognized output format '{raw}'")
    return Printer(name, argument)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Every cell padded to its column's widest plus three blanks, the last one too; a blank line
    ends the table (Go's tabwriter with a tab behind the last cell)."""
    widths = [
        max(MIN_WIDTH, PADDING + max(len(row[column]) for row in (headings, *rows)))
        for column in range(len(headings))
    ]
    lines = ("".join(map(str.ljust, row, widths)) for row in (headings, *rows))
    return "\n".join(lines) + "\n\n"


def _columns(printer: Printer, kind: CliKind) -> list[str]:
    if printer.format == "custom-columns":
        wanted = [heading.strip().upper() for heading in printer.argument.split(",")]
        for heading in wanted:
            if heading not in kind.columns:
                valid = ", ".join(sorted(kind.columns))
                raise OutputError(f"unknown heading {heading}, valid values are: {valid}")
        return wanted
    return list(kind.wide if printer.format == "wide" else kind.ps)


def _render_tables(printer: Printer, results: Sequence[Result]) -> str:
    return "".join(_render_table(printer, result) for result in results)


def _render_table(printer: Printer, result: Result) -> str:
    kind = result.kind
    headings = _columns(printer, kind)
    items = sorted(result.items, key=kind.sort_key) if kind.sort_key else result.items
    rows = [[kind.columns[h](item, printer.environment) for h in headings] for item in items]
    if printer.show_namespace and kind.info.namespaced and printer.format != "custom-columns":
        headings = ["NAMESPACE", *headings]
        rows = [
            [str(item["metadata"].get("namespace", "")), *row]
            for item, row in zip(items, rows, strict=True)
        ]
    return table(headings, rows)


def _render_names(printer: Printer, results: Sequence[Result]) -> str:
    """kubectl's `kind/name`, one a line."""
    return "".join(
        f"{result.kind.kind.lower()}/{item['metadata']['name']}\n"
        for result in results
        for item in result.items
    )


def _objects(results: Sequence[Result]) -> Any:
    objects = [result.to_object() for result in results]
    return objects[0] if len(objects) == 1 else objects


def _render_json(printer: Printer, results: Sequence[Result]) -> str:
    return json.dumps(_objects(results), indent=2, ensure_ascii=False)


def _render_yaml(printer: Printer, results: Sequence[Result]) -> str:
    import yaml

    class Dumper(yaml.SafeDumper):
        """Without aliases (a value that occurs twice is written twice), and with double quotes
        where quotes are needed, as Go's YAML library writes them."""

        def choose_scalar_style(self) -> Any:
            style = super().choose_scalar_style()
            return '"' if style == "'" else style

        def ignore_aliases(self, data: Any) -> bool:
            return True

    Dumper.add_representer(float, _represent_float)
    return str(
        yaml.dump(
            _objects(results),
            Dumper=Dumper,
            sort_keys=True,
            default_flow_style=False,
            allow_unicode=True,
            width=10**6,
        )
    )


def _represent_float(dumper: Any, value: float) -> Any:
    """A whole number without a point, as Go writes it."""
    if value.is_integer() and abs(value) < 1e21:
        return dumper.represent_int(int(value))
    return dumper.represent_scalar("tag:yaml.org,2002:float", repr(value))


def _render_template(printer: Printer, results: Sequence[Result]) -> str:
    from calicoctl.gotemplate import execute

    functions = {"config": lambda name: _config(printer, name)}
    return execute(printer.argument, [result.to_object() for result in results], functions)


def _config(printer: Printer, name: str) -> str:
    if name.lower() != "asnumber":
        raise OutputError(f"unknown config {name!r} in template; there is only asnumber")
    return printer.environment.global_as or "unknown"


_RENDERERS: dict[str, Callable[[Printer, Sequence[Result]], str]] = {
    "ps": _render_tables,
    "wide": _render_tables,
    "custom-columns": _render_tables,
    "name": _render_names,
    "json": _render_json,
    "yaml": _render_yaml,
    "go-template": _render_template,
}
