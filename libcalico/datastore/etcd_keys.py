"""Keys and values as etcd carries them: bytes, ranges instead of prefixes, protobuf messages.

Layer: datastore edge; pure. Used by `etcd` and `etcd_watch`. Keys that are not UTF-8 (somebody
else's) survive: they decode with surrogates, which encode back to the same bytes.
"""

from __future__ import annotations

from typing import Any

from libcalico.datastore.api import KeyValue


def encode_key(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")


def decode_key(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def prefix_range(prefix: str) -> tuple[bytes, bytes]:
    """First key and the end (exclusive) of all keys that start with `prefix`; "" is everything."""
    first = encode_key(prefix)
    if not first:
        return b"\0", b"\0"
    trimmed = first.rstrip(b"\xff")
    if not trimmed:
        return first, b"\0"  # nothing sorts behind: to the end of the key space
    return first, trimmed[:-1] + bytes([trimmed[-1] + 1])


def key_after(raw: bytes) -> bytes:
    """The smallest key behind `raw`: where the next page starts."""
    return raw + b"\0"


def key_value(kv: Any) -> KeyValue:
    """From etcd's message. Positional and flat: this runs once per stored object of a list."""
    return KeyValue(
        kv.key.decode("utf-8", "surrogateescape"),
        kv.value,
        kv.mod_revision,
        kv.create_revision,
        kv.version,
        kv.lease,
    )
