"""The CNI executable that container runtimes run: it carries the request to felix and back.

Layer: edge, alone. Installed by cni.install as `calico` and `calico-ipam`, with the constants below
filled in and the interpreter's -ISE flags, so that a pod pays for nothing but two built-in
modules: no json, no socket, no site. It must not import anything else (a test watches that).

The wire is described in cni.wire. When felix does not answer: DEL and VERSION run in process
(cni.standalone), because a runtime must always be able to clean up; everything else is told to
"try again later" (code 11), STATUS that the plugin is not available (code 50). With an argument
(-v, -t) cni.probe runs.
"""

import _socket
import posix
import sys

SOCKET = b"/var/run/calico/cni.sock"
STANDALONE_PYTHON = ""
LIB_DIR = "/var/lib/calico"

_MAX_STDIN_BYTES = 1 << 20


def main() -> int:
    plugin = sys.argv[0].rpartition("/")[2].encode()
    environ = posix.environ
    command = environ.get(b"CNI_COMMAND", b"")
    if len(sys.argv) > 1:
        return _probe(plugin)
    if not command:
        return _about()
    try:
        stdin = _read_stdin()
    except OSError:
        _refuse(b"", b"5", b"cannot read the network configuration from standard input")
        return 1
    if len(stdin) > _MAX_STDIN_BYTES:
        _refuse(stdin, b"6", b"the network configuration is larger than a megabyte")
        return 1
    answer = _ask(_request(plugin, environ, stdin))
    if answer is None:
        return _without_felix(plugin, command, stdin)
    code, stdout, stderr = answer
    _write_all(2, stderr)
    _write_all(1, stdout)
    return code


def _about() -> int:
    _write_all(2, b"Brindle CNI plugin\nCNI protocol versions supported: 0.1.0 to 1.1.0\n")
    return 0


def _probe(plugin: bytes) -> int:
    """-v and -t: for people and installers, so the whole of brindle may be loaded."""
    if not STANDALONE_PYTHON:
        _write_all(2, b"no interpreter with brindle is known here\n")
        return 1
    arguments = [STANDALONE_PYTHON, "-I", "-m", "cni.probe", plugin.decode(), LIB_DIR]
    posix.execve(STANDALONE_PYTHON, arguments + sys.argv[1:], posix.environ)


def _read_stdin() -> bytes:
    parts = []
    size = 0
    while size <= _MAX_STDIN_BYTES:
        part = posix.read(0, 65536)
        if not part:
            break
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def _request(plugin: bytes, environ: dict[bytes, bytes], stdin: bytes) -> bytes:
    block = b"\0".join(
        name + b"=" + value for name, value in environ.items() if name.startswith(b"CNI_")
    )
    return b"BRN1" + b"".join(
        len(part).to_bytes(4, "big") + part for part in (plugin, block, stdin)
    )


def _ask(request: bytes) -> tuple[int, bytes, bytes] | None:
    """None when felix is not there, or ended before it had answered."""
    run_dir = posix.environ.get(b"CALICO_RUN_DIR")
    path = run_dir + b"/cni.sock" if run_dir else SOCKET
    try:
        link = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        link.connect(path)
        link.sendall(request)
        received = b""
        while part := link.recv(65536):
            received += part
    except OSError:
        return None
    if len(received) < 12:
        return None
    out = 8 + int.from_bytes(received[4:8], "big")
    error = out + 4 + int.from_bytes(received[out : out + 4], "big")
    if len(received) != error:
        return None
    return int.from_bytes(received[:4], "big"), received[8:out], received[out + 4 :]


def _without_felix(plugin: bytes, command: bytes, stdin: bytes) -> int:
    if STANDALONE_PYTHON and command in (b"DEL", b"VERSION"):
        # The request has been read already: hand it on as a file that starts at its beginning.
        again = posix.memfd_create("stdin")
        _write_all(again, stdin)
        posix.lseek(again, 0, 0)
        posix.dup2(again, 0)
        arguments = [STANDALONE_PYTHON, "-I", "-m", "cni.standalone", plugin.decode(), LIB_DIR]
        posix.execve(STANDALONE_PYTHON, arguments, posix.environ)
    code, said = b"11", b"felix does not answer on its CNI socket; try again later"
    if command == b"STATUS":
        code, said = b"50", b"felix does not answer on its CNI socket"
    _refuse(stdin, code, said)
    return 1


def _refuse(stdin: bytes, code: bytes, said: bytes) -> None:
    version = _asked_version(stdin) or b"1.0.0"
    _write_all(
        1,
        b'{"cniVersion": "' + version + b'", "code": ' + code + b', "msg": "' + said + b'"}\n',
    )


def _asked_version(stdin: bytes) -> bytes:
    """cniVersion without a JSON parser; empty for anything that does not look like a version."""
    value = stdin.partition(b'"cniVersion"')[2].partition(b'"')[2].partition(b'"')[0]
    return value if value and not value.strip(b"0123456789.") else b""


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[posix.write(fd, data) :]


if __name__ == "__main__":
    # Everything is written: the interpreter's own tidying up would cost another two milliseconds.
    posix._exit(main())
