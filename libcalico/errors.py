"""The error tree of the suite, classified by what the caller must do.

Layer: bottom; imports nothing of ours. Everybody raises these; adapters convert foreign exceptions
(`grpc`, `OSError`, `json`, netlink) into them at the boundary, always with ``raise ... from err``.

    SuiteError
    ├── InvalidInput        refuse, say where, never retry
    │   ├── ValidationError         one or more fields (FieldError)
    │   ├── ConfigError             a parameter from a named source
    │   ├── SelectorSyntaxError     a selector, with the position
    │   ├── DecodeError             a datastore value or document that does not parse
    │   ├── WireError               a peer sent something a protocol does not allow
    │   └── NotSupported            an operation the kind does not have
    ├── Transient           wait with backoff, then try the same again
    │   ├── DatastoreUnavailable    WatchExpired      DumpInterrupted
    ├── Conflict            read again, recompute, write again (bounded), then surface
    │   └── RevisionConflict
    ├── Stale               stop; the next pass decides
    │   ├── BadSequenceNumber       BlockNotEmpty     AffinityLost
    ├── NotFound / AlreadyExists    often success for an idempotent caller
    ├── Unauthorized        the datastore refuses our identity
    ├── Exhausted           a limit was reached; tell the user
    │   ├── PoolExhausted           BlockLimitReached
    ├── ProgrammingFailed   the kernel refused; the item stays dirty
    └── Fatal               end the process, the supervisor decides
        ├── RestartRequired         (exit 129)
        └── DataplaneStuck

Exceptions hold data; `__str__` makes the sentence. The texts follow Calico's
(reference: libcalico-go/lib/errors/errors.go) because operators and scripts match on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class SuiteError(Exception):
    """Root of everything this suite raises on purpose."""


class InvalidInput(SuiteError):
    """The input is wrong and will stay wrong: refuse it and say where."""


@dataclass(frozen=True, slots=True)
class FieldError:
    """One refused field: Calico's field name, the value as given (None = not shown), the reason."""

    field: str
    value: object = None
    reason: str = ""

    def detail(self) -> str:
        shown = "" if self.value is None else f" = '{_go_value(self.value)}'"
        return self.field + shown + (f" ({self.reason})" if self.reason else "")


def _go_value(value: object) -> str:
    """Print a value as Go's %v would: booleans lower case, lists in brackets."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "[" + " ".join(_go_value(item) for item in value) + "]"
    return str(value)


class ValidationError(InvalidInput):
    """One or more fields are not acceptable."""

    def __init__(self, *errors: FieldError) -> None:
        super().__init__(*errors)
        self.errors: tuple[FieldError, ...] = errors

    @classmethod
    def of(cls, field: str, value: object = None, reason: str = "") -> ValidationError:
        return cls(FieldError(field, value, reason))

    def __str__(self) -> str:
        if len(self.errors) == 1:
            return "error with field " + self.errors[0].detail()
        lines = "".join(f"-  {error.detail()}\n" for error in self.errors)
        return "error with the following fields:\n" + lines


class ConfigError(InvalidInput):
    """A configuration parameter is unknown or has a bad value."""

    def __init__(self, source: str, name: str, reason: str, value: object = None) -> None:
        super().__init__(source, name, reason, value)
        self.source, self.name, self.reason, self.value = source, name, reason, value

    def __str__(self) -> str:
        shown = "" if self.value is None else f" = {self.value!r}"
        return f"{self.source}: {self.name}{shown}: {self.reason}"


class SelectorSyntaxError(InvalidInput):
    """A selector does not parse. `position` is the 0-based offset into `text`."""

    def __init__(self, text: str, position: int, reason: str) -> None:
        super().__init__(text, position, reason)
        self.text, self.position, self.reason = text, position, reason

    def __str__(self) -> str:
        return f"{self.reason} at position {self.position} of selector {self.text!r}"


class DecodeError(InvalidInput):
    """A stored value does not parse (Calico: ErrorParsingDatastoreEntry)."""

    def __init__(self, key: str, value: bytes, reason: str) -> None:
        super().__init__(key, value, reason)
        self.key, self.value, self.reason = key, value, reason

    def __str__(self) -> str:
        shown = self.value[:200].decode("utf-8", "backslashreplace")
        return f"failed to parse datastore entry key={self.key}; value={shown}: {self.reason}"


class WireError(InvalidInput):
    """A peer broke a protocol. `code` and `subcode` are that protocol's own numbers."""

    def __init__(self, reason: str, code: int = 0, subcode: int = 0, data: bytes = b"") -> None:
        super().__init__(reason, code, subcode, data)
        self.reason, self.code, self.subcode, self.data = reason, code, subcode, data

    def __str__(self) -> str:
        return f"{self.reason} (code {self.code}/{self.subcode})"


