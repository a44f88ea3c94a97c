"""Sets of the model as ipsets: what each should hold, what it holds, and the script between.

Layer: felix.dataplane, pure. Used by ipt_table and ipt_leftovers. Wanted members and their
differences are kept where nftables keeps them (nft_wanted); sets that stand inside a rule
(ipt_match.LiteralSet) here.

  S1  changes go out as deltas, additions first: an address that moves from one member to another is
      never in none of them;
  S2  a set that must hold more than it was made for is filled under another name and swapped;
  S3  a set of another type than wanted is destroyed and made anew; while a rule uses it the kernel
      refuses that, and the driver closes the rule first;
  S4  a set is destroyed after the rules that used it are gone. One that others use stays.

Source: ipset(8).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    summarize_address_range,
)

from felix.dataplane.ipt_save import SavedSet
from felix.dataplane.nft_members import MemberTracker
from felix.dataplane.nft_wanted import WantedRuleset, shape_of
from felix.rules import ipt_names
from felix.rules.chain import IFNAME, IFNAME_BYTES, IPV4_ADDR, IPV6_ADDR, KeyType
from felix.rules.ipt_match import LiteralSet
from felix.rules.sets import SetSpec, ip_port_element, net_element, parse_net

_PROTOCOLS = {6: "tcp", 17: "udp", 132: "sctp", 136: "udplite"}
_FAMILIES = {4: "inet", 6: "inet6"}
_ADDRESSES = (IPV4_ADDR, IPV6_ADDR)


# ------------------------------------------------------------------------------------------ text


def version_of(spec: SetSpec) -> int:
    return 6 if IPV6_ADDR in spec.key else 4


def is_ipset(spec: SetSpec) -> bool:
    """Maps are chains here, pairs of addresses conditions of rules (render_iptables)."""
    return not spec.is_map and spec.key not in ((IPV4_ADDR, IPV4_ADDR), (IPV6_ADDR, IPV6_ADDR))


def type_of(spec: SetSpec) -> str:
    """ipset's word for the shape of a set."""
    if spec.key[0] == IFNAME:
        return "hash:net,iface"
    if len(spec.key) == 1:
        return "hash:net"
    return "hash:ip,port"


def member_texts(spec: SetSpec, element: bytes) -> list[str]:
    """A member as ipset prints it; several for a range that is no network, or for everything."""
    size = _address_type(spec).length
    if len(spec.key) == 1:
        return list(_nets(element[:size], element[size:] or element[:size]))
    if spec.key[0] == IFNAME:
        ifname = element[:IFNAME_BYTES].rstrip(b"\0").decode()
        first = element[IFNAME_BYTES : IFNAME_BYTES + size]
        last = element[-size:] if spec.interval else first
        return [f"{net},{ifname}" for net in _nets(first, last)]
    port = int.from_bytes(element[size + 4 : size + 6], "big")
    protocol = _PROTOCOLS.get(element[size], str(element[size]))
    return [f"{_address_text(element[:size])},{protocol}:{port}"]


def _address_type(spec: SetSpec) -> KeyType:
    return next(part for part in spec.key if part in _ADDRESSES)


def _address_text(value: bytes) -> str:
    if len(value) == 4:
        return f"{value[0]}.{value[1]}.{value[2]}.{value[3]}"
    return str(IPv6Address(value))


def _nets(first: bytes, last: bytes) -> Iterator[str]:
    if first == last:
        yield _address_text(first)
        return
    for net in _networks(first, last):
        if net.prefixlen == 0:  # a hash of nets has no room for it
            yield from map(str, net.subnets(prefixlen_diff=1))
        else:
            is_host = net.prefixlen == net.max_prefixlen
            yield str(net.network_address) if is_host else str(net)


def _networks(first: bytes, last: bytes) -> Iterator[IPv4Network | IPv6Network]:
    if len(first) == 4:
        yield from summarize_address_range(IPv4Address(first), IPv4Address(last))
    else:
        yield from summarize_address_range(IPv6Address(first), IPv6Address(last))


