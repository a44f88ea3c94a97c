"""The nftables driver: reconciles the table `inet calico` with what the managers want.

Layer: felix.dataplane. Talks to the kernel through NftPort; wired by the daemon. What is wanted is
in `table.wanted` (nft_wanted), what to do about it in nft_plan; this module reads back, commits,
confirms, and copes with refusals.

How a fresh process recognises its work: the whole table is ours; a chain by the digest stored with
its rules (felix.kernel.nft_codec), a set by its shape and members. So a restart that wants the same
writes nothing.

  N1  one apply is one transaction (large sets come before it, see nft_plan L3): packets meet the
      old rules or the new ones, never a mixture;
  N2  nothing is written when nothing differs; other tables are never named;
  N3  a refused object is set aside: what uses it is closed, everything else is programmed, and it
      is tried again later, at once when it changes or a resync is asked for;
  N4  a refusal that may come from a wrong picture of the kernel (first refusal of an apply) leads
      to a fresh reading before anything is set aside.

Called by one task: managers do not change `wanted` while apply() runs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from felix.dataplane.manager import NOTHING_DONE, ApplyResult
from felix.dataplane.nft_plan import Limits, Plan, plan
from felix.dataplane.nft_port import (
    AddChain,
    AddElements,
    AddEntries,
    AddSet,
    AddTable,
    ClearChain,
    DeleteChain,
    DeleteElements,
    DeleteSet,
    DeleteTable,
    GenerationMoved,
    NftPort,
    Op,
    TableImage,
    TransactionRefused,
    WriteRules,
    describe,
)
from felix.dataplane.nft_wanted import WantedRuleset, shape_of
from felix.rules.names import TABLE
from felix.rules.sets import SetSpec
from libcalico.errors import ProgrammingFailed, SuiteError
from libcalico.runtime import log
from libcalico.runtime.clock import SYSTEM, Clock

LOG = log.get(__name__)

_ATTEMPTS = 50  # each one sets something more aside, or ends
_CONDITIONAL_ATTEMPTS = 3  # commits that insist on an unchanged generation
_RETRY_FIRST_S, _RETRY_MAX_S = 1.0, 60.0
# The order of a transaction: a refusal further up is the cause of those further down.
_RANK: dict[type, int] = {
    AddTable: 0,
    ClearChain: 1,
    DeleteElements: 1,
    DeleteChain: 1,
    DeleteSet: 1,
    AddSet: 2,
    AddElements: 3,
    AddChain: 4,
    WriteRules: 5,
    AddEntries: 6,
}


@dataclass(frozen=True, slots=True)
class RefusedObject:
    """A chain, a set, or one element of a set or map. `element` b"" is the whole object."""

    kind: str
    name: str
    element: bytes = b""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" + (
            f" element {self.element.hex()}" if self.element else ""
        )


@dataclass(slots=True)
class _SetAside:
    """Why an object is set aside, when it is tried again, and what it was wanted to be then.

    A lifted one counts as good until it is refused once more; it only remembers its attempts."""

    reason: str
    attempts: int
    retry_at: float
    wanted_then: object
    is_lifted: bool = False


class NftTable:
    """Driver of felix.dataplane.manager. `name` is what metrics and dumps call it."""

    name = "nft"

    def __init__(
        self, port: NftPort, *, clock: Clock = SYSTEM, max_elements: int = 200_000
    ) -> None:
        self.wanted = WantedRuleset()
        self._port = port
        self._clock = clock
        self._max_elements = max_elements
        self._resync_reason = "start"
        self._has_table = False
        # A write whose outcome is unknown: nothing more is written before a reading.
        self._is_unsure = True
        # The generation at which our picture was right; None when others may have written since.
        self._generation: int | None = None
        self._has_just_read = False
        self._aside: dict[RefusedObject, _SetAside] = {}
        self._refused_ops: list[Op] = []
        # Say groups of elements one by one, to find the one the kernel does not want.
        self._says_single = False

    # --------------------------------------------------------------------------------- driver

    def queue_resync(self, reason: str) -> None:
        """Look at the kernel before the next write, and try refused objects again."""
        self._resync_reason = self._resync_reason or reason

    async def apply(self) -> ApplyResult:
        """Bring the kernel to the wanted state, as far as it lets us."""
        self._has_just_read = False
        try:
            await self._look_if_needed()
            result = await self._converge()
        except SuiteError as err:
            LOG.error("nft table not programmed", table=TABLE, error=str(err))
            return ApplyResult(failed=1, error=str(err))
        return result.merged(self._pending_refusals())

    async def _look_if_needed(self) -> None:
        now = self._clock.monotonic()
        for item, aside in self._aside.items():
            if self._resync_reason or aside.retry_at <= now or self._has_changed(item, aside):
                aside.is_lifted = True
        if self._is_unsure:
            await self._read(self._resync_reason or "the last apply failed")
        elif self._resync_reason and await self._port.generation() != self._generation:
            await self._read(self._resync_reason)
        self._resync_reason = ""

    async def _read(self, reason: str) -> None:
        self._absorb(await self._port.read())
        self._is_unsure = False
        self._has_just_read = True
        LOG.debug("nft table read back", table=TABLE, reason=reason)

    def _absorb(self, image: TableImage) -> None:
        """Make a reading the programmed view."""
        wanted = self.wanted
        self._has_table = image.exists
        self._generation = image.generation
        wanted.chains.resync(image.chains)
        shapes = {
            # A set we do not understand has a shape that nothing we want has.
            name: SetSpec(name, ()) if spec is None else shape_of(spec)
            for name, spec in image.sets.items()
        }
        wanted.sets.resync(shapes)
        for name in wanted.members:
            wanted.resync_members(name, image.elements.get(name, set()))
        for name, entries in wanted.entries.items():
            entries.resync(image.entries.get(name, {}))

    # ----------------------------------------------------------------------------- converging

    async def _converge(self) -> ApplyResult:
        """Commit until nothing is left to do, setting aside what is refused (N3, N4)."""
        done = NOTHING_DONE
        conditional_left = _CONDITIONAL_ATTEMPTS
        for _ in range(_ATTEMPTS):
            self._tell_refused()
            try:
                done = done.merged(await self._commit_all(insists=conditional_left > 0))
            except GenerationMoved:
                conditional_left -= 1
                await self._read("the ruleset changed while it was being written")
            except TransactionRefused as refused:
                await self._on_refused(refused)
            else:
                self._aside = {item: a for item, a in self._aside.items() if not a.is_lifted}
                return done
        raise ProgrammingFailed("nft transaction", TABLE, 0, f"refused {_ATTEMPTS} times")

    async def _commit_all(self, *, insists: bool) -> ApplyResult:
        """insists: a write right after a reading holds only if nothing changed in between."""
        limits = Limits(self._max_elements, self._says_single, self._skipped_elements())
        done = NOTHING_DONE
        for made in plan(self.wanted, limits, has_table=self._has_table):
            insists = insists and self._has_just_read and self._generation is not None
            self._is_unsure = True  # until we know better, also when cancelled
            try:
                await self._port.commit(made.ops, generation=self._generation if insists else None)
            except (GenerationMoved, TransactionRefused) as err:
                self._is_unsure = False
                if isinstance(err, TransactionRefused):
                    self._refused_ops = [made.ops[refusal.op_index] for refusal in err.refusals]
                raise
            await self._confirm(made)
            self._has_just_read = False
            done = done.merged(_counted(made))
        self._says_single = False
        return done

    async def _confirm(self, made: Plan) -> None:
        made.confirm(self.wanted)
        self._is_unsure = False
        if any(isinstance(op, AddTable) for op in made.ops):
            self._has_table = True
        # One commit moves the generation by one; when it moved by more, somebody else wrote too,
        # perhaps to our table: then the next resync has to read.
        now = await self._port.generation()
        is_ours_only = self._generation is not None and now == self._generation + 1
        self._generation = now if is_ours_only else None
        LOG.debug("nft transaction committed", table=TABLE, count=len(made.ops))

    # ------------------------------------------------------------------------------- refusals

    async def _on_refused(self, refused: TransactionRefused) -> None:
        if not refused.refusals:
            raise refused
        if not self._has_just_read:
            LOG.warning("nft transaction refused, reading back", table=TABLE, error=str(refused))
            await self._read("a transaction was refused")
            return
        pairs = list(zip(self._refused_ops, refused.refusals, strict=True))
        # What depends on a refused operation is refused too: only the causes are guilty.
        cause = min(_RANK[type(op)] for op, _refusal in pairs)
        for op, refusal in pairs:
            if _RANK[type(op)] == cause:
                self._refuse(op, refusal.text or os.strerror(refusal.errno))

    def _refuse(self, op: Op, reason: str) -> None:
        """Set aside the object of a refused operation; a group is first taken apart."""
        for item in self._guilty(op):
            before = self._aside.get(item)
            attempts = before.attempts + 1 if before is not None else 1
            wait_s = min(_RETRY_FIRST_S * 2 ** (attempts - 1), _RETRY_MAX_S)
            retry_at = self._clock.monotonic() + wait_s
            subject = self.wanted.fingerprint(item.kind, item.name)
            self._aside[item] = _SetAside(reason, attempts, retry_at, subject)
            LOG.error(
                "the kernel refused part of the policy: what uses it is closed",
                key=str(item),
                reason=reason,
                operation=describe(op),
            )

    def _guilty(self, op: Op) -> list[RefusedObject]:
        if isinstance(op, AddTable | DeleteTable):
            raise ProgrammingFailed("add table", TABLE, 0, "refused by the kernel")
        if isinstance(op, AddEntries):
            return self._guilty_elements("entry", op.spec, [key for key, _value in op.entries])
        if isinstance(op, AddElements) and self.wanted.isolates_elements(op.spec.name):
            return self._guilty_elements("element", op.spec, op.elements)
        if isinstance(op, AddSet | AddElements | DeleteElements):
            return [RefusedObject("set", op.spec.name)]
        if isinstance(op, WriteRules):
            return [RefusedObject("chain", op.chain.name)]
        return [RefusedObject("set" if isinstance(op, DeleteSet) else "chain", op.name)]

    def _guilty_elements(
        self, kind: str, spec: SetSpec, elements: Sequence[bytes]
    ) -> list[RefusedObject]:
        if len(elements) > 1:
            self._says_single = True
            return []
        return [RefusedObject(kind, spec.name, element) for element in elements]

    def _has_changed(self, item: RefusedObject, aside: _SetAside) -> bool:
        return self.wanted.fingerprint(item.kind, item.name) != aside.wanted_then

    def _refused_now(self) -> list[RefusedObject]:
        return [item for item, aside in self._aside.items() if not aside.is_lifted]

    def _tell_refused(self) -> None:
        refused = self._refused_now()
        self.wanted.refuse(
            {item.name for item in refused if item.kind == "chain"},
            {item.name for item in refused if item.kind == "set"},
        )

    def _skipped_elements(self) -> frozenset[tuple[str, bytes]]:
        return frozenset((item.name, item.element) for item in self._refused_now() if item.element)

    def _pending_refusals(self) -> ApplyResult:
        """What waits for its retry: no failure of this apply, but not done either."""
        if not self._aside:
            return NOTHING_DONE
        first, aside = min(self._aside.items(), key=lambda pair: pair[1].retry_at)
        return ApplyResult(
            deferred=len(self._aside),
            retry_after_s=max(0.0, aside.retry_at - self._clock.monotonic()),
            error=f"{first}: {aside.reason}",
        )

    # -------------------------------------------------------------------------------- reports

    @property
    def refused(self) -> dict[str, str]:
        """What the kernel would not take, and why: the alarm, for metrics and health."""
        return {str(item): aside.reason for item, aside in self._aside.items()}

    def dump(self) -> dict[str, object]:
        wanted = self.wanted
        return {
            "chains": wanted.chains.dump(),
            "sets": wanted.sets.dump(),
            "members": {name: len(tracker.wanted) for name, tracker in wanted.members.items()},
            "dirty_members": sorted(wanted.dirty_members),
            "entries": {name: tracker.dump() for name, tracker in wanted.entries.items()},
            "refused": self.refused,
            "generation": self._generation,
            "resync": self._resync_reason,
        }


def _counted(made: Plan) -> ApplyResult:
    """Objects written and deleted, for logs and metrics."""
    written = sum(1 for image in made.chains.values() if image is not None)
    written += len(made.created_sets)
    written += sum(len(change.added) for change in made.members)
    written += sum(1 for _map, _key, value in made.entries if value is not None)
    deleted = sum(1 for image in made.chains.values() if image is None)
    deleted += len(made.deleted_sets)
    deleted += sum(len(change.deleted) for change in made.members)
    deleted += sum(1 for _map, _key, value in made.entries if value is None)
    return ApplyResult(written=written, deleted=deleted)