class NotSupported(InvalidInput):
    """The operation does not exist for this kind or object."""

    def __init__(self, operation: str, identifier: str, reason: str = "") -> None:
        super().__init__(operation, identifier, reason)
        self.operation, self.identifier, self.reason = operation, identifier, reason

    def __str__(self) -> str:
        tail = f": {self.reason}" if self.reason else ""
        return f"operation {self.operation} is not supported on {self.identifier}{tail}"


class Transient(SuiteError):
    """Nothing is wrong with the request: wait, then try the same again."""


class DatastoreUnavailable(Transient):
    """No endpoint answered in time, or the cluster has no leader."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class WatchExpired(Transient):
    """The revision a watch wanted to resume from has been compacted away: list again."""

    def __init__(self, compact_revision: int) -> None:
        super().__init__(compact_revision)
        self.compact_revision = compact_revision

    def __str__(self) -> str:
        return f"watch expired: compacted at revision {self.compact_revision}"


class DumpInterrupted(Transient):
    """The kernel table changed while it was dumped (NLM_F_DUMP_INTR): dump again."""


class Conflict(SuiteError):
    """Somebody else wrote first: read again, recompute, write again, a bounded number of times."""


class RevisionConflict(Conflict):
    """A compare-and-swap failed."""

    def __init__(self, identifier: str, expected: int | None = None, found: int | None = None):
        super().__init__(identifier, expected, found)
        self.identifier, self.expected, self.found = identifier, expected, found

    def __str__(self) -> str:
        return f"update conflict: {self.identifier}"


class Stale(SuiteError):
    """What we knew is no longer true: stop, the next pass decides."""


class BadSequenceNumber(Stale):
    """An IPAM release names an older allocation of the same address."""

    def __init__(self, address: str, given: int, stored: int) -> None:
        super().__init__(address, given, stored)
        self.address, self.given, self.stored = address, given, stored

    def __str__(self) -> str:
        return f"update conflict: {self.address}"


class BlockNotEmpty(Stale):
    """The block still holds addresses, so its affinity is kept."""


class AffinityLost(Stale):
    """The block belongs to another host."""


class NotFound(SuiteError):
    """The object does not exist (Calico: ErrorResourceDoesNotExist)."""

    def __init__(self, identifier: str, cause: object = None) -> None:
        super().__init__(identifier, cause)
        self.identifier, self.cause = identifier, cause

    def __str__(self) -> str:
        cause = "<nil>" if self.cause is None else self.cause
        return f"resource does not exist: {self.identifier} with error: {cause}"


class AlreadyExists(SuiteError):
    """The object exists already (Calico: ErrorResourceAlreadyExists)."""

    def __init__(self, identifier: str, cause: object = None) -> None:
        super().__init__(identifier, cause)
        self.identifier, self.cause = identifier, cause

    def __str__(self) -> str:
        cause = "<nil>" if self.cause is None else self.cause
        return f"resource already exists: {self.identifier} with error: {cause}"


class Unauthorized(SuiteError):
    """The datastore refuses our identity (Calico: ErrorConnectionUnauthorized)."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"connection is unauthorized: {self.reason}"


class Exhausted(SuiteError):
    """A limit was reached; only a person can raise it. The message says which."""


class PoolExhausted(Exhausted):
    """No free address in any pool that may be used."""

    def __init__(self, pools: Sequence[str], reason: str = "") -> None:
        super().__init__(tuple(pools), reason)
        self.pools, self.reason = tuple(pools), reason

    def __str__(self) -> str:
        return self.reason or "No IPs available in pools: [" + " ".join(self.pools) + "]"


class BlockLimitReached(Exhausted):
    """The host already holds as many affine blocks of the pools it may use as it may."""

    def __init__(self, limit: int, pools: Sequence[str] = ()) -> None:
        super().__init__(limit, tuple(pools))
        self.limit, self.pools = limit, tuple(pools)

    def __str__(self) -> str:
        said = "cannot allocate new block due to per host block limit"
        return f"{said}: {self.limit} in pools: [{' '.join(self.pools)}]"


class ProgrammingFailed(SuiteError):
    """The kernel refused one write; the item stays dirty and is tried again."""

    def __init__(self, operation: str, key: str, errno: int, detail: str = "") -> None:
        super().__init__(operation, key, errno, detail)
        self.operation, self.key, self.errno, self.detail = operation, key, errno, detail

    def __str__(self) -> str:
        tail = f": {self.detail}" if self.detail else ""
        return f"{self.operation} {self.key} failed with errno {self.errno}{tail}"


class Fatal(SuiteError):
    """The process cannot go on; the supervisor decides."""


class RestartRequired(Fatal):
    """A parameter changed that only a new process can take over (exit code 129)."""

    exit_code = 129


class DataplaneStuck(Fatal):
    """Filter rules could not be written for too long; end rather than run with old policy."""