def element_of(spec: SetSpec, text: str) -> bytes:
    """The reverse, for members that are one network or address. Errors: ValidationError."""
    if spec.key == (IPV4_ADDR,) and "/" not in text:  # most members of large sets
        packed = bytes(map(int, text.split(".")))
        return packed + packed
    if len(spec.key) == 3:
        address, _comma, rest = text.partition(",")
        protocol, _colon, port = rest.partition(":")
        return ip_port_element(f"{address},{protocol},{port}")
    net, _comma, rest = text.partition(",")
    version, base, length = parse_net(net)
    element = net_element(version, base, length)
    if len(spec.key) == 1:
        return element
    half = len(element) // 2
    name = rest.encode().ljust(IFNAME_BYTES, b"\0")
    return name + element[:half] + (name + element[half:] if spec.interval else b"")


# ----------------------------------------------------------------------------------------- state


@dataclass(frozen=True, slots=True)
class SetChange:
    """What one stretch of a script says about one set, and what it makes true."""

    name: str
    model_name: str
    added: frozenset[bytes] = frozenset()
    deleted: frozenset[bytes] = frozenset()
    made: SavedSet | None = None
    destroyed: bool = False


@dataclass(slots=True)
class SetScript:
    """Lines for `ipset restore`."""

    lines: list[str] = field(default_factory=list)
    changes: list[SetChange] = field(default_factory=list)
    _starts: list[int] = field(default_factory=list)

    def add(self, change: SetChange, lines: Iterable[str]) -> None:
        self._starts.append(len(self.lines) + 1)
        self.changes.append(change)
        self.lines += lines

    def change_at(self, line: int) -> SetChange | None:
        place = bisect_right(self._starts, line) - 1
        return self.changes[place] if place >= 0 else None

    @property
    def text(self) -> str:
        return "\n".join([*self.lines, ""])


@dataclass(frozen=True, slots=True)
class _IpSet:
    """A set under its name in the kernel, with what it should hold."""

    name: str
    spec: SetSpec
    members: MemberTracker


@dataclass(slots=True)
class _Literal:
    spec: SetSpec
    members: MemberTracker


