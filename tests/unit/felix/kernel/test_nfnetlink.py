"""felix.kernel.nfnetlink: batches and answers over a scripted transport."""

from __future__ import annotations

import errno
import struct

import pytest

from felix.kernel.nfnetlink import Answer, NfnetlinkSocket
from libcalico.errors import ProgrammingFailed
from libcalico.netlink.messages import Message, iter_messages

ERROR, DONE, MULTI = 2, 3, 2
NEW_TABLE, GET_GENERATION, GET_CHAIN = 0, 16, 4


class Script:
    """Records what is sent; answers what the test says, as functions of the messages sent."""

    def __init__(self, *answers: object) -> None:
        self.sent: list[list[Message]] = []
        self.answers = list(answers)

    def send(self, data: bytes) -> None:
        self.sent.append(list(iter_messages(data)))

    def receive(self) -> bytes:
        if not self.answers:
            raise ProgrammingFailed("receive", "", errno.ETIMEDOUT)
        answer = self.answers.pop(0)
        return answer(self.sent[-1]) if callable(answer) else answer

    def close(self) -> None:
        self.sent.append([])


def verdict(place: int, number: int = 0):
    """An answer to the message at `place` of the last datagram."""

    def answer(messages: list[Message]) -> bytes:
        body = struct.pack("=i", -number) + bytes(16)
        return struct.pack("=IHHII", 36, ERROR, 0x100, messages[place].sequence, 0) + body

    return answer


def both(*answers):
    return lambda messages: b"".join(answer(messages) for answer in answers)


def part(kind: int, body: bytes, flags: int = MULTI):
    def answer(messages: list[Message]) -> bytes:
        sequence = messages[0].sequence
        return struct.pack("=IHHII", 20 + len(body), kind, flags, sequence, 0) + bytes(4) + body

    return answer


def done(messages: list[Message]) -> bytes:
    return struct.pack("=IHHIIi", 20, DONE, MULTI, messages[0].sequence, 0, 0)


MESSAGES = [(NEW_TABLE, 0x400, b"\x08\0\1\0abc\0"), (3, 0, b""), (6, 0, b"")]


def socket_with(*answers: object) -> tuple[NfnetlinkSocket, Script]:
    script = Script(*answers)
    return NfnetlinkSocket(script, family=1), script


def test_a_batch_is_one_datagram_between_its_marks():
    netlink, script = socket_with(verdict(3))
    assert netlink.transact(MESSAGES) == []
    (sent,) = script.sent
    assert [message.type for message in sent] == [0x10, 0xA00, 0xA03, 0xA06, 0x11]
    assert [message.sequence for message in sent] == [1, 2, 3, 4, 5]
    assert bytes(sent[1].body) == b"\1\0\0\0" + MESSAGES[0][2]
    assert bytes(sent[0].body) == b"\0\0\0\x0a", "res_id names nf_tables in network order"


def test_only_the_last_message_asks_for_an_answer():
    netlink, script = socket_with(verdict(3))
    netlink.transact(MESSAGES)
    assert [message.flags & 0x4 for message in script.sent[0]] == [0, 0, 0, 4, 0]
    assert script.sent[0][1].flags == 0x401


def test_every_refused_message_is_reported_by_its_place():
    answers = both(verdict(1, errno.EEXIST), verdict(2, errno.ENOENT), verdict(3))
    netlink, _script = socket_with(answers)
    assert [(a.place, a.errno) for a in netlink.transact(MESSAGES)] == [
        (0, errno.EEXIST),
        (1, errno.ENOENT),
    ]


def test_answers_may_come_in_several_datagrams():
    netlink, _script = socket_with(verdict(1, errno.EEXIST), verdict(3, errno.EBUSY))
    assert [a.place for a in netlink.transact(MESSAGES)] == [0, 2]


def test_a_refused_batch_is_place_minus_one_and_ends_the_wait():
    netlink, _script = socket_with(verdict(0, errno.ERESTART))
    assert netlink.transact(MESSAGES, generation=7) == [Answer(-1, errno.ERESTART, "")]


def test_a_generation_is_put_into_the_first_mark_in_network_order():
    netlink, script = socket_with(verdict(3))
    netlink.transact(MESSAGES, generation=7)
    assert bytes(script.sent[0][0].body[4:]) == b"\x08\0\1\0" + b"\0\0\0\7"


def test_an_answer_to_an_earlier_call_is_dropped():
    stale = struct.pack("=IHHII", 36, ERROR, 0x100, 3, 0) + struct.pack("=i", -17) + bytes(16)
    netlink, _script = socket_with(verdict(3), stale, verdict(3))
    netlink.transact(MESSAGES)
    assert netlink.transact(MESSAGES) == []


def test_a_dump_is_collected_over_datagrams_until_done():
    netlink, script = socket_with(part(0xA03, b"one "), both(part(0xA03, b"two "), done))
    found = [bytes(message.body[4:]) for message in netlink.dump(GET_CHAIN)]
    assert found == [b"one ", b"two "]
    assert script.sent[0][0].flags == 0x301


def test_a_get_ends_with_its_acknowledgement():
    netlink, script = socket_with(part(0xA0F, b"gen ", 0), verdict(0))
    assert [bytes(m.body[4:]) for m in netlink.get(GET_GENERATION)] == [b"gen "]
    assert script.sent[0][0].flags == 0x5


def test_a_refused_request_is_a_programming_failure():
    netlink, _script = socket_with(verdict(0, errno.ENOENT))
    with pytest.raises(ProgrammingFailed) as caught:
        netlink.get(1)
    assert caught.value.errno == errno.ENOENT


def test_sequence_numbers_start_again_before_they_run_out():
    netlink, script = socket_with(verdict(3), verdict(3))
    netlink.transact(MESSAGES)
    netlink._sequence = 0xFFFFFFFE
    netlink.transact(MESSAGES)
    assert script.sent[1][0].sequence == 1


def test_closing_closes_the_transport():
    netlink, script = socket_with()
    netlink.close()
    assert script.sent == [[]]
