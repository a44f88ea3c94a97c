"""One watch on etcd that outlives its streams: reconnects, resumes, and notices a dead one.

Layer: datastore edge. `WatchState` is the pure part (responses in, batches out), `watch` the loop.

  I1  `next_revision` is the first one not delivered yet; a new stream starts there, so nothing is
      lost or said twice, whichever member answers (D4);
  I2  it advances only by complete answers (all fragments) and by etcd's ordered progress
      notifications. The answer to our own progress request is *not* ordered with events in 3.4 (it
      comes over the control stream), so it only proves that the stream lives;
  I3  a stream that says nothing for a while is asked, and given up when it does not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio
from aetcd.rpc import kv_pb2, rpc_pb2

from libcalico.datastore.api import EventType, KeyValue, WatchBatch, WatchEvent
from libcalico.datastore.etcd_errors import Failure, Outcome, classify, is_refusal
from libcalico.datastore.etcd_keys import decode_key, key_value, prefix_range
from libcalico.datastore.etcd_link import Connection, EtcdConfig
from libcalico.errors import DatastoreUnavailable, Unauthorized, WatchExpired
from libcalico.runtime import log
from libcalico.runtime.backoff import Backoff, Throttle

LOG = log.get(__name__)

_PROGRESS_WATCH_ID = -1


class WatchState:
    """What has been delivered, and the answer that is being put together from fragments."""

    def __init__(self, prefix: str, start_revision: int) -> None:
        self._prefix = prefix
        self.next_revision = start_revision
        self._fragments: list[Any] = []

    def create_request(self) -> Any:
        """The first message of a stream (I1). Half an answer of the last stream is forgotten."""
        self._fragments.clear()
        key, range_end = prefix_range(self._prefix)
        create = rpc_pb2.WatchCreateRequest(
            key=key,
            range_end=range_end,
            start_revision=self.next_revision,
            progress_notify=True,
            prev_kv=True,
            fragment=True,
        )
        return rpc_pb2.WatchRequest(create_request=create)

    def receive(self, response: Any) -> WatchBatch | None:
        """Errors: WatchExpired, or Failure when etcd ended the watch for another reason."""
        if response.canceled:
            raise self._canceled(response)
        if response.created:
            return None
        if not response.events:
            return self._progress(response)
        self._fragments.extend(response.events)
        if response.fragment:
            return None
        events, self._fragments = self._fragments, []
        return self._deliver(events)

    def _deliver(self, events: list[Any]) -> WatchBatch | None:
        fresh = [event for event in events if event.kv.mod_revision >= self.next_revision]
        if not fresh:
            return None
        last = int(fresh[-1].kv.mod_revision)
        self.next_revision = last + 1
        return WatchBatch(tuple(map(_event, fresh)), last)

    def _progress(self, response: Any) -> WatchBatch | None:
        reached = int(response.header.revision)
        if response.watch_id == _PROGRESS_WATCH_ID or reached < self.next_revision:
            return None  # I2
        self.next_revision = reached + 1
        return WatchBatch((), reached)

    def _canceled(self, response: Any) -> Exception:
        if response.compact_revision:
            return WatchExpired(int(response.compact_revision))
        reason = response.cancel_reason or "the watch was canceled without a reason"
        if is_refusal(reason):
            # Early 3.4 does not tell an expired token from a missing permission.
            return Failure(Outcome.BAD_TOKEN, Unauthorized(reason.rsplit("desc = ", 1)[-1]))
        return Failure(Outcome.NOT_APPLIED, DatastoreUnavailable(f"etcd ended the watch: {reason}"))


async def watch(
    connection: Connection, prefix: str, start_revision: int
) -> AsyncGenerator[WatchBatch, None]:
    """Batches for ever. Errors: WatchExpired, Unauthorized (after a fresh login did not help)."""
    state = WatchState(prefix, start_revision)
    backoff = Backoff(0.1, 5.0)
    throttle = Throttle(60.0)
    may_renew = connection.has_user
    while True:
        try:
            async with (
                connection.stream(lambda link: link.watch.Watch) as (call, endpoint),
                aclosing(_one_stream(call, endpoint, state, connection)) as batches,
            ):
                async for batch in batches:
                    backoff.reset()
                    may_renew = connection.has_user
                    if batch is not None:
                        yield batch
        except Failure as failure:
            if failure.outcome is Outcome.BAD_TOKEN and may_renew:
                may_renew = False
                connection.forget_token()
                continue
            is_passing = isinstance(failure.error, DatastoreUnavailable)
            if not is_passing or connection.is_closed:
                raise failure.error from failure
            if throttle.allows(connection.clock.monotonic()):
                LOG.warning("watch interrupted, resuming", key=prefix, error=str(failure.error))
        await connection.clock.sleep(backoff.next_s())


async def _one_stream(
    call: Any, endpoint: str, state: WatchState, connection: Connection
) -> AsyncGenerator[WatchBatch | None, None]:
    """Every answer of one stream; None for those that carry nothing. Ends with Failure."""
    try:
        await call.write(state.create_request())
        while True:
            response = await _read(call, endpoint, connection.config)
            if response is grpc.aio.EOF:
                raise await _end_of_stream(call, endpoint)
            yield state.receive(response)
    except grpc.aio.AioRpcError as err:
        connection.blame(endpoint)
        raise classify(err.code(), err.details() or "", endpoint=endpoint) from err
    except asyncio.InvalidStateError as err:
        # grpc.aio's word for writing to a call that has ended; its status says why.
        connection.blame(endpoint)
        raise await _end_of_stream(call, endpoint) from err


async def _read(call: Any, endpoint: str, config: EtcdConfig) -> Any:
    """The next answer; asks for a sign of life in between (I3)."""
    # Cancelling call.read() would cancel the whole stream, so it runs as a task that may go on
    # while we give up waiting; leaving the stream's block cancels the call and thereby the task.
    reading = asyncio.ensure_future(call.read())
    try:
        done, _ = await asyncio.wait({reading}, timeout=config.watch_idle_s)
        if not done:
            ping = rpc_pb2.WatchRequest(progress_request=rpc_pb2.WatchProgressRequest())
            await call.write(ping)
            done, _ = await asyncio.wait({reading}, timeout=config.watch_ping_timeout_s)
        if not done:
            error = DatastoreUnavailable(f"etcd at {endpoint}: the watch stream is dead")
            raise Failure(Outcome.UNKNOWN, error)
        if reading.cancelled():  # the channel was closed under the stream
            error = DatastoreUnavailable(f"etcd at {endpoint}: the connection was closed")
            raise Failure(Outcome.UNKNOWN, error)
        return reading.result()
    finally:
        if not reading.done():
            reading.cancel()


async def _end_of_stream(call: Any, endpoint: str) -> Failure:
    """The server closed the stream: its status tells the reason (none when it shut down)."""
    code, details = await call.code(), await call.details()
    if code is grpc.StatusCode.OK:
        error = DatastoreUnavailable(f"etcd at {endpoint}: the server ended the stream")
        return Failure(Outcome.UNKNOWN, error)
    return classify(code, details or "", endpoint=endpoint)


def _event(event: Any) -> WatchEvent:
    kv, previous = event.kv, event.prev_kv
    before = key_value(previous) if previous.mod_revision else None
    if event.type == kv_pb2.Event.DELETE:
        deleted = KeyValue(decode_key(kv.key), b"", int(kv.mod_revision))
        return WatchEvent(EventType.DELETE, deleted, before)
    return WatchEvent(EventType.PUT, key_value(kv), before)
