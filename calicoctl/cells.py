"""How one table cell is filled from an object: small functions, named in calicoctl.kinds.

Layer: pure. Objects are plain values in the form a user sees (codec.to_shown). Values print as Go's
%v prints them, because scripts read these tables: `<nil>` for what is absent, 1e+06 for a float.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from libcalico.model.keys import ResourceKey

if TYPE_CHECKING:
    from calicoctl.kinds import Environment

Shown = Mapping[str, Any]
Cell = Callable[[Shown, "Environment"], str]


def get(shown: Any, *path: str) -> Any:
    """The value at a path of member names, None when any of them is absent."""
    for part in path:
        if not isinstance(shown, Mapping):
            return None
        shown = shown.get(part)
    return shown


def go(value: Any) -> str:
    """Go's %v."""
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return go_float(value)
    if isinstance(value, list | tuple):
        return "[" + " ".join(map(go, value)) + "]"
    if isinstance(value, Mapping):
        pairs = " ".join(f"{key}:{go(item)}" for key, item in sorted(value.items()))
        return f"map[{pairs}]"
    return str(value)


def go_float(value: float) -> str:
    """Go's %v of a float64: the shortest digits, with an exponent below 1e-4 and from 1e6 on
    (strconv.FormatFloat 'g', precision -1)."""
    if value == 0 or not math.isfinite(value):
        return repr(value).removesuffix(".0")
    digits = repr(abs(value)).partition("e")[0].replace(".", "").strip("0")
    exponent = math.floor(math.log10(abs(value)))
    if -4 <= exponent < 6:
        return repr(value).removesuffix(".0")
    head, _, tail = f"{value:.{max(len(digits) - 1, 0)}e}".partition("e")
    return f"{head}e{int(tail):+03d}"


def name(shown: Shown, environment: Environment) -> str:
    return str(get(shown, "metadata", "name") or "")


def text(*path: str) -> Cell:
    return lambda shown, environment: str(get(shown, *path) or "")


def number(*path: str, absent: str = "<nil>") -> Cell:
    """A pointer in Go: absent prints `<nil>`, floats as Go does."""

    def cell(shown: Shown, environment: Environment) -> str:
        value = get(shown, *path)
        if value is None:
            return absent
        if path[-1] == "order":
            return go_float(float(value))
        return go(value)

    return cell


def boolean(*path: str) -> Cell:
    return lambda shown, environment: "true" if get(shown, *path) else "false"


def or_dash(*path: str) -> Cell:
    def cell(shown: Shown, environment: Environment) -> str:
        value = get(shown, *path)
        return "-" if value is None else go(value)

    return cell


def count(*path: str) -> Cell:
    return lambda shown, environment: str(len(get(shown, *path) or ()))


def joined(*path: str, limit: int = 0) -> Cell:
    def cell(shown: Shown, environment: Environment) -> str:
        whole = ",".join(map(str, get(shown, *path) or ()))
        return whole if not limit or len(whole) <= limit else whole[:limit] + "..."

    return cell


def pairs(*path: str) -> Cell:
    def cell(shown: Shown, environment: Environment) -> str:
        found = get(shown, *path) or {}
        return ",".join(f"{key}={value}" for key, value in sorted(found.items()))

    return cell


def tier(shown: Shown, environment: Environment) -> str:
    return str(get(shown, "spec", "tier") or "default")


def tier_order(shown: Shown) -> tuple[bool, float, str]:
    """Rows of `get tiers` go by order, those without one last."""
    order = get(shown, "spec", "order")
    return order is None, order or 0.0, str(get(shown, "metadata", "name"))


def peer_node(shown: Shown, environment: Environment) -> str:
    return str(get(shown, "spec", "node") or get(shown, "spec", "nodeSelector") or "(global)")


def node_as(shown: Shown, environment: Environment) -> str:
    """Blank without BGP, in parentheses when it is the cluster's."""
    bgp = get(shown, "spec", "bgp")
    if bgp is None:
        return ""
    own = get(bgp, "asNumber")
    if own is not None:
        return str(own)
    return f"({environment.global_as})" if environment.global_as else "(unknown)"


def workload(shown: Shown, environment: Environment) -> str:
    return str(get(shown, "spec", "workload") or get(shown, "spec", "pod") or "")


def nats(shown: Shown, environment: Environment) -> str:
    found = get(shown, "spec", "ipNATs") or ()
    return ",".join(f"{nat.get('externalIP')}->{nat.get('internalIP')}" for nat in found)


def label_selector(*path: str) -> Cell:
    """A Kubernetes label selector as kubectl prints it."""

    def cell(shown: Shown, environment: Environment) -> str:
        selector = get(shown, *path) or {}
        parts = [f"{k}={v}" for k, v in sorted((selector.get("matchLabels") or {}).items())]
        for term in selector.get("matchExpressions") or ():
            parts.append(_expression(term))
        return ",".join(parts)

    return cell


def _expression(term: Mapping[str, Any]) -> str:
    key, operator = term.get("key", ""), term.get("operator", "")
    values = ",".join(sorted(term.get("values") or ()))
    match operator:
        case "In":
            return f"{key} in ({values})"
        case "NotIn":
            return f"{key} notin ({values})"
        case "Exists":
            return str(key)
        case _:
            return f"!{key}"


def realized(shown: Shown, environment: Environment) -> str:
    """On how many nodes, and where not; "unknown" when the nodes' reports could not be read."""
    if environment.realization is None:
        return "unknown"
    key = ResourceKey(
        str(get(shown, "kind")), name(shown, environment), get(shown, "metadata", "namespace") or ""
    )
    revision = int(get(shown, "metadata", "resourceVersion") or 0)
    return str(environment.realization.of(key, revision))
