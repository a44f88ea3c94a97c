"""What felix and the process that makes wires say to each other: orders, and a report for each.

Layer: pure. Used by cni.wirer and cni.wirer_process: two ends of one version, so it may change.
A path in CNI_NETNS may hold any byte, so it travels as bytes.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import msgspec

from cni.skel import CniError, Code
from cni.veth import MadeWire, PodWire


class Verb(enum.Enum):
    ATTEMPT = "attempt"
    MAKE = "make"
    DELETE_IN_POD = "delete in pod"
    DELETE_ON_HOST = "delete on host"


class Order(msgspec.Struct, frozen=True, array_like=True):
    """`bare` is the wire without its namespace; `name` an interface's."""

    number: int
    verb: Verb
    bare: PodWire | None
    raw_netns: bytes
    name: str

    @classmethod
    def of(
        cls, number: int, verb: Verb, wire: PodWire | None, *, netns: str = "", name: str = ""
    ) -> Self:
        if wire is None:
            return cls(number, verb, None, os.fsencode(netns), name)
        return cls(number, verb, replace(wire, netns=""), os.fsencode(wire.netns), name)

    @property
    def netns(self) -> str:
        return os.fsdecode(self.raw_netns)

    @property
    def wire(self) -> PodWire:
        assert self.bare is not None
        return replace(self.bare, netns=self.netns)


class Refusal(msgspec.Struct, frozen=True, array_like=True):
    code: int
    msg: str
    details: str

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """What is no CniError is a fault of ours, and says so."""
        if not isinstance(error, CniError):
            error = CniError(Code.INTERNAL, f"{type(error).__name__}: {error}")
        return cls(error.code, _printable(error.msg), _printable(error.details))

    def to_error(self) -> CniError:
        return CniError(self.code, self.msg, self.details)


class Report(msgspec.Struct, frozen=True, array_like=True):
    """`made` answers what makes a wire, `is_done` what removes one."""

    number: int
    made: MadeWire | None = None
    is_done: bool = False
    refusal: Refusal | None = None


#: Orders or reports of one message. Each is a few hundred bytes, a path or an error text at most
#: some thousand; a socket's buffer takes two hundred thousand.
MAX_TOGETHER = 32
MESSAGE_BYTES = 1 << 20
_ENCODER = msgspec.msgpack.Encoder()
_ORDERS = msgspec.msgpack.Decoder(list[Order])
_REPORTS = msgspec.msgpack.Decoder(list[Report])


def encode_orders(orders: Sequence[Order]) -> bytes:
    return _ENCODER.encode(orders)


def decode_orders(data: bytes) -> list[Order]:
    return _ORDERS.decode(data)


def encode_reports(reports: Sequence[Report]) -> bytes:
    return _ENCODER.encode(reports)


def decode_reports(data: bytes) -> list[Report]:
    return _REPORTS.decode(data)


def _printable(text: str) -> str:
    """Half a surrogate pair, as of a path that is no UTF-8, cannot travel."""
    return text.encode("utf-8", "backslashreplace").decode()
