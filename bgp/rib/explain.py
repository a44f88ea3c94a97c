"""Why a path won or lost, and what decides whether a peer is told: for people who ask.

Layer: pure. Used by bgp.queries. Nothing here decides; each answer follows the same steps as the
decision it explains (bgp.rib.selection, .export, .policy), and property tests hold it against them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from bgp.rib.attributes import NO_ADVERTISE, NO_EXPORT, NO_EXPORT_SUBCONFED
from bgp.rib.export import Exporter, may_hear, transform
from bgp.rib.path import Path
from bgp.rib.policy import Chain, FamilyPolicy
from bgp.rib.selection import equally_good, lowest_med, select
from libcalico.model.speaker import Drain

Decision = tuple[bool, str]  # told or accepted, and why

_STEPS: tuple[tuple[str, Callable[[Path], int]], ...] = (
    ("our own block or service goes first", lambda path: path.rank[0]),
    ("lower LOCAL_PREF", lambda path: path.rank[1]),
    ("our own workload goes first", lambda path: path.rank[2]),
    ("longer AS path", lambda path: path.rank[3]),
    ("worse ORIGIN", lambda path: path.rank[4]),
)
_TIE = ("originator or router id", "cluster list", "peer address")


def outcomes(paths: Sequence[Path], unreachable: Collection[bytes]) -> dict[Path, str]:
    """What became of each path: "best: …", "shares the load: …", or why it is not used."""
    found: dict[Path, str] = {}
    left: list[Path] = []
    for path in paths:
        if path.ineligible:
            found[path] = path.ineligible
        elif path.next_hop in unreachable:
            found[path] = "the next hop is unreachable"
        else:
            left.append(path)
    equal = equally_good(left) if left else []
    for text, cost in _STEPS:
        best = min(map(cost, left), default=0)
        found |= {path: text for path in left if cost(path) > best}
        left = [path for path in left if cost(path) == best]
    without_med = lowest_med(left)
    found |= {path: "higher MED" for path in left if path not in without_med}
    found |= {path: "external goes before internal" for path in without_med if path not in equal}
    return found | _among_equals(equal, select(paths, unreachable))


def _among_equals(equal: list[Path], chosen: tuple[Path, ...]) -> dict[Path, str]:
    found = {}
    for path in equal:
        if path is chosen[0]:
            found[path] = "best" if len(equal) == 1 else "best: first of equals"
            continue
        step = next(n for n in range(3) if path.tie[n] != chosen[0].tie[n])
        if path in chosen:
            found[path] = f"shares the load: equal, higher {_TIE[step]}"
        else:
            found[path] = f"higher {_TIE[step]}, and its next hop is taken or 16 are"
    return found


def filtered(
    chains: Mapping[str, Chain], names: Iterable[str], path: Path, hit: tuple[int, bool]
) -> tuple[bool | None, str]:
    """The rule that decides: whether it accepts, and its place "NAME[0]"; None when none does.

    `hit` is the prefix' mask, and whether the peer is internal."""
    mask, is_ibgp = hit
    for name in names:
        for number, rule in enumerate(chains.get(name, ())):
            if rule.matches(path, mask, to_ibgp=is_ibgp):
                return rule.accept, f"{name}[{number}]"
    return None, ""


def imported(policy: FamilyPolicy, filters: Iterable[str], path: Path, mask: int) -> str:
    """Why a path from a peer is no candidate ("" when it is one)."""
    if path.ineligible:
        return path.ineligible
    hit = (mask, path.source.is_ibgp)
    accepts, where = filtered(policy.imports, filters, path, hit)
    return f"BGPFilter import rule {where} rejects it" if accepts is False else ""


def told(policy: FamilyPolicy, exporter: Exporter, path: Path, mask: int) -> Decision:
    """Whether peers of this group hear a best path, and what decides."""
    key = exporter.key
    if policy.drain is Drain.WITHDRAWN:
        return False, "this node is drained"
    if not may_hear(key, path):
        return False, _unheard(path)
    accepts, where = filtered(policy.exports, key.filters, path, (mask, key.is_ibgp))
    if accepts is False:
        return False, f"BGPFilter export rule {where} rejects it"
    by_calico = _by_calico(policy, path, mask)
    if accepts is None and not by_calico[0]:
        return by_calico
    if transform(key, path, path.attributes) is None:
        return False, "there is no next hop of its family to give"
    if exporter.export(policy, path, mask) is None:
        return False, "its attributes do not fit into a message"
    return (True, f"BGPFilter export rule {where} accepts it") if accepts else by_calico


def _unheard(path: Path) -> str:
    communities = path.attributes.communities
    for value, name in (
        (NO_ADVERTISE, "NO_ADVERTISE"),
        (NO_EXPORT, "NO_EXPORT"),
        (NO_EXPORT_SUBCONFED, "NO_EXPORT_SUBCONFED"),
    ):
        if value in communities:
            return f"it carries {name}"
    return "from an internal peer to an internal peer, and neither is our client"


def _by_calico(policy: FamilyPolicy, path: Path, mask: int) -> Decision:
    if mask & policy.disabled_pools:
        return False, "its pool has disableBGPExport"
    if mask & policy.exported_blocks:
        return True, "it is a block of this node"
    if mask & policy.hidden_blocks:
        return False, "it is inside a block that is not exported"
    if mask & policy.inside_blocks:
        if policy.metric_of(path) < policy.normal_metric:
            return True, "it is inside a block of this node, with an elevated priority"
        return False, "it is inside a block of this node, which is announced"
    if mask & policy.services:
        return True, "it is in a service range"
    if mask & policy.enabled_pools:
        return True, "it is in an IP pool"
    return False, "it is in no IP pool or service range, and no BGPFilter accepts it"
