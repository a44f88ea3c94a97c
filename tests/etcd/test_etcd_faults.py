"""The etcd client while etcd dies, hangs, changes its leader, its certificates or its mind."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import pytest

from libcalico.datastore.api import KeyValue, WatchBatch, WatchEvent
from libcalico.datastore.etcd import EtcdDatastore
from libcalico.datastore.etcd_link import EtcdConfig
from libcalico.datastore.tls import TlsConfig
from libcalico.errors import DatastoreUnavailable, Unauthorized, WatchExpired
from libcalico.testing.certs import Authority
from libcalico.testing.etcd import EtcdCluster, EtcdOptions, EtcdTls
from tests.support.etcd import ClusterFactory, LossyProxy

pytestmark = pytest.mark.etcd

WAIT_S = 30.0
A = "/t/a"
T = TypeVar("T")
Open = Callable[..., EtcdDatastore]


@pytest.fixture
async def open_store() -> AsyncIterator[Open]:
    """`open_store(endpoints, **settings)`: a client that is closed at the end."""
    opened: list[EtcdDatastore] = []

    def start(endpoints: tuple[str, ...], **settings: object) -> EtcdDatastore:
        opened.append(EtcdDatastore(EtcdConfig(endpoints, **settings)))  # type: ignore[arg-type]
        return opened[-1]

    yield start
    for store in opened:
        await store.close()


async def eventually(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat until the datastore answers."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            return await call()
        except DatastoreUnavailable:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.02)


async def until(condition: Callable[[], bool]) -> None:
    """Poll what only a blocking call can tell."""
    deadline = time.monotonic() + WAIT_S
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def collect(batches: AsyncIterator[WatchBatch], count: int) -> list[WatchEvent]:
    events: list[WatchEvent] = []
    async with asyncio.timeout(WAIT_S):
        while len(events) < count:
            events.extend((await anext(batches)).events)
    return events


def tls_config(tls: EtcdTls) -> TlsConfig:
    return TlsConfig(str(tls.ca), str(tls.client.certificate), str(tls.client.key))


# ---- etcd goes away ----------------------------------------------------------------------------


async def test_nobody_there_is_said_at_once_and_in_plain_words(open_store: Open):
    store = open_store(("http://127.0.0.1:1", "http://127.0.0.1:2"))
    started = time.monotonic()
    with pytest.raises(DatastoreUnavailable) as caught:
        await store.get(A)
    assert time.monotonic() - started < 5
    for port in (1, 2):
        assert f"etcd at http://127.0.0.1:{port}: connection refused" in str(caught.value)
    with pytest.raises(DatastoreUnavailable):
        await store.create(A, b"1")


async def test_nothing_reaches_stderr_from_grpc(open_store: Open, capfd: pytest.CaptureFixture):
    store = open_store(("http://127.0.0.1:1",))
    with pytest.raises(DatastoreUnavailable):
        await store.get(A)
    await store.close()
    assert capfd.readouterr().err == ""


async def test_a_watch_survives_kill_and_restart_and_loses_nothing(
    etcd_cluster_factory: ClusterFactory, open_store: Open
):
    cluster = etcd_cluster_factory()
    (member,) = cluster.members
    store = open_store(cluster.endpoints)
    start = await store.create(A, b"0")
    batches = store.watch("/t/", start)
    assert len(await collect(batches, 1)) == 1
    waiting = asyncio.ensure_future(collect(batches, 2))
    for number in (1, 2):
        await asyncio.to_thread(member.kill)
        await asyncio.to_thread(member.start)
        await asyncio.to_thread(member.wait_ready)
        await eventually(lambda n=number: store.put(A, str(n).encode()))  # type: ignore[misc]
    events = await waiting
    assert [event.kv.value for event in events][-1] == b"2"
    assert len({event.kv.mod_revision for event in events}) == len(events)
    await batches.aclose()


async def test_a_watch_that_slept_through_a_compaction_expires(
    etcd_cluster_factory: ClusterFactory, open_store: Open
):
    cluster = etcd_cluster_factory()
    (member,) = cluster.members
    store = open_store(cluster.endpoints)
    batches = store.watch("/t/", await store.create(A, b"0"))
    await collect(batches, 1)
    waiting = asyncio.ensure_future(collect(batches, 1))
    await asyncio.to_thread(member.kill)
    await asyncio.to_thread(member.start)
    await asyncio.to_thread(member.wait_ready)
    # Written and compacted by others before our stream is back: it has nothing to resume from.
    cluster.ctl("put", A, "1")
    cluster.ctl("put", A, "2")
    revision = (await eventually(lambda: store.list("/t/"))).revision
    cluster.ctl("compact", str(revision))
    (outcome,) = await asyncio.gather(waiting, return_exceptions=True)
    if isinstance(outcome, WatchExpired):
        assert outcome.compact_revision == revision
    else:
        # The stream was quicker than the compaction; then nothing may be missing.
        assert outcome[0].kv.value == b"1"
    await batches.aclose()


async def test_a_write_whose_answer_is_lost_is_not_repeated(etcd: EtcdCluster, open_store: Open):
    async with LossyProxy(etcd.endpoints[0]) as proxy:
        store = open_store((proxy.endpoint,))
        revision = await store.create(A, b"1")
        proxy.is_deaf = True
        writing = asyncio.ensure_future(store.put(A, b"2"))
        await until(lambda: etcd.ctl("get", "--print-value-only", A) == "2\n")
        proxy.hang_up()
        with pytest.raises(DatastoreUnavailable, match="may have been applied"):
            await writing
        # It was applied, once: the caller reads back, as D5 says.
        found = await eventually(lambda: store.get(A))
        assert found is not None
        assert found == KeyValue(A, b"2", found.mod_revision, revision, version=2)
        # A read in the same situation is simply repeated.
        proxy.is_deaf, proxy.lost_bytes = True, 0
        reading = asyncio.ensure_future(store.get(A))
        await until(lambda: proxy.lost_bytes > 0)
        proxy.hang_up()
        assert await reading == found


async def test_a_dead_stream_is_noticed_and_replaced(
    etcd_cluster_factory: ClusterFactory, open_store: Open, caplog: pytest.LogCaptureFixture
):
    cluster = etcd_cluster_factory()
    (member,) = cluster.members
    store = open_store(cluster.endpoints, watch_idle_s=0.2, watch_ping_timeout_s=2.0)
    batches = store.watch("/t/", await store.create(A, b"0"))
    await collect(batches, 1)
    waiting = asyncio.ensure_future(collect(batches, 1))
    # A live but quiet stream must pass the same test several times over.
    await until(lambda: watch_calls(member, "msg_received") >= 4)  # one to begin, three pings
    assert watch_calls(member, "started") == 1
    member.freeze()
    await until(lambda: "watch interrupted, resuming" in caplog.messages)
    member.thaw()
    await eventually(lambda: store.put(A, b"1"))
    assert (await waiting)[0].kv.value == b"1"
    await batches.aclose()


def watch_calls(member: object, what: str) -> int:
    """How many streams were started, or messages received on them, as etcd itself counts."""
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", member._health_port, timeout=5)  # type: ignore[attr-defined]
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    counted = [line for line in text.splitlines() if line.startswith(f"grpc_server_{what}_total{{")]
    (total,) = [line for line in counted if 'grpc_method="Watch",grpc_service="etcdserver' in line]
    return int(float(total.split()[-1]))


# ---- a cluster of three ------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["kill", "freeze"])
async def test_losing_the_leader_loses_no_call_and_no_event(
    etcd_cluster_factory: ClusterFactory, open_store: Open, way: str
):
    cluster = etcd_cluster_factory(size=3)
    store = open_store(
        cluster.endpoints,
        attempt_timeout_s=1.0,
        write_timeout_s=1.0,
        watch_idle_s=0.5,
        watch_ping_timeout_s=0.5,
    )
    start = await store.create(A, b"0")
    batches = store.watch("/t/", start)
    await collect(batches, 1)
    waiting = asyncio.ensure_future(collect(batches, 20))
    leader = await asyncio.to_thread(cluster.leader)
    for number in range(1, 21):
        if number == 5:
            await asyncio.to_thread(getattr(leader, way))
        await write_once(store, number)
    events = await waiting
    assert [int(event.kv.value) for event in events] == list(range(1, 21))
    await batches.aclose()


async def write_once(store: EtcdDatastore, number: int) -> None:
    """Write a number exactly once, reading back when an answer was lost, as callers must."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        try:
            found = await store.get(A)
            assert found is not None
            if int(found.value) == number:
                return
            await store.update(A, str(number).encode(), found.mod_revision)
        except DatastoreUnavailable:
            await asyncio.sleep(0.05)
        else:
            return
    raise AssertionError(f"could not write {number}")


