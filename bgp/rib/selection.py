"""Which path wins: the decision process of RFC 4271 9.1.2, and the set to share load over.

Layer: pure. Used by bgp.rib.rib for every prefix that changed.

The steps, each keeping only the best of what the step before left:
    our own block or service; LOCAL_PREF high; our own workload; AS path short; ORIGIN low; MED low
    among paths of one neighbour AS; external before internal; originator or router id low; cluster
    list short (RFC 4456 9); peer address low.
The set before the router id is compared is what traffic may be shared over (ECMP). The steps work
on sets, so the answer does not depend on the order of arrival (MEDs of different neighbours make
a pairwise order impossible).
A path whose next hop cannot be reached is never used (9.1.2.1). There is no IGP metric to compare.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from bgp.rib.path import Path, Tie

MAX_PATHS = 16  # BIRD's default for `merge paths`


def select(paths: Sequence[Path], unreachable: Collection[bytes]) -> tuple[Path, ...]:
    """The winner, then the others to share load with (distinct next hops, in a fixed order)."""
    if len(paths) == 1:
        only = paths[0]
        return only.alone if _usable(only, unreachable) else ()
    usable = [path for path in paths if _usable(path, unreachable)]
    if len(usable) < 2:
        return usable[0].alone if usable else ()
    equal = equally_good(usable)
    if len(equal) == 1:
        return equal[0].alone
    equal.sort(key=_tie)
    return _with_distinct_next_hops(equal)


def equally_good(usable: list[Path]) -> list[Path]:
    """What the steps up to external-before-internal leave."""
    best = min(path.rank for path in usable)
    left = [path for path in usable if path.rank == best]
    if len(left) > 1:
        left = lowest_med(left)
    if len(left) > 1 and any(path.is_external for path in left):
        left = [path for path in left if path.is_external]
    return left


def _usable(path: Path, unreachable: Collection[bytes]) -> bool:
    return not path.ineligible and path.attributes.next_hop not in unreachable


def lowest_med(paths: list[Path]) -> list[Path]:
    """9.1.2.2 c: a path goes when another of the same neighbour AS has a lower MED."""
    lowest: dict[int, int] = {}
    for path in paths:
        known = lowest.get(path.neighbour_as)
        if known is None or path.med < known:
            lowest[path.neighbour_as] = path.med
    return [path for path in paths if path.med == lowest[path.neighbour_as]]


def _tie(path: Path) -> Tie:
    return path.tie


def _with_distinct_next_hops(ordered: list[Path]) -> tuple[Path, ...]:
    chosen = [ordered[0]]
    seen = {ordered[0].attributes.next_hop}
    for path in ordered[1:]:
        if path.attributes.next_hop not in seen and len(chosen) < MAX_PATHS:
            seen.add(path.attributes.next_hop)
            chosen.append(path)
    return ordered[0].alone if len(chosen) == 1 else tuple(chosen)