class IpSets:
    """All our sets in the kernel. Methods do no I/O."""

    def __init__(
        self, wanted: WantedRuleset, max_members: int, versions: Sequence[int] = (4, 6)
    ) -> None:
        """`versions`: the IP versions the kernel has."""
        self._wanted, self._versions = wanted, frozenset(versions)
        self._max_members = max_members
        self._kernel: dict[str, SavedSet] = {}
        self._literals: dict[str, _Literal] = {}
        # Destruction refused: somebody else uses them. Tried again after a reading.
        self.kept: set[str] = set()

    def want_literals(self, literals: Mapping[str, LiteralSet]) -> None:
        for name in self._literals.keys() - literals.keys():
            del self._literals[name]
        for name, literal in literals.items():
            if name not in self._literals:
                # Named by what it holds: one that is there already holds it, a reading will say.
                members = MemberTracker()
                members.replace(frozenset(literal.elements))
                if name in self._kernel:
                    members.resync(_elements(literal.spec, self._kernel[name].members, members))
                self._literals[name] = _Literal(literal.spec, members)

    def absorb(self, saved: Mapping[str, SavedSet]) -> None:
        """Make a reading the programmed view."""
        self._kernel = dict(saved)
        self.kept.clear()
        wanted = self._wanted
        for model_name, spec in self._plain_sets():
            found = saved.get(self.name_of(spec))
            is_right = found is not None and found.type == type_of(spec)
            shape = shape_of(spec) if is_right else None
            wanted.sets.confirm(model_name, shape)
            members = found.members if found is not None and is_right else []
            tracker = wanted.members[model_name]
            wanted.resync_members(model_name, _elements(spec, members, tracker))
        for name, literal in self._literals.items():
            found = saved.get(name)
            members = found.members if found is not None else []
            literal.members.resync(_elements(literal.spec, members, literal.members))

    def name_of(self, spec: SetSpec) -> str:
        return ipt_names.set_name(spec.name, version_of(spec))

    def _plain_sets(self) -> list[tuple[str, SetSpec]]:
        """Sets that are ipsets, used or not."""
        wanted = self._wanted
        known = ((name, wanted.spec(name)) for name in wanted.members if wanted.knows_set(name))
        return [(name, spec) for name, spec in known if self._is_ours(spec)]

    def _is_ours(self, spec: SetSpec) -> bool:
        return is_ipset(spec) and version_of(spec) in self._versions

    @property
    def is_empty(self) -> bool:
        return not self._kernel and not self._literals

    # --------------------------------------------------------------------------- before the rules

    def filling(self, skipped: AbstractSet[tuple[str, bytes]]) -> SetScript | None:
        """Sets and members that rules are going to need. `skipped` elements the kernel refused."""
        made = SetScript()
        for model_name in self._to_look_at():
            spec = self._wanted.spec(model_name)
            out = {element for name, element in skipped if name == model_name}
            members = self._wanted.members[model_name]
            self._fill(made, _IpSet(self.name_of(spec), spec, members), out)
        for name, literal in self._literals.items():
            self._fill(made, _IpSet(name, literal.spec, literal.members), set())
        return made if made.lines else None

    def _to_look_at(self) -> list[str]:
        """Named sets whose kernel form may differ."""
        wanted = self._wanted
        names = wanted.sets.pending_updates().keys() | wanted.dirty_members
        return sorted(
            name
            for name in names
            if name in wanted.members
            and wanted.is_wanted_set(name)
            and not wanted.is_refused_set(name)
            and self._is_ours(wanted.spec(name))
        )

    def _fill(self, made: SetScript, of: _IpSet, out: AbstractSet[bytes]) -> None:
        name, members = of.name, of.members
        there = self._kernel.get(name)
        if there is not None and there.type != type_of(of.spec):
            made.add(SetChange(name, of.spec.name, destroyed=True), [f"destroy {name}"])
            there = None
        if there is None:
            wish = self._made_for(of.spec, len(members.wanted))
            added = frozenset(members.wanted - out)
            change = SetChange(name, of.spec.name, added, made=wish)
            made.add(change, [_create(name, wish), *_lines("add", name, of.spec, added)])
            return
        # One that was given up and yet stayed (S4) holds nobody knows what.
        is_known = name in self._literals or self._wanted.sets.programmed(of.spec.name) is not None
        if not is_known or len(members.wanted) + len(members.to_delete) > there.maxelem:
            self._replace(made, of, out)
            return
        added, deleted = frozenset(members.to_add - out), frozenset(members.to_delete)
        if added or deleted:
            lines = _lines("add", name, of.spec, added)
            lines += _deletions(of, set(lines), deleted)
            made.add(SetChange(name, of.spec.name, added, deleted), lines)

    def _replace(self, made: SetScript, of: _IpSet, out: AbstractSet[bytes]) -> None:
        """S2."""
        beside = ipt_names.temporary_set_name(of.name)
        wish = self._made_for(of.spec, len(of.members.wanted))
        added, deleted = frozenset(of.members.wanted - out), frozenset(of.members.to_delete)
        lines = [f"destroy {beside}"] if beside in self._kernel else []
        lines += [_create(beside, wish), *_lines("add", beside, of.spec, added)]
        lines += [f"swap {beside} {of.name}", f"destroy {beside}"]
        made.add(SetChange(of.name, of.spec.name, added, deleted, wish), lines)

    def _made_for(self, spec: SetSpec, count: int) -> SavedSet:
        """Room for the default, or for twice as many as are wanted when they are more."""
        room = self._max_members if count <= self._max_members else 2 * count
        return SavedSet(type_of(spec), _FAMILIES[version_of(spec)], room)

    def element_at(self, script: SetScript, change: SetChange, line: int) -> bytes:
        """The one element that a refused line adds; b"" when it is about something else."""
        verb, _name, *rest = script.lines[line - 1].split(" ", 2)
        if verb != "add" or not self._wanted.knows_set(change.model_name):
            return b""
        spec = self._wanted.spec(change.model_name)
        found = [e for e in change.added if rest[0] in member_texts(spec, e)]
        return found[0] if found else b""

    def confirm(self, script: SetScript) -> None:
        for change in script.changes:
            self._confirm(change)

    def _confirm(self, change: SetChange) -> None:
        wanted = self._wanted
        if change.destroyed:
            self._kernel.pop(change.name, None)
            return
        if change.made is not None:
            self._kernel[change.name] = change.made
        literal = self._literals.get(change.name)
        if literal is not None:
            literal.members.confirm(set(change.added), set(change.deleted))
            return
        if change.made is not None:
            wanted.sets.confirm(change.model_name, shape_of(wanted.spec(change.model_name)))
        wanted.confirm_members(change.model_name, set(change.added), set(change.deleted))

    # ---------------------------------------------------------------------------- after the rules

    def doomed(self) -> list[str]:
        """S4: sets of ours that nothing wants any more."""
        needed = set(self._literals)
        for model_name, spec in self._plain_sets():
            if self._wanted.is_wanted_set(model_name) or self._wanted.is_refused_set(model_name):
                needed.add(self.name_of(spec))
        return sorted(self._kernel.keys() - needed - self.kept)

    def destroyed(self, names: Iterable[str]) -> None:
        for name in names:
            self._kernel.pop(name, None)
        self.forget_destroyed()

    def forget_destroyed(self) -> None:
        """Tell the wanted ruleset of sets that are not in the kernel (any more)."""
        wanted = self._wanted
        for model_name in list(wanted.sets.pending_deletions()):
            wanted.sets.confirm(model_name, None)
            wanted.on_set_deleted(model_name)
        for model_name, shape in wanted.sets.pending_updates().items():
            if not self._is_ours(wanted.spec(model_name)):
                wanted.sets.confirm(model_name, shape)

    def dump(self) -> dict[str, object]:
        return {"sets": sorted(self._kernel), "kept": sorted(self.kept)}