async def test_reads_writes_and_watches_go_on_with_one_member_down(
    etcd_cluster_factory: ClusterFactory, open_store: Open
):
    cluster = etcd_cluster_factory(size=3)
    leader = await asyncio.to_thread(cluster.leader)
    follower = next(member for member in cluster.members if member is not leader)
    await asyncio.to_thread(follower.kill)
    for _ in range(6):  # each client starts at a member of its own choice
        store = open_store(cluster.endpoints)
        batches = store.watch("/t/", await open_store(cluster.endpoints).put(A, b"1"))
        assert (await collect(batches, 1))[0].kv.value == b"1"
        await batches.aclose()
        await store.put(A, b"1")
        assert (await store.get(A)) is not None


async def test_a_member_that_drops_packets_costs_a_short_wait_only(
    etcd_cluster_factory: ClusterFactory, open_store: Open
):
    cluster = etcd_cluster_factory()
    # 127.0.0.0/8 has no black hole; a listener whose backlog is full behaves like one.
    import socket

    with socket.socket() as hole:
        hole.bind(("127.0.0.1", 0))
        hole.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(hole.getsockname())
        endpoint = f"http://127.0.0.1:{hole.getsockname()[1]}"
        store = open_store((endpoint, *cluster.endpoints), dial_timeout_s=2.0)
        started = time.monotonic()
        for _ in range(3):
            await store.put(A, b"1")
        assert time.monotonic() - started < 3.0
        for filler in fillers:
            filler.close()


