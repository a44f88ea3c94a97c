"""libcalico.wire: frames, messages, and the two ends of a connection without a network between."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libcalico.errors import WireError
from libcalico.wire import messages
from libcalico.wire.client import ClientProtocol, Phase
from libcalico.wire.framing import (
    COMPRESSED,
    MAX_FRAME_BYTES,
    MAX_PAYLOAD_BYTES,
    Frame,
    FrameReader,
    Packer,
)
from libcalico.wire.messages import (
    MAGIC,
    Deltas,
    Goodbye,
    Hello,
    Kind,
    Page,
    Ping,
    Pong,
    Reason,
    Snapshot,
    SnapshotEnd,
    Status,
    Welcome,
)
from libcalico.wire.server import Refused, ServerProtocol, agree

HELLO = Hello(MAGIC, 1, 1, "felix", "n1", compressions=["zstd", "none"])
SAMPLES = (
    HELLO,
    Pong(7),
    Welcome(1, "v1", "s", "zstd", 5.0),
    Status("in-sync"),
    Snapshot(3, True),
    Page([("/a", b"x" * 500, 5)]),
    SnapshotEnd({"/p/": 9}),
    Deltas([("/a", None, 6), ("/b", b"", 7)]),
    Ping(7),
    Goodbye("move", "elsewhere", 60.0, "10.0.0.1:5473"),
)


def frame(message: messages.Message, *, compress: bool = False) -> bytes:
    return Packer().frame(messages.kind_of(message), messages.encode(message), compress=compress)


def reader() -> FrameReader:
    made = FrameReader()
    made.may_be_compressed = True
    return made


def test_frames_cut_at_every_place_are_whole_again():
    data = b"".join(frame(item, compress=True) for item in SAMPLES)
    for step in (1, 2, 3, 7, 64, len(data)):
        found = reader()
        out = []
        for start in range(0, len(data), step):
            out += [messages.decode(item) for item in found.receive(data[start : start + step])]
        assert out == list(SAMPLES)
        assert found.buffered_bytes == 0


def test_a_frame_is_refused_by_its_length_before_it_is_there():
    for length in (0, MAX_FRAME_BYTES + 1, 2**32 - 1):
        with pytest.raises(WireError, match=f"a frame of {length} bytes"):
            list(FrameReader().receive(length.to_bytes(4, "big") + b"\x01"))


def test_a_compressed_frame_is_refused_by_the_size_it_declares():
    bomb = Packer().frame(Kind.PAGE, bytes(MAX_PAYLOAD_BYTES + 1), compress=True)
    assert len(bomb) < 10_000
    with pytest.raises(WireError, match="declares"):
        list(reader().receive(bomb))


def test_what_is_compressed_without_agreement_is_refused():
    data = frame(Page([("/a", b"x" * 500, 5)]), compress=True)
    assert data[4] == Kind.PAGE | COMPRESSED
    with pytest.raises(WireError, match="none was agreed on"):
        list(FrameReader().receive(data))


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_wire_errors(data: bytes):
    for text in (data, len(data).to_bytes(4, "big") + data):
        with contextlib.suppress(WireError):
            for item in reader().receive(text):
                messages.decode(item)


@given(st.sampled_from(list(Kind)), st.binary(max_size=100))
def test_no_payload_raises_anything_but_wire_errors(kind: Kind, payload: bytes):
    with contextlib.suppress(WireError):
        messages.decode(Frame(kind, payload))


def test_an_older_peer_leaves_out_and_a_newer_one_adds():
    short = msgspec.msgpack.encode([1])
    assert messages.decode(Frame(Kind.WELCOME, short)) == Welcome(1)
    long = msgspec.msgpack.encode([1, "v9", "s", "none", 1.0, "what", {"is": "this"}])
    assert messages.decode(Frame(Kind.WELCOME, long)) == Welcome(1, "v9", "s", "none", 1.0)
    assert messages.decode(Frame(99, b"anything")) is None


@pytest.mark.parametrize(
    ("low", "high", "version"), [(1, 1, 1), (1, 5, 1), (0, 1, 1), (2, 5, 0), (0, 0, 0)]
)
def test_versions(low: int, high: int, version: int):
    hello = Hello(MAGIC, low, high, "felix", "n1")
    if version:
        assert agree(hello).version == version
    else:
        with pytest.raises(Refused, match="are offered") as refused:
            agree(hello)
        assert refused.value.why is Reason.VERSION


def test_compressions_nobody_knows_fall_back_to_none():
    def chosen(*names: str) -> str:
        return agree(Hello(MAGIC, 1, 1, "felix", "n", compressions=list(names))).compression

    assert chosen("lz9", "zstd") == "zstd"
    assert chosen("none", "zstd") == "none"
    assert chosen("lz9") == chosen() == "none"


def test_a_stranger_is_refused():
    with pytest.raises(Refused, match="no brindle-typha client"):
        agree(Hello("HTTP", 1, 1, "felix", "n"))


def test_a_client_says_hello_once_and_pongs():
    server = ServerProtocol()
    assert list(server.receive(frame(HELLO))) == [HELLO]
    assert list(server.receive(frame(Pong(3)))) == [Pong(3)]
    with pytest.raises(WireError, match="HELLO from a client"):
        list(server.receive(frame(HELLO)))
    with pytest.raises(WireError, match="PONG from a client"):
        list(ServerProtocol().receive(frame(Pong(1))))


def test_a_client_may_not_send_large_frames():
    with pytest.raises(WireError, match="a frame of"):
        list(ServerProtocol().receive((70_000).to_bytes(4, "big")))


def test_the_life_of_a_connection():
    client = ClientProtocol(HELLO)
    assert list(ServerProtocol().receive(client.data_to_send())) == [HELLO]
    said = (
        Welcome(1, compression="zstd"),
        Status("in-sync"),
        Ping(4),
        Snapshot(1),
        Page([("/a", b"v", 2)]),
        SnapshotEnd({"/": 2}),
        Deltas([("/a", None, 3)]),
        Goodbye("shutdown"),
    )
    heard = list(client.receive(b"".join(frame(item) for item in said)))
    assert heard == list(said)
    assert client.phase is Phase.ENDED
    assert client.data_to_send() == frame(Pong(4))


@pytest.mark.parametrize(
    "said",
    [
        (Snapshot(),),
        (Deltas([]),),
        (Welcome(1), Welcome(1)),
        (Welcome(1), Page([])),
        (Welcome(1), Deltas([])),
        (Welcome(1), Snapshot(), Deltas([])),
        (Goodbye("x"), Ping(1)),
        (HELLO,),
        (Welcome(2),),
        (Welcome(1, compression="lz9"),),
    ],
)
def test_what_comes_out_of_turn_is_an_error(said: tuple[messages.Message, ...]):
    client = ClientProtocol(HELLO)
    with pytest.raises(WireError):
        list(client.receive(b"".join(frame(item) for item in said)))
