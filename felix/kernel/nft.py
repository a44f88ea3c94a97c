"""NftPort over nfnetlink: our table read back, transactions committed.

Layer: felix.kernel; implements felix.dataplane.nft_port. Wired by the daemon.

Why raw netlink: a batch costs well under a millisecond; the `nft` command needs 5 ms before it does
anything and reads the whole ruleset back. Why sometimes a thread: a transaction is carried out
inside send(2). A small one takes less time than waking a thread; a large one (a full load, a set
of 100,000 members) would hold up the event loop, so it goes to one worker thread, like every
read-back.

  K1  one call at a time touches the socket (a lock), so sequence numbers and answers match;
  K2  a read-back is returned only if the ruleset's generation did not move meanwhile, or if two
      readings in a row agree: other programs change *their* tables all the time, which moves the
      generation but cannot change our objects.
"""

from __future__ import annotations

import asyncio
import errno
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from felix.dataplane.nft_port import (
    AddElements,
    AddEntries,
    DeleteElements,
    GenerationMoved,
    Op,
    Refusal,
    TableImage,
    TransactionRefused,
    WriteRules,
    describe,
)
from felix.kernel.nfnetlink import Answer, NfnetlinkSocket, SocketTransport, Transport
from felix.kernel.nft_codec import NFPROTO_INET, BatchEncoder, Msg
from felix.kernel.nft_decode import (
    ElementCollector,
    chain_images,
    element_list,
    parse_chain,
    parse_generation,
    parse_rule,
    parse_set,
)
from felix.rules.names import TABLE
from felix.rules.sets import SetSpec
from libcalico.errors import DumpInterrupted, ProgrammingFailed
from libcalico.netlink.messages import attr_text

T = TypeVar("T")

_GETTABLE, _GETCHAIN, _GETRULE, _GETSET, _GETSETELEM, _GETGEN = 1, 4, 7, 10, 13, 16
_READ_ATTEMPTS = 6
# Above this many rules and elements a commit goes to the worker thread: about 2 ms of work.
_INLINE_WEIGHT = 500
# A refused rule makes nft refuse what depends on it too; a person reads the first few.
_NAMED_REFUSALS = 3


class NftKernel:
    """The kernel's nf_tables in one network namespace. Close it when done."""

    def __init__(self, transport: Transport) -> None:
        self._socket = NfnetlinkSocket(transport, family=NFPROTO_INET)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="nft")
        self._lock = asyncio.Lock()

    @classmethod
    def in_namespace(cls, where: str | int | None = None) -> NftKernel:
        """In the namespace at a path or behind an fd, or (None) in this process's own."""
        if where is None:
            return cls(SocketTransport())
        return cls(SocketTransport.in_namespace(where))

    def close(self) -> None:
        self._worker.shutdown(wait=True)
        self._socket.close()

    async def read(self) -> TableImage:
        return await self._in_thread(self._read)

    async def generation(self) -> int:
        async with self._lock:
            return self._generation()

    async def commit(self, ops: Sequence[Op], *, generation: int | None = None) -> None:
        if sum(map(_weight, ops)) > _INLINE_WEIGHT:
            await self._in_thread(lambda: self._commit(ops, generation))
            return
        async with self._lock:
            self._commit(ops, generation)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        async with self._lock:
            # Shielded: a cancelled caller must not leave the thread alone with the socket (K1).
            running = asyncio.get_running_loop().run_in_executor(self._worker, work)
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                await asyncio.wait([running])
                raise

    # ------------------------------------------------------------------------------- writing

    def _commit(self, ops: Sequence[Op], generation: int | None) -> None:
        encoder = BatchEncoder()
        messages: list[Msg] = []
        starts: list[int] = []
        for op in ops:
            starts.append(len(messages))
            messages.extend(encoder.messages(op))
        if messages:
            answers = self._socket.transact(messages, generation=generation)
            if answers:
                raise _refused(answers, ops, starts)

    # ------------------------------------------------------------------------------- reading

    def _generation(self) -> int:
        return parse_generation(self._socket.get(_GETGEN)[0].body)

    def _read(self) -> TableImage:
        previous: TableImage | None = None
        for _ in range(_READ_ATTEMPTS):
            generation = self._generation()
            image = self._read_once(generation)
            if generation == self._generation() or (previous and _same(image, previous)):
                return image
            previous = image
        raise DumpInterrupted(f"table {TABLE} kept changing")

    def _read_once(self, generation: int) -> TableImage:
        of_table = attr_text(1, TABLE)
        try:
            self._socket.get(_GETTABLE, of_table)
        except ProgrammingFailed as err:
            if err.errno == errno.ENOENT:
                return TableImage(generation, exists=False)
            raise
        image = TableImage(generation)
        chains = (parse_chain(message.body) for message in self._socket.dump(_GETCHAIN))
        ours = [chain for chain in chains if chain is not None]
        rules = [parse_rule(message.body) for message in self._socket.dump(_GETRULE, of_table)]
        image.chains = chain_images(ours, rules)
        found = [parse_set(message.body) for message in self._socket.dump(_GETSET, of_table)]
        for name, spec in filter(None, found):
            image.sets[name] = spec
            if spec is not None:
                self._read_elements(spec, image)
        return image

    def _read_elements(self, spec: SetSpec, image: TableImage) -> None:
        collector = ElementCollector(spec)
        request = attr_text(1, TABLE) + attr_text(2, spec.name)
        try:
            for message in self._socket.dump(_GETSETELEM, request):
                collector.add(element_list(message.body))
        except ProgrammingFailed as err:
            if err.errno != errno.ENOENT:  # gone since it was listed: the generation moved
                raise
        if spec.is_map:
            image.entries[spec.name] = collector.entries
        else:
            image.elements[spec.name] = collector.elements()


def _weight(op: Op) -> int:
    if isinstance(op, AddElements | DeleteElements):
        return len(op.elements)
    if isinstance(op, AddEntries):
        return len(op.entries)
    return len(op.chain.rules) if isinstance(op, WriteRules) else 1


def _same(image: TableImage, previous: TableImage) -> bool:
    """Whether two readings agree, apart from the generation they were read at."""
    return replace(previous, generation=image.generation) == image


def _refused(answers: Iterable[Answer], ops: Sequence[Op], starts: Sequence[int]) -> Exception:
    """Answers name messages; the caller knows operations."""
    refusals: dict[int, Refusal] = {}
    first = min(answers, key=lambda answer: answer.place)
    for answer in answers:
        if answer.place < 0:
            if answer.errno == errno.ERESTART:
                return GenerationMoved("nft generation")
            return TransactionRefused((), "batch", answer.errno, answer.text)
        index = bisect_right(starts, answer.place) - 1
        refusals.setdefault(index, Refusal(index, answer.errno, answer.text))
    named = [describe(ops[index]) for index in sorted(refusals)[:_NAMED_REFUSALS]]
    return TransactionRefused(
        [refusals[index] for index in sorted(refusals)], ", ".join(named), first.errno, first.text
    )
