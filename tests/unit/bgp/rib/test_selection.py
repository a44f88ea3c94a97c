"""bgp.rib.selection: RFC 4271 9.1.2 step by step."""

from __future__ import annotations

import itertools

import pytest

from bgp.rib.attributes import AS_SEQUENCE, AS_SET, PathAttributes, Segment
from bgp.rib.path import LOCAL, LocalRoute, Path, Source
from bgp.rib.selection import MAX_PATHS, select


def source(last: int, *, remote_as: int = 64512, router_id: int | None = None) -> Source:
    made = Source(f"p{last}", bytes([10, 0, 0, last]), local_as=64512, remote_as=remote_as)
    made.router_id = bytes([1, 1, 1, last if router_id is None else router_id])
    return made


def path(last: int, *, remote_as: int = 64512, router_id: int | None = None, **attributes) -> Path:
    attributes.setdefault("next_hop", bytes([10, 0, 0, last]))
    made = source(last, remote_as=remote_as, router_id=router_id)
    return Path(made, PathAttributes(**attributes))


def seq(*asns: int) -> tuple[Segment, ...]:
    return (Segment(AS_SEQUENCE, asns),)


NORMAL = 2**31 - 1 - 1024

# Better first; the second wins every later step, so the named step decides.
STEPS = {
    "own block": (
        Path(LOCAL, PathAttributes(local_pref=1), local=LocalRoute("block")),
        path(2, local_pref=900),
    ),
    "own workload": (
        Path(LOCAL, PathAttributes(local_pref=NORMAL, origin=2), local=LocalRoute("workload")),
        path(2, local_pref=NORMAL),
    ),
    "a workload that migrates away": (
        path(9, local_pref=NORMAL + 512, as_path=seq(1)),
        Path(LOCAL, PathAttributes(local_pref=NORMAL), local=LocalRoute("workload")),
    ),
    "local preference": (path(9, local_pref=200, as_path=seq(1, 2)), path(2, local_pref=100)),
    "default preference is 100": (path(9, as_path=seq(1, 2)), path(2, local_pref=99)),
    "as path length": (path(9, as_path=seq(1), origin=2), path(2, as_path=seq(1, 2))),
    "a set counts one": (
        path(9, as_path=(Segment(AS_SET, (1, 2, 3)),), origin=2),
        path(2, as_path=seq(1, 2)),
    ),
    "origin": (path(9, origin=0, as_path=seq(1), med=9), path(2, origin=2, as_path=seq(1))),
    "med of one neighbour": (
        path(9, as_path=seq(1), med=1),
        path(2, as_path=seq(1), med=2, remote_as=1),
    ),
    "no med is the lowest": (path(9, as_path=seq(1)), path(2, as_path=seq(1), med=1)),
    "external over internal": (
        path(9, as_path=seq(1), remote_as=1),
        path(2, as_path=seq(2), med=0),
    ),
    "router id": (path(9, router_id=1), path(2, router_id=2)),
    "originator instead of router id": (
        path(9, router_id=9, originator_id=bytes([1, 1, 1, 1])),
        path(2, router_id=2),
    ),
    "cluster list": (
        path(9, router_id=1, cluster_list=(b"\1\1\1\1",)),
        path(2, router_id=1, cluster_list=(b"\1\1\1\1", b"\2\2\2\2")),
    ),
    "peer address": (path(2, router_id=1), path(9, router_id=1)),
}


@pytest.mark.parametrize(("better", "worse"), STEPS.values(), ids=STEPS.keys())
def test_each_step_decides(better, worse):
    assert select((better, worse), ())[0] is better
    assert select((worse, better), ())[0] is better


def test_meds_of_different_neighbours_are_not_compared():
    one, other = path(2, as_path=seq(1), med=9), path(3, as_path=seq(2), med=1)
    assert select((one, other), ())[0] is one


def test_the_order_of_arrival_never_matters():
    # With pairwise comparison these three beat each other in a circle.
    a = path(2, as_path=seq(1), med=10, router_id=3)
    b = path(3, as_path=seq(2), med=5, router_id=2)
    c = path(4, as_path=seq(1), med=5, router_id=4)
    winners = {select(order, ())[0] for order in itertools.permutations((a, b, c))}
    assert winners == {b}


def test_equal_paths_share_the_load_in_a_fixed_order():
    paths = [path(n) for n in (4, 2, 3)]
    assert [p.source.name for p in select(tuple(paths), ())] == ["p2", "p3", "p4"]


def test_one_next_hop_counts_once():
    hop = bytes([10, 0, 0, 99])
    both = (path(2, next_hop=hop), path(3, next_hop=hop))
    assert select(both, ()) == (both[0],)


def test_worse_paths_do_not_share():
    assert len(select((path(2), path(3, local_pref=50)), ())) == 1


def test_an_unreachable_next_hop_is_never_used():
    good, bad = path(3, local_pref=1), path(2, local_pref=900)
    unreachable = {bad.next_hop}
    assert select((good, bad), unreachable) == (good,)
    assert select((bad,), unreachable) == ()
    assert select((bad, path(4, next_hop=bad.next_hop)), unreachable) == ()


def test_there_is_a_limit():
    many = tuple(path(n) for n in range(2, 2 + MAX_PATHS + 5))
    assert len(select(many, ())) == MAX_PATHS
