"""Install the CNI executables and the network configuration where a runtime looks for them.

Layer: edge (files). Used by `calico-node install-cni`.

  N1  every file appears whole: written beside its place without a .conf or .conflist suffix (a
      runtime watches the folder), then renamed;
  N2  a configuration that is not ours is never touched; ours is recognised by its file name, and
      one of another name that it replaces (CNI_OLD_CONF_NAME) by the plugin it runs besides;
  N3  installing what is installed already changes nothing, not even a time stamp;
  N4  where a C compiler is installed the executables are cni/client.c and the Python client stands
      behind them in `<lib_dir>/cni-client`; everywhere else the Python client is the executable.
      CALICO_CNI_CLIENT=python or c decides otherwise (c: a missing compiler is an error).
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cni.conflist import names_plugin
from libcalico.errors import ConfigError
from libcalico.runtime.files import replace_file

EXECUTABLES = ("calico", "calico-ipam")
CONFLIST = "10-calico.conflist"
TLS_FOLDER = "calico-tls"
_EXECUTABLE_MODE, _PUBLIC_MODE, _SECRET_MODE = 0o755, 0o644, 0o600
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


@dataclass(frozen=True, slots=True)
class Installation:
    """What is to be where. `conf_dir` None: the executables alone.

    `old_name` is a configuration that this one replaces under another name; `skipped` executables
    are not installed, and with `keep_existing` those that are there stay whatever they are;
    `certificates` go, readable for root alone, into the folder calico-tls beside the configuration.
    """

    bin_dir: Path
    conf_dir: Path | None
    socket_path: Path
    lib_dir: Path
    conflist: bytes
    name: str = CONFLIST
    old_name: str = ""
    skipped: frozenset[str] = frozenset()
    keep_existing: bool = False
    certificates: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def behind(self) -> Path:
        """The Python clients that stand behind the C one (N4)."""
        return self.lib_dir / "cni-client"

    @property
    def tls_dir(self) -> Path | None:
        return None if self.conf_dir is None else self.conf_dir / TLS_FOLDER


def install(
    bin_dir: Path, conf_dir: Path | None, *, socket_path: Path, lib_dir: Path, conflist: bytes
) -> list[Path]:
    """The plain case of `put_in_place`."""
    return put_in_place(
        Installation(bin_dir, conf_dir, socket_path=socket_path, lib_dir=lib_dir, conflist=conflist)
    )


def put_in_place(wanted: Installation) -> list[Path]:
    """Returns the files that changed. The configuration comes last: a runtime that sees it finds
    everything else. Errors: ConfigError when a folder cannot be written, or the C client was asked
    for and cannot be built."""
    changed = [
        path for path, data in _executables(wanted).items() if put(path, data, _EXECUTABLE_MODE)
    ]
    if wanted.conf_dir is None or wanted.tls_dir is None:
        return changed
    for name, data in wanted.certificates.items():
        if put(wanted.tls_dir / name, data, _SECRET_MODE):
            changed.append(wanted.tls_dir / name)
    if put(wanted.conf_dir / wanted.name, wanted.conflist, _PUBLIC_MODE):
        changed.append(wanted.conf_dir / wanted.name)
    if wanted.old_name and wanted.old_name != wanted.name:
        _remove_old(wanted.conf_dir / wanted.old_name)
    return changed


def _executables(wanted: Installation) -> dict[Path, bytes]:
    python_client = render_client(wanted.socket_path, sys.executable, lib_dir=wanted.lib_dir)
    executable = _c_client(wanted.socket_path, wanted.behind)
    files = {}
    for name in EXECUTABLES:
        path = wanted.bin_dir / name
        if name not in wanted.skipped and not (wanted.keep_existing and path.exists()):
            files[path] = executable or python_client
    if executable is not None:
        files |= {wanted.behind / name: python_client for name in EXECUTABLES}
    return files


def _remove_old(path: Path) -> None:
    """Only when it is a network of this plugin: another one's is its owner's business (N2)."""
    try:
        if names_plugin(path.read_bytes(), "calico"):
            path.unlink()
    except FileNotFoundError:
        return
    except OSError as err:
        raise _refused(path, err) from err


def _c_client(socket_path: Path, behind: Path) -> bytes | None:
    """The built client; None when the Python one is to be used (N4)."""
    choice = os.environ.get("CALICO_CNI_CLIENT", "auto")
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if choice == "python" or (choice != "c" and compiler is None):
        return None
    if compiler is None:
        raise ConfigError("environment", "CALICO_CNI_CLIENT", "there is no C compiler", choice)
    places = (f"-DSOCKET_PATH={_c_string(socket_path)}", f"-DPYTHON_CLIENTS={_c_string(behind)}")
    built, said = _compiled(compiler, _C_CLIENT.read_bytes(), places)
    if built is None and choice == "c":
        raise ConfigError("environment", "CALICO_CNI_CLIENT", said, choice)
    # Not asked for: a compiler without headers; what works without one works here too.
    return built


@functools.lru_cache(maxsize=1)
def _compiled(compiler: str, source: bytes, places: tuple[str, ...]) -> tuple[bytes | None, str]:
    """The program, or None and the compiler's last word. Built once: --watch looks often."""
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / "client"
        command = [compiler, "-O2", "-s", "-Wl,--build-id=none", "-x", "c", "-", "-o", str(built)]
        done = subprocess.run(
            [*command, *places],
            input=source,
            capture_output=True,
            timeout=COMPILER_TIMEOUT_S,
            check=False,
        )
        if done.returncode == 0:
            return built.read_bytes(), ""
    said = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
    return None, said[0] if said else "the compiler failed"


def _c_string(path: Path) -> str:
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'


def put(path: Path, data: bytes, mode: int) -> bool:
    """Whether the content was another one. Errors: ConfigError."""
    try:
        return replace_file(path, data, mode)
    except OSError as err:
        raise _refused(path, err) from err


def _refused(path: Path, err: OSError) -> ConfigError:
    return ConfigError("install-cni", str(path), err.strerror or str(err))
