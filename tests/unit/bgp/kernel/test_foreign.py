"""bgp.kernel.foreign: routes by destination and link, and when they are no longer certain."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bgp.kernel.foreign import ForeignRoutes, key_of
from bgp.rib.nlri import parse
from libcalico.netlink import SCOPE_HOST, SCOPE_LINK, NextHop, Route
from tests.unit.bgp.builders import packed

V4, V6 = "10.65.0.1/32", "fd65::1/128"


def route(dst: str = V4, *ifindexes: int, **changes) -> Route:
    hops = tuple(NextHop(ifindex) for ifindex in ifindexes or (9,))
    return Route(dst, hops, **{"scope": SCOPE_LINK, **changes})


def routes(*listed: Route) -> ForeignRoutes:
    made = ForeignRoutes()
    for one in listed:
        made.list_one(parse(one.dst), one)
    made.check()
    return made


def shown(of: ForeignRoutes, dst: str = V4) -> list[Route]:
    of.check()
    return list(of.at(parse(dst)))


ONE, OTHER = route(V4, 9), route(V4, 8)


@pytest.mark.parametrize(
    ("listed", "added", "replaces", "is_sure", "left"),
    [
        ((), ONE, False, True, [ONE]),
        ((), ONE, True, True, [ONE]),  # it replaced one of ours
        ((ONE,), ONE, False, True, [ONE]),
        ((ONE,), OTHER, False, False, [ONE]),  # before or behind it?
        ((ONE,), OTHER, True, False, [OTHER]),  # or one of ours beside it
        ((ONE, OTHER), ONE, False, False, [ONE, OTHER]),
        ((ONE,), route(V4, 8, metric=5), False, True, [ONE, route(V4, 8, metric=5)]),
    ],
)
def test_what_is_added(listed, added, replaces, is_sure, left):
    of = routes(*listed)
    assert of.add(parse(V4), added, is_replacement=replaces) is is_sure
    assert shown(of) == left


@pytest.mark.parametrize(
    ("listed", "removed", "is_sure", "left"),
    [
        ((ONE,), ONE, True, []),
        ((ONE, OTHER), ONE, True, [OTHER]),
        ((), ONE, True, []),
        ((ONE,), OTHER, False, [ONE]),  # one way of several has other next hops
        ((ONE,), route(V4, 8, metric=5), True, [ONE]),
    ],
)
def test_what_is_removed(listed, removed, is_sure, left):
    of = routes(*listed)
    assert of.remove(parse(V4), removed) is is_sure
    assert shown(of) == left


def test_a_route_of_ours_may_have_displaced_one_of_its_rank():
    of = routes(ONE)
    assert not of.displace(parse(V4), route(V4, 2))
    assert of.displace(parse(V4), route(V4, 2, metric=1024))
    assert of.displace(parse(V6), route(V6, 2))


HOST_V4, HOST_V6 = route(V4, scope=SCOPE_HOST), route(V6, scope=SCOPE_HOST)


@pytest.mark.parametrize(
    ("listed", "is_gone", "is_sure", "left"),
    [
        ((ONE, OTHER), False, True, [OTHER]),
        ((HOST_V4,), False, True, [HOST_V4]),  # the kernel keeps it
        ((HOST_V4,), True, True, []),
        ((HOST_V6,), False, True, []),
        ((route(V4, 9, 8),), False, False, [route(V4, 9, 8)]),
        ((route(V4, 7, 8),), False, True, [route(V4, 7, 8)]),
    ],
)
def test_routes_go_with_their_link(listed, is_gone, is_sure, left):
    of = routes(*listed)
    assert of.take_down(9, is_gone=is_gone) is is_sure
    assert shown(of, listed[0].dst) == left
    assert of.take_down(9, is_gone=is_gone) is is_sure
    assert len(of) == bool(left)


def test_a_way_is_dead_while_its_link_has_no_carrier():
    of = routes(ONE, OTHER)
    for has_carrier in (False, False, True):
        assert of.set_carrier(9, has_carrier=has_carrier)
        assert [dead for _, dead in of.dump()[parse(V4)]] == [[not has_carrier], [False]]
    assert not routes(route(V4, 9, 8)).set_carrier(9, has_carrier=False)


def test_the_longest_prefix_and_the_lowest_metric_come_first():
    default, wide, cheap = (
        route("0.0.0.0/0", metric=1),
        route("10.64.0.0/15", metric=9),
        route("10.64.0.0/15", metric=5),
    )
    of = routes(default, wide, ONE, cheap, route(V6))
    found = [(32, ONE), (15, cheap), (15, wide), (0, default)]
    assert list(of.covering(packed("10.65.0.1"))) == found
    assert list(of.covering(packed("10.65.0.2"))) == found[1:]
    assert list(of.covering(packed("fd65::2"))) == []
    of.remove(parse(V4), ONE)
    assert list(of.covering(packed("10.65.0.1"))) == found[1:]


@pytest.mark.parametrize(
    "cidr",
    ["0.0.0.0/0", "10.0.0.0/8", "10.65.3.77/26", V4, "::/0", "2001:db8::/33", "fd00::1/64", V6],
)
def test_a_key_is_what_the_slow_way_gives(cidr):
    assert key_of(cidr) == parse(cidr)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "replace", "remove", "down", "gone", "carrier"]),
        st.sampled_from([V4, V6, "10.64.0.0/15"]),
        st.lists(st.integers(1, 3), max_size=2, unique=True),
        st.integers(0, 1),
    ),
    max_size=30,
)


@given(STEPS)
def test_the_tables_agree_whatever_comes(steps):
    of = ForeignRoutes()
    for what, dst, links, metric in steps:
        one = Route(dst, tuple(NextHop(link) for link in links), metric=metric)
        if what in ("add", "replace"):
            of.add(parse(dst), one, is_replacement=what == "replace")
        elif what == "remove":
            of.remove(parse(dst), one)
        elif what == "carrier":
            of.set_carrier(metric + 1, has_carrier=bool(links))
        else:
            of.take_down(metric + 1, is_gone=what == "gone")
        of.check()
    assert set(of) == {key for key in map(parse, (V4, V6, "10.64.0.0/15")) if list(of.at(key))}
