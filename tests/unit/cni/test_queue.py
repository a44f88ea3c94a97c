"""cni.queue: what a queued DEL looks like on disk, and what of a damaged one."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from cni.queue import DeleteQueue, QueuedDelete, QueueRefused


def entry(container: str = "c1", ifname: str = "eth0", at: float = 1.0) -> QueuedDelete:
    return QueuedDelete(
        network="net",
        container_id=container,
        ifname=ifname,
        namespace="prod",
        endpoint=f"node--1-k8s-web-{ifname}",
        handle_id=f"net.{container}",
        queued_at=at,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "lib" / "cni-queue"


async def test_an_entry_comes_back_as_it_was_put_from_a_private_file(folder):
    await DeleteQueue(folder).put(entry())
    queue = DeleteQueue(folder)
    assert queue.entries() == [entry()]
    (path,) = folder.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
    queue.remove(entry())
    queue.remove(entry())
    assert queue.entries() == []
    assert not queue.holds(entry())


async def test_entries_come_oldest_first_and_a_repeated_del_is_one_entry(folder):
    queue = DeleteQueue(folder)
    for one in (entry("c2", at=3.0), entry("c1", at=2.0), entry("c2", at=1.0)):
        await queue.put(one)
    assert queue.entries() == [entry("c2", at=1.0), entry("c1", at=2.0)]
    assert queue.count() == 2


async def test_entries_of_one_container_are_found_whatever_the_interface(folder):
    queue = DeleteQueue(folder)
    for one in (entry("c1"), entry("c1", "eth1"), entry("c10"), entry("c")):
        await queue.put(one)
    found = queue.of_container("net", "c1")
    assert {(one.container_id, one.ifname) for one in found} == {("c1", "eth0"), ("c1", "eth1")}
    assert queue.of_container("net2", "c1") == []


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        msgspec.json.encode(entry("c2")),
        msgspec.json.encode(entry()).replace(b'"version":1', b'"version":2'),
        msgspec.json.encode(entry()).replace(b'"net.c1"', b'"net.c2"'),
        msgspec.json.encode(entry()).replace(b"{", b'{"more":1,', 1),
    ],
)
async def test_a_damaged_entry_is_set_aside_with_one_line_and_stops_no_other(
    folder, damage, caplog
):
    queue = DeleteQueue(folder)
    await queue.put(entry())
    await queue.put(entry("c3"))
    (folder / entry().file_name).write_bytes(damage)
    for _ in range(2):
        assert queue.entries() == [entry("c3")]
    assert [record.message for record in caplog.records] == [
        "a queued entry is not readable and set aside"
    ]
    (aside,) = folder.glob("*.bad")
    assert aside.read_bytes() == damage
    assert queue.count() == 1


async def test_a_full_queue_refuses_new_entries_and_takes_repetitions(folder):
    queue = DeleteQueue(folder, limit=2)
    await queue.put(entry("c1"))
    await queue.put(entry("c2"))
    with pytest.raises(QueueRefused, match="2 DELs are queued already"):
        await queue.put(entry("c3"))
    await queue.put(entry("c2", at=9.0))
    assert [one.container_id for one in queue.entries()] == ["c1", "c2"]


async def test_a_folder_that_cannot_be_written_refuses(tmp_path):
    (tmp_path / "file").write_text("")
    queue = DeleteQueue(tmp_path / "file" / "queue")
    with pytest.raises(QueueRefused, match="cannot be queued"):
        await queue.put(entry())
    assert queue.entries() == []


async def test_a_file_half_written_by_a_process_that_died_is_no_entry(folder):
    queue = DeleteQueue(folder)
    await queue.put(entry())
    (folder / f".{entry('c2').file_name}.x.tmp").write_bytes(b"{")
    assert queue.entries() == [entry()]
    assert queue.count() == 1
