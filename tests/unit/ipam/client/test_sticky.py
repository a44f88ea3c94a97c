"""ipam.client.sticky: one address per identity and family, whoever asks, and what ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from ipam.cascade import delete_node
from ipam.client.sticky import Bound
from ipam.errors import ClaimTaken, PoolRefused
from ipam.garbage import Terms
from ipam.leaks import Standing, classify
from ipam.requests import WORKLOAD, AssignIP, AutoAssign, Release
from ipam.sticky import Identity
from libcalico.datastore.api import Compare
from libcalico.errors import AlreadyExists, NotFound, PoolExhausted
from libcalico.model import Node
from libcalico.model.codec import encode
from libcalico.model.ipam import IpamConfig
from libcalico.model.keys import key_of, path_of
from libcalico.model.meta import ObjectMeta
from libcalico.net import parse_ip
from libcalico.testing.datastore import MemoryDatastore
from tests.support.faulty import Fault, FaultyDatastore, nth
from tests.support.ipam import all_blocks, ask, audited, client, consistent, held, pool, source

POOLS = (pool("a", "10.0.0.0/24"), pool("b", "fd00::/112"))
WEB = Identity("net", "prod", "web-0", "eth0")


@pytest.fixture
async def store():
    found = MemoryDatastore()
    yield found
    assert await audited(found) == []
    await consistent(found)


def wish(container: str, host: str = "n1", v4: int = 1, v6: int = 0, **more: object) -> AutoAssign:
    return AutoAssign(
        host=host, use=WORKLOAD, handle_id=WEB.handle_id,
        attributes=WEB.attributes(host, container), num_v4=v4, num_v6=v6, **more,  # type: ignore[arg-type]
    )  # fmt: skip


async def stands(store: MemoryDatastore, bound: Bound) -> bool:
    fence = bound.fence
    return (await store.txn([Compare(path_of(fence.key), fence.mod_revision)], [])).succeeded


async def test_the_next_container_gets_the_same_addresses_on_another_node(store):
    first = await client(store, source(*POOLS)).claims.bind(wish("c1", v6=1))
    assert [a.version for a in first.addresses] == [4, 6]
    second = await client(store, source(*POOLS)).claims.bind(wish("c2", "n2", v6=1))
    assert second.addresses == first.addresses
    assert await held(store) == dict.fromkeys(first.addresses, WEB.handle_id)
    ipam = client(store, source(*POOLS))
    assignment = await ipam.assignment(first.addresses[0])
    assert assignment.attributes == WEB.attributes("n2", "c2")


async def test_the_fence_of_a_former_user_has_fallen(store):
    known = source(*POOLS)
    first = await client(store, known).claims.bind(wish("c1"))
    assert await stands(store, first)
    second = await client(store, known).claims.bind(wish("c2"))
    assert await stands(store, second)
    assert not await stands(store, first)


async def test_a_family_may_be_claimed_later(store):
    ipam = client(store, source(*POOLS))
    first = await ipam.claims.bind(wish("c1"))
    both = await ipam.claims.bind(wish("c2", v6=1))
    assert both.addresses[0] == first.addresses[0]
    assert [a.version for a in both.addresses] == [4, 6]


@pytest.mark.parametrize("one_process", [True, False])
async def test_many_at_once_of_one_identity_get_one_address(store, one_process):
    known = source(*POOLS)
    shared = client(store, known)
    clients = [shared if one_process else client(store, known) for _ in range(8)]
    outcomes = await asyncio.gather(
        *(c.claims.bind(wish(f"c{i}", f"n{1 + i % 2}", v6=1)) for i, c in enumerate(clients)),
        return_exceptions=True,
    )
    bound = [outcome for outcome in outcomes if isinstance(outcome, Bound)]
    assert all(isinstance(o, Bound | ClaimTaken) for o in outcomes), outcomes
    assert len({b.addresses for b in bound}) == 1
    assert len(await held(store)) == 2
    assert sum([await stands(store, b) for b in bound]) == 1


async def test_another_identity_gets_another_address(store):
    ipam = client(store, source(*POOLS))
    first = await ipam.claims.bind(wish("c1"))
    other = Identity("net", "prod", "web-1", "eth0")
    request = replace(
        wish("c2"), handle_id=other.handle_id, attributes=other.attributes("n1", "c2")
    )
    assert (await ipam.claims.bind(request)).addresses != first.addresses


@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.LOSE])
@pytest.mark.parametrize("call", range(1, 10))
@pytest.mark.parametrize("exists", [True, False])
async def test_a_fault_at_any_call_costs_no_second_address(store, exists, call, fault):
    known = source(*POOLS)
    if exists:
        await client(store, known).claims.bind(wish("c0", "n2"))
    faulty = FaultyDatastore(store, nth(call, fault))
    with_luck = await asyncio.gather(
        client(faulty, known).claims.bind(wish("c1")), return_exceptions=True
    )
    again = await client(store, known).claims.bind(wish("c2"))
    assert await held(store) == {again.addresses[0]: WEB.handle_id}
    if isinstance(with_luck[0], Bound):
        assert with_luck[0].addresses == again.addresses


class Interrupted(FaultyDatastore):
    """Right before one call somebody else does something."""

    def __init__(
        self, inner: MemoryDatastore, call: int, action: Callable[[], Awaitable[object]]
    ) -> None:
        super().__init__(inner, lambda number, operation: Fault.OK)
        self._at, self._action = call, action

    async def _call(self, operation, call):
        if self.calls + 1 == self._at:
            await self._action()
        return await super()._call(operation, call)


@pytest.mark.parametrize("call", range(1, 10))
@pytest.mark.parametrize("exists", [True, False])
async def test_of_two_users_only_the_last_has_a_standing_fence(store, exists, call):
    known, others = source(*POOLS), []
    if exists:
        await client(store, known).claims.bind(wish("c0", "n2"))

    async def other() -> None:
        others.append(await client(store, known).claims.bind(wish("c2", "n2")))

    try:
        mine = await client(Interrupted(store, call, other), known).claims.bind(wish("c1"))
    except ClaimTaken:
        mine = None
    standing = [b for b in (mine, *others) if b and await stands(store, b)]
    assert len(standing) == 1
    (address,) = await held(store)
    user = (await client(store, known).assignment(address)).attributes["container"]
    assert user == ("c1" if standing[0] is mine else "c2")


@pytest.mark.parametrize("call", range(1, 10))
async def test_a_release_at_any_moment_leaves_no_fence_without_a_claim(store, call):
    known = source(*POOLS)
    (address,) = (await client(store, known).claims.bind(wish("c0"))).addresses

    async def release() -> None:
        await client(store, known).release_ips([Release(address=address)])

    try:
        bound = await client(Interrupted(store, call, release), known).claims.bind(wish("c1"))
    except ClaimTaken:
        return
    assert await stands(store, bound) == (set(bound.addresses) <= (await held(store)).keys())


# ---- a particular address ------------------------------------------------------------------------


async def test_a_wanted_address_is_claimed_and_stays(store):
    ipam, wanted = client(store, source(*POOLS)), parse_ip("10.0.0.77")
    first = await ipam.claims.bind(wish("c1"), [wanted])
    assert first.addresses == (wanted,)
    assert (await ipam.claims.bind(wish("c2", "n2"))).addresses == (wanted,)
    assert (await ipam.claims.bind(wish("c3", "n2"), [wanted])).addresses == (wanted,)
    with pytest.raises(PoolRefused, match=r"10\.0\.0\.78 is asked for, but .* is 10\.0\.0\.77"):
        await ipam.claims.bind(wish("c4"), [parse_ip("10.0.0.78")])


async def test_a_wanted_address_of_somebody_else_is_refused(store):
    ipam, wanted = client(store, source(*POOLS)), parse_ip("10.0.0.77")
    await ipam.assign_ip(AssignIP(address=wanted, host="n1", handle_id="net.other"))
    with pytest.raises(AlreadyExists):
        await ipam.claims.bind(wish("c1"), [wanted])
    assert await held(store) == {wanted: "net.other"}


# ---- where it may be used ------------------------------------------------------------------------


RACKS = {"n1": {"rack": "a"}, "n2": {"rack": "b"}}


@pytest.mark.parametrize(
    ("then", "reason"),
    [
        ({"enabled": False}, "is disabled"),
        ({"node_selector": "rack == 'a'"}, "the nodeSelector of IP pool"),
        ({"allowed_uses": ("Tunnel",)}, "is not allowed for use"),
    ],
)
async def test_a_pool_that_does_not_allow_it_is_an_error_and_no_other_address(store, then, reason):
    spare = pool("spare", "10.9.0.0/24")
    before = source(pool("a", "10.0.0.0/24"), spare, nodes=RACKS)
    (address,) = (await client(store, before).claims.bind(wish("c1"))).addresses
    after = source(pool("a", "10.0.0.0/24", **then), spare, nodes=RACKS)
    with pytest.raises(PoolRefused) as caught:
        await client(store, after).claims.bind(wish("c2", "n2"))
    for part in (str(address), "node n2", '"a"', reason):
        assert part in str(caught.value)
    assert await held(store) == {address: WEB.handle_id}


async def test_a_pool_that_is_gone_or_not_asked_for_is_an_error(store):
    a, spare = pool("a", "10.0.0.0/24"), pool("spare", "10.9.0.0/24")
    await client(store, source(a)).claims.bind(wish("c1"))
    with pytest.raises(PoolRefused, match="it is in no IP pool"):
        await client(store, source(spare)).claims.bind(wish("c2"))
    with pytest.raises(PoolRefused, match="not among the pools asked for"):
        await client(store, source(a, spare)).claims.bind(wish("c2", pools_v4=(spare.cidr,)))


async def test_a_wanted_address_obeys_the_node_selector(store):
    known = source(pool("a", "10.0.0.0/24", node_selector="rack == 'a'"), nodes=RACKS)
    with pytest.raises(PoolRefused, match="does not select the node"):
        await client(store, known).claims.bind(wish("c1", "n2"), [parse_ip("10.0.0.7")])
    with pytest.raises(PoolRefused, match="not in a configured pool"):
        await client(store, known).claims.bind(wish("c1"), [parse_ip("10.5.0.7")])


async def test_strict_affinity_keeps_a_claim_on_its_blocks_node(store):
    strict = source(*POOLS, config=IpamConfig(strict_affinity=True, auto_allocate_blocks=True))
    (address,) = (await client(store, strict).claims.bind(wish("c1"))).addresses
    with pytest.raises(PoolRefused) as caught:
        await client(store, strict).claims.bind(wish("c2", "n2"))
    for part in (str(address), "node n2", '"a"', "strict affinity"):
        assert part in str(caught.value)
    assert (await client(store, strict).claims.bind(wish("c3"))).addresses == (address,)


async def test_a_full_pool_says_so(store):
    ipam = client(store, source(pool("a", "10.0.0.0/30", 30)))
    await ipam.auto_assign(ask("x", v4=4))
    with pytest.raises(PoolExhausted, match=r"No IPs available in pools: \[10\.0\.0\.0/30\]"):
        await ipam.claims.bind(wish("c1"))


# ---- what ends it, and what does not -------------------------------------------------------------


async def test_a_release_ends_a_claim(store):
    ipam = client(store, source(*POOLS))
    bound = await ipam.claims.bind(wish("c1"))
    released = await ipam.release_ips([Release(address=bound.addresses[0])])
    assert len(released.released) == 1
    assert await held(store) == {}
    assert not await stands(store, bound)


async def test_a_claim_is_in_use_without_any_endpoint(store):
    await client(store, source(*POOLS)).claims.bind(wish("c1"))
    (found,) = classify((await all_blocks(store)).values(), {}, living=())
    assert found.standing is Standing.IN_USE
    assert found.owners == ("StickyClaim(net/prod/web-0/eth0)",)


async def test_a_claim_survives_the_deletion_of_its_node_and_goes_on_elsewhere(store):
    node = Node(metadata=ObjectMeta(name="n1"))
    await store.create(path_of(key_of(node)), encode(node))
    ipam = client(store, source(*POOLS))
    (address,) = (await ipam.claims.bind(wish("c1"))).addresses
    await ipam.auto_assign(ask("ordinary"))
    await delete_node(ipam, "n1")
    with pytest.raises(NotFound):
        await delete_node(ipam, "n1")
    (block,) = (await all_blocks(store)).values()
    assert block.affinity is None
    assert (await held(store))[address] == WEB.handle_id
    assert (await client(store, source(*POOLS)).claims.bind(wish("c2", "n2"))).addresses == (
        address,
    )


async def test_the_collector_leaves_the_claims_of_a_vanished_node_alone(store):
    ipam = client(store, source(*POOLS, nodes=("n1", "n2")))
    (address,) = (await ipam.claims.bind(wish("c1"))).addresses
    await ipam.auto_assign(ask("ordinary"))
    collector = ipam.collector()
    for _ in range(2):
        await collector.run_pass(Terms(grace_s=1e-9))
    assert await held(store) == {address: WEB.handle_id}
    (block,) = (await all_blocks(store)).values()
    assert block.affinity is None
    # The node that used it last is no news at every pass.
    report = await collector.run_pass(Terms(grace_s=1e-9))
    assert report.plan.vanished == frozenset()
    assert report.freed.total() == 0
