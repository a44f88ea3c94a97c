"""The etcd v3 client: `Datastore` over grpc.aio and etcd's generated messages.

Layer: datastore edge; the rules are those of `libcalico.datastore.api`. Made by
`libcalico.datastore.config.connect`; tests/etcd/test_contract.py runs on it and on the store in
memory.

Transactions are shaped as Calico's driver shapes them (libcalico-go/lib/backend/etcdv3/etcdv3.go),
so that both see each other's conflicts the same way. Only aetcd's generated stubs are used: its
client has no read-back of a failed compare, no paging, and its watches do not survive a reconnect.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc.aio
from aetcd.rpc import rpc_pb2

from libcalico.datastore import etcd_watch
from libcalico.datastore.api import (
    Compare,
    Delete,
    KeyValue,
    ListResult,
    Put,
    TxnResult,
    WatchBatch,
)
from libcalico.datastore.etcd_errors import Failure, classify
from libcalico.datastore.etcd_group import Committer
from libcalico.datastore.etcd_keys import encode_key, key_after, key_value, prefix_range
from libcalico.datastore.etcd_link import Connection, EtcdConfig, Link
from libcalico.errors import (
    AlreadyExists,
    DatastoreUnavailable,
    InvalidInput,
    NotFound,
    RevisionConflict,
    WatchExpired,
)
from libcalico.runtime.clock import SYSTEM, Clock

# Pages aim at this size; a page of the largest values stays far below what a server will send.
_PAGE_BYTES = 4 * 1024 * 1024
_FIRST_PAGE_KEYS = 500
# Decoding a page holds the event loop: about 40 ms for this many endpoints.
_PAGE_KEYS_LIMIT = 2_000
_PAGE_KEYS_FLOOR = 8
_LIST_RESTARTS = 3


@dataclass(slots=True)
class _PageSize:
    """How many keys to ask for next, from the size of what came."""

    keys: int = _FIRST_PAGE_KEYS

    def learn(self, count: int, size_bytes: int) -> None:
        average = max(1, size_bytes // max(1, count))
        self.keys = max(_PAGE_KEYS_FLOOR, min(_PAGE_KEYS_LIMIT, _PAGE_BYTES // average))


class EtcdDatastore:
    """Satisfies `libcalico.datastore.api.Datastore`. Belongs to the event loop it was made in."""

    def __init__(self, config: EtcdConfig, *, clock: Clock = SYSTEM) -> None:
        self._connection = Connection(config, clock=clock)
        self._committer = Committer(self._connection)

    async def get(self, key: str, *, revision: int = 0) -> KeyValue | None:
        _check_key(key)
        request = rpc_pb2.RangeRequest(key=encode_key(key), revision=revision)
        answer = await self._read(request, revision)
        return key_value(answer.kvs[0]) if answer.kvs else None

    async def list(self, prefix: str, *, revision: int = 0, keys_only: bool = False) -> ListResult:
        for _ in range(_LIST_RESTARTS):
            try:
                pages = self.list_pages(prefix, revision=revision, keys_only=keys_only)
                return await _joined(pages)
            except WatchExpired:
                # Compacted between two pages. A caller who named the revision must know; else
                # another snapshot is as good.
                if revision:
                    raise
        raise DatastoreUnavailable(f"listing {prefix} was overtaken by compaction every time")

    async def list_pages(
        self, prefix: str, *, revision: int = 0, keys_only: bool = False
    ) -> AsyncGenerator[ListResult, None]:
        """The next page is on its way while the caller works on this one."""
        first, range_end = prefix_range(prefix)
        size = _PageSize()
        request = rpc_pb2.RangeRequest(
            key=first, range_end=range_end, limit=size.keys, revision=revision, keys_only=keys_only
        )
        answer = await self._read(request, revision)
        snapshot = revision or int(answer.header.revision)
        while answer.more:
            size.learn(len(answer.kvs), answer.ByteSize())
            request = rpc_pb2.RangeRequest(
                key=key_after(answer.kvs[-1].key),
                range_end=range_end,
                limit=size.keys,
                revision=snapshot,
                keys_only=keys_only,
            )
            following = asyncio.ensure_future(self._read(request, snapshot))
            try:
                await asyncio.sleep(0)  # let the request leave before the work on this page
                yield _page(answer, snapshot)
                answer = await following
            finally:
                if not following.done():
                    following.cancel()
        yield _page(answer, snapshot)

    async def create(self, key: str, value: bytes, *, lease: int = 0) -> int:
        result = await self.txn([Compare(key, 0)], [Put(key, value, lease)])
        if not result.succeeded:
            raise AlreadyExists(key)
        return result.revision

    async def update(self, key: str, value: bytes, mod_revision: int, *, lease: int = 0) -> int:
        if mod_revision < 1:
            raise InvalidInput(f"update of {key} needs the revision it was read at")
        result = await self.txn([Compare(key, mod_revision)], [Put(key, value, lease)])
        if not result.succeeded:
            _raise_conflict(key, mod_revision, result.found[0])
        return result.revision

    async def put(self, key: str, value: bytes, *, lease: int = 0) -> int:
        _check_key(key)
        request = _put_request(Put(key, value, lease))
        try:
            answer = await self._connection.write(lambda link: link.kv.Put, request)
        except NotFound as err:
            raise NotFound(f"lease {lease}") from err
        return int(answer.header.revision)

    async def delete(self, key: str, *, mod_revision: int | None = None) -> KeyValue:
        _check_key(key)
        delete = rpc_pb2.DeleteRangeRequest(key=encode_key(key), prev_kv=True)
        if mod_revision is None:
            answer = await self._connection.write(lambda link: link.kv.DeleteRange, delete)
        else:
            request = rpc_pb2.TxnRequest(
                compare=[_compare(Compare(key, mod_revision))],
                success=[rpc_pb2.RequestOp(request_delete_range=delete)],
                failure=[_get_operation(key)],
            )
            result, _ = await self._committer.commit(request)
            if not result.succeeded:
                found = result.responses[0].response_range.kvs
                _raise_conflict(key, mod_revision, key_value(found[0]) if found else None)
            answer = result.responses[0].response_delete_range
        if not answer.deleted:
            raise NotFound(key)
        return key_value(answer.prev_kvs[0])

    async def txn(
        self, compares: Sequence[Compare], operations: Sequence[Put | Delete]
    ) -> TxnResult:
        for item in (*compares, *operations):
            _check_key(item.key)
        request = rpc_pb2.TxnRequest(
            compare=[_compare(compare) for compare in compares],
            success=[_operation(operation) for operation in operations],
            failure=[_get_operation(compare.key) for compare in compares],
        )
        try:
            answer, revision = await self._committer.commit(request)
        except NotFound as err:
            leases = {op.lease for op in operations if isinstance(op, Put) and op.lease}
            raise NotFound("lease " + " or ".join(map(str, sorted(leases)))) from err
        if answer.succeeded:
            return TxnResult(True, revision)
        ranges = [response.response_range.kvs for response in answer.responses]
        found = tuple(key_value(kvs[0]) if kvs else None for kvs in ranges)
        return TxnResult(False, revision, found)

    async def grant_lease(self, ttl_s: int) -> int:
        if ttl_s < 1:
            raise InvalidInput(f"lease TTL {ttl_s} s is too short")
        request = rpc_pb2.LeaseGrantRequest(TTL=ttl_s)
        answer = await self._connection.write(lambda link: link.lease.LeaseGrant, request)
        return int(answer.ID)

    async def keep_lease_alive(self, lease: int) -> int:
        request = rpc_pb2.LeaseKeepAliveRequest(ID=lease)
        try:
            async with self._connection.stream(_keep_alive) as (call, endpoint):
                answer = await _first_answer(call, request, endpoint)
        except Failure as failure:
            raise failure.error from failure
        if answer.TTL <= 0:
            raise NotFound(f"lease {lease}")
        return int(answer.TTL)

    async def revoke_lease(self, lease: int) -> None:
        request = rpc_pb2.LeaseRevokeRequest(ID=lease)
        try:
            await self._connection.write(lambda link: link.lease.LeaseRevoke, request)
        except NotFound as err:
            raise NotFound(f"lease {lease}") from err

    def watch(self, prefix: str, start_revision: int) -> AsyncGenerator[WatchBatch, None]:
        if start_revision < 1:
            raise InvalidInput("a watch starts at revision 1 or later")
        return etcd_watch.watch(self._connection, prefix, start_revision)

    async def compact(self, revision: int) -> None:
        """Forget history before `revision`; the controllers do this now and then (§1.9 of the data
        model, etcdV3CompactionPeriod). Errors: WatchExpired when that was done already."""
        request = rpc_pb2.CompactionRequest(revision=revision, physical=False)
        await self._connection.write(lambda link: link.kv.Compact, request)

    async def close(self) -> None:
        await self._connection.close()

    async def _read(self, request: Any, revision: int) -> Any:
        try:
            return await self._connection.read(lambda link: link.kv.Range, request)
        except WatchExpired as err:
            raise WatchExpired(revision) from err


def _keep_alive(link: Link) -> Any:
    return link.lease.LeaseKeepAlive


async def _first_answer(call: Any, request: Any, endpoint: str) -> Any:
    """Send one message on a stream and take one."""
    try:
        await call.write(request)
        answer = await call.read()
    except grpc.aio.AioRpcError as err:
        raise classify(err.code(), err.details() or "", endpoint=endpoint) from err
    if answer is grpc.aio.EOF:
        raise classify(await call.code(), await call.details() or "", endpoint=endpoint)
    return answer


async def _joined(pages: AsyncIterator[ListResult]) -> ListResult:
    collected: list[KeyValue] = []
    revision = 0
    async for page in pages:
        collected.extend(page.kvs)
        revision = page.revision
    return ListResult(tuple(collected), revision)


def _page(answer: Any, snapshot: int) -> ListResult:
    return ListResult(tuple(map(key_value, answer.kvs)), snapshot)


def _check_key(key: str) -> None:
    if not key:
        raise InvalidInput("etcdserver: key is not provided")


def _raise_conflict(key: str, expected: int, found: KeyValue | None) -> None:
    if found is None:
        raise NotFound(key)
    raise RevisionConflict(key, expected, found.mod_revision)


def _compare(compare: Compare) -> Any:
    return rpc_pb2.Compare(
        key=encode_key(compare.key),
        target=rpc_pb2.Compare.MOD,
        result=rpc_pb2.Compare.EQUAL,
        mod_revision=compare.mod_revision,
    )


def _operation(operation: Put | Delete) -> Any:
    if isinstance(operation, Put):
        return rpc_pb2.RequestOp(request_put=_put_request(operation))
    request = rpc_pb2.DeleteRangeRequest(key=encode_key(operation.key))
    return rpc_pb2.RequestOp(request_delete_range=request)


def _put_request(put: Put) -> Any:
    return rpc_pb2.PutRequest(key=encode_key(put.key), value=put.value, lease=put.lease)


def _get_operation(key: str) -> Any:
    return rpc_pb2.RequestOp(request_range=rpc_pb2.RangeRequest(key=encode_key(key)))
