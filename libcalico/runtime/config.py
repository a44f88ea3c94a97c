"""Declarative configuration: one frozen dataclass per component, and where each value came from.

Layer: runtime edge; the resolution itself is a pure function. Used by every daemon.

    @dataclass(frozen=True, slots=True)
    class TyphaConfig:
        max_clients: int = param(10000, parse=parse.integer(1), doc="Clients served at most.")
        health_port: int = param(9098, parse=parse.port, restart=True, doc="...")

    schema = Schema.of(TyphaConfig, prefix="TYPHA_")
    live = LiveConfig(schema, [environment_layer(schema, os.environ)])
    live.config.max_clients; live.set_layer(Layer(Source.DATASTORE_GLOBAL, {"MaxClients": "5"}))

Rules (house-rules 10.12; the order is Felix's, felix/config/config_params.go):
  C1  sources, lowest first: default, datastore global, datastore by selector, datastore per node,
      file, environment; every effective value remembers its source;
  C2  an unknown name in file or environment is refused (it is a typo); from the datastore it is
      reported and ignored (the cluster may be newer);
  C3  a bad local value is refused; a bad datastore value leaves the last good one of that source in
      place, or the next lower source if there was none, and is reported;
  C4  an empty value counts as not given; `none` sets the zero value (off) of the parameter;
  C5  names are compared without case; a parameter's raw name is Calico's (`InterfacePrefix`), its
      variable the prefix plus that name in capitals (`FELIX_INTERFACEPREFIX`).
"""

from __future__ import annotations

import configparser
import dataclasses
import enum
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypedDict, TypeVar, Unpack, cast

from libcalico.errors import ConfigError, RestartRequired
from libcalico.runtime import log

LOG = log.get(__name__)
T = TypeVar("T")
C = TypeVar("C")
_METADATA_KEY = "brindle-param"
_UNIT_SUFFIXES = ("_ms", "_s")
_REDACTED = "(hidden)"


class Source(enum.IntEnum):
    """Where a value came from; a higher one wins."""

    DEFAULT = 0
    DATASTORE_GLOBAL = 1
    DATASTORE_SELECTOR = 2
    DATASTORE_NODE = 3
    FILE = 4
    ENVIRONMENT = 5

    @property
    def is_local(self) -> bool:
        return self >= Source.FILE

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", " ")


class ParamOptions(TypedDict, total=False):
    """What `param` knows beside default and parser."""

    name: str  # Calico's raw name; default: the attribute in CamelCase without _s or _ms
    env_name: str  # the whole variable, when it is not prefix + name
    doc: str
    restart: bool  # a change ends the process (exit 129) instead of being applied
    local_only: bool  # ignored (and reported) when it comes from the datastore
    secret: bool  # never shown in dumps
    zero: object  # what `none` means; default: False, 0, "", () or None after the default's type
    non_zero: bool  # `none` is refused


@dataclass(frozen=True, slots=True)
class Param:
    """One row of a component's table. `attribute` is the dataclass field."""

    attribute: str
    name: str
    env_name: str
    default: object
    parse: Callable[[str], object]
    doc: str = ""
    restart: bool = False
    local_only: bool = False
    secret: bool = False
    zero: object = None
    non_zero: bool = False


def param(default: T, *, parse: Callable[[str], T], **options: Unpack[ParamOptions]) -> T:
    """Declare a field of a configuration dataclass. `parse` raises ValueError with the reason."""
    metadata = {_METADATA_KEY: (parse, options)}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Layer:
    """Raw values of one source. `label` names the file or object in messages."""

    source: Source
    values: Mapping[str, str]
    label: str = ""

    def described(self) -> str:
        return self.label or self.source.label


@dataclass(frozen=True, slots=True)
class Effective:
    """One value in force: parsed, where from, and the text it came from ("" for a default)."""

    value: object
    source: Source
    raw: str = ""


@dataclass(frozen=True, slots=True)
class Changes:
    """What differs between two configurations, by attribute: (before, after)."""

    changed: Mapping[str, tuple[object, object]]
    restart: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.changed)

    def raise_if_restart(self) -> None:
        if self.restart:
            raise RestartRequired("configuration changed: " + ", ".join(self.restart))


