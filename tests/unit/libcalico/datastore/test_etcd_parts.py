"""The pure parts of the etcd client: keys and ranges, error texts, watch answers."""

from __future__ import annotations

import grpc
import pytest
from aetcd.rpc import kv_pb2, rpc_pb2
from hypothesis import given
from hypothesis import strategies as st

from libcalico.datastore.api import EventType, KeyValue, WatchEvent
from libcalico.datastore.etcd import _PageSize
from libcalico.datastore.etcd_errors import Failure, Outcome, classify
from libcalico.datastore.etcd_keys import decode_key, encode_key, key_after, prefix_range
from libcalico.datastore.etcd_watch import WatchState
from libcalico.errors import (
    DatastoreUnavailable,
    InvalidInput,
    NotFound,
    Unauthorized,
    WatchExpired,
)

CONNECT = "failed to connect to all addresses; last error: "
TLS = "Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:1000007d:SSL routines:"


# ---- ranges ------------------------------------------------------------------------------------


def test_ranges_of_prefixes():
    assert prefix_range("/calico/") == (b"/calico/", b"/calico0")
    assert prefix_range("") == (b"\0", b"\0")
    assert prefix_range("a\udcff") == (b"a\xff", b"b")
    assert prefix_range("\udcff") == (b"\xff", b"\0")


@given(st.text(max_size=6), st.text(max_size=6))
def test_a_key_is_in_the_range_exactly_when_it_has_the_prefix(prefix: str, key: str):
    first, end = prefix_range(prefix)
    raw = encode_key(key)
    inside = raw >= first and (end == b"\0" or raw < end)
    assert inside == raw.startswith(encode_key(prefix)) or (not prefix and not raw)


@given(st.binary(max_size=8))
def test_keys_of_any_bytes_survive(raw: bytes):
    assert encode_key(decode_key(raw)) == raw
    assert raw < key_after(raw)


def test_pages_shrink_with_the_size_of_values_and_grow_again():
    size = _PageSize()
    size.learn(500, 500 * 100_000)
    assert size.keys == 41
    size.learn(41, 41 * 100)
    assert size.keys == 2_000
    size.learn(1, 10_000_000)
    assert size.keys == 8


# ---- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "details", "outcome", "error"),
    [
        ("UNAVAILABLE", "etcdserver: no leader", Outcome.NOT_APPLIED, DatastoreUnavailable),
        ("UNAVAILABLE", "etcdserver: leader changed", Outcome.UNKNOWN, DatastoreUnavailable),
        ("UNAVAILABLE", "etcdserver: request timed out", Outcome.UNKNOWN, DatastoreUnavailable),
        ("UNAVAILABLE", "etcdserver: server stopped", Outcome.UNKNOWN, DatastoreUnavailable),
        ("UNAVAILABLE", "Socket closed", Outcome.UNKNOWN, DatastoreUnavailable),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", Outcome.UNKNOWN, DatastoreUnavailable),
        ("UNAVAILABLE", CONNECT + "x", Outcome.NOT_SENT, DatastoreUnavailable),
        ("UNAVAILABLE", "DNS resolution failed for x", Outcome.NOT_SENT, DatastoreUnavailable),
        ("RESOURCE_EXHAUSTED", "etcdserver: too many requests", Outcome.NOT_APPLIED,
         DatastoreUnavailable),
        ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded", Outcome.FINAL,
         DatastoreUnavailable),
        ("UNAUTHENTICATED", "etcdserver: invalid auth token", Outcome.BAD_TOKEN, Unauthorized),
        ("INVALID_ARGUMENT", "etcdserver: revision of auth store is old", Outcome.BAD_TOKEN,
         Unauthorized),
        ("INVALID_ARGUMENT", "etcdserver: user name is empty", Outcome.BAD_TOKEN, Unauthorized),
        ("INVALID_ARGUMENT", "etcdserver: authentication failed, invalid user ID or password",
         Outcome.FINAL, Unauthorized),
        ("PERMISSION_DENIED", "etcdserver: permission denied", Outcome.FINAL, Unauthorized),
        ("OUT_OF_RANGE", "etcdserver: mvcc: required revision has been compacted", Outcome.FINAL,
         WatchExpired),
        ("OUT_OF_RANGE", "etcdserver: mvcc: required revision is a future revision",
         Outcome.FINAL, InvalidInput),
        ("NOT_FOUND", "etcdserver: requested lease not found", Outcome.FINAL, NotFound),
        ("INVALID_ARGUMENT", "etcdserver: duplicate key given in txn request", Outcome.FINAL,
         InvalidInput),
        ("INVALID_ARGUMENT", "etcdserver: request is too large", Outcome.FINAL, InvalidInput),
    ],
)  # fmt: skip
def test_what_a_failed_call_means(
    code: str, details: str, outcome: Outcome, error: type[Exception]
):
    found = classify(grpc.StatusCode[code], details, endpoint="http://e:1")
    assert found.outcome is outcome
    assert type(found.error) is error


