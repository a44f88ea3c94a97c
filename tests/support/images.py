"""Container images made on the spot, without a registry: a pause process, and busybox.

Used by tests/runtimes.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import subprocess
import tarfile
from pathlib import Path

PAUSE = "registry.local/brindle/pause:1"
BUSYBOX = "registry.local/brindle/busybox:1"
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
# What a pod's first process does: wait, and reap what is left to it.
_PAUSE_C = """
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
static void end(int signal) { _exit(0); }
static void reap(int signal) { while (waitpid(-1, 0, WNOHANG) > 0); }
int main(void)
{
    signal(SIGINT, end);
    signal(SIGTERM, end);
    signal(SIGCHLD, reap);
    for (;;)
        pause();
}
"""


def pause_image(folder: Path) -> Path:
    """An OCI archive, for `ctr images import`."""
    (folder / "pause.c").write_text(_PAUSE_C)
    built = folder / "pause"
    command = ["gcc", "-O2", "-static", "-o", str(built), str(folder / "pause.c")]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    layer = _tar({"pause": built.read_bytes()})
    return _oci_archive(folder / "pause.tar", PAUSE, layer, ["/pause"])


def busybox_image(folder: Path) -> Path:
    """An OCI archive with the shell, httpd and ping of busybox-static."""
    layer = _busybox_layer()
    return _oci_archive(folder / "busybox.tar", BUSYBOX, layer, ["/bin/sh"])


def _busybox_layer() -> bytes:
    program = Path("/bin/busybox").read_bytes()
    applets = ("sh", "httpd", "ping", "ip", "sleep", "cat", "hostname")
    page = b"hello from busybox\n"
    files = {"bin/busybox": program, "www/index.html": page}
    return _tar(files, links={f"bin/{name}": "busybox" for name in applets})


def _tar(files: dict[str, bytes], links: dict[str, str] | None = None) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name in ("proc", "sys", "dev", "etc", "tmp"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        for name, data in files.items():
            _add(archive, name, data, 0o755)
        for name, target in (links or {}).items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
    return out.getvalue()


def _oci_archive(path: Path, name: str, layer: bytes, entrypoint: list[str]) -> Path:
    """One layer, one manifest. Source: OCI image-spec 1.0."""
    machine = platform.machine()
    where = {"architecture": _MACHINES.get(machine, machine), "os": "linux"}
    blobs: dict[str, bytes] = {}

    def blob(data: bytes, media_type: str) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}

    stored_layer = blob(layer, "application/vnd.oci.image.layer.v1.tar")
    run = {"Entrypoint": entrypoint, "Env": ["PATH=/bin"], "WorkingDir": "/"}
    files = {"type": "layers", "diff_ids": [stored_layer["digest"]]}
    config = _json({**where, "config": run, "rootfs": files})
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob(config, "application/vnd.oci.image.config.v1+json"),
        "layers": [stored_layer],
    }
    listed = blob(_json(manifest), "application/vnd.oci.image.manifest.v1+json")
    annotations = {
        "io.containerd.image.name": name,
        "org.opencontainers.image.ref.name": name.rpartition(":")[2],
    }
    index = {"schemaVersion": 2, "manifests": [{**listed, "annotations": annotations}]}
    with tarfile.open(path, "w") as archive:
        _add(archive, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}), 0o644)
        _add(archive, "index.json", _json(index), 0o644)
        for digest, data in blobs.items():
            _add(archive, f"blobs/sha256/{digest}", data, 0o644)
    return path


def _add(archive: tarfile.TarFile, name: str, data: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    archive.addfile(entry, io.BytesIO(data))


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