async def test_without_a_quorum_calls_fail_and_recover(
    etcd_cluster_factory: ClusterFactory, open_store: Open
):
    cluster = etcd_cluster_factory(size=3)
    store = open_store(cluster.endpoints, call_budget_s=2.0, write_timeout_s=1.0)
    await store.create(A, b"1")
    for member in cluster.members[:2]:
        await asyncio.to_thread(member.kill)
    with pytest.raises(DatastoreUnavailable):
        await store.get(A)
    with pytest.raises(DatastoreUnavailable):
        await store.put("/t/b", b"1")
    for member in cluster.members[:2]:
        member.start()
    found = await eventually(lambda: store.get(A))
    assert found is not None


async def test_a_watch_leaves_a_member_that_has_lost_its_leader(
    etcd_cluster_factory: ClusterFactory, open_store: Open, caplog: pytest.LogCaptureFixture
):
    """Cut off from its cluster it would hear of nothing any more, and say nothing for ever."""
    cluster = etcd_cluster_factory(size=3)
    alone, *others = cluster.members
    store = open_store((alone.endpoint,))
    batches = store.watch("/t/", await store.create(A, b"0"))
    await collect(batches, 1)
    waiting = asyncio.ensure_future(collect(batches, 1))
    for member in others:
        await asyncio.to_thread(member.kill)

    def has_left() -> bool:
        interrupted = [r for r in caplog.records if r.getMessage() == "watch interrupted, resuming"]
        return any("no leader" in r.fields["error"] for r in interrupted)  # type: ignore[attr-defined]

    await until(has_left)
    for member in others:
        member.start()
    await eventually(lambda: store.put(A, b"1"))
    assert (await waiting)[0].kv.value == b"1"
    await batches.aclose()


# ---- TLS ---------------------------------------------------------------------------------------


@pytest.fixture
def tls_cluster(etcd_cluster_factory: ClusterFactory, etcd_tls: EtcdTls) -> EtcdCluster:
    return etcd_cluster_factory(options=EtcdOptions(tls=etcd_tls))


async def test_mutual_tls_works_from_files_and_from_inline_values(
    tls_cluster: EtcdCluster, etcd_tls: EtcdTls, open_store: Open
):
    files = open_store(tls_cluster.endpoints, tls=tls_config(etcd_tls))
    await files.create(A, b"1")
    inline = TlsConfig(
        ca=etcd_tls.ca.read_text(),
        cert=etcd_tls.client.certificate.read_text(),
        key=etcd_tls.client.key.read_text(),
    )
    assert await open_store(tls_cluster.endpoints, tls=inline).get(A) is not None


