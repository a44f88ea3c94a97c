"""typha.balance: who takes how many clients, and who moves."""

from __future__ import annotations

import pytest

from libcalico.errors import ConfigError
from libcalico.syncer.typhas import ServerRecord, parse_targets
from typha import config
from typha.balance import connection_limit, may_move, roomiest


def server(clients: int, limit: int = 1000, port: int = 1) -> ServerRecord:
    return ServerRecord("10.0.0.1", port, clients, limit)


def test_the_limit_has_room_for_all_nodes_with_one_server_lost():
    def limit(nodes: int, servers: int) -> int:
        return connection_limit(nodes, servers, lower=400, upper=10_000)

    assert limit(0, 1) == limit(100, 3) == 400
    assert limit(1000, 3) == 1200
    assert limit(1000, 1) == limit(1000, 2) == 2400
    assert limit(100_000, 2) == 10_000


def test_who_has_no_more_than_its_share_moves_nobody():
    assert roomiest("a", 100, {"b": server(100), "c": server(90)}) is None
    assert roomiest("a", 100, {}) is None
    assert roomiest("a", 100, {"a": server(100)}) is None


def test_a_new_server_gets_clients_until_the_shares_are_even():
    empty = server(0, port=2)
    assert roomiest("a", 150, {"b": server(150), "c": empty}) is empty
    assert roomiest("a", 101, {"b": server(101), "c": server(98)}) is None


def test_nobody_is_sent_where_there_is_no_room():
    assert roomiest("a", 150, {"b": server(150), "c": server(10, limit=10)}) is None


def test_a_client_is_not_moved_twice_in_five_minutes():
    assert may_move(-1.0, 0.0)
    assert not may_move(0.0, 299.0)
    assert may_move(0.0, 300.0)
    assert may_move(200.0, 100.0)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("t1", ("t1", 5473, True)),
        ("t1:99", ("t1", 99, True)),
        ("tcp://10.0.0.1", ("10.0.0.1", 5473, False)),
        ("tls://[fd00::1]:7", ("fd00::1", 7, True)),
        ("fd00::1", ("fd00::1", 5473, True)),
        ("etcd://", ("", 0, True)),
        ("etcd+tcp://", ("", 0, False)),
    ],
)
def test_addresses(text: str, shown: tuple[str, int, bool]):
    (found,) = parse_targets(text)
    assert (found.host, found.port, found.is_tls) == shown


@pytest.mark.parametrize("text", ["http://a", "a:x", "a:0", "a:70000", "etcd://a", "tcp://", ":5"])
def test_bad_addresses(text: str):
    with pytest.raises(ValueError, match=text[:3]):
        parse_targets(text)


def test_no_plain_server_unless_it_was_said():
    with pytest.raises(ConfigError, match="TYPHA_ALLOWPLAINTEXT"):
        config.read({})
    assert config.read({"TYPHA_ALLOWPLAINTEXT": "true"}).config.server_port == 5473
    with pytest.raises(ConfigError, match="MaxConnectionsUpperLimit"):
        config.read({"TYPHA_ALLOWPLAINTEXT": "true", "TYPHA_MAXCONNECTIONSUPPERLIMIT": "5"})
