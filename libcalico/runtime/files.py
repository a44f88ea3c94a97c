"""Replace a file whole: a reader sees the old text or the new one, never a part.

Layer: runtime edge. Used by whoever writes a file that another process reads.

  W1  the new text is complete beside the place before it is renamed over it; what must survive a
      power failure (`is_durable`) is on the disk before the rename, and the rename when we return;
  W2  the mode is right from the first byte, so that a secret is never readable in between;
  W3  what is right already is left alone, its time stamp too; only a wrong mode is mended;
  W4  the scratch file starts with a dot and has a suffix of its own: a program that watches the
      folder for `*.conf` does not take it up. It is gone afterwards, also after a failure.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from pathlib import Path

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_numbers = itertools.count(1)


def replace_file(path: Path, data: bytes, mode: int, *, is_durable: bool = True) -> bool:
    """Whether the content changed (a mended mode is no change). Errors: OSError.

    Without `is_durable` nothing waits for the disk: for files that mean nothing after a reboot."""
    if _content(path) == data:
        if path.stat().st_mode & 0o777 != mode:
            path.chmod(mode)
        return False
    handle, scratch = _open_scratch(path)
    try:
        _write(handle, data, mode, is_durable=is_durable)
        os.replace(scratch, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(scratch)
        raise
    if is_durable:
        _sync_folder(path.parent)
    return True


def _open_scratch(path: Path) -> tuple[int, str]:
    """A new file beside the place (W4), readable by nobody else; the folder is made if need be."""
    is_made = False
    while True:
        scratch = f"{path.parent}/.{path.name}.{os.getpid()}-{next(_numbers)}.tmp"
        try:
            return os.open(scratch, _NEW_FILE, 0o600), scratch
        except FileNotFoundError:
            if is_made:
                raise  # a folder that takes no files, like /proc
            path.parent.mkdir(parents=True, exist_ok=True)
            is_made = True
        except FileExistsError:
            continue  # of a process that died and had our number


def write_new(path: Path, data: bytes, mode: int) -> None:
    """A file that nobody reads yet (W1, W2); what was there is dropped first. Errors: OSError."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    _write(handle, data, mode, is_durable=True)


def _write(handle: int, data: bytes, mode: int, *, is_durable: bool) -> None:
    """Write and close an open descriptor; the mode first (the umask may have cut it)."""
    with os.fdopen(handle, "wb") as out:
        os.fchmod(out.fileno(), mode)
        out.write(data)
        out.flush()
        if is_durable:
            os.fsync(out.fileno())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _content(path: Path) -> bytes | None:
    """None for what is no regular file: a link or a folder is not ours to read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError:
        if path.is_symlink() or not path.is_file():
            return None
        raise
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        with open(handle, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(handle)
