"""ipam.pools: selection (datamodel §2.3) and the blocks of a pool (§2.4)."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from ipam import pools
from ipam.errors import NoPools, PoolRefused, UseRequired
from ipam.pools import Pool, PoolQuery
from ipam.requests import LOAD_BALANCER_USE, TUNNEL, WINDOWS_RESERVED, WORKLOAD
from ipam.reservations import NONE_RESERVED, Reservations
from libcalico.errors import SelectorSyntaxError, ValidationError
from libcalico.model import codec

QUERY = PoolQuery(version=4, host="worker-1", use=WORKLOAD, node_labels={"zone": "a"})


def pool(name: str = "a", cidr: str = "10.10.0.0/16", block_size: int = 26, **more: object) -> Pool:
    return Pool(name=name, cidr=ip_network(cidr), block_size=block_size, **more)  # type: ignore[arg-type]


def names(selected: tuple[Pool, ...]) -> list[str]:
    return [p.name for p in selected]


# ---- read defaults -----------------------------------------------------------------------------


def resource(spec: str, extra: str = "") -> Pool:
    raw = f'{{"kind":"IPPool","metadata":{{"name":"p"}},"spec":{spec}{extra}}}'
    return pools.from_resource(codec.decode("IPPool", raw.encode(), 1))


@pytest.mark.parametrize(
    ("cidr", "block_size"), [("10.0.0.0/16", 26), ("fd00::/48", 122), ("10.0.0.5/16", 26)]
)
def test_what_a_pool_does_not_say_has_calicos_defaults(cidr: str, block_size: int):
    found = resource(f'{{"cidr":"{cidr}"}}')
    assert found.block_size == block_size
    assert found.enabled
    assert found.selects_node({})
    assert found.allowed_uses == (WORKLOAD, TUNNEL)
    assert found.assignment_mode == "Automatic"


@pytest.mark.parametrize(
    ("spec", "extra"),
    [
        ('{"cidr":"10.0.0.0/16","disabled":true}', ""),
        ('{"cidr":"10.0.0.0/16"}',
         ',"status":{"conditions":[{"type":"Allocatable","status":"False","reason":"CIDROverlap"}]}'),
    ],
)  # fmt: skip
def test_a_disabled_or_not_allocatable_pool_is_not_enabled(spec: str, extra: str):
    assert not resource(spec, extra).enabled


def test_a_pool_that_is_being_deleted_is_not_enabled():
    raw = b'{"kind":"IPPool","metadata":{"name":"p","deletionTimestamp":"2026-08-22T09:15:00Z"},'
    found = codec.decode("IPPool", raw + b'"spec":{"cidr":"10.0.0.0/16"}}', 1)
    assert not pools.from_resource(found).enabled


def test_an_allocatable_condition_that_is_true_changes_nothing():
    status = ',"status":{"conditions":[{"type":"Allocatable","status":"True","reason":"OK"}]}'
    assert resource('{"cidr":"10.0.0.0/16"}', status).enabled


# ---- selection ---------------------------------------------------------------------------------


def test_the_use_is_mandatory():
    with pytest.raises(UseRequired) as refused:
        pools.select([pool()], replace(QUERY, use=""))
    assert str(refused.value) == "must specify the intended use when assigning an IP"


def test_only_enabled_automatic_matching_pools_of_the_family_are_used_in_name_order():
    candidates = [
        pool("a", "10.1.0.0/16", node_selector="zone == 'a'"),
        pool("b", "10.2.0.0/16", node_selector="zone == 'b'"),
        pool("c", "10.3.0.0/16", enabled=False),
        pool("d", "10.4.0.0/16", assignment_mode="Manual"),
        pool("e", "fd00::/64", 122),
        pool("f", "10.5.0.0/16", allowed_uses=(TUNNEL,)),
        pool("g", "10.6.0.0/16"),
    ]
    selection = pools.select(candidates, QUERY)
    assert names(selection.usable) == ["a", "g"]
    assert names(selection.selecting) == ["a", "f", "g"]
    assert names(selection.enabled) == ["a", "b", "d", "f", "g"]
    v6 = pools.select(candidates, replace(QUERY, version=6))
    assert names(v6.usable) == ["e"]


@pytest.mark.parametrize(
    ("labels", "expected"), [({"team": "x"}, ["a", "b"]), ({"team": "y"}, ["b"]), (None, ["b"])]
)
def test_a_namespace_selector_sees_the_namespace_or_no_labels_at_all(
    labels: dict[str, str] | None, expected: list[str]
):
    candidates = [
        pool("a", "10.1.0.0/16", namespace_selector="team == 'x'"),
        pool("b", "10.2.0.0/16"),
    ]
    selection = pools.select(candidates, replace(QUERY, namespace_labels=labels))
    assert names(selection.usable) == expected


def test_explicit_pools_override_mode_and_selectors_but_not_the_use():
    candidates = [
        pool("a", "10.1.0.0/16", node_selector="zone == 'b'", namespace_selector="has(x)"),
        pool("b", "10.2.0.0/16", assignment_mode="Manual"),
        pool("c", "10.3.0.0/16"),
        pool("d", "10.4.0.0/16", allowed_uses=(TUNNEL,)),
    ]
    explicit = tuple(candidates[i].cidr for i in (1, 0, 3))
    selection = pools.select(candidates, replace(QUERY, explicit=explicit))
    assert names(selection.usable) == ["b", "a"]


@pytest.mark.parametrize("other", ["10.9.0.0/16", "10.1.0.0/17"])
def test_an_explicit_pool_must_be_an_enabled_pools_cidr(other: str):
    candidates = [pool("a", "10.1.0.0/16"), pool("b", "10.9.0.0/16", enabled=False)]
    with pytest.raises(PoolRefused) as refused:
        pools.select(candidates, replace(QUERY, explicit=(ip_network(other),)))
    assert str(refused.value) == f"the given pool ({other}) does not exist, or is not enabled"


@pytest.mark.parametrize(
    ("candidates", "text"),
    [
        ([], "cannot find a qualified ippool"),
        ([pool(enabled=False)], "cannot find a qualified ippool"),
        ([pool(node_selector="zone == 'b'")], "no configured Calico pools for node worker-1"),
        ([pool(allowed_uses=(LOAD_BALANCER_USE,))],
         "cannot find a qualified ippool, no pools match the required use (Workload)"),
    ],
)  # fmt: skip
def test_what_is_missing_is_said_in_calicos_words(candidates: list[Pool], text: str):
    with pytest.raises(NoPools) as refused:
        pools.select(candidates, QUERY)
    assert str(refused.value) == text


def test_pools_whose_blocks_are_too_small_for_what_windows_reserves_are_dropped():
    candidates = [pool("a", "10.1.0.0/16", 30), pool("b", "10.2.0.0/16", 29)]
    selection = pools.select(candidates, replace(QUERY, reserved=WINDOWS_RESERVED))
    assert names(selection.usable) == ["b"]
    with pytest.raises(NoPools, match=r"^cannot find a qualified ippool$"):
        pools.select(candidates[:1], replace(QUERY, reserved=WINDOWS_RESERVED))


def test_a_selector_that_does_not_parse_says_where():
    with pytest.raises(SelectorSyntaxError):
        pools.select([pool(node_selector="zone ==")], QUERY)


def test_pools_are_named_by_name_or_cidr():
    known = [pool("a", "10.1.0.0/16"), pool("b", "fd00::/64", 122)]
    assert pools.resolve(["a", "10.9.0.0/24"], known, 4) == (
        ip_network("10.1.0.0/16"), ip_network("10.9.0.0/24"),
    )  # fmt: skip
    with pytest.raises(PoolRefused, match='"nosuch" is neither the name of an IP pool nor a CIDR'):
        pools.resolve(["nosuch"], known, 4)
    with pytest.raises(PoolRefused, match='"b" isn\'t a IPv4 address'):
        pools.resolve(["b"], known, 4)


def test_a_pool_may_not_lie_over_blocks_of_another_size():
    existing = [ip_network("10.10.3.0/24"), ip_network("10.11.0.0/28"), ip_network("fd00::/122")]
    with pytest.raises(ValidationError) as refused:
        pools.check_block_size(pool(), existing)
    assert str(refused.value) == (
        "error with field IPPool.Spec.BlockSize = '26' (IPPool blocksSize conflicts with existing "
        "allocations that use a different blockSize)"
    )
    pools.check_block_size(pool(block_size=24), existing)
    pools.check_block_size(pool(), existing[1:])


# ---- blocks of a pool --------------------------------------------------------------------------

SHAPES = pytest.mark.parametrize(
    ("cidr", "block_size", "count"),
    [("10.10.0.0/24", 26, 4), ("10.10.0.0/26", 26, 1), ("10.10.0.0/28", 32, 16),
     ("fd00::/120", 122, 4), ("fd00::/120", 128, 256), ("10.10.0.0/20", 20, 1)],
)  # fmt: skip


@SHAPES
def test_a_walk_visits_every_block_once_from_the_hosts_own_start(
    cidr: str, block_size: int, count: int
):
    p = pool(cidr=cidr, block_size=block_size)
    walked = list(pools.walk(p, "worker-1"))
    assert len(walked) == pools.block_count(p) == count
    assert sorted(walked) == list(p.cidr.subnets(new_prefix=block_size))
    assert walked[0] == pools.block_at(p, pools.start_index(p, "worker-1"))


@SHAPES
def test_an_address_is_in_the_block_of_its_index(cidr: str, block_size: int, count: int):
    p = pool(cidr=cidr, block_size=block_size)
    for index in range(count):
        block = pools.block_at(p, index)
        assert pools.block_index(p, int(block.broadcast_address)) == index
        assert pools.block_of(p, block.broadcast_address) == block


def test_a_hundred_hosts_start_in_different_places():
    p = pool(cidr="10.0.0.0/12")  # 16384 blocks
    starts = {pools.start_index(p, f"node-{number}") for number in range(100)}
    assert len(starts) >= 98
    assert max(starts) > 12_000
    assert min(starts) < 4_000


def test_hosts_that_collide_in_one_pool_are_apart_in_another():
    one, other = pool(cidr="10.0.0.0/24"), pool(cidr="10.0.1.0/24")
    same = [
        host for host in map(str, range(200))
        if pools.start_index(one, host) == pools.start_index(one, "0")
    ]  # fmt: skip
    assert len({pools.start_index(other, host) for host in same}) == 4


@pytest.mark.parametrize("host", ["a", "b", "c", "d", "e"])
def test_the_first_free_block_is_the_first_of_the_walk_that_does_not_exist(host: str):
    p = pool(cidr="10.10.0.0/22")  # 16 blocks
    walked = list(pools.walk(p, host))
    taken: list[object] = []
    for expected in walked:
        assert pools.first_free(p, host, taken, NONE_RESERVED) == expected  # type: ignore[arg-type]
        taken.append(expected)
    assert pools.first_free(p, host, taken, NONE_RESERVED) is None  # type: ignore[arg-type]


def test_wholly_reserved_blocks_are_passed_over_and_partly_reserved_ones_are_not():
    p = pool(cidr="10.10.0.0/24")
    reserved = Reservations.of(["10.10.0.0/26", "10.10.0.65/32", "10.10.0.128/25"])
    assert pools.first_free(p, "x", [], reserved) == ip_network("10.10.0.64/26")
    second_half = Reservations.of(["10.10.0.0/26", "10.10.0.96/27", "10.10.0.128/25"])
    assert pools.first_free(p, "x", [], second_half) == ip_network("10.10.0.64/26")
    everything = Reservations.of(["10.10.0.0/16"])
    assert pools.first_free(p, "x", [], everything) is None


def test_blocks_of_another_size_close_all_they_touch():
    p = pool(cidr="10.10.0.0/24")
    assert pools.first_free(p, "x", [ip_network("10.10.0.0/25"), ip_network("10.10.0.200/32")],
                            NONE_RESERVED) == ip_network("10.10.0.128/26")  # fmt: skip
    assert pools.first_free(p, "x", [ip_network("10.0.0.0/8")], NONE_RESERVED) is None
    assert pools.first_free(p, "x", [ip_network("fd00::/122")], NONE_RESERVED) is not None


def test_a_huge_pool_costs_no_walk():
    p = pool(cidr="fd00::/8", block_size=122)
    start = pools.block_at(p, pools.start_index(p, "x"))
    reserved = Reservations.of([f"{start.network_address}/64"])
    found = pools.first_free(p, "x", [start], reserved)
    assert found is not None
    assert not reserved.overlaps(found)
    assert int(found.network_address) % 64 == 0


def test_existing_blocks_are_sorted_into_the_order_of_the_walk():
    p = pool(cidr="10.10.0.0/22")
    walked = list(pools.walk(p, "worker-7"))
    shuffled = [*sorted(walked, key=str), ip_network("10.99.0.0/26"), ip_network("fd00::/122")]
    assert pools.in_walk_order(p, "worker-7", shuffled) == walked


def test_the_pool_of_an_address_is_the_first_that_contains_it():
    known = [pool("a", "10.1.0.0/16"), pool("b", "fd00::/64", 122)]
    found = pools.pool_of(known, ip_address("fd00::5"))
    assert found is not None
    assert found.name == "b"
    assert pools.pool_of(known, ip_address("10.2.0.1")) is None