@pytest.mark.parametrize(
    ("details", "said"),
    [
        (CONNECT + "UNKNOWN: ipv4:1.2.3.4:5: Failed to connect to remote host: Connection refused",
         "connection refused"),
        (CONNECT + f"UNKNOWN: {TLS}OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: certificate has "
         "expired: OK", "the server's certificate is not accepted: certificate has expired"),
        (CONNECT + "UNKNOWN: Custom verification check failed with error: UNAUTHENTICATED: "
         "Hostname Verification Check failed.",
         "the server's certificate is not accepted: Hostname Verification Check failed."),
        (CONNECT + "UNAVAILABLE: ipv4:1.2.3.4:5: Unwrap failed (TSI_DATA_CORRUPTED)",
         "does not accept our client certificate"),
        (CONNECT + f"UNKNOWN: {TLS}OPENSSL_internal:WRONG_VERSION_NUMBER: Invalid certificate",
         "TLS handshake failed: WRONG_VERSION_NUMBER"),
        (CONNECT + "UNAVAILABLE: ipv4:1.2.3.4:5: Handshake read failed (Socket closed)",
         "no TLS on that port"),
        (CONNECT + "UNAVAILABLE: ipv4:1.2.3.4:5: Socket closed", "is it https instead of http?"),
        (CONNECT + "something new", "something new"),
    ],
)  # fmt: skip
def test_connection_troubles_are_said_in_words(details: str, said: str):
    found = classify(grpc.StatusCode.UNAVAILABLE, details, endpoint="https://e:1")
    assert found.outcome is Outcome.NOT_SENT
    assert str(found.error).startswith("etcd at https://e:1: ")
    assert said in str(found.error)


# ---- watch answers -----------------------------------------------------------------------------


def put(key: str, revision: int, *, previous: int = 0) -> kv_pb2.Event:
    event = kv_pb2.Event(type=kv_pb2.Event.PUT)
    event.kv.key, event.kv.value = key.encode(), b"v"
    event.kv.mod_revision, event.kv.create_revision, event.kv.version = revision, 1, 2
    if previous:
        event.prev_kv.key, event.prev_kv.mod_revision = key.encode(), previous
    return event


def delete(key: str, revision: int) -> kv_pb2.Event:
    event = kv_pb2.Event(type=kv_pb2.Event.DELETE)
    event.kv.key, event.kv.mod_revision = key.encode(), revision
    return event


def answer(*events: kv_pb2.Event, **fields: object) -> rpc_pb2.WatchResponse:
    response = rpc_pb2.WatchResponse(events=events, **fields)
    response.header.revision = 100
    return response


@pytest.fixture
def state() -> WatchState:
    return WatchState("/t/", 5)


def test_a_stream_starts_at_the_first_revision_not_delivered(state: WatchState):
    create = state.create_request().create_request
    assert (create.key, create.range_end, create.start_revision) == (b"/t/", b"/t0", 5)
    assert create.prev_kv
    assert create.progress_notify
    assert create.fragment
    state.receive(answer(put("/t/a", 7)))
    assert state.create_request().create_request.start_revision == 8


def test_events_are_delivered_with_what_was_there_before(state: WatchState):
    assert state.receive(answer(created=True)) is None
    batch = state.receive(answer(put("/t/a", 6, previous=3), delete("/t/b", 7)))
    assert batch is not None
    before = KeyValue("/t/a", b"", 3)
    assert batch.events == (
        WatchEvent(EventType.PUT, KeyValue("/t/a", b"v", 6, 1, 2), before),
        WatchEvent(EventType.DELETE, KeyValue("/t/b", b"", 7)),
    )
    assert batch.revision == 7


def test_fragments_are_put_together_and_half_an_answer_is_forgotten(state: WatchState):
    assert state.receive(answer(put("/t/a", 6), fragment=True)) is None
    assert state.create_request().create_request.start_revision == 5  # the stream broke
    assert state.receive(answer(put("/t/a", 6), fragment=True)) is None
    batch = state.receive(answer(put("/t/b", 6)))
    assert batch is not None
    assert [event.kv.key for event in batch.events] == ["/t/a", "/t/b"]


def test_what_was_delivered_is_not_delivered_again(state: WatchState):
    state.receive(answer(put("/t/a", 6)))
    assert state.receive(answer(put("/t/a", 6))) is None
    batch = state.receive(answer(put("/t/a", 6), put("/t/a", 9)))
    assert batch is not None
    assert [event.kv.mod_revision for event in batch.events] == [9]


def test_ordered_progress_advances_and_the_answer_to_our_ping_does_not(state: WatchState):
    assert state.receive(answer(watch_id=-1)) is None
    assert state.next_revision == 5
    batch = state.receive(answer(watch_id=0))
    assert batch is not None
    assert (batch.events, batch.revision) == ((), 100)
    assert state.next_revision == 101
    assert state.receive(answer(watch_id=0)) is None


def test_a_compacted_start_expires_and_names_the_revision(state: WatchState):
    with pytest.raises(WatchExpired) as caught:
        state.receive(answer(canceled=True, compact_revision=50))
    assert caught.value.compact_revision == 50


@pytest.mark.parametrize(
    ("reason", "outcome", "error"),
    [
        ("rpc error: code = PermissionDenied desc = etcdserver: permission denied",
         Outcome.BAD_TOKEN, Unauthorized),
        ("rpc error: code = InvalidArgument desc = etcdserver: user name is empty",
         Outcome.BAD_TOKEN, Unauthorized),
        ("etcdserver: something else", Outcome.NOT_APPLIED, DatastoreUnavailable),
        ("", Outcome.NOT_APPLIED, DatastoreUnavailable),
    ],
)  # fmt: skip
def test_other_cancellations_are_refusals_or_reasons_to_try_again(
    state: WatchState, reason: str, outcome: Outcome, error: type[Exception]
):
    with pytest.raises(Failure) as caught:
        state.receive(answer(canceled=True, created=True, watch_id=-1, cancel_reason=reason))
    assert caught.value.outcome is outcome
    assert type(caught.value.error) is error
