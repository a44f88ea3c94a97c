"""From gRPC's and etcd's errors to ours: what happened, and may the call be sent again?

Layer: datastore edge; pure. Used by `etcd_link`, `etcd` and `etcd_watch`; nobody else sees a gRPC
error. Source of the texts: etcd api/v3rpc/rpctypes/error.go (3.4 to 3.6) and gRPC's C core.
"""

from __future__ import annotations

import enum

import grpc

from libcalico.errors import (
    DatastoreUnavailable,
    InvalidInput,
    NotFound,
    SuiteError,
    Unauthorized,
    WatchExpired,
)


class Outcome(enum.Enum):
    """What is known about a call that failed."""

    NOT_SENT = "not sent"  # no connection: certainly not applied
    NOT_APPLIED = "not applied"  # etcd said no before proposing it: certainly not applied
    UNKNOWN = "unknown"  # may have been applied: a write must not be repeated (D5)
    BAD_TOKEN = "bad token"  # authenticate again, then the same call may be sent again
    FINAL = "final"  # etcd's answer: sending it again changes nothing


class Failure(Exception):
    """One attempt failed. `error` is what the caller gets when nobody tries again."""

    def __init__(self, outcome: Outcome, error: SuiteError) -> None:
        super().__init__(outcome, error)
        self.outcome, self.error = outcome, error

    def __str__(self) -> str:
        return f"{self.outcome.value}: {self.error}"


# etcd refused these before they entered the log. ("server stopped" is not among them: it also ends
# requests that were proposed already.)
_NOT_APPLIED = (
    "etcdserver: no leader",
    "etcdserver: too many requests",
    "etcdserver: not capable",
    "etcdserver: rpc not supported for learner",
)
_BAD_TOKEN = (
    "etcdserver: invalid auth token",
    "etcdserver: revision of auth store is old",
    "etcdserver: user name is empty",
)
_UNAUTHORIZED = (
    "etcdserver: permission denied",
    "etcdserver: authentication failed",
    "etcdserver: user name not found",
    "etcdserver: auth: ",
)
_NOT_SENT = ("failed to connect to all addresses", "DNS resolution failed")

_TLS_REFUSED = (
    "the server ended the TLS handshake: it does not accept our client certificate "
    "(missing, expired, or of another authority)"
)


def classify(code: grpc.StatusCode, details: str, *, endpoint: str) -> Failure:
    """Read one failed call's status."""
    text = details or code.name
    if any(mark in text for mark in _BAD_TOKEN):
        return Failure(Outcome.BAD_TOKEN, Unauthorized(text))
    if code is grpc.StatusCode.PERMISSION_DENIED or any(mark in text for mark in _UNAUTHORIZED):
        return Failure(Outcome.FINAL, Unauthorized(text))
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return Failure(Outcome.BAD_TOKEN, Unauthorized(text))
    if any(mark in text for mark in _NOT_SENT):
        reason = connect_reason(text)
        return Failure(Outcome.NOT_SENT, DatastoreUnavailable(f"etcd at {endpoint}: {reason}"))
    final = _final_answer(code, text)
    if final is not None:
        return Failure(Outcome.FINAL, final)
    refused = any(mark in text for mark in _NOT_APPLIED)
    outcome = Outcome.NOT_APPLIED if refused else Outcome.UNKNOWN
    return Failure(outcome, DatastoreUnavailable(f"etcd at {endpoint}: {text}"))


def is_refusal(text: str) -> bool:
    """Does a text (a watch's cancel reason, say) mean that our identity is not accepted?"""
    return any(mark in text for mark in (*_BAD_TOKEN, *_UNAUTHORIZED))


def _final_answer(code: grpc.StatusCode, text: str) -> SuiteError | None:
    """Answers about the request itself."""
    if code is grpc.StatusCode.OUT_OF_RANGE and "compacted" in text:
        return WatchExpired(0)
    if code is grpc.StatusCode.NOT_FOUND and "lease" in text:
        return NotFound("lease")
    if code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OUT_OF_RANGE):
        return InvalidInput(text)
    if "request is too large" in text:
        return InvalidInput(text)
    if "database space exceeded" in text:
        # Not retried: only an operator can compact, defragment and disarm the alarm.
        return DatastoreUnavailable(f"etcd refuses writes: {text}")
    return None


def connect_reason(text: str) -> str:
    """The part of C core's connection error that a person can act on."""
    if "TSI_DATA_CORRUPTED" in text:
        return _TLS_REFUSED
    for mark in ("CERTIFICATE_VERIFY_FAILED: ", "Custom verification check failed with error: "):
        if mark in text:
            found = text.split(mark, 1)[1].removesuffix(": OK").removeprefix("UNAUTHENTICATED: ")
            return f"the server's certificate is not accepted: {found}"
    if "Tls handshake failed" in text or "Ssl handshake failed" in text:
        return f"TLS handshake failed: {text.rsplit('OPENSSL_internal:', 1)[-1]}"
    if "Handshake read failed" in text:
        return "no TLS on that port (is it http instead of https?)"
    if "last error: UNAVAILABLE" in text and text.endswith("Socket closed"):
        return "the server closed the connection at once (is it https instead of http?)"
    for mark in ("Failed to connect to remote host: ", "last error: "):
        if mark in text:
            return text.split(mark, 1)[1].lower()
    return text
