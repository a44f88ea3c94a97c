"""cni.wire and the client's hand-written half of it."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pytest

from cni import client, conflist, install
from cni.skel import Answer, Invocation
from cni.wire import MAX_PART_BYTES, RequestReader, pack_answer, pack_request, parse_answer
from libcalico.errors import ConfigError, WireError

INVOCATION = Invocation("calico", {"CNI_COMMAND": "ADD", "CNI_ARGS": "A=b=c"}, b'{"x": "\xc3"}')


def test_a_request_is_the_same_however_it_is_cut():
    data = pack_request(INVOCATION)
    for cut in range(len(data) + 1):
        reader = RequestReader()
        reader.receive_data(data[:cut])
        early = reader.take()
        reader.receive_data(data[cut:])
        assert (early if cut == len(data) else reader.take()) == INVOCATION


def test_the_client_writes_what_the_reader_reads():
    environ = {name.encode(): value.encode() for name, value in INVOCATION.environ.items()}
    environ[b"HOME"] = b"/root"
    data = client._request(b"calico", environ, INVOCATION.stdin)
    assert data == pack_request(INVOCATION)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1", b"BRN2", b"BRN1" + b"\xff" * 8])
def test_foreign_and_oversized_requests_are_refused(data):
    reader = RequestReader()
    reader.receive_data(data)
    with pytest.raises(WireError):
        reader.take()


def test_bytes_after_a_request_are_refused():
    reader = RequestReader()
    reader.receive_data(pack_request(INVOCATION) + b"x")
    with pytest.raises(WireError):
        reader.take()


def test_the_bound_of_a_part_is_a_megabyte():
    reader = RequestReader()
    reader.receive_data(b"BRN1" + (MAX_PART_BYTES + 1).to_bytes(4, "big"))
    with pytest.raises(WireError, match="too large"):
        reader.take()


def test_an_answer_survives_the_trip_and_a_cut_one_is_noticed():
    answer = Answer(1, b'{"code": 11}', b"log line\n")
    data = pack_answer(answer)
    assert parse_answer(data) == answer
    for cut in range(len(data)):
        with pytest.raises(WireError):
            parse_answer(data[:cut])


def test_the_client_imports_nothing_but_built_in_modules():
    # Its start is paid for by every pod: 25 ms from exec to the first byte is the budget.
    tree = ast.parse(Path(client.__file__).read_text())
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert imported == {"_socket", "posix", "sys"}


def test_the_installed_client_carries_its_socket_and_compiles(tmp_path):
    text = install.render_client(
        tmp_path / "cni.sock", "/opt/brindle/bin/python", lib_dir=tmp_path / "lib"
    )
    assert text.startswith(b"#!/")
    assert text.partition(b"\n")[0].endswith(b" -ISE")
    assert f"SOCKET = {bytes(tmp_path / 'cni.sock')!r}".encode() in text
    assert f"LIB_DIR = {str(tmp_path / 'lib')!r}".encode() in text
    compile(text, "calico", "exec")


@pytest.mark.parametrize(("client", "files"), [("python", 3), ("auto", None)])
def test_installing_twice_changes_nothing_and_leaves_other_files_alone(
    tmp_path, monkeypatch, client, files
):
    monkeypatch.setenv("CALICO_CNI_CLIENT", client)
    has_compiler = any(map(shutil.which, ("cc", "gcc", "clang")))
    files = files or (5 if has_compiler else 3)
    bin_dir, conf_dir = tmp_path / "bin", tmp_path / "net.d"
    conf_dir.mkdir()
    (conf_dir / "05-mine.conflist").write_text("mine")
    arguments = {
        "socket_path": tmp_path / "s",
        "lib_dir": tmp_path / "lib",
        "conflist": conflist.default_conflist(),
    }
    assert len(install.install(bin_dir, conf_dir, **arguments)) == files
    before = {path: path.stat().st_mtime_ns for path in bin_dir.iterdir()}
    assert install.install(bin_dir, conf_dir, **arguments) == []
    assert before == {path: path.stat().st_mtime_ns for path in bin_dir.iterdir()}
    assert (conf_dir / "05-mine.conflist").read_text() == "mine"
    assert sorted(path.name for path in conf_dir.iterdir()) == [
        "05-mine.conflist",
        "10-calico.conflist",
    ]
    assert (bin_dir / "calico").stat().st_mode & 0o777 == 0o755


def test_a_c_client_that_cannot_be_built_is_an_error_only_when_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    arguments = {"socket_path": tmp_path / "s", "lib_dir": tmp_path, "conflist": b""}
    assert install.install(tmp_path / "bin", None, **arguments)
    monkeypatch.setenv("CALICO_CNI_CLIENT", "c")
    with pytest.raises(ConfigError, match="no C compiler"):
        install.install(tmp_path / "bin", None, **arguments)
