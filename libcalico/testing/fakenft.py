"""A fake nf_tables: takes nfnetlink bytes, refuses what the kernel refuses, forwards packets.

Layer: testing. It is a transport for felix.kernel.nfnetlink (send, receive, close), so the driver,
the codec and the socket code run unchanged on it:

    fake = FakeNft()
    kernel = NftKernel(fake)
    ...
    assert fake.forward(Packet("10.65.0.2", "10.65.0.3", dport=80), "cali1", "cali2") == "drop"

What it keeps to (F1-F4): a batch is all or nothing and every refused message is answered; names,
uses and shapes are checked as the kernel checks them (a chain or set in use cannot go, a jump needs
its target, intervals may not overlap, nothing jumps in a circle); the generation moves by one a
batch; dumps give back what was stored, user data included.

Source: net/netfilter/nf_tables_api.c, nfnetlink.c.
"""

from __future__ import annotations

import errno
import struct
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from libcalico.errors import ProgrammingFailed
from libcalico.netlink.messages import (
    Message,
    attr_text,
    iter_messages,
    nested,
    parse_attrs,
    read_text,
)
from libcalico.testing.fakenft_state import (
    ANONYMOUS,
    CONCAT,
    CONSTANT,
    FakeChain,
    FakeRule,
    FakeSet,
    FakeTable,
    Refused,
    be32,
    chain_attrs,
    concat_fields,
    element_attrs,
    parse_elements,
    parts,
    refuse,
    rule_attrs,
    set_attrs,
)
from libcalico.testing.fakenft_vm import (
    ACCEPT,
    CONTINUE,
    DROP,
    GOTO,
    JUMP,
    RETURN,
    Context,
    Decoded,
    Packet,
    Skb,
    Unsupported,
    Verdict,
    decode,
)

__all__ = ["FakeNft", "Packet"]

_BEGIN, _END, _ERROR, _DONE = 0x10, 0x11, 2, 3
_SUBSYS = 10
_EXCL, _ACK, _DUMP = 0x200, 0x4, 0x300
_MAX_NAME, _MAX_USERDATA = 255, 256
HOOKS = {"prerouting": 0, "input": 1, "forward": 2, "output": 3, "postrouting": 4}


@dataclass(slots=True)
class _Refusal:
    errno: int
    after: int
    seen: int = 0


