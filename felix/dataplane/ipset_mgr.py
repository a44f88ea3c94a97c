"""Address sets: SetUpdate, SetDelta and SetRemove into named sets of both families.

Layer: felix.dataplane, a manager. Pushes into the nft driver's wanted ruleset.

  I1  one set of the intent is two sets of the table, since an nftables set has one address type;
  I2  nested networks are flattened per family (felix.rules.sets.FlatNets): the kernel's interval
      tree refuses overlaps, and the outermost networks hold the same addresses;
  I3  a member that does not parse is left out and named in the log. Calc hands out canonical
      members only, so this is a bug; leaving one out of an allow list closes, and refusing the
      whole set would close more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from felix.dataplane.nft_wanted import WantedRuleset
from felix.intent import Intent, SetDelta, SetRemove, SetUpdate
from felix.rules.names import address_set
from felix.rules.sets import (
    FlatNets,
    SetSpec,
    family_of,
    host_addresses,
    ip_port_element,
    ip_port_set,
    net_set,
    parse_net,
    parse_nets,
)
from libcalico.compute.rules import SetKind
from libcalico.errors import ValidationError
from libcalico.runtime import log

LOG = log.get(__name__)

VERSIONS = (4, 6)
Net = tuple[int, int]


@dataclass(slots=True)
class _Set:
    """What one intent set is made of."""

    kind: SetKind
    flat: dict[int, FlatNets] = field(default_factory=dict)


class IpSetManager:
    """Manager. Remembers messages in order, works them off in complete_deferred_work."""

    def __init__(self, wanted: WantedRuleset) -> None:
        self._wanted = wanted
        self._sets: dict[str, _Set] = {}
        # Per set, what has come since the last push; a SetUpdate makes earlier ones void.
        self._pending: dict[str, list[SetUpdate | SetDelta]] = {}
        self._removed: set[str] = set()

    def on_intent(self, intent: Intent) -> None:
        if isinstance(intent, SetUpdate):
            self._pending[intent.set_id] = [intent]
            self._removed.discard(intent.set_id)
        elif isinstance(intent, SetDelta):
            self._pending.setdefault(intent.set_id, []).append(intent)
        elif isinstance(intent, SetRemove):
            self._pending.pop(intent.set_id, None)
            self._removed.add(intent.set_id)

    def complete_deferred_work(self) -> None:
        for set_id in self._removed:
            self._remove(set_id)
        self._removed.clear()
        for set_id, messages in self._pending.items():
            for message in messages:
                if isinstance(message, SetUpdate):
                    self._replace(set_id, message)
                else:
                    self._change(set_id, message)
        self._pending.clear()

    def _remove(self, set_id: str) -> None:
        if self._sets.pop(set_id, None) is not None:
            for version in VERSIONS:
                self._wanted.drop_set(address_set(set_id, version))

    def _replace(self, set_id: str, update: SetUpdate) -> None:
        before = self._sets.get(set_id)
        if before is not None and before.kind is not update.kind:
            self._remove(set_id)
        made = _Set(update.kind, {version: FlatNets(version) for version in VERSIONS})
        self._sets[set_id] = made
        elements = self._elements_of(made, update.members)
        for version in VERSIONS:
            spec = _spec(update.kind, set_id, version)
            self._wanted.want_set(spec)
            self._wanted.replace_members(spec.name, elements[version])

    def _elements_of(self, made: _Set, members: Iterable[str]) -> dict[int, set[bytes]]:
        if made.kind is SetKind.IP_PORT:
            return _ip_ports(members)
        hosts = host_addresses(members)
        if hosts is not None:
            made.flat[4].add_hosts(hosts)
            return {4: {address + address for address in hosts}, 6: set()}
        nets = _nets(members)
        for version in VERSIONS:
            made.flat[version].add(nets[version])
        return {version: made.flat[version].elements() for version in VERSIONS}

    def _change(self, set_id: str, delta: SetDelta) -> None:
        known = self._sets.get(set_id)
        if known is None:
            LOG.error("delta for an unknown address set", key=set_id)
            return
        added, removed = self._changes(known, delta)
        for version in VERSIONS:
            if added[version] or removed[version]:
                name = address_set(set_id, version)
                self._wanted.change_members(name, added[version], removed[version])

    def _changes(
        self, known: _Set, delta: SetDelta
    ) -> tuple[dict[int, set[bytes]], dict[int, set[bytes]]]:
        if known.kind is SetKind.IP_PORT:
            return _ip_ports(delta.added), _ip_ports(delta.removed)
        added, removed = _nets(delta.added), _nets(delta.removed)
        add: dict[int, set[bytes]] = {}
        delete: dict[int, set[bytes]] = {}
        for version in VERSIONS:
            flat = known.flat[version]
            add[version], delete[version] = flat.change(added[version], removed[version])
        return add, delete


def _spec(kind: SetKind, set_id: str, version: int) -> SetSpec:
    make = net_set if kind is SetKind.NET else ip_port_set
    return make(address_set(set_id, version), version, set_id)


def _nets(members: Iterable[str]) -> dict[int, list[Net]]:
    texts = list(members)
    try:
        return parse_nets(texts)
    except ValidationError:
        found: dict[int, list[Net]] = {4: [], 6: []}
        for member in texts:
            try:
                version, base, length = parse_net(member)
            except ValidationError as err:
                LOG.error("bad member of an address set", key=member, error=str(err))
                continue
            found[version].append((base, length))
        return found


def _ip_ports(members: Iterable[str]) -> dict[int, set[bytes]]:
    found: dict[int, set[bytes]] = {4: set(), 6: set()}
    for member in members:
        try:
            element = ip_port_element(member)
        except ValidationError as err:
            LOG.error("bad member of an address set", key=member, error=str(err))
            continue
        found[family_of(member)].add(element)
    return found
