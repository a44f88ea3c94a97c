"""felix.dataplane.shaping_table: buckets and redirections come, are kept, are repaired and go."""

from __future__ import annotations

import errno

import pytest

from felix.dataplane.shaping import Shape, ifb_name
from felix.dataplane.shaping_table import ShapingTable
from libcalico.netlink import TokenBucket
from libcalico.testing.kernel import FakeKernel

IN, OUT = TokenBucket(1000, 2000, 3000), TokenBucket(4000, 5000, 6000)
BOTH = Shape(IN, OUT, 1500)
IFB = ifb_name("cali1")


class World:
    def __init__(self) -> None:
        self.kernel = FakeKernel()
        self.fake = self.kernel.shaping
        self.kernel.add_link("cali1")
        self.restart()

    def restart(self) -> None:
        self.table = ShapingTable(self.fake, ("cali",))  # type: ignore[arg-type]

    async def want(self, shape: Shape | None, ifname: str = "cali1"):
        self.table.set_shape(ifname, shape)
        return await self.apply()

    async def apply(self):
        self.fake.steps.clear()
        return await self.table.apply()

    async def resync(self):
        self.table.queue_resync("test")
        return await self.apply()

    def names(self) -> set[str]:
        return {link.name for link in self.kernel.all_links()}


@pytest.fixture
def world() -> World:
    return World()


async def test_both_directions_are_shaped(world: World):
    result = await world.want(BOTH)
    assert (result.written, result.failed) == (2, 0)
    assert (world.fake.bucket("cali1"), world.fake.bucket(IFB)) == (IN, OUT)
    assert world.fake.target("cali1") == IFB
    assert world.table.problem("cali1") == ""


async def test_the_redirection_comes_after_its_bucket(world: World):
    await world.want(Shape(None, OUT, 1500))
    assert world.fake.steps == [f"add ifb {IFB}", f"set bucket {IFB}", "redirect cali1"]
    assert world.fake.bucket("cali1") is None


async def test_a_changed_limit_changes_the_bucket_alone(world: World):
    await world.want(BOTH)
    await world.want(Shape(IN, IN, 1500))
    assert world.fake.steps == [f"set bucket {IFB}"]


async def test_limits_that_go_leave_nothing(world: World):
    await world.want(BOTH)
    result = await world.want(None)
    assert result.deleted == 2
    assert world.names() == {"lo", "cali1"}
    assert not (world.fake.roots.keys() | world.fake.hooks.keys()) & {2}
    assert world.fake.filters == []


async def test_a_fresh_process_writes_nothing(world: World):
    await world.want(BOTH)
    world.restart()
    result = await world.want(BOTH)
    assert (result.written, result.deleted, world.fake.steps) == (0, 0, [])


async def test_a_fresh_process_removes_what_is_not_wanted(world: World):
    await world.want(BOTH)
    world.restart()
    await world.apply()
    assert world.names() == {"lo", "cali1"}
    assert world.fake.bucket("cali1") is None


async def test_nothing_is_read_twice_without_a_reason(world: World):
    await world.want(BOTH)
    await world.apply()
    assert world.fake.reads == 1


@pytest.mark.parametrize("harm", ["bucket", "ifb", "filter", "ifb bucket"])
async def test_what_others_break_is_repaired(world: World, harm: str):
    await world.want(BOTH)
    if harm == "bucket":
        world.fake.roots.pop(world.kernel.link("cali1").ifindex)
    elif harm == "ifb":
        world.kernel.delete_link(IFB)
    elif harm == "filter":
        world.fake.filters.clear()
    else:
        world.fake.roots.pop(world.kernel.link(IFB).ifindex)
    await world.resync()
    assert (world.fake.bucket("cali1"), world.fake.bucket(IFB)) == (IN, OUT)
    assert world.fake.target("cali1") == IFB


async def test_an_interface_made_anew_is_shaped_anew(world: World):
    await world.want(BOTH)
    world.kernel.delete_link("cali1")
    world.kernel.add_link("cali1")
    world.table.forget_written("cali1")
    await world.want(BOTH)
    assert (world.fake.bucket("cali1"), world.fake.target("cali1")) == (IN, IFB)


async def test_the_ifb_goes_with_the_interface(world: World):
    await world.want(BOTH)
    world.kernel.delete_link("cali1")
    world.table.forget_written("cali1")
    await world.want(None)
    assert world.names() == {"lo"}


async def test_a_foreign_qdisc_is_left_alone_and_named(world: World):
    world.fake.put_root("cali1", "htb", 1 << 16)
    result = await world.want(BOTH)
    assert (result.failed, result.deferred) == (0, 1)
    assert world.fake.bucket("cali1") is None
    assert "qdisc of another program: htb 1:" in world.table.problem("cali1")
    assert world.fake.target("cali1") == IFB, "the other direction is limited"
    world.fake.roots.pop(world.kernel.link("cali1").ifindex)
    await world.resync()
    assert (world.fake.bucket("cali1"), world.table.problem("cali1")) == (IN, "")


async def test_a_foreign_qdisc_that_came_since_the_reading_is_not_replaced(world: World):
    await world.apply()
    world.fake.put_root("cali1", "tbf", 1 << 16)
    assert (await world.want(Shape(IN, None, 1500))).failed == 1
    assert (await world.apply()).failed == 0
    assert "another program" in world.table.problem("cali1")


async def test_a_foreign_ingress_filter_is_left_alone_and_named(world: World):
    world.fake.put_filter("cali1", "u32", 1)
    await world.want(BOTH)
    assert world.fake.target("cali1") == ""
    assert "ingress filter of another program: u32" in world.table.problem("cali1")
    assert IFB not in world.names()
    await world.want(None)
    assert len(world.fake.filters) == 1
    assert world.fake.hooks


async def test_a_foreign_filter_beside_ours_keeps_the_hook(world: World):
    await world.want(BOTH)
    world.fake.put_filter("cali1", "bpf", 7)
    await world.resync()
    await world.want(None)
    assert [one.kind for one in world.fake.filters] == ["bpf"]
    assert world.fake.hooks
    assert IFB not in world.names()


@pytest.mark.parametrize("operation", ["set bucket", "add ifb", "redirect", "read"])
async def test_a_refusal_is_said_and_tried_again(world: World, operation: str):
    world.fake.refuse[operation] = errno.EOPNOTSUPP
    result = await world.want(BOTH)
    assert result.failed
    assert world.table.problem("cali1")
    world.fake.refuse.clear()
    assert (await world.apply()).failed == 0
    assert (world.fake.bucket("cali1"), world.fake.target("cali1")) == (IN, IFB)
    assert world.table.problem("cali1") == ""


async def test_other_interfaces_are_not_looked_at(world: World):
    world.kernel.add_link("eth0")
    world.fake.put_root("eth0", "tbf", 0xCA110000)
    await world.want(BOTH)
    await world.want(None)
    assert world.fake.roots[world.kernel.link("eth0").ifindex].kind == "tbf"