async def test_every_tls_trouble_has_one_clear_sentence(
    tls_cluster: EtcdCluster, etcd_tls: EtcdTls, etcd_authority: Authority, open_store: Open
):
    stranger = Authority(etcd_tls.ca.parent / "other", "other-ca")
    good = tls_config(etcd_tls)
    expired = etcd_authority.issue("expired-client", days=-1)
    cases = {
        "certificate is not accepted: unable to get local issuer": dataclasses.replace(
            good, ca_file=str(stranger.certificate)
        ),
        "does not accept our client certificate": dataclasses.replace(
            good, cert_file=str(expired.certificate), key_file=str(expired.key)
        ),
        "does not accept our client certificate ": dataclasses.replace(
            good, cert_file="", key_file=""
        ),
    }
    for expected, tls in cases.items():
        with pytest.raises(DatastoreUnavailable) as caught:
            await open_store(tls_cluster.endpoints, tls=tls).get(A)
        assert expected in str(caught.value)
        assert "\n" not in str(caught.value)
    plain = tls_cluster.endpoints[0].replace("https", "http")
    with pytest.raises(DatastoreUnavailable, match="https instead of http"):
        await open_store((plain,)).get(A)


async def test_an_expired_server_certificate_is_named(
    etcd_cluster_factory: ClusterFactory,
    etcd_authority: Authority,
    etcd_tls: EtcdTls,
    open_store: Open,
):
    expired = dataclasses.replace(etcd_tls, server=etcd_authority.issue("old", days=-1))
    cluster = etcd_cluster_factory(options=EtcdOptions(tls=expired))
    store = open_store(cluster.endpoints, tls=tls_config(expired))
    with pytest.raises(DatastoreUnavailable, match="not accepted: certificate has expired"):
        await store.get(A)


async def test_a_server_certificate_for_another_name_is_refused(
    etcd_cluster_factory: ClusterFactory,
    etcd_authority: Authority,
    etcd_tls: EtcdTls,
    open_store: Open,
):
    wrong = dataclasses.replace(etcd_tls, server=etcd_authority.issue("x", names=["DNS:x.example"]))
    cluster = etcd_cluster_factory(options=EtcdOptions(tls=wrong))
    store = open_store(cluster.endpoints, tls=tls_config(wrong))
    with pytest.raises(DatastoreUnavailable, match="Hostname Verification"):
        await store.get(A)


async def test_rotated_client_certificates_are_taken_over_without_disturbing_a_watch(
    tls_cluster: EtcdCluster, etcd_tls: EtcdTls, etcd_authority: Authority, open_store: Open
):
    # Start with a certificate that the server refuses, then put a good one in its place.
    place = etcd_authority.issue("rotating")
    tls = TlsConfig(str(etcd_tls.ca), str(place.certificate), str(place.key))
    store = open_store(tls_cluster.endpoints, tls=tls)
    batches = store.watch("/t/", await store.create(A, b"0"))
    await collect(batches, 1)
    etcd_authority.issue_into(place, "rotating", days=-1)
    with pytest.raises(DatastoreUnavailable, match="client certificate"):
        await until_refused(store)
    # The watch stands on the connection it has (as with etcd's own client) and still delivers.
    tls_cluster.ctl("put", A, "1")
    assert (await collect(batches, 1))[0].kv.value == b"1"
    etcd_authority.issue_into(place, "rotating")
    await eventually(lambda: store.put(A, b"2"))
    assert (await collect(batches, 1))[0].kv.value == b"2"
    await batches.aclose()


async def until_refused(store: EtcdDatastore) -> None:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        await store.get(A)
        await asyncio.sleep(0.05)


