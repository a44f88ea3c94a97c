"""Which network namespace something is in; and the note of an attachment's, by which a later felix
can tell that it is gone.

Layer: edge (files). Used by cni.veth and cni.teardown; the note by cni.add and cni.sweep. ADD notes
it in the endpoint, one record with it: nothing on the node has to be kept equal, and nothing is
lost when the power fails.

A note is `<boot id> <device>:<inode> <path>`. A namespace of another boot is gone for certain; one
of this boot when nothing is at its path, or something else. Whatever cannot be told is not gone.

Source: Linux Documentation/admin-guide/sysctl/kernel.rst (random/boot_id), namespaces(7).
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
Identity = tuple[int, int]


def identity(found: os.stat_result) -> Identity:
    """What tells one namespace from another while both exist."""
    return found.st_dev, found.st_ino


def identity_here() -> Identity:
    """The calling thread's."""
    return identity(os.stat("/proc/thread-self/ns/net"))


@functools.cache
def boot_id() -> str:
    """Of the running kernel, so read once; "" when it cannot be read."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def note(netns: str) -> str:
    """What to remember of a namespace; "" when nothing is known."""
    boot = boot_id()
    try:
        found = os.stat(netns)
    except (OSError, ValueError):
        return ""
    return f"{boot} {_shown(found)} {netns}" if boot else ""


def is_gone(text: str, boot: str) -> bool:
    """Whether the noted namespace does not exist any more; `boot` is this boot's id."""
    parts = text.split(" ", 2)
    if len(parts) != 3 or not all(parts) or not boot:
        return False
    noted_boot, noted, path = parts
    if noted_boot != boot:
        return True
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError, ProcessLookupError):
        return True
    except (OSError, ValueError):
        return False
    return _shown(found) != noted


def _shown(found: os.stat_result) -> str:
    device, inode = identity(found)
    return f"{device}:{inode}"
