"""The iptables driver: reconciles our chains, hooks and ipsets with what the managers want.

Layer: felix.dataplane. Talks through IptablesPort; wired by the daemon (ipt_wiring). What is wanted
is in `table.wanted`, the same WantedRuleset that nftables has; ipt_rules makes tables of it,
ipt_sets ipsets, ipt_plan the scripts. This module reads back, writes, confirms, and copes with
refusals.

    one apply:   sets and members that rules need     ipset restore
                 each table that differs              iptables-restore, ip6tables-restore
                 sets that nothing uses any more      ipset restore

How a fresh process recognises its work: chains and sets by their names (ipt_names P1), rules by the
hashes in their comments, so a restart that wants the same writes nothing.

  T1  one restore for each table and apply: packets meet a table as it was or as it will be;
  T2  nothing is written where nothing differs, and nothing that is not ours (ipt_plan L1, L2);
  T3  a refused rule or set is set aside: what uses it is closed, everything else is programmed, and
      it is tried again later. Where the tool does not say which rule it was, trials find it;
  T4  before anything is set aside, what was refused is read once: our picture may have been wrong;
  T5  a tool that could not do its work now (lock held, no answer) is no refusal: the loop retries;
  T6  what was written is read again a few seconds later: other programs write whole tables back.

Source: Calico felix/iptables/table.go, felix/ipsets/ipsets.go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from felix.dataplane.ipt_plan import Script, TableState
from felix.dataplane.ipt_port import IptablesPort, RestoreRefused
from felix.dataplane.ipt_rules import IptRules
from felix.dataplane.ipt_save import SavedTable, parse_sets, parse_tables
from felix.dataplane.ipt_sets import IpSets, SetChange, SetScript
from felix.dataplane.manager import NOTHING_DONE, ApplyResult
from felix.dataplane.nft_wanted import WantedRuleset
from felix.dataplane.refusals import Refusals, RefusedItem
from felix.rules.ipt_layout import TABLES, HookSettings
from libcalico.errors import ProgrammingFailed, SuiteError
from libcalico.runtime import log
from libcalico.runtime.clock import SYSTEM, Clock

LOG = log.get(__name__)

_ATTEMPTS = 50  # each one sets something more aside, or ends
_TRIALS = 64
# Readings of one apply because others changed what was read: more, and the loop tries again later.
_REREADS = 10
# Sets that others use: after so many refusals the rest waits for the next apply.
_STUCK_SETS = 8


@dataclass(frozen=True, slots=True)
class IptOptions:
    """How the driver works. `recheck_s` 0: what was written is not read again."""

    appends: bool = False
    max_members: int = 1 << 20
    recheck_s: float = 5.0
    versions: tuple[int, ...] = (4, 6)


DEFAULTS = IptOptions()


class IptablesTable:
    """Driver of felix.dataplane.manager. `name` is what metrics and dumps call it."""

    name = "iptables"

    def __init__(
        self,
        port: IptablesPort,
        settings: HookSettings,
        options: IptOptions = DEFAULTS,
        *,
        clock: Clock = SYSTEM,
    ) -> None:
        self.wanted = WantedRuleset()
        self._port, self._clock, self._options = port, clock, options
        self._rules = IptRules(self.wanted, settings)
        self._sets = IpSets(self.wanted, options.max_members, options.versions)
        self._tables = {
            (version, table): TableState(version, table, appends=options.appends)
            for version in options.versions
            for table in TABLES
        }
        self._refusals = Refusals(self.wanted.fingerprint, clock=clock)
        self._resync_reason = "start"
        # What must be read before it is written: writes of unknown outcome, and all at a resync.
        self._unread = set(self._tables)
        self._sets_unread = True
        self._just_read: set[tuple[int, str] | str] = set()
        self._rereads_left = _REREADS
        self._recheck: dict[tuple[int, str], float] = {}
        self._has_built = False

    # --------------------------------------------------------------------------------- driver

    def queue_resync(self, reason: str) -> None:
        """Look at the kernel before the next write, and try refused objects again."""
        self._resync_reason = self._resync_reason or reason

    async def apply(self) -> ApplyResult:
        """Bring the kernel to the wanted state, as far as it lets us."""
        self._just_read.clear()
        self._rereads_left = _REREADS
        try:
            self._note_what_is_due()
            result = await self._converge()
        except SuiteError as err:
            LOG.error("iptables not programmed", error=str(err))
            return ApplyResult(failed=1, error=str(err))
        return result.merged(self._refusals.pending()).merged(self._next_recheck())

    def _note_what_is_due(self) -> None:
        self._refusals.lift(everything=bool(self._resync_reason))
        if self._resync_reason:
            self._unread |= self._tables.keys()
            self._sets_unread = True
            self._resync_reason = ""
        now = self._clock.monotonic()
        due = {key for key, at in self._recheck.items() if at <= now}
        self._unread |= due
        for key in due:
            del self._recheck[key]

    def _next_recheck(self) -> ApplyResult:
        if not self._recheck:
            return NOTHING_DONE
        wait_s = max(0.0, min(self._recheck.values()) - self._clock.monotonic())
        return ApplyResult(retry_after_s=wait_s)

    # -------------------------------------------------------------------------------- reading

    async def _read_what_is_unread(self) -> None:
        if self._sets_unread:
            self._sets.absorb(parse_sets(await self._port.save_sets()))
            self._sets_unread = False
            self._just_read.add("sets")
        for key in sorted(self._unread):
            version, table = key
            saved = parse_tables(await self._port.save(version, table))
            self._tables[key].absorb(saved.get(table, SavedTable()))
            self._unread.discard(key)
            self._just_read.add(key)

    # ----------------------------------------------------------------------------- converging

    async def _converge(self) -> ApplyResult:
        """Write until nothing is left to do, setting aside what is refused (T3, T4)."""
        done = NOTHING_DONE
        for _ in range(_ATTEMPTS):
            self._build()
            await self._read_what_is_unread()
            try:
                done = done.merged(await self._write_all())
            except _Again:
                continue
            self._refusals.settle()
            return done
        raise ProgrammingFailed("iptables-restore", "all tables", 0, f"refused {_ATTEMPTS} times")

    def _build(self) -> None:
        """Decide what each table and set should hold."""
        wanted = self.wanted
        wanted.refuse(self._refusals.names("chain"), self._refusals.names("set"))
        wanted.settle()
        has_new_entries = any(not tracker.in_sync() for tracker in wanted.entries.values())
        if self._has_built and wanted.chains.in_sync() and not has_new_entries:
            return
        wishes = self._rules.build(self._options.versions)
        if self._rules.unrenderable:
            for name, reason in self._rules.unrenderable.items():
                self._refuse(RefusedItem("chain", name), reason)
            self._build()
            return
        for key, wish in wishes.items():
            self._tables[key].want(wish.chains, wish.hooks)
        self._sets.want_literals(self._rules.literals)
        # What is rendered is what the tables now want; they know what of it is programmed.
        for name, image in wanted.chains.pending_updates().items():
            wanted.chains.confirm(name, image)
        for name in wanted.chains.pending_deletions():
            wanted.chains.confirm(name, None)
        self._has_built = True

    async def _write_all(self) -> ApplyResult:
        done = await self._fill_sets()
        for key, state in self._tables.items():
            done = done.merged(await self._write_table(key, state))
        for tracker in self.wanted.entries.values():
            for entry, value in tracker.pending_updates().items():
                tracker.confirm(entry, value)
            for entry in tracker.pending_deletions():
                tracker.confirm(entry, None)
        return done.merged(await self._destroy_sets())

    async def _write_table(self, key: tuple[int, str], state: TableState) -> ApplyResult:
        script = state.script()
        if script is None:
            return NOTHING_DONE
        try:
            await self._restore(key, script)
        except RestoreRefused as refused:
            await self._on_refused(key, script, refused)
            raise _Again from refused
        state.confirm(script)
        self._just_read.discard(key)
        if self._options.recheck_s > 0:
            self._recheck[key] = self._clock.monotonic() + self._options.recheck_s
        LOG.debug("iptables table written", table=key[1], family=key[0], count=len(script.lines))
        return ApplyResult(
            written=len(script.written) + len(script.hooks), deleted=len(script.deleted)
        )

    async def _restore(self, key: tuple[int, str], script: Script) -> None:
        """Write; afterwards the outcome is known, or the table counts as unread."""
        self._unread.add(key)
        try:
            await self._port.restore(key[0], script.text)
        except RestoreRefused:
            self._unread.discard(key)
            raise
        self._unread.discard(key)

    # ----------------------------------------------------------------------------------- sets

    async def _fill_sets(self) -> ApplyResult:
        script = self._sets.filling(self._refusals.elements())
        if script is None:
            return NOTHING_DONE
        await self._restore_sets(script)
        self._sets.confirm(script)
        self._just_read.discard("sets")
        written = sum(len(change.added) + (change.made is not None) for change in script.changes)
        return ApplyResult(
            written=written, deleted=sum(len(change.deleted) for change in script.changes)
        )

    async def _restore_sets(self, script: SetScript) -> None:
        self._sets_unread = True
        try:
            await self._port.restore_sets(script.text)
        except RestoreRefused as refused:
            if "sets" in self._just_read:
                self._refuse_set(script.change_at(refused.line), script, refused)
            else:
                LOG.warning("ipset restore refused, reading back", error=str(refused))
            raise _Again from refused
        self._sets_unread = False

    def _refuse_set(
        self, change: SetChange | None, script: SetScript, refused: RestoreRefused
    ) -> None:
        if change is None:
            raise refused
        if not self.wanted.knows_set(change.model_name):  # one inside a rule
            for name in self._rules.users_of_literal(change.name):
                self._refuse(RefusedItem("chain", name), refused.detail)
            return
        element = self._sets.element_at(script, change, refused.line)
        if element and self.wanted.isolates_elements(change.model_name):
            self._refuse(RefusedItem("element", change.model_name, element), refused.detail)
        else:
            self._refuse(RefusedItem("set", change.model_name), refused.detail)

    async def _destroy_sets(self) -> ApplyResult:
        """Ours that nothing wants. One that others use stays until the next reading."""
        names = self._sets.doomed()
        count = 0
        for _ in range(_STUCK_SETS):
            if not names:
                break
            try:
                await self._port.restore_sets("".join(f"destroy {name}\n" for name in names))
                done = len(names)
            except RestoreRefused as refused:
                done = max(refused.line, 1) - 1
                self._sets.kept.add(names[done])
                LOG.warning("an ipset of ours stays", key=names[done], error=refused.detail)
            self._sets.destroyed(names[:done])
            count += done
            names = names[done + 1 :]
        self._sets.forget_destroyed()
        return ApplyResult(deleted=count)

    # ------------------------------------------------------------------------------- refusals

    async def _on_refused(
        self, key: tuple[int, str], script: Script, refused: RestoreRefused
    ) -> None:
        subject = script.subject_at(refused.line)
        # Our rule in a kernel's chain is never bad: somebody moved it since it was read.
        if key not in self._just_read or subject.kind == "hook":
            self._read_again(key, refused)
            return
        if subject.kind == "delete":
            self._tables[key].kept.add(subject.name)
            LOG.warning("a chain of ours stays", chain=subject.name, error=refused.detail)
            return
        if subject.kind == "chain":
            guilty = [subject.name]
        else:
            guilty = await self._try(key, self._suspects(script), _Budget(_TRIALS))
        names = [name for name in map(self._rules.model_name, guilty) if name is not None]
        if not names:
            raise refused
        for name in names:
            self._refuse(RefusedItem("chain", name), refused.detail)

    def _read_again(self, key: tuple[int, str], refused: RestoreRefused) -> None:
        if self._rereads_left <= 0:
            raise refused
        self._rereads_left -= 1
        LOG.warning("iptables-restore refused, reading back", table=key[1], error=str(refused))
        self._unread.add(key)
        self._sets_unread = True

    def _suspects(self, script: Script) -> list[str]:
        """Written chains that can be closed."""
        return [name for name in script.written if self._rules.model_name(name) is not None]

    async def _try(self, key: tuple[int, str], names: Sequence[str], left: _Budget) -> list[str]:
        """Those of the chains whose rules the kernel refuses, by halves."""
        if not names or not left.take() or await self._passes_trial(key, names):
            return []
        if len(names) == 1:
            return list(names)
        half = len(names) // 2
        return [
            *await self._try(key, names[:half], left),
            *await self._try(key, names[half:], left),
        ]

    async def _passes_trial(self, key: tuple[int, str], names: Sequence[str]) -> bool:
        state = self._tables[key]
        try:
            await self._restore(key, state.trial(names))
        except RestoreRefused:
            return False
        await self._restore(key, state.end_of_trial())
        return True

    def _refuse(self, item: RefusedItem, reason: str) -> None:
        self._refusals.refuse(item, reason)
        LOG.error(
            "the kernel refused part of the policy: what uses it is closed",
            key=str(item),
            reason=reason,
        )

    # -------------------------------------------------------------------------------- reports

    @property
    def refused(self) -> dict[str, str]:
        """What the kernel would not take, and why: the alarm, for metrics and health."""
        return self._refusals.dump()

    def dump(self) -> dict[str, object]:
        return {
            "tables": {
                f"{table}-{version}": state.dump()
                for (version, table), state in self._tables.items()
            },
            **self._sets.dump(),
            "members": {name: len(found.wanted) for name, found in self.wanted.members.items()},
            "refused": self.refused,
            "resync": self._resync_reason,
        }


@dataclass(slots=True)
class _Budget:
    left: int

    def take(self) -> bool:
        self.left -= 1
        return self.left >= 0


class _Again(Exception):
    """Something was set aside, or has to be read: plan anew."""