async def test_half_a_rotation_keeps_the_old_pair(
    tls_cluster: EtcdCluster,
    etcd_tls: EtcdTls,
    etcd_authority: Authority,
    open_store: Open,
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level("INFO")
    place = etcd_authority.issue("half")
    tls = TlsConfig(str(etcd_tls.ca), str(place.certificate), str(place.key))
    store = open_store(tls_cluster.endpoints, tls=tls)
    await store.create(A, b"1")
    other = etcd_authority.issue("half-new")
    place.certificate.write_bytes(other.certificate.read_bytes())  # the key is still the old one
    await reading_until(store, caplog, "etcd certificates cannot be used yet, keeping the old")
    place.key.write_bytes(other.key.read_bytes())
    await reading_until(store, caplog, "etcd certificates changed, connecting anew")


async def reading_until(
    store: EtcdDatastore, caplog: pytest.LogCaptureFixture, message: str
) -> None:
    """Read again and again, successfully, until the client has said so."""
    deadline = time.monotonic() + WAIT_S
    while message not in caplog.messages:
        assert time.monotonic() < deadline, caplog.messages
        await store.get(A)
        await asyncio.sleep(0.05)
    await store.get(A)


# ---- users -------------------------------------------------------------------------------------


@pytest.fixture
def auth_cluster(etcd_cluster_factory: ClusterFactory) -> EtcdCluster:
    """Users `root`, and `reader` who may read /t/ and nothing else."""
    cluster = etcd_cluster_factory()
    cluster.ctl("put", A, "1")
    cluster.ctl("role", "add", "reading")
    cluster.ctl("role", "grant-permission", "reading", "read", "/t/", "--prefix")
    cluster.ctl("user", "add", "reader:secret")
    cluster.ctl("user", "grant-role", "reader", "reading")
    cluster.enable_auth("root-secret")
    return cluster


async def test_a_user_may_do_what_its_roles_allow(auth_cluster: EtcdCluster, open_store: Open):
    root = open_store(auth_cluster.endpoints, username="root", password="root-secret")
    reader = open_store(auth_cluster.endpoints, username="reader", password="secret")
    await root.put(A, b"2")
    found = await reader.get(A)
    assert found is not None
    batches = reader.watch("/t/", found.mod_revision)
    assert (await collect(batches, 1))[0].kv.value == b"2"
    await batches.aclose()
    for refused in (
        lambda: reader.put(A, b"3"),
        lambda: reader.list("/elsewhere/"),
        lambda: anext(reader.watch("/elsewhere/", 1)),
    ):
        with pytest.raises(Unauthorized) as caught:
            await refused()
        assert str(caught.value) == "connection is unauthorized: etcdserver: permission denied"


@pytest.mark.parametrize(
    ("username", "password", "text"),
    [
        ("reader", "wrong", "authentication failed, invalid user ID or password"),
        ("nobody", "secret", "authentication failed, invalid user ID or password"),
        ("", "", "user name is empty"),
    ],
)
async def test_a_refused_login_is_one_clear_error(
    auth_cluster: EtcdCluster, open_store: Open, username: str, password: str, text: str
):
    store = open_store(auth_cluster.endpoints, username=username, password=password)
    for call in (lambda: store.get(A), lambda: anext(store.watch("/t/", 1))):
        with pytest.raises(Unauthorized, match=text):
            await call()


async def test_a_forgotten_token_is_renewed_for_calls_and_watches(
    auth_cluster: EtcdCluster, open_store: Open
):
    store = open_store(auth_cluster.endpoints, username="root", password="root-secret")
    found = await store.get(A)
    assert found is not None
    batches = store.watch("/t/", found.mod_revision)
    await collect(batches, 1)
    waiting = asyncio.ensure_future(collect(batches, 1))
    (member,) = auth_cluster.members
    await asyncio.to_thread(member.kill)  # simple tokens live in etcd's memory only
    await asyncio.to_thread(member.start)
    await asyncio.to_thread(member.wait_ready)
    await asyncio.gather(*(eventually(lambda: store.put(A, b"2")) for _ in range(10)))
    assert (await waiting)[0].kv.value == b"2"
    await batches.aclose()


async def test_a_login_is_harmless_while_etcd_asks_for_none(etcd: EtcdCluster, open_store: Open):
    store = open_store(etcd.endpoints, username="root", password="x")
    await store.create(A, b"1")


# ---- closing -----------------------------------------------------------------------------------


async def test_closing_ends_calls_and_watches_with_an_error_not_a_cancellation(
    etcd_cluster_factory: ClusterFactory, open_store: Open
):
    cluster = etcd_cluster_factory()
    store = open_store(cluster.endpoints)
    batches = store.watch("/t/", await store.create(A, b"0"))
    await collect(batches, 1)
    cluster.members[0].freeze()
    waiting = [
        asyncio.ensure_future(collect(batches, 1)),
        asyncio.ensure_future(store.get(A)),
        asyncio.ensure_future(store.put(A, b"1")),
    ]
    (link,) = store._connection._links.values()
    await until(lambda: link._users == len(waiting))
    await store.close()
    for outcome in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(outcome, DatastoreUnavailable)
    with pytest.raises(DatastoreUnavailable, match="closed"):
        await store.get(A)
    cluster.members[0].thaw()


async def test_a_cancelled_call_is_cancelled(
    etcd_cluster_factory: ClusterFactory, open_store: Open
):
    cluster = etcd_cluster_factory()
    store = open_store(cluster.endpoints)
    await store.create(A, b"1")
    cluster.members[0].freeze()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await store.get(A)
    cluster.members[0].thaw()
    assert await eventually(lambda: store.get(A)) is not None
