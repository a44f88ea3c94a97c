"""Install the CNI executables and the network configuration where a runtime looks for them.

Layer: edge (files). Used by `calico-node install-cni`.

  N1  every file appears whole: written beside its place without a .conf or .conflist suffix (a
      runtime watches the folder), then renamed;
  N2  a configuration that is not ours is never touched; ours is recognised by its file name;
  N3  installing what is installed already changes nothing, not even a time stamp;
  N4  where a C compiler is installed the executables are cni/client.c and the Python client stands
      behind them in `<lib_dir>/cni-client`; everywhere else the Python client is the executable.
      CALICO_CNI_CLIENT=python or c decides otherwise (c: a missing compiler is an error).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from libcalico.errors import ConfigError
from libcalico.runtime.files import replace_file

EXECUTABLES = ("calico", "calico-ipam")
CONFLIST = "10-calico.conflist"
NETWORK_NAME = "k8s-pod-network"
CNI_VERSION = "1.0.0"
COMPILER_TIMEOUT_S = 60.0
_CLIENT = Path(__file__).with_name("client.py")
_C_CLIENT = Path(__file__).with_name("client.c")
# Parts of the client's text that are replaced; asserted to be there, so a rename cannot slip by.
_SOCKET_LINE = 'SOCKET = b"/var/run/calico/cni.sock"'
_PYTHON_LINE = 'STANDALONE_PYTHON = ""'
_LIB_DIR_LINE = 'LIB_DIR = "/var/lib/calico"'


def base_python() -> str:
    """The interpreter behind the virtual environment: it starts faster, and the client needs no
    package."""
    return os.path.realpath(sys.executable)


def render_client(socket_path: Path, python: str, *, lib_dir: Path, interpreter: str = "") -> bytes:
    """The executable's text. `python` runs cni.standalone (an interpreter that has brindle
    installed), which finds node name and datastore in `lib_dir`; `interpreter` runs the client."""
    text = _CLIENT.read_text()
    for line in (_SOCKET_LINE, _PYTHON_LINE, _LIB_DIR_LINE):
        assert line in text, line
    text = text.replace(_LIB_DIR_LINE, f"LIB_DIR = {str(lib_dir)!r}")
    text = text.replace(_SOCKET_LINE, f"SOCKET = {os.fsencode(socket_path)!r}")
    text = text.replace(_PYTHON_LINE, f"STANDALONE_PYTHON = {python!r}")
    return f"#!{interpreter or base_python()} -ISE\n{text}".encode()


def default_conflist(
    *, mtu_bytes: int = 0, assign_ipv6: bool = False, with_portmap: bool = False
) -> bytes:
    """calico, and portmap (hostPort) where that plugin is installed; the datastore's credentials
    stay with felix."""
    calico: dict[str, object] = {
        "type": "calico",
        "log_level": "info",
        "mtu": mtu_bytes,
        "ipam": {
            "type": "calico-ipam",
            "assign_ipv4": "true",
            "assign_ipv6": "true" if assign_ipv6 else "false",
        },
    }
    portmap = {"type": "portmap", "snat": True, "capabilities": {"portMappings": True}}
    plugins = [calico, portmap] if with_portmap else [calico]
    conf = {"name": NETWORK_NAME, "cniVersion": CNI_VERSION, "plugins": plugins}
    return json.dumps(conf, indent=2).encode() + b"\n"


def install(
    bin_dir: Path, conf_dir: Path | None, *, socket_path: Path, lib_dir: Path, conflist: bytes
) -> list[Path]:
    """Returns the files that changed. Errors: ConfigError when a folder cannot be written, or the
    C client was asked for and cannot be built."""
    python_client = render_client(socket_path, sys.executable, lib_dir=lib_dir)
    behind = lib_dir / "cni-client"
    executable = _c_client(socket_path, behind)
    wanted = {bin_dir / name: executable or python_client for name in EXECUTABLES}
    if executable is not None:
        wanted |= {behind / name: python_client for name in EXECUTABLES}
    changed = [path for path, data in wanted.items() if put(path, data, 0o755)]
    if conf_dir is not None and put(conf_dir / CONFLIST, conflist, 0o644):
        changed.append(conf_dir / CONFLIST)
    return changed


def _c_client(socket_path: Path, behind: Path) -> bytes | None:
    """The built client; None when the Python one is to be used (N4)."""
    choice = os.environ.get("CALICO_CNI_CLIENT", "auto")
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if choice == "python" or (choice != "c" and compiler is None):
        return None
    if compiler is None:
        raise ConfigError("environment", "CALICO_CNI_CLIENT", "there is no C compiler", choice)
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / "client"
        command = [compiler, "-O2", "-s", "-Wl,--build-id=none", str(_C_CLIENT), "-o", str(built)]
        command += [f"-DSOCKET_PATH={_c_string(socket_path)}"]
        command += [f"-DPYTHON_CLIENTS={_c_string(behind)}"]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMPILER_TIMEOUT_S, check=False
        )
        if done.returncode == 0:
            return built.read_bytes()
        if choice == "c":
            reason = done.stderr.strip().splitlines()[-1:] or ["the compiler failed"]
            raise ConfigError("environment", "CALICO_CNI_CLIENT", reason[0], choice)
        # A compiler without headers: what works without one works here too.
        return None


def _c_string(path: Path) -> str:
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'


def put(path: Path, data: bytes, mode: int) -> bool:
    """Whether the content was another one. Errors: ConfigError."""
    try:
        return replace_file(path, data, mode)
    except OSError as err:
        raise ConfigError("install-cni", str(path), err.strerror or str(err)) from err
