"""Transactions that are ready at the same moment travel together, each with a verdict of its own.

Layer: datastore edge. Used by `etcd`. A call costs this process most of a millisecond of its one
processor, whatever is in it; a hundred pods that start at once, or an `apply` of a thousand
objects, would pay it for every record. etcd nests transactions: the members of a group are nested
in one that compares nothing, so each is applied or not by its own compares.

  T1  nobody waits for company: the first transaction of a turn of the event loop leaves at once, as
      it is; a group is what else was asked for in that turn;
  T2  what one member writes, no other member of its group compares, reads or writes. etcd evaluates
      every compare before it applies anything, and refuses a key that is written twice;
  T3  what etcd refuses outright (a lease that is gone, a key this user may not write) was not
      applied: then every member is sent alone, and only the guilty one fails;
  T4  a lost answer is lost for every member: outcome unknown, as for one that was alone;
  T5  a member whose caller was cancelled before the group left is not in it.

Source: etcd server/etcdserver/txn (compares of nested transactions are evaluated first), its limit
of operations, and its limit on the size of a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from aetcd.rpc import rpc_pb2

from libcalico.datastore.etcd_link import Connection
from libcalico.errors import DatastoreUnavailable, SuiteError

# etcd takes 128 operations, those of a nested transaction and the members of the outer one counted
# together, and 1.5 MiB.
MAX_MEMBERS = 24
MAX_OPERATIONS = 96
MAX_BYTES = 512 * 1024

Answer = tuple[Any, int]


class _Member:
    """One transaction on its way."""

    __slots__ = ("answer", "keys", "request", "size_bytes", "task", "written")

    def __init__(self, request: Any) -> None:
        self.request = request
        self.size_bytes = int(request.ByteSize())
        self.written = frozenset(_written(request.success))
        self.keys = self.written.union(compare.key for compare in request.compare)
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None

    @property
    def fits_in(self) -> bool:
        count = max(len(self.request.compare), len(self.request.success))
        return count <= MAX_OPERATIONS and self.size_bytes <= MAX_BYTES

    def finish(self, answer: Answer) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)

    def fail(self, error: BaseException) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class _Group:
    """Members that do not concern each other (T2)."""

    def __init__(self) -> None:
        self.members: list[_Member] = []
        self._size_bytes = 0
        self._keys: set[bytes] = set()
        self._written: set[bytes] = set()

    def admit(self, member: _Member) -> bool:
        if self.members and not self._has_room_for(member):
            return False
        self.members.append(member)
        self._size_bytes += member.size_bytes
        self._keys |= member.keys
        self._written |= member.written
        return True

    def _has_room_for(self, member: _Member) -> bool:
        return (
            len(self.members) < MAX_MEMBERS
            and member.fits_in
            and self.members[0].fits_in
            and self._size_bytes + member.size_bytes <= MAX_BYTES
            and self._keys.isdisjoint(member.written)
            and self._written.isdisjoint(member.keys)
        )


class Committer:
    """Sends transactions over one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._is_busy_turn = False
        self._waiting: list[_Member] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def commit(self, request: Any) -> Answer:
        """A TxnRequest -> its TxnResponse, and the revision of the store it was answered at.

        Operations are puts and deletes of single keys, those for the other case are reads. Errors:
        as `Connection.write`."""
        if not self._is_busy_turn:
            self._is_busy_turn = True
            asyncio.get_running_loop().call_soon(self._send)
            return await self._alone(request)
        member = _Member(request)
        self._waiting.append(member)
        try:
            return await member.answer
        except asyncio.CancelledError:
            self._leave(member)
            raise

    def _leave(self, member: _Member) -> None:
        """T5; a call that nobody waits for any more is given up."""
        if member in self._waiting:
            self._waiting.remove(member)
        elif member.task is not None and not member.task.done():
            member.task.cancel()

    def _send(self) -> None:
        self._is_busy_turn = False
        waiting, self._waiting = self._waiting, []
        groups: list[_Group] = []
        for member in waiting:
            if member.answer.cancelled():
                continue  # T5; its caller has not had its turn yet
            if not any(group.admit(member) for group in groups):
                groups.append(_Group())
                groups[-1].admit(member)
        for group in groups:
            task = asyncio.ensure_future(self._serve(group.members))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            if len(group.members) == 1:
                group.members[0].task = task

    async def _serve(self, members: Sequence[_Member]) -> None:
        try:
            await self._call(members)
        except SuiteError as err:
            if len(members) == 1 or isinstance(err, DatastoreUnavailable):
                for member in members:
                    member.fail(err)
            else:
                await asyncio.gather(*(self._serve([member]) for member in members))
        except asyncio.CancelledError:
            # The event loop is ending, or the only member's caller has gone.
            for member in members:
                member.answer.cancel()
            raise

    async def _call(self, members: Sequence[_Member]) -> None:
        """Errors: as `Connection.write`; then no member has its answer."""
        if len(members) == 1:
            members[0].finish(await self._alone(members[0].request))
            return
        nested = [rpc_pb2.RequestOp(request_txn=member.request) for member in members]
        answer, revision = await self._alone(rpc_pb2.TxnRequest(success=nested))
        for member, response in zip(members, answer.responses, strict=True):
            member.finish((response.response_txn, revision))

    async def _alone(self, request: Any) -> Answer:
        answer = await self._connection.write(lambda link: link.kv.Txn, request)
        return answer, int(answer.header.revision)


def _written(operations: Iterable[Any]) -> Iterable[bytes]:
    for operation in operations:
        if operation.HasField("request_put"):
            yield operation.request_put.key
        else:
            yield operation.request_delete_range.key
