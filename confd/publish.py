"""Bring rendered text into force: stage, check, rename, reload.

Layer: edge (files, processes, signals). Used by confd.daemon.

Invariants:
  U1  a file that is equal is not written and nothing is reloaded for it;
  U2  the destination is at every moment either the old text or the new one, whole (rename);
  U3  a text that its check refuses never reaches the destination: the last good one stays;
  U4  the mode is set before the text is written, so a secret is never readable in between.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from confd.resources import TemplateResource
from libcalico.errors import InvalidInput
from libcalico.runtime import log
from libcalico.runtime.files import write_new

LOG = log.get(__name__)
CHECK_TIMEOUT_S = 60.0


class CheckFailed(InvalidInput):
    """The check command refused the rendered text."""

    def __init__(self, resource: str, command: str, reason: str) -> None:
        super().__init__(resource, command, reason)
        self.resource, self.command, self.reason = resource, command, reason

    def __str__(self) -> str:
        return f"{self.resource}: {self.command} refused the new text: {self.reason}"


class ReloadFailed(InvalidInput):
    """The file is in its place, but its reader has not taken it."""

    def __init__(self, resource: str, command: str, reason: str) -> None:
        super().__init__(resource, command, reason)
        self.resource, self.command, self.reason = resource, command, reason

    def __str__(self) -> str:
        return f"{self.resource}: reload with {self.command} failed: {self.reason}"


class Publisher:
    """Publishes texts. `noop` only says what would change; `keep_stage` leaves stage files."""

    def __init__(
        self, environ: Mapping[str, str], *, noop: bool = False, keep_stage: bool = False
    ) -> None:
        self._environ = dict(environ)
        self._noop = noop
        self._keep_stage = keep_stage

    def publish(self, resource: TemplateResource, text: str) -> bool:
        """Returns whether the destination changed (or would, with noop).

        Errors: CheckFailed; OSError when the place cannot be written."""
        data = text.encode()
        if _read(resource.dest) == data:
            self._mend_mode(resource)
            return False
        if self._noop:
            LOG.warning("would change", path=resource.dest, resource=resource.name)
            return True
        resource.dest.parent.mkdir(parents=True, exist_ok=True)
        stage = resource.dest.with_name(f".{resource.dest.name}.stage")
        try:
            write_new(stage, data, resource.mode)
            self._check(resource, stage)
            if self._keep_stage:
                write_new(stage.with_suffix(".kept"), data, resource.mode)
            stage.replace(resource.dest)
        finally:
            with contextlib.suppress(FileNotFoundError):
                stage.unlink()
        LOG.info("file written", path=resource.dest, resource=resource.name)
        return True

    def reload(self, resource: TemplateResource) -> None:
        """Tell whoever reads the file. A reader that is not running reads it when it starts.

        Errors: ReloadFailed."""
        if self._noop:
            return
        if resource.reload_pid_file is not None:
            self._signal(resource)
        if resource.reload_cmd:
            command = [part.format(stage=resource.dest) for part in resource.reload_cmd]
            try:
                done = self._run(command)
            except (OSError, subprocess.TimeoutExpired) as err:
                raise ReloadFailed(resource.name, command[0], str(err)) from err
            if done.returncode:
                raise ReloadFailed(resource.name, command[0], _said(done))

    def _check(self, resource: TemplateResource, stage: Path) -> None:
        if not resource.check_cmd:
            return
        command = [part.format(stage=stage) for part in resource.check_cmd]
        try:
            done = self._run(command)
        except (OSError, subprocess.TimeoutExpired) as err:
            raise CheckFailed(resource.name, command[0], str(err)) from err
        if done.returncode:
            raise CheckFailed(resource.name, command[0], _said(done))

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            command,
            capture_output=True,
            check=False,
            timeout=CHECK_TIMEOUT_S,
            env=self._environ,
            stdin=subprocess.DEVNULL,
        )

    @staticmethod
    def _signal(resource: TemplateResource) -> None:
        assert resource.reload_pid_file is not None
        try:
            pid = int(resource.reload_pid_file.read_text())
            os.kill(pid, resource.reload_signal)
        except (FileNotFoundError, ProcessLookupError):
            LOG.debug("nobody to reload", path=resource.reload_pid_file)
        except (ValueError, OSError) as err:
            LOG.error("reload failed", path=resource.reload_pid_file, error=err)

    @staticmethod
    def _mend_mode(resource: TemplateResource) -> None:
        if resource.dest.stat().st_mode & 0o777 != resource.mode:
            resource.dest.chmod(resource.mode)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _said(done: subprocess.CompletedProcess[bytes]) -> str:
    """The last lines of what a command printed, on one line."""
    text = (done.stderr.strip() or done.stdout.strip()).decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "; ".join(lines[-3:]) or f"exit {done.returncode}"
