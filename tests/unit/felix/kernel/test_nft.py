"""felix.kernel.nft: the port over a fake kernel: threads, generations, refusals by operation."""

from __future__ import annotations

import asyncio
import errno
import threading

import pytest

from felix.dataplane.nft_port import (
    AddChain,
    AddElements,
    AddSet,
    AddTable,
    GenerationMoved,
    TransactionRefused,
    WriteRules,
)
from felix.kernel.nft import NftKernel
from felix.rules.chain import DROP, Chain, Rule, jump
from felix.rules.sets import net_element, net_set
from libcalico.errors import DumpInterrupted, ProgrammingFailed
from libcalico.testing.fakenft import FakeNft


class Rig:
    def __init__(self) -> None:
        self.fake = FakeNft()
        self.kernel = NftKernel(self.fake)


@pytest.fixture
async def rig():
    made = Rig()
    yield made
    made.kernel.close()


async def test_without_a_table_there_is_nothing_to_read(rig: Rig):
    image = await rig.kernel.read()
    assert not image.exists
    assert image.chains == {}
    assert image.generation == await rig.kernel.generation()


async def test_what_was_committed_is_read_back(rig: Rig):
    elements = [net_element(4, 5, 32)]
    chain = Chain("c", (Rule((), (DROP,)),))
    spec = net_set("s", 4)
    ops = [
        AddTable(),
        AddSet(spec),
        AddElements(spec, elements),
        AddChain("c"),
        WriteRules(chain, b"d" * 16),
    ]
    await rig.kernel.commit(ops)
    image = await rig.kernel.read()
    assert image.exists
    assert image.chains["c"].digest == b"d" * 16
    assert image.elements == {"s": set(elements)}


async def test_a_refusal_names_the_operation_not_the_message(rig: Rig):
    good = Chain("good", tuple(Rule((), (DROP,)) for _ in range(3)))
    bad = Chain("bad", (Rule((), (DROP,)), Rule((), (jump("nowhere"),))))
    ops = [AddTable(), AddChain("good"), AddChain("bad")]
    ops += [WriteRules(good, bytes(16)), WriteRules(bad, bytes(16)), AddSet(net_set("s", 4))]
    with pytest.raises(TransactionRefused) as caught:
        await rig.kernel.commit(ops)
    ((refusal),) = caught.value.refusals
    assert (refusal.op_index, refusal.errno) == (4, errno.ENOENT)
    assert "WriteRules bad" in str(caught.value)
    assert rig.fake.tables == {}, "all or nothing"


async def test_several_refusals_of_one_operation_are_one(rig: Rig):
    bad = Chain("bad", tuple(Rule((), (jump("nowhere"),)) for _ in range(3)))
    with pytest.raises(TransactionRefused) as caught:
        await rig.kernel.commit([AddTable(), AddChain("bad"), WriteRules(bad, bytes(16))])
    assert len(caught.value.refusals) == 1


async def test_a_commit_can_insist_on_the_generation_it_read(rig: Rig):
    generation = await rig.kernel.generation()
    await rig.kernel.commit([AddTable()], generation=generation)
    with pytest.raises(GenerationMoved):
        await rig.kernel.commit([AddChain("c")], generation=generation)


async def test_a_batch_refused_as_such_names_no_operation(rig: Rig):
    rig.fake.refuse_batches(errno.ENOMEM)
    with pytest.raises(TransactionRefused) as caught:
        await rig.kernel.commit([AddTable()])
    assert caught.value.refusals == ()
    assert caught.value.errno == errno.ENOMEM


async def test_nothing_to_do_is_not_sent(rig: Rig):
    await rig.kernel.commit([])
    await rig.kernel.commit([AddElements(net_set("s", 4), [])])
    assert rig.fake.commits == 0


async def test_large_commits_and_readings_leave_the_loop_alone(rig: Rig):
    threads: list[str] = []
    send = rig.fake.send

    def watch(data: bytes) -> None:
        threads.append(threading.current_thread().name)
        send(data)

    rig.fake.send = watch  # type: ignore[method-assign]
    spec = net_set("s", 4)
    await rig.kernel.commit([AddTable(), AddSet(spec)])
    await rig.kernel.commit([AddElements(spec, [net_element(4, n * 2, 32) for n in range(2000)])])
    await rig.kernel.read()
    assert not threads[0].startswith("nft")
    assert all(name.startswith("nft") for name in threads[1:])


async def test_calls_take_turns(rig: Rig):
    spec = net_set("s", 4)
    await rig.kernel.commit([AddTable(), AddSet(spec)])
    many = [AddElements(spec, [net_element(4, n * 2, 32) for n in range(2000)])]
    results = await asyncio.gather(
        rig.kernel.commit(many), rig.kernel.read(), rig.kernel.commit([AddChain("c")])
    )
    assert results[1].exists
    assert (await rig.kernel.read()).chains.keys() == {"c"}


async def test_a_ruleset_that_changes_while_it_is_read_is_read_again(rig: Rig):
    await rig.kernel.commit([AddTable(), AddChain("c")])
    send, moved = rig.fake.send, []

    def disturb(data: bytes) -> None:
        if data[4] == 7 and not moved:  # NFT_MSG_GETRULE
            moved.append(True)
            rig.fake.touch()
        send(data)

    rig.fake.send = disturb  # type: ignore[method-assign]
    image = await rig.kernel.read()
    assert image.generation == rig.fake.generation


async def test_foreign_changes_all_the_time_do_not_stop_a_reading(rig: Rig):
    await rig.kernel.commit([AddTable(), AddChain("c")])
    send = rig.fake.send

    def disturb(data: bytes) -> None:
        rig.fake.touch()
        send(data)

    rig.fake.send = disturb  # type: ignore[method-assign]
    assert (await rig.kernel.read()).chains.keys() == {"c"}


async def test_a_table_that_never_keeps_still_is_given_up(rig: Rig):
    await rig.kernel.commit([AddTable(), AddChain("c")])
    send, count = rig.fake.send, []

    def disturb(data: bytes) -> None:
        rig.fake.touch()
        (table,) = rig.fake.tables.values()
        count.append(1)
        name = f"x{len(count)}"
        table.chains[name] = type(table.chains["c"])(name)
        send(data)

    rig.fake.send = disturb  # type: ignore[method-assign]
    with pytest.raises(DumpInterrupted):
        await rig.kernel.read()


async def test_a_failing_socket_is_a_programming_failure(rig: Rig):
    def fail() -> bytes:
        raise ProgrammingFailed("receive", "", errno.ENOBUFS)

    rig.fake.receive = fail  # type: ignore[method-assign]
    with pytest.raises(ProgrammingFailed):
        await rig.kernel.generation()


async def test_a_cancelled_reading_finishes_before_the_next_call(rig: Rig):
    await rig.kernel.commit([AddTable(), AddChain("c")])
    reached, go_on = threading.Event(), threading.Event()
    send = rig.fake.send

    def slow(data: bytes) -> None:
        if data[4] == 7:
            reached.set()
            go_on.wait(5)
        send(data)

    rig.fake.send = slow  # type: ignore[method-assign]
    reading = asyncio.create_task(rig.kernel.read())
    await asyncio.to_thread(reached.wait, 5)
    reading.cancel()
    next_call = asyncio.create_task(rig.kernel.generation())
    await asyncio.sleep(0)
    assert not next_call.done()
    go_on.set()
    assert await next_call == rig.fake.generation
    with pytest.raises(asyncio.CancelledError):
        await reading
