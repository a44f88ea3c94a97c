"""Names of our kernel objects, and the digests by which a fresh process recognises them.

Layer: pure. Used by everything that builds chains and sets.

A chain is named by what it *is* (a policy and direction, a list of policies), not by what it
holds, so a policy edited in place keeps its name and nothing that jumps to it is rewritten. What a
chain holds is told by its digest, stored in the kernel beside its rules (felix.kernel.nft_codec).

  N1  different identities never share a name: user-chosen text is followed by 96 bits of a hash
      over the whole identity (a user who can name policies must not be able to aim a collision);
  N2  names are words of nft's grammar (letter first, then letters, digits, `-_./`) and short
      enough for it.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import lru_cache

TABLE = "calico"  # family inet; the whole table is ours

_SET_ID = re.compile(r"[a-z]:[A-Za-z0-9_-]{1,60}")  # what calc makes: "s:…", "n:…"
_UNFIT = re.compile(r"[^A-Za-z0-9_.-]+")
_SLUG_CHARS = 40


def digest(*parts: str) -> bytes:
    """16 bytes over parts that cannot run into each other."""
    hasher = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode()
        hasher.update(len(data).to_bytes(4, "big") + data)
    return hasher.digest()


def identity_hash(*parts: str) -> str:
    """96 bits as 20 lower-case letters and digits."""
    return base64.b32encode(digest(*parts)[:12]).decode().rstrip("=").lower()


@lru_cache(maxsize=16_384)  # every list of a tier names all of its policies
def policy_chain(direction: str, kind: str, namespace: str, name: str) -> str:
    """`direction` is "in" or "out"."""
    return f"policy-{direction}-{_slug(name)}-{identity_hash(direction, kind, namespace, name)}"


def profile_chain(direction: str, name: str) -> str:
    return f"profile-{direction}-{_slug(name)}-{identity_hash(direction, name)}"


def tier_chain(direction: str, tier: str, *policies: str) -> str:
    """One tier's list of policies, shared by all endpoints that have the same list."""
    return f"tier-{direction}-{_slug(tier)}-{identity_hash(direction, tier, *policies)}"


def endpoint_chain(direction: str, *parts: str) -> str:
    """All that governs one direction of an endpoint, shared by those governed alike."""
    return f"endpoint-{direction}-{identity_hash(direction, *parts)}"


def interface_chain(kind: str, direction: str, ifname: str) -> str:
    """A chain of one interface only."""
    return f"{kind}-{direction}-{_slug(ifname)}-{identity_hash(kind, direction, ifname)}"


def address_set(set_id: str, version: int) -> str:
    """The set of one family. Ids of another form than calc's are replaced by slug and hash."""
    if _SET_ID.fullmatch(set_id):
        return f"set-{set_id.replace(':', '.')}-{version}"
    return f"set-{_slug(set_id).replace('.', '-')}-{identity_hash(set_id)}-{version}"


def _slug(text: str) -> str:
    return _UNFIT.sub("-", text)[:_SLUG_CHARS].strip("-") or "x"