@dataclass(frozen=True, slots=True)
class Resolution(Generic[C]):
    """The configuration in force. `problems` are those that did not refuse it (C2, C3)."""

    config: C
    effective: Mapping[str, Effective]
    problems: tuple[ConfigError, ...] = ()
    last_good: Mapping[tuple[Source, str], Effective] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Schema(Generic[C]):
    """The parameter table of one component, made from its dataclass."""

    config_type: type[C]
    prefix: str
    params: tuple[Param, ...]
    tolerated: frozenset[str]

    @classmethod
    def of(cls, config_type: type[C], *, prefix: str, tolerated: Collection[str] = ()) -> Schema[C]:
        """`tolerated`: names that exist in Calico but do nothing here: reported, not refused."""
        fields = dataclasses.fields(cast(Any, config_type))
        params = tuple(_param_of(item, prefix) for item in fields if _METADATA_KEY in item.metadata)
        names = [found.name.lower() for found in params]
        repeated = {name for name in names if names.count(name) > 1}
        if repeated:
            raise ValueError(f"{config_type.__name__} names parameters twice: {sorted(repeated)}")
        return cls(config_type, prefix, params, frozenset(name.lower() for name in tolerated))

    def by_name(self) -> dict[str, Param]:
        return {found.name.lower(): found for found in self.params}

    def resolve(
        self, layers: Iterable[Layer], *, previous: Resolution[C] | None = None
    ) -> Resolution[C]:
        """Parse and stack all layers. Errors: ConfigError for the first local problem (C2, C3)."""
        ordered = sorted(layers, key=lambda layer: layer.source)
        problems: list[ConfigError] = []
        good: dict[tuple[Source, str], Effective] = {}
        for layer in ordered:
            found = self._parse_layer(layer, problems, previous)
            good.update(found)
        effective = {
            row.attribute: self._winner(row, good, [layer.source for layer in ordered])
            for row in self.params
        }
        values = {attribute: found.value for attribute, found in effective.items()}
        return Resolution(self.config_type(**values), effective, tuple(problems), good)

    def check(self, layers: Iterable[Layer]) -> tuple[ConfigError, ...]:
        """Every problem of every layer, local ones too: for `check-config` commands."""
        problems: list[ConfigError] = []
        for layer in layers:
            known = self._known(layer, problems)
            for row, raw in known:
                self._parse_one(row, raw, layer, problems)
        return tuple(problems)

    def changes(self, before: C, after: C) -> Changes:
        pairs = {
            row.attribute: (getattr(before, row.attribute), getattr(after, row.attribute))
            for row in self.params
        }
        changed = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
        restart = tuple(row.name for row in self.params if row.restart and row.attribute in changed)
        return Changes(changed, restart)

    def dump(self, resolution: Resolution[C]) -> dict[str, dict[str, str]]:
        """Every parameter with its value and source, for state dumps and `--show-config`."""
        out = {}
        for row in self.params:
            found = resolution.effective[row.attribute]
            shown = _REDACTED if row.secret and found.value else str(found.value)
            out[row.name] = {"value": shown, "source": found.source.label}
        return out

    def _parse_layer(
        self, layer: Layer, problems: list[ConfigError], previous: Resolution[C] | None
    ) -> dict[tuple[Source, str], Effective]:
        found: dict[tuple[Source, str], Effective] = {}
        mine: list[ConfigError] = []
        for row, raw in self._known(layer, mine):
            slot = (layer.source, row.attribute)
            parsed = self._parse_one(row, raw, layer, mine)
            if parsed is None and previous is not None:
                parsed = previous.last_good.get(slot)  # C3
            if parsed is not None:
                found[slot] = parsed
        if layer.source.is_local:
            refused = [problem for problem in mine if not self._is_tolerated(problem)]
            if refused:
                raise refused[0]
        problems.extend(mine)
        return found

    def _known(self, layer: Layer, problems: list[ConfigError]) -> list[tuple[Param, str]]:
        """The layer's values that belong to a parameter; reports those that do not."""
        by_name = self.by_name()
        known = []
        for name, raw in layer.values.items():
            row = by_name.get(name.lower())
            if not raw.strip():
                continue  # C4
            if row is None:
                reason = "not used here" if name.lower() in self.tolerated else "unknown parameter"
                problems.append(ConfigError(layer.described(), name, reason))
            elif row.local_only and not layer.source.is_local:
                reason = "can only be set in the file or the environment"
                problems.append(ConfigError(layer.described(), name, reason))
            else:
                known.append((row, raw))
        return known

    def _is_tolerated(self, problem: ConfigError) -> bool:
        return problem.name.lower() in self.tolerated

    def _parse_one(
        self, row: Param, raw: str, layer: Layer, problems: list[ConfigError]
    ) -> Effective | None:
        shown = _REDACTED if row.secret else raw
        if raw.strip().lower() == "none":
            if row.non_zero:
                problems.append(ConfigError(layer.described(), row.name, "cannot be none", shown))
                return None
            return Effective(row.zero, layer.source, raw)
        try:
            return Effective(row.parse(raw), layer.source, raw)
        except ValueError as err:
            problems.append(ConfigError(layer.described(), row.name, str(err), shown))
            return None

    def _winner(
        self, row: Param, good: Mapping[tuple[Source, str], Effective], sources: Sequence[Source]
    ) -> Effective:
        for source in reversed(sources):
            found = good.get((source, row.attribute))
            if found is not None:
                return found
        return Effective(row.default, Source.DEFAULT)


