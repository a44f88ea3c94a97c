"""Members of address sets as typha tells them, in the place of `libcalico.compute.members`.

Layer: felix.calc, pure. Used by address_sets.py where typha computes spans; the same calls as
MemberIndex has, so far as address_sets.py makes them.

  SM1  a group is kept from when it is told until it is told gone, used or not: a step brings groups
       before the policies that name them, and a policy may come later than its group;
  SM2  one that is told gone while it is used keeps its members until it is given up: what uses it
       is on its way out too, and a set must not become empty under it;
  SM3  deltas are net and true, whatever is told twice;
  SM4  `lacks` names the used groups that nobody has told. (That can only be where typha and felix
       are not of one version and call a group by two names.) Whoever uses one must not trust it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from libcalico.compute.members import EndpointPort, PortMatch, SetDelta
from libcalico.model.keys import ResourceKey
from libcalico.selector import Selector
from libcalico.syncer.api import GroupChange


class _Net(NamedTuple):
    added: set[str]
    removed: set[str]


class StreamMembers:
    """See the module. Items and selectors are somebody else's matter here."""

    def __init__(self) -> None:
        self._members: dict[str, set[str]] = {}
        self._gone: set[str] = set()
        self._used: set[str] = set()
        self._new: set[str] = set()
        self._nets: dict[str, _Net] = {}
        #: Used groups that were told for the first time since the last flush.
        self.arrived: set[str] = set()

    # -- state in ---------------------------------------------------------------------------

    def on_groups(self, changes: Iterable[GroupChange]) -> None:
        for change in changes:
            if change.gone:
                self._end(change.id)
            else:
                self._take(change)

    def update_set(self, set_id: str, selector: Selector, *, port: PortMatch | None = None) -> None:
        self._used.add(set_id)
        self._new.add(set_id)
        self._nets.pop(set_id, None)

    def delete_set(self, set_id: str) -> None:
        self._used.discard(set_id)
        self._new.discard(set_id)
        self._nets.pop(set_id, None)
        if set_id in self._gone:
            self._forget(set_id)

    def update_item(
        self,
        item_id: ResourceKey,
        labels: Mapping[str, str],
        parents: Sequence[str] = (),
        *,
        addresses: Sequence[str] = (),
        ports: Sequence[EndpointPort] = (),
    ) -> None:
        """Items are counted where the spans are computed."""

    def delete_item(self, item_id: ResourceKey) -> None:
        """As update_item."""

    def update_parent(self, name: str, labels: Mapping[str, str]) -> None:
        """As update_item."""

    def delete_parent(self, name: str) -> None:
        """As update_item."""

    # -- out --------------------------------------------------------------------------------

    def flush(self) -> list[SetDelta[str]]:
        deltas = [SetDelta(set_id, True, self.members(set_id), frozenset()) for set_id in self._new]
        deltas += [
            SetDelta(set_id, False, frozenset(net.added), frozenset(net.removed))
            for set_id, net in self._nets.items()
            if net.added or net.removed
        ]
        self._new, self._nets, self.arrived = set(), {}, set()
        return deltas

    def members(self, set_id: str) -> frozenset[str]:
        return frozenset(self._members.get(set_id, ()))

    def lacks(self, sets: Iterable[str]) -> list[str]:
        """SM4."""
        return sorted(set_id for set_id in sets if set_id not in self._members)

    def check(self) -> None:
        assert self._gone <= self._members.keys() & self._used
        assert self._new <= self._used
        assert self._nets.keys() <= self._used - self._new

    def dump(self) -> dict[str, object]:
        return {
            "groups": len(self._members),
            "used": len(self._used),
            "lacking": self.lacks(self._used),
            "members": sum(map(len, self._members.values())),
        }

    # -- one group --------------------------------------------------------------------------

    def _take(self, change: GroupChange) -> None:
        self._gone.discard(change.id)
        held = self._members.get(change.id)
        if held is None:
            held = self._members[change.id] = set()
            if change.id in self._used:
                self.arrived.add(change.id)
        added = change.added - held
        removed = held - change.added if change.whole else change.removed & held
        held |= added
        held -= removed
        if change.id in self._used and change.id not in self._new and (added or removed):
            net = self._nets.setdefault(change.id, _Net(set(), set()))
            back, out = added & net.removed, removed & net.added
            net.removed.difference_update(back)
            net.added.difference_update(out)
            net.added.update(added - back)
            net.removed.update(removed - out)

    def _end(self, set_id: str) -> None:
        if set_id in self._used and set_id in self._members:
            self._gone.add(set_id)
        else:
            self._forget(set_id)

    def _forget(self, set_id: str) -> None:
        self._members.pop(set_id, None)
        self._gone.discard(set_id)
