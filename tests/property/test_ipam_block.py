"""A block under any sequence of operations: B1-B5 of ipam.blocks, against a plain model.

The model: who holds which ordinal, which are cooling since when, and the order in which they became
free. The block goes through the codec before every step, as it does in life. What a reader collects
stays its own knowledge until it writes: the next one, with its own cooldown, starts from the store.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ipam import blocks
from ipam.blocks import BlockDraft, Holder
from ipam.requests import WINDOWS_RESERVED, Release
from ipam.reservations import Reservations
from libcalico.errors import AlreadyExists, SuiteError
from libcalico.model import codec
from libcalico.model.ipam import Block
from libcalico.model.keys import BlockKey
from libcalico.net import address_of

START = 1_787_476_801.0
HOLDERS = st.sampled_from(
    [Holder(f"net.{i}", {"pod": f"p{i}"}) for i in range(4)]
    + [Holder("net.0", {"pod": "again"}), Holder(None, {"note": "x"}), Holder()]
)
ORDINALS = st.integers(0, 15)
COOLDOWNS = st.sampled_from([0, 0, 5, 30])


@dataclass
class Model:
    """What a block says, in plain words."""

    free: list[int]
    held: dict[int, tuple[Holder, int]] = field(default_factory=dict)
    cooling: dict[int, int] = field(default_factory=dict)

    def copy(self) -> Model:
        return replace(self, free=list(self.free), held=dict(self.held), cooling=dict(self.cooling))

    def collect(self, now: float, cooldown: float) -> None:
        """Everything that has rested, whoever released it, in the order of the ordinals."""
        for ordinal in sorted(self.cooling):
            if self.cooling[ordinal] < now - cooldown:
                del self.cooling[ordinal]
                self.free.append(ordinal)

    def take(self, ordinals: tuple[int, ...], holder: Holder, sequence: int) -> None:
        for ordinal in ordinals:
            self.free.remove(ordinal)
            self.held[ordinal] = (holder, sequence)

    def give(self, ordinals: list[int], now: float, cooldown: float) -> None:
        for ordinal in ordinals:
            del self.held[ordinal]
            self.cooling[ordinal] = int(now)
        # The pass after a release runs a moment later, and over the whole block (§2.6, step 3).
        self.collect(math.nextafter(now, math.inf), cooldown)


class BlockMachine(RuleBasedStateMachine):
    """One /28 or /124."""

    @initialize(v6=st.booleans(), windows=st.booleans())
    def start(self, v6: bool, windows: bool) -> None:
        cidr = "fd00:10::40/124" if v6 else "10.10.3.64/28"
        self.block = blocks.new_block(cidr, 1000, WINDOWS_RESERVED if windows else None)
        self.reserved_by_host = {0, 1, 2, 15} if windows else set()
        self.stored = Model([i for i in range(16) if i not in self.reserved_by_host])
        self.now = START
        self.cooldown = 0.0

    def open(self) -> tuple[BlockDraft, Model]:
        """The block as the next process reads it, and what the model says that process sees."""
        raw = codec.encode(self.block)
        again = codec.decode_as(Block, BlockKey(self.block.cidr), raw, 1)
        assert again == self.block
        draft = BlockDraft(again)
        draft.collect(self.now, self.cooldown)
        model = self.stored.copy()
        model.collect(self.now, self.cooldown)
        return draft, model

    def write(self, draft: BlockDraft, model: Model) -> None:
        before = self.block.sequence_number
        self.block = draft.finish()
        assert self.block.sequence_number == before + 1
        self.stored = model

    @rule(seconds=st.floats(0.5, 40))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(seconds=COOLDOWNS)
    def somebody_sets_the_cooldown(self, seconds: float) -> None:
        self.cooldown = seconds

    @rule(count=st.integers(1, 5), holder=HOLDERS, hidden=st.sets(ORDINALS, max_size=6))
    def assign(self, count: int, holder: Holder, hidden: set[int]) -> None:
        draft, model = self.open()
        texts = [str(draft.address(ordinal)) for ordinal in hidden]
        got = draft.assign(count, holder, Reservations.of(texts))
        visible = [ordinal for ordinal in model.free if ordinal not in hidden]
        assert list(got) == visible[:count]
        if got:
            model.take(got, holder, self.block.sequence_number)
            self.write(draft, model)

    @rule(ordinal=ORDINALS, holder=HOLDERS)
    def assign_one(self, ordinal: int, holder: Holder) -> None:
        draft, model = self.open()
        try:
            draft.assign_one(draft.address(ordinal), holder)
        except AlreadyExists:
            assert ordinal not in model.free
            return
        model.take((ordinal,), holder, self.block.sequence_number)
        self.write(draft, model)

    @rule(
        ordinals=st.lists(ORDINALS, min_size=1, max_size=4),
        wrong=st.sampled_from(["", "", "handle", "sequence"]),
    )
    def release(self, ordinals: list[int], wrong: str) -> None:
        mine = [o for o in ordinals if o not in self.reserved_by_host]
        draft, model = self.open()
        requests = [self.request(draft, o, wrong if o == mine[-1] else "") for o in mine]
        refused = bool(mine) and (
            wrong == "sequence" or (wrong == "handle" and mine[-1] in model.held)
        )
        before = self.block
        try:
            effect = draft.release(requests, self.now, self.cooldown)
        except SuiteError:
            assert refused
            assert not draft.changed
            untouched = BlockDraft(before)
            untouched.collect(self.now, self.cooldown)
            assert draft.finish() == untouched.finish()  # B5
            return
        assert not refused
        assert {o for o, _, _ in effect.released} == set(mine) & set(model.held)
        if effect.released:
            model.give([o for o, _, _ in effect.released], self.now, self.cooldown)
            self.write(draft, model)

    def request(self, draft: BlockDraft, ordinal: int, wrong: str) -> Release:
        address = draft.address(ordinal)
        if wrong == "handle":
            return Release(address=address, handle_id="net.nobody")
        return Release(address=address, sequence_number=7 if wrong else None)

    @rule(number=st.integers(0, 3))
    def release_handle(self, number: int) -> None:
        draft, model = self.open()
        mine = [o for o, (h, _) in model.held.items() if h.handle_id == f"net.{number}"]
        released = draft.release_handle(f"net.{number}", self.now, self.cooldown)
        assert [o for o, _, _ in released] == sorted(mine)
        if released:
            model.give(sorted(mine), self.now, self.cooldown)
            self.write(draft, model)

    @rule()
    def lose_the_affinity(self) -> None:
        self.block = blocks.without_affinity(self.block)

    @invariant()
    def sound(self) -> None:
        if not hasattr(self, "block"):
            return
        assert blocks.problems_of(self.block, self.now + 1) == ()
        assert json.loads(codec.encode(self.block))["sequenceNumber"] == self.block.sequence_number

    @invariant()
    def as_the_model_says(self) -> None:
        if not hasattr(self, "block"):
            return
        base = int(BlockDraft(self.block).network.network_address)
        version = BlockDraft(self.block).network.version
        for ordinal in range(16):
            found = blocks.assignment_of(self.block, address_of(version, base + ordinal))
            expected = self.stored.held.get(ordinal)
            if ordinal in self.reserved_by_host:
                continue
            if expected is None:
                assert found is None
                continue
            assert found is not None
            holder, sequence = expected
            assert (found.handle_id, dict(found.attributes)) == (
                holder.handle_id, dict(holder.attributes),
            )  # fmt: skip
            assert found.sequence_number == sequence
        addresses = {o: address_of(version, base + o) for o in range(16)}
        cooling = {o for o, address in addresses.items() if blocks.is_cooling(self.block, address)}
        assert list(self.block.unallocated) == self.stored.free
        assert cooling == set(self.stored.cooling)
        assert blocks.is_empty(self.block) is not bool(self.stored.held or self.stored.cooling)


TestBlockMachine = BlockMachine.TestCase
TestBlockMachine.settings = settings(
    derandomize=True, max_examples=120, stateful_step_count=30, deadline=None
)