class LiveConfig(Generic[C]):
    """A component's configuration over its life: datastore layers as they come, the file's when
    somebody asks for it to be read again. The environment of a process does not change."""

    def __init__(self, schema: Schema[C], local: Iterable[Layer] = ()) -> None:
        self._schema = schema
        self._layers = {layer.source: layer for layer in local}
        self._resolution = schema.resolve(self._layers.values())
        self._reported: set[str] = set()
        self._report()

    @property
    def config(self) -> C:
        return self._resolution.config

    @property
    def error_count(self) -> int:
        """How many parameters are in trouble now: the value of the `config_error` metric."""
        return len(self._resolution.problems)

    def source_of(self, attribute: str) -> Source:
        return self._resolution.effective[attribute].source

    def set_layers(self, layers: Iterable[Layer]) -> Changes:
        """Replace the given sources. An empty layer takes a source away.

        A needed restart is not raised here: the caller decides when (`Changes.raise_if_restart`).
        Errors: ConfigError for a bad local value; everything stays as it was then.
        """
        stacked = self._layers | {layer.source: layer for layer in layers}
        before = self._resolution
        self._resolution = self._schema.resolve(stacked.values(), previous=before)
        self._layers = stacked
        self._report()
        return self._schema.changes(before.config, self._resolution.config)

    def set_layer(self, layer: Layer) -> Changes:
        return self.set_layers([layer])

    def dump(self) -> dict[str, object]:
        problems = [str(problem) for problem in self._resolution.problems]
        return {"parameters": self._schema.dump(self._resolution), "problems": problems}

    def _report(self) -> None:
        """Say each problem once, and again only after it had gone."""
        current = {str(problem) for problem in self._resolution.problems}
        for problem in self._resolution.problems:
            if str(problem) not in self._reported:
                LOG.warning("configuration value ignored", error=str(problem))
        self._reported = current


def environment_layer(schema: Schema[Any], environ: Mapping[str, str]) -> Layer:
    """Everything with the component's prefix, and the variables named in the table."""
    by_variable = {row.env_name: row.name for row in schema.params}
    values: dict[str, str] = {}
    for variable, raw in environ.items():
        if variable in by_variable:
            values[by_variable[variable]] = raw
        elif schema.prefix and variable.upper().startswith(schema.prefix):
            values[variable[len(schema.prefix) :]] = raw
    return Layer(Source.ENVIRONMENT, values, "environment")


def file_layer(path: Path, *, required: bool = False) -> Layer:
    """An INI file as Felix reads it: `Name = value` lines, section headers are decoration.

    Errors: ConfigError when the file does not parse, or is `required` and missing.
    """
    try:
        content = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if required:
            raise ConfigError(str(path), "file", "does not exist") from None
        return Layer(Source.FILE, {}, str(path))
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(str(path), "file", str(err)) from err
    # Felix merges all sections: a user may or may not have written [global].
    parser = configparser.RawConfigParser(strict=False, allow_no_value=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their case
    try:
        parser.read_string("[global]\n" + content, source=str(path))
    except configparser.Error as err:
        raise ConfigError(str(path), "file", " ".join(str(err).split())) from err
    values = {name: raw for section in parser.sections() for name, raw in parser.items(section)}
    return Layer(Source.FILE, values, str(path))


def _param_of(item: dataclasses.Field[Any], prefix: str) -> Param:
    parse, options = cast(
        tuple[Callable[[str], object], ParamOptions], item.metadata[_METADATA_KEY]
    )
    name = options.get("name") or _camel_case(item.name)
    return Param(
        attribute=item.name,
        name=name,
        env_name=options.get("env_name") or prefix + name.upper(),
        default=item.default,
        parse=parse,
        doc=options.get("doc", ""),
        restart=options.get("restart", False),
        local_only=options.get("local_only", False),
        secret=options.get("secret", False),
        zero=options.get("zero", _zero_of(item.default)),
        non_zero=options.get("non_zero", False),
    )


def _camel_case(attribute: str) -> str:
    for suffix in _UNIT_SUFFIXES:
        attribute = attribute.removesuffix(suffix)
    return "".join(word[:1].upper() + word[1:] for word in attribute.split("_"))


def _zero_of(default: object) -> object:
    """Go's zero value of the parameter's type, as `none` sets it."""
    if isinstance(default, bool | int | float | str | tuple):
        return type(default)()
    return None