class FakeNft:
    """See the module docstring. `commits` counts batches that changed something."""

    def __init__(self) -> None:
        self.tables: dict[tuple[int, str], FakeTable] = {}
        self.generation = 1
        self.commits = 0
        self.messages_seen: list[tuple[int, str]] = []
        self.logs: list[str] = []
        self.effects: list[str] = []
        self._replies: deque[bytes] = deque()
        self._handle = 0
        self._anonymous = 0
        self._refusals: dict[tuple[int, str], _Refusal] = {}
        self._refused_elements: set[tuple[str, bytes]] = set()
        self._refused_batches = 0
        self.touch_before_every_batch = False
        self._before_batch: list[Callable[[], None]] = []

    # ------------------------------------------------------------------------------ faults

    def refuse(
        self, message_type: int, name: str, number: int = errno.ENOMEM, *, after: int = 0
    ) -> None:
        """Refuse messages of a type about a chain or set of that name until `allow`.

        after: how many of them are taken in each batch before the first is refused."""
        self._refusals[message_type, name] = _Refusal(number, after)

    def refuse_element(self, set_name: str, beginning: bytes) -> None:
        """Refuse to add elements whose key begins so."""
        self._refused_elements.add((set_name, beginning))

    def refuse_batches(self, number: int) -> None:
        """Refuse every batch as a whole, after its messages were found good."""
        self._refused_batches = number

    def allow(self) -> None:
        self._refusals.clear()
        self._refused_elements.clear()
        self._refused_batches = 0

    def before_next_batch(self, work: Callable[[], None]) -> None:
        """Run once just before a batch is looked at: another program at work."""
        self._before_batch.append(work)

    def touch(self) -> None:
        """Another program changed a table of its own."""
        self.generation += 1

    # --------------------------------------------------------------------------- transport

    def send(self, data: bytes) -> None:
        messages = list(iter_messages(data))
        if messages[0].type == _BEGIN:
            if self.touch_before_every_batch:
                self.touch()
            while self._before_batch:
                self._before_batch.pop(0)()
            self._batch(messages)
            return
        for message in messages:
            self._request(message)

    def receive(self) -> bytes:
        if not self._replies:
            raise ProgrammingFailed("nfnetlink receive", "", errno.ETIMEDOUT, "no answer queued")
        return self._replies.popleft()

    def close(self) -> None:
        self._replies.clear()

    def _answer(self, message: Message, number: int) -> None:
        header = struct.pack("=IHHII", 16, message.type, message.flags, message.sequence, 0)
        body = struct.pack("=i", -number) + header
        self._replies.append(
            struct.pack("=IHHII", 16 + len(body), _ERROR, 0x100, message.sequence, 0) + body
        )

    def _batch(self, messages: list[Message]) -> None:
        begin, *inner, _end = messages
        wanted = parse_attrs(begin.body, 4).get(1)
        if wanted is not None and int.from_bytes(wanted, "big") != self.generation:
            self._answer(begin, errno.ERESTART)
            return
        if self._refused_batches:
            self._answer(begin, self._refused_batches)
            return
        draft = {key: table.draft() for key, table in self.tables.items()}
        answers = self._take(draft, inner)
        for message, number in answers:
            self._answer(message, number)
        if not any(number for _message, number in answers):
            self._commit(draft)

    def _take(
        self, draft: dict[tuple[int, str], FakeTable], messages: list[Message]
    ) -> list[tuple[Message, int]]:
        """Every message in turn, refused or not; returns what has to be answered."""
        for refusal in self._refusals.values():
            refusal.seen = 0
        answers: list[tuple[Message, int]] = []
        for message in messages:
            number = self._try(draft, message)
            if number or message.flags & _ACK:
                answers.append((message, number))
        if not any(number for _message, number in answers):
            number = self._check(draft)
            if number:
                return [(messages[-1], number)]
        return answers

    def _commit(self, draft: dict[tuple[int, str], FakeTable]) -> None:
        for table in draft.values():
            table.fresh.clear()
            table.set_name_by_id.clear()
            self._drop_unused_anonymous(table)
        self.tables = draft
        self.generation += 1
        self.commits += 1

    def _check(self, draft: dict[tuple[int, str], FakeTable]) -> int:
        try:
            for table in draft.values():
                for name in table.fresh & table.sets.keys():
                    table.sets[name].check()
                table.check_loops()
        except Refused as refused:
            return refused.errno
        return 0

    def _drop_unused_anonymous(self, table: FakeTable) -> None:
        for name in [n for n, s in table.sets.items() if s.flags & ANONYMOUS]:
            if not table.set_users(name):
                del table.sets[name]

    def _try(self, draft: dict[tuple[int, str], FakeTable], message: Message) -> int:
        kind = message.type & 0xFF
        attrs = parse_attrs(message.body, 4)
        key = (message.body[0], read_text(attrs[1]))
        try:
            if kind == 0:
                userdata = bytes(attrs[6]) if 6 in attrs else b""
                draft.setdefault(key, FakeTable(key[1], userdata=userdata))
                return 0
            if key not in draft:
                refuse(errno.ENOENT)
            if kind == 2:  # a table goes with all that is in it
                del draft[key]
                return 0
            name = read_text(attrs[3 if kind in (3, 5) else 2])
            self.messages_seen.append((kind, name))
            refusal = self._refusals.get((kind, name))
            if refusal is not None:
                refusal.seen += 1
                if refusal.seen > refusal.after:
                    refuse(refusal.errno)
            _HANDLERS[kind](self, draft[key], message, attrs)
        except Refused as refused:
            return refused.errno
        except Unsupported:
            return errno.EINVAL
        return 0

    # ------------------------------------------------------------------------------ chains

    def _new_handle(self) -> int:
        self._handle += 1
        return self._handle

    def _new_chain(self, table: FakeTable, message: Message, attrs: dict[int, memoryview]) -> None:
        name = read_text(attrs[3])
        if len(name) > _MAX_NAME or not name:
            refuse(errno.ERANGE)
        if name in table.chains:
            if message.flags & _EXCL:
                refuse(errno.EEXIST)
            return
        hook = None
        if 4 in attrs:
            inner = parse_attrs(attrs[4], 0)
            priority = int.from_bytes(inner[2], "big", signed=True)
            hook = (int.from_bytes(inner[1], "big"), priority)
        userdata = bytes(attrs[12]) if 12 in attrs else b""
        if len(userdata) > _MAX_USERDATA:
            refuse(errno.ERANGE)
        chain_type = read_text(attrs[7]) if 7 in attrs else ""
        if (hook is None) != (chain_type == ""):
            refuse(errno.EINVAL)
        table.chains[name] = FakeChain(
            name, (), hook, chain_type, userdata, handle=self._new_handle()
        )

    def _delete_chain(
        self, table: FakeTable, _message: Message, attrs: dict[int, memoryview]
    ) -> None:
        name = read_text(attrs[3])
        if name not in table.chains:
            refuse(errno.ENOENT)
        chain = table.chains[name]
        table.chains[name] = replace(chain, rules=())
        if table.chain_users(name):
            table.chains[name] = chain
            refuse(errno.EBUSY)
        del table.chains[name]

    def _new_rule(self, table: FakeTable, _message: Message, attrs: dict[int, memoryview]) -> None:
        name = read_text(attrs[2])
        if name not in table.chains:
            refuse(errno.ENOENT)
        userdata = bytes(attrs[7]) if 7 in attrs else b""
        if len(userdata) > _MAX_USERDATA:
            refuse(errno.ERANGE)
        program = tuple(self._resolve(table, one) for one in decode(attrs[4]))
        rule = FakeRule(self._new_handle(), program, bytes(attrs[4]), userdata)
        chain = table.chains[name]
        table.chains[name] = replace(chain, rules=(*chain.rules, rule))

    def _resolve(self, table: FakeTable, expression: Decoded) -> Decoded:
        """Bind to what the expression names; an anonymous set is named by its id."""
        if expression.chain:
            target = table.chains.get(expression.chain)
            if target is None:
                refuse(errno.ENOENT)
            if target.hook is not None:
                refuse(errno.EOPNOTSUPP)
        if not expression.set_name:
            return expression
        name = expression.set_name
        if name not in table.sets and expression.set_id:
            name = table.set_name_by_id.get(expression.set_id, "")
        if name not in table.sets:
            refuse(errno.ENOENT)
        if name == expression.set_name:
            return expression
        assert expression.bind is not None, "what names a set can be bound"
        return replace(expression, run=expression.bind(name), set_name=name, set_id=0)

    def _delete_rules(
        self, table: FakeTable, _message: Message, attrs: dict[int, memoryview]
    ) -> None:
        name = read_text(attrs[2])
        if name not in table.chains:
            refuse(errno.ENOENT)
        chain = table.chains[name]
        kept: tuple[FakeRule, ...] = ()
        if 3 in attrs:
            handle = int.from_bytes(attrs[3], "big")
            kept = tuple(rule for rule in chain.rules if rule.handle != handle)
            if len(kept) == len(chain.rules):
                refuse(errno.ENOENT)
        table.chains[name] = replace(chain, rules=kept)

    # -------------------------------------------------------------------------------- sets

    def _new_set(self, table: FakeTable, message: Message, attrs: dict[int, memoryview]) -> None:
        number = {k: int.from_bytes(v, "big") for k, v in attrs.items() if k in (3, 4, 5, 6, 7, 10)}
        name, flags = read_text(attrs[2]), number.get(3, 0)
        if 10 not in number or not 0 < number.get(5, 0) <= 64 or len(name) > _MAX_NAME:
            refuse(errno.EINVAL)
        fields = concat_fields(attrs)
        if fields and (not flags & CONCAT or sum((f + 3) & ~3 for f in fields) != number[5]):
            refuse(errno.EINVAL)
        if name in table.sets:
            if table.sets[name].flags & ANONYMOUS:
                refuse(errno.EOPNOTSUPP)
            if message.flags & _EXCL:
                refuse(errno.EEXIST)
            return
        if flags & ANONYMOUS and "%d" in name:
            self._anonymous += 1
            name = name.replace("%d", str(self._anonymous))
        made = FakeSet(
            name,
            flags,
            number.get(4, 0),
            number[5],
            number.get(6, 0),
            number.get(7, 0),
            fields,
            bytes(attrs[13]) if 13 in attrs else b"",
        )
        table.sets[name] = made
        table.fresh.add(name)
        table.set_name_by_id[number[10]] = name

    def _delete_set(
        self, table: FakeTable, _message: Message, attrs: dict[int, memoryview]
    ) -> None:
        name = read_text(attrs[2])
        if name not in table.sets:
            refuse(errno.ENOENT)
        if table.set_users(name):
            refuse(errno.EBUSY)
        del table.sets[name]
        table.fresh.discard(name)

    def _find_set(self, table: FakeTable, attrs: dict[int, memoryview]) -> FakeSet:
        name = read_text(attrs[2])
        if name not in table.sets and 4 in attrs:
            name = table.set_name_by_id.get(int.from_bytes(attrs[4], "big"), "")
        return table.set_to_change(name)

    def _new_elements(
        self, table: FakeTable, message: Message, attrs: dict[int, memoryview]
    ) -> None:
        members = self._find_set(table, attrs)
        if members.flags & CONSTANT and table.set_users(members.name):
            refuse(errno.EBUSY)
        for element in parse_elements(members, attrs):
            if isinstance(element.value, Verdict) and element.value.chain:
                if element.value.chain not in table.chains:
                    refuse(errno.ENOENT)
                if table.chains[element.value.chain].hook is not None:
                    refuse(errno.EOPNOTSUPP)
            for set_name, beginning in self._refused_elements:
                if set_name == members.name and element.key.startswith(beginning):
                    refuse(errno.ENOMEM)
            key = (element.key, element.key_end, element.is_end)
            present = members.elements.get(key)
            if present is not None and message.flags & _EXCL:
                refuse(errno.EEXIST)
            if present is not None and present.value != element.value:
                refuse(errno.EBUSY)
            members.elements[key] = element

    def _delete_elements(
        self, table: FakeTable, _message: Message, attrs: dict[int, memoryview]
    ) -> None:
        members = self._find_set(table, attrs)
        for element in parse_elements(members, attrs):
            key = (element.key, element.key_end, element.is_end)
            if key not in members.elements:
                refuse(errno.ENOENT)
            del members.elements[key]

    # ------------------------------------------------------------------------------- dumps

    def _request(self, message: Message) -> None:
        kind = message.type & 0xFF
        attrs = parse_attrs(message.body, 4)
        family = message.body[0]
        table = self.tables.get((family, read_text(attrs[1]))) if 1 in attrs else None
        if kind == 16:
            answers: list[bytes] = [be32(1, self.generation)]
        elif kind == 4:
            answers = [
                chain_attrs(other.name, chain)
                for (number, _name), other in self.tables.items()
                if number == family
                for chain in other.chains.values()
            ]
        elif table is None:
            if kind in (1, 13):
                self._answer(message, errno.ENOENT)
                return
            answers = []
        else:
            found = self._listing(kind, table, attrs)
            if found is None:
                self._answer(message, errno.ENOENT)
                return
            answers = found
        self._dump(message, kind - 1, answers)

    def _listing(
        self, kind: int, table: FakeTable, attrs: dict[int, memoryview]
    ) -> list[bytes] | None:
        if kind == 1:
            return [attr_text(1, table.name)]
        if kind == 7:
            return [
                attr_text(1, table.name) + attr_text(2, chain.name) + rule_attrs(rule)
                for chain in table.chains.values()
                for rule in chain.rules
            ]
        if kind == 10:
            return [set_attrs(table.name, members) for members in table.sets.values()]
        members = table.sets.get(read_text(attrs[2]))
        if members is None:
            return None
        head = attr_text(1, table.name) + attr_text(2, members.name)
        encoded = [element_attrs(members, element) for element in members.elements.values()]
        return [head + nested(3, *part) for part in parts(encoded)] or [head]

    def _dump(self, message: Message, kind: int, answers: Iterable[bytes]) -> None:
        is_dump = message.flags & _DUMP == _DUMP
        for answer in answers:
            body = bytes((message.body[0], 0, 0, 0)) + answer
            header = struct.pack(
                "=IHHII",
                16 + len(body),
                _SUBSYS << 8 | kind,
                2 if is_dump else 0,
                message.sequence,
                0,
            )
            self._replies.append(header + body)
        if is_dump:
            done = struct.pack("=IHHIIi", 20, _DONE, 2, message.sequence, 0, 0)
            self._replies.append(done)
        else:
            self._answer(message, 0)

    # ----------------------------------------------------------------------------- packets

    def forward(self, packet: Packet, iifname: str, oifname: str) -> str:
        """A packet through the node: "accept", "drop", "reject" or "reset"."""
        return self._through(
            packet,
            (
                ("prerouting", iifname, ""),
                ("forward", iifname, oifname),
                ("postrouting", "", oifname),
            ),
        )

    def deliver(self, packet: Packet, iifname: str, *, mark: int = 0) -> str:
        """A packet to the node itself. `mark`: what it carries already."""
        hooks = (("prerouting", iifname, ""), ("input", iifname, ""))
        return self._through(packet, hooks, Skb(mark))

    def originate(
        self, packet: Packet, oifname: str, *, rerouted_to: str = "", mark: int = 0
    ) -> str:
        """A packet of the node itself. `rerouted_to`: where it leaves after its destination was
        translated; the output hook still sees the interface of the first routing decision."""
        leaves = rerouted_to or oifname
        hooks = (("output", "", oifname), ("postrouting", "", leaves))
        return self._through(packet, hooks, Skb(mark))

    def _through(
        self, packet: Packet, hooks: tuple[tuple[str, str, str], ...], skb: Skb | None = None
    ) -> str:
        self.logs, self.effects = [], []
        skb = skb or Skb()
        for hook, iifname, oifname in hooks:
            for table, chain in self._base_chains(HOOKS[hook]):
                context = Context(
                    packet,
                    iifname,
                    oifname,
                    table.sets.__getitem__,
                    self.logs,
                    self.effects,
                    skb,
                )
                if self._run_base(table, chain, context) == DROP:
                    told = [effect for effect in self.effects if effect in ("reject", "reset")]
                    return told[-1] if told else "drop"
        return "accept"

    def _base_chains(self, number: int) -> list[tuple[FakeTable, FakeChain]]:
        found = [
            (table, chain)
            for table in self.tables.values()
            for chain in table.chains.values()
            if chain.hook is not None and chain.hook[0] == number
        ]
        return sorted(found, key=lambda pair: (pair[1].hook or (0, 0))[1])

    def _run_base(self, table: FakeTable, chain: FakeChain, context: Context) -> int:
        """nft_do_chain: jumps push, gotos do not, the end of a chain is a return."""
        stack: list[tuple[FakeChain, int]] = []
        current, at = chain, 0
        while True:
            verdict = RETURN
            while at < len(current.rules):
                decided = self._run_rule(current.rules[at], context)
                at += 1
                if decided.code != CONTINUE:
                    verdict = decided.code
                    break
            if verdict in (ACCEPT, DROP):
                return verdict
            if verdict in (JUMP, GOTO):
                if verdict == JUMP:
                    stack.append((current, at))
                current, at = table.chains[decided.chain], 0
                continue
            if not stack:
                return ACCEPT  # the policy of every base chain here
            current, at = stack.pop()

    def _run_rule(self, rule: FakeRule, context: Context) -> Verdict:
        context.verdict = None
        for expression in rule.program:
            if not expression.run(context):
                return Verdict(CONTINUE)
            if context.verdict is not None:
                return context.verdict
        return Verdict(CONTINUE)


_HANDLERS: dict[int, Callable[..., None]] = {
    3: FakeNft._new_chain,
    5: FakeNft._delete_chain,
    6: FakeNft._new_rule,
    8: FakeNft._delete_rules,
    9: FakeNft._new_set,
    11: FakeNft._delete_set,
    12: FakeNft._new_elements,
    14: FakeNft._delete_elements,
}
