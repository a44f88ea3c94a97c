"""Run another CNI plugin for addresses (host-local, static, dhcp), as the specification says.

Layer: edge (processes). Used by cni.addresses. The delegate is found by its type in CNI_PATH and
gets the same environment and standard input; what it prints on stderr is passed on in errors.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path

from cni import results
from cni.results import Result
from cni.skel import CniError, Code, Request

TIMEOUT_S = 90.0
OWN_TYPES = ("calico", "calico-ipam")


async def run(request: Request, plugin_type: str, verb: str) -> Result:
    """Errors: CniError: the delegate's own, or 7 when it cannot be found, 5 when it cannot run."""
    program = find(plugin_type, request.path)
    environ = {**os.environ, **request.environ, "CNI_COMMAND": verb}
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            env=environ,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as err:
        raise CniError(Code.IO_FAILURE, f"cannot run {program}: {err.strerror}") from err
    try:
        async with asyncio.timeout(TIMEOUT_S):
            stdout, stderr = await process.communicate(request.stdin)
    except TimeoutError as err:
        process.kill()
        await process.wait()
        raise CniError(Code.TRY_AGAIN_LATER, f"{plugin_type} did not answer in time") from err
    except BaseException:
        process.kill()
        await process.wait()
        raise
    if process.returncode:
        raise _failure(plugin_type, stdout, stderr)
    return results.parse(_json(stdout)) if verb == "ADD" else Result()


def find(plugin_type: str, path: str) -> str:
    """The executable of a plugin type in CNI_PATH. A type with a slash is refused: it could name
    any program; so is this plugin, which would wait for its own attachment's lock."""
    if plugin_type in OWN_TYPES:
        raise CniError(
            Code.INVALID_CONFIG, f"ipam.type: {plugin_type} cannot be asked for addresses"
        )
    if plugin_type and "/" not in plugin_type and plugin_type not in (".", ".."):
        for folder in filter(None, path.split(":")):
            candidate = Path(folder) / plugin_type
            if _is_executable(candidate):
                return str(candidate)
    raise CniError(
        Code.INVALID_CONFIG, f"failed to find plugin {json.dumps(plugin_type)} in path [{path}]"
    )


def _is_executable(candidate: Path) -> bool:
    try:
        return candidate.is_file() and os.access(candidate, os.X_OK)
    except OSError:
        # A name that is too long, or a folder that may not be read: it is not there for us.
        return False


def _json(data: bytes) -> object:
    try:
        return json.loads(data)
    except ValueError as err:
        raise CniError(Code.DECODE_FAILURE, f"the IPAM plugin printed no JSON: {err}") from None


def _failure(plugin_type: str, stdout: bytes, stderr: bytes) -> CniError:
    said = stderr.decode(errors="replace").strip()
    try:
        raw: Mapping[str, object] = json.loads(stdout)
        code, msg = int(str(raw["code"])), str(raw["msg"])
    except (ValueError, KeyError, TypeError):
        return CniError(Code.INTERNAL, f"{plugin_type} failed", said)
    details = "; ".join(filter(None, (str(raw.get("details") or ""), said)))
    return CniError(code, f"{plugin_type}: {msg}", details)
