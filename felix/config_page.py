"""PARAMETERS.md, the reference page of all Felix parameters, made from the tables themselves.

Layer: felix.config, pure. Used by `calico-felix parameters`, which prints it:

    calico-felix parameters > felix/PARAMETERS.md
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

from felix.config import SCHEMA
from felix.config_inert import FACTS, NO_EFFECT, InertParams
from felix.config_parse import NamedTimeout, TableRange
from libcalico.runtime.config import Param
from libcalico.runtime.parse import PortRange, ProtoPort

_INERT = frozenset(item.name for item in dataclasses.fields(InertParams))
_HEAD = """\
# Felix parameters

Made by `calico-felix parameters`; do not edit. Lowest first, a value comes from: the default,
FelixConfiguration `default`, the one FelixConfiguration whose nodeSelector matches,
FelixConfiguration `node.<name>`, `/etc/calico/felix.cfg`, the environment. `none` switches a
parameter off. Parameters marked *local* cannot come from a FelixConfiguration. A change of one
marked *restart* ends felix with exit code 129, and its supervisor starts it again; others are
taken over. SIGHUP has `felix.cfg` read again. `calico-felix check-config` names what is wrong, and
what is set but has no effect.
"""
_TABLE = """
| parameter | variable | default | what it does |
|---|---|---|---|
"""


def page() -> str:
    live = [row for row in SCHEMA.params if row.attribute not in _INERT]
    inert = [row for row in SCHEMA.params if row.attribute in _INERT - FACTS]
    return "".join(
        (
            _HEAD,
            "\n## In effect\n",
            _rows(live),
            "\n## Accepted, no effect yet\n\n",
            "Checked as in Calico, so that a file or object that is good there is good here; ",
            "felix warns once when one is set.\n",
            _rows(inert),
        )
    )


def _rows(rows: Iterable[Param]) -> str:
    ordered = sorted(rows, key=lambda row: row.name.lower())
    lines = (
        f"| {row.name} | `{row.env_name}` | {_default(row)} | {_cell(_what(row))} |\n"
        for row in ordered
    )
    return _TABLE + "".join(lines)


def _what(row: Param) -> str:
    if row.attribute in _INERT:
        return f"{NO_EFFECT}; in Calico: {row.doc}" if row.doc else NO_EFFECT
    flags = {"local": row.local_only, "restart": row.restart}
    marks = ", ".join(word for word, is_set in flags.items() if is_set)
    return f"{row.doc} *{marks}*" if marks else row.doc


def _default(row: Param) -> str:
    text = _shown(row.default)
    if row.attribute.endswith("_s") and text:
        text += "s"
    elif row.attribute.endswith("_mask") and isinstance(row.default, int):
        text = f"{row.default:#x}"
    return f"`{_cell(text)}`" if text else ""


def _shown(value: object) -> str:
    """As it would be written; "" for nothing."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case float():
            return format(value, "g")
        case re.Pattern():
            return str(value.pattern)
        case PortRange() | TableRange():
            return f"{value.first}-{value.last}"
        case NamedTimeout():
            return f"{value.name}={value.timeout_s:g}s"
        case ProtoPort():
            return ":".join(filter(None, (value.protocol, _shown(value.net), str(value.port))))
        case (str() as name, str() as item):
            return f"{name}={item}"
        case tuple():
            return ",".join(map(_shown, value))
    return str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
