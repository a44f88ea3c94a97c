"""Template resources: which template goes where, and what checks and reloads it.

Layer: parsing of local files. Used by confd.daemon. The format is confd's TOML, one file each in
`conf.d`, taken in the order of their names:

    [template]
    src = "exabgp.conf.j2"                    a file in the templates folder
    dest = "{run_dir}/bgp/exabgp.conf"        placeholders: {run_dir} {lib_dir} {bin_dir} {stage}
    mode = "0600"                             octal; default 0644
    keys = ["/calico/..."]                    accepted for compatibility: what is read is fixed
    check_cmd = ["program", "{stage}"]        a list, or a string split as a shell would; no shell
    reload_cmd = "program argument"
    reload_signal = "HUP"                     instead of reload_cmd: signal the pid in
    reload_pid_file = "{run_dir}/x.pid"       this file (nothing happens while it is absent)

confd's own `{{.src}}` is accepted in check_cmd for `{stage}`.
"""

from __future__ import annotations

import shlex
import signal
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from libcalico.errors import ConfigError

_KNOWN = {
    "src",
    "dest",
    "mode",
    "keys",
    "prefix",
    "check_cmd",
    "reload_cmd",
    "reload_signal",
    "reload_pid_file",
}


@dataclass(frozen=True, slots=True)
class TemplateResource:
    """One parsed file. Commands still hold `{stage}`; the other placeholders are filled in."""

    name: str
    src: str
    dest: Path
    mode: int = 0o644
    check_cmd: tuple[str, ...] = ()
    reload_cmd: tuple[str, ...] = ()
    reload_signal: int = 0
    reload_pid_file: Path | None = None


def load(folder: Path, places: Mapping[str, str]) -> tuple[TemplateResource, ...]:
    """All resources of `folder`, by file name. Errors: ConfigError naming file and member."""
    return tuple(parse(path, places) for path in sorted(folder.glob("*.toml")))


def parse(path: Path, places: Mapping[str, str]) -> TemplateResource:
    try:
        table = tomllib.loads(path.read_text())["template"]
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as err:
        raise ConfigError(str(path), "template", str(err)) from err
    except KeyError as err:
        raise ConfigError(str(path), "template", "there is no [template] table") from err
    except OSError as err:
        raise ConfigError(str(path), "template", err.strerror or str(err)) from err
    return _Reader(path, table, places).resource()


class _Reader:
    """Takes one table apart; every complaint names the file and the member."""

    def __init__(self, path: Path, table: Mapping[str, object], places: Mapping[str, str]) -> None:
        self._path, self._table, self._places = path, table, places
        for name in table:
            if name not in _KNOWN:
                raise ConfigError(str(path), name, "unknown member of a template resource")

    def resource(self) -> TemplateResource:
        pid_file = self._text("reload_pid_file")
        number = self._signal()
        if number and not pid_file:
            raise self._bad("reload_pid_file", "is needed with reload_signal")
        return TemplateResource(
            name=self._path.name,
            src=self._required("src"),
            dest=Path(self._required("dest")),
            mode=self._mode(),
            check_cmd=self._command("check_cmd"),
            reload_cmd=self._command("reload_cmd"),
            reload_signal=number,
            reload_pid_file=Path(pid_file) if pid_file else None,
        )

    def _required(self, name: str) -> str:
        found = self._text(name)
        if not found:
            raise self._bad(name, "is required")
        return found

    def _text(self, name: str) -> str:
        value = self._table.get(name, "")
        if not isinstance(value, str):
            raise self._bad(name, "must be a string")
        return self._filled(name, value)

    def _filled(self, name: str, text: str) -> str:
        filled = text.replace("{{.src}}", "{stage}")
        for place, value in self._places.items():
            filled = filled.replace("{" + place + "}", value)
        leftover = filled.replace("{stage}", "")
        if "{" in leftover or "}" in leftover:
            known = " ".join("{" + place + "}" for place in (*self._places, "stage"))
            raise self._bad(name, f"unknown placeholder; there are {known}")
        return filled

    def _mode(self) -> int:
        text = self._text("mode") or "0644"
        try:
            mode = int(text, 8)
        except ValueError:
            mode = -1
        if not 0 <= mode <= 0o777:
            raise self._bad("mode", "must be octal digits such as 0600")
        return mode

    def _command(self, name: str) -> tuple[str, ...]:
        value = self._table.get(name, "")
        if isinstance(value, str):
            try:
                parts = shlex.split(value)
            except ValueError as err:
                raise self._bad(name, str(err)) from err
        elif isinstance(value, list) and all(isinstance(part, str) for part in value):
            parts = [str(part) for part in value]
        else:
            raise self._bad(name, "must be a string or a list of strings")
        return tuple(self._filled(name, part) for part in parts)

    def _signal(self) -> int:
        text = self._text("reload_signal")
        if not text:
            return 0
        try:
            return signal.Signals[text if text.startswith("SIG") else f"SIG{text}"]
        except KeyError as err:
            raise self._bad("reload_signal", "is not a signal name") from err

    def _bad(self, name: str, reason: str) -> ConfigError:
        return ConfigError(str(self._path), name, reason, self._table.get(name))