def _create(name: str, wish: SavedSet) -> str:
    return f"create {name} {wish.type} family {wish.family} maxelem {wish.maxelem}"


def _lines(verb: str, name: str, spec: SetSpec, elements: AbstractSet[bytes]) -> list[str]:
    texts = (text for element in sorted(elements) for text in member_texts(spec, element))
    return [f"{verb} {name} {text}" for text in texts]


def _deletions(of: _IpSet, additions: AbstractSet[str], elements: AbstractSet[bytes]) -> list[str]:
    """Lines that delete what neither was just added nor is wanted: everything is two halves in the
    kernel, and a half may be a member of its own."""
    found: list[str] = []
    for element in sorted(elements):
        texts = member_texts(of.spec, element)
        for text in texts:
            is_wanted = len(texts) > 1 and element_of(of.spec, text) in of.members.wanted
            if f"add {of.name} {text}" not in additions and not is_wanted:
                found.append(f"del {of.name} {text}")
    return found


def _elements(spec: SetSpec, texts: Iterable[str], tracker: MemberTracker) -> set[bytes]:
    """Printed members as elements. A wanted element that is several members (everything, a range)
    is there when all of them are; else none of them counts, so that all are written again."""
    found = {element_of(spec, text) for text in texts}
    if len(spec.key) > 1:
        return found
    half = _address_type(spec).length
    for element in tracker.wanted - found:
        if element[:half] == element[half:]:
            continue
        parts = {element_of(spec, text) for text in member_texts(spec, element)}
        if len(parts) > 1:
            is_whole = parts <= found
            found -= parts
            found |= {element} if is_whole else set()
    return found
