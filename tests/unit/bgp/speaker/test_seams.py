"""The contract with exabgp: every piece of it that bgp.speaker relies on, by name and by source.

When this fails after an upgrade, read the piece again next to bgp/speaker/seams.py, then put the
new hash here (`python tests/unit/bgp/speaker/test_seams.py` prints them) and run tests/peers.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
from importlib.metadata import version
from typing import Any

import pytest

from bgp.speaker import seams
from bgp.speaker.seams import EXABGP_VERSION, Neighbors, parse_neighbors
from libcalico.errors import ConfigError

# what -> (hash of its source, what we count on)
CONTRACT = {
    "exabgp.reactor.loop:Reactor.__init__": (
        "160faec7d6929ebc",
        "attributes _ips, _port, signal, _peers, _poller",
    ),
    "exabgp.reactor.loop:Reactor.run": (
        "2be669a4812a5c6d",
        "order of a turn; processes.received once per turn",
    ),
    "exabgp.reactor.loop:Reactor.reload": (
        "9d31059186ff3252",
        "configuration.reload, peers added and removed",
    ),
    "exabgp.reactor.loop:Reactor._listen_for_neighbors": (
        "ab813846666eacde",
        "closes listeners not wanted",
    ),
    "exabgp.reactor.loop:Reactor.shutdown": (
        "b6636731b873b730",
        "closes sessions without NOTIFICATION",
    ),
    "exabgp.reactor.loop:Reactor.active_peers": ("163a6e3b7080e056", "who gets a turn"),
    "exabgp.reactor.loop:Reactor._wait_for_io": (
        "abe9694fbe6f8686",
        "polls processes.fds and peers",
    ),
    "exabgp.reactor.interrupt:Signal": (
        "f393e2cbc9a1fd3f",
        "installs handlers in rearm; received, SHUTDOWN",
    ),
    "exabgp.reactor.api.processes:Processes.__init__": ("53da34969e8385bb", "what Hooks inherits"),
    "exabgp.reactor.listener:Listener": (
        "aa660caf65af7327",
        "_sockets; who accepts; TTL of accepted ones",
    ),
    "exabgp.reactor.peer:Peer.__init__": ("544c6aa7fc86e227", "stats, fsm, proto, neighbor"),
    "exabgp.reactor.peer:Peer._close": (
        "942fc729d7b67f45",
        "processes.down(neighbor, reason) before proto.close",
    ),
    "exabgp.reactor.peer:Peer._reset": (
        "4f709dbfce076cda",
        "reasons of an end; neighbor.reset_rib",
    ),
    "exabgp.reactor.peer:Peer._stop": ("88768f757d091a08", "reason of a removal"),
    "exabgp.reactor.peer:Peer.teardown": ("a4494f0eed893ca9", "ends the session in its next turn"),
    "exabgp.reactor.peer:Peer.stopping": ("482c8154d8eb60a4", "a peer on its way out"),
    "exabgp.reactor.peer:Peer.reconfigure": ("44a64d6efec03466", "compares with neighbor.previous"),
    "exabgp.reactor.peer:Peer.reestablish": ("dfb1ac36c5615d53", "a changed neighbour"),
    "exabgp.reactor.peer:Peer.handle_connection": ("ecb82811d4b5461a", "refuses when established"),
    "exabgp.reactor.peer:Peer._connect": ("d68e56f559cb3969", "steps through proto.connect"),
    "exabgp.reactor.peer:Peer._establish": ("be87f451722046e5", "ESTABLISHED is set before _main"),
    "exabgp.reactor.peer:Peer._main": (
        "e5ea2fecea84afed",
        "read_message, pending, new_update, resend; silent end",
    ),
    "exabgp.reactor.peer:Peer._run": ("a514d2f5f0bb3364", "which reason for which end"),
    "exabgp.reactor.keepalive:KA": ("71b1a0120f42abbc", "writes through proto.new_keepalive"),
    "exabgp.reactor.protocol:Protocol.__init__": (
        "e7a3799acdc5d73c",
        "negotiated, connection, port",
    ),
    "exabgp.reactor.protocol:Protocol.fd": ("653e028486724c97", "what the loop polls"),
    "exabgp.reactor.protocol:Protocol.accept": ("9571cc872a2e2cd6", "connection is set"),
    "exabgp.reactor.protocol:Protocol.connect": ("de1784de045d8056", "yields until connected"),
    "exabgp.reactor.protocol:Protocol.close": ("aa6ce3eab6c7e9d6", "closes the connection"),
    "exabgp.reactor.protocol:Protocol.write": (
        "eadd58f53fe06bbf",
        "everything but UPDATEs goes through it",
    ),
    "exabgp.reactor.protocol:Protocol.read_message": ("1266df3f50c763ff", "what we leave to it"),
    "exabgp.reactor.protocol:Protocol.new_update": ("7b25e4e0dd97e57d", "replaced"),
    "exabgp.reactor.protocol:Protocol.new_keepalive": ("ebf49e0c5a493920", "uses write"),
    "exabgp.reactor.protocol:Protocol.new_notification": ("7134b1910504dde9", "uses write"),
    "exabgp.reactor.network.connection:Connection.reader": (
        "f24e4d410e05b858",
        "asks _reader for header, body",
    ),
    "exabgp.reactor.network.connection:Connection.close": (
        "0d0988c133df2bc3",
        "io is None afterwards",
    ),
    "exabgp.reactor.network.outgoing:Outgoing": ("da24138785d2c7d8", "io of the attempt under way"),
    "exabgp.reactor.network.tcp:set_minimum_ttl": ("bbee94b45d528f85", "signature"),
    "exabgp.bgp.neighbor:Neighbor.__init__": ("0916949cb5dc0998", "attributes _adapt changes"),
    "exabgp.bgp.neighbor:Neighbor.__eq__": ("8b075c7c16254784", "what makes a session reset"),
    "exabgp.bgp.neighbor:Neighbor.name": ("29d9b938617d8c30", "key of a neighbour"),
    "exabgp.bgp.neighbor:Neighbor.reset_rib": ("53cbef0312470c07", "rib.reset"),
    "exabgp.configuration.configuration:Configuration._reload": (
        "350d08fbb2bb46b8",
        "text=True, error",
    ),
    "exabgp.configuration.configuration:Configuration._commit_reload": (
        "fa9969f4c45a2773",
        "neighbor.previous",
    ),
    "exabgp.configuration.neighbor:ParseNeighbor.post": (
        "f2566bff65caf739",
        "capabilities, rib made",
    ),
    "exabgp.configuration.neighbor.api:ParseAPI.flatten": ("f73d5981438d6d77", "an empty api"),
    "exabgp.bgp.message.open.capability.negotiated:Negotiated": (
        "71622ea37fc831c4",
        "families, asn4, nexthop",
    ),
    "exabgp.bgp.message.open.capability.graceful:Graceful": (
        "c95f27c71389ef76",
        "flags, restart_time",
    ),
    "exabgp.bgp.message.notification:Notify": ("e4ae83daae74dc53", "bytes as data"),
    "exabgp.bgp.message.update.attribute.attributes:Attributes.unpack": (
        "c458a61a25563c46",
        "decode",
    ),
    "exabgp.bgp.message.update.attribute.attributes:Attributes._parse_one": (
        "3a23a3ce12cfa67b",
        "decode",
    ),
    "exabgp.bgp.message.update.attribute.aspath:ASPath": (
        "14903e1488bbf16c",
        "aspath: segments with ID",
    ),
    "exabgp.bgp.message.update.attribute.aggregator:Aggregator": (
        "c01765b56344739a",
        "asn, speaker",
    ),
    "exabgp.logger:_log": ("052d72734cb9f89d", "methods take (message, source, level)"),
    "exabgp.logger:log": ("d26cc64c8c09f690", "the class whose methods we replace"),
    "exabgp.environment.environment:Env.settings": ("e46927884340dc11", "settings are attributes"),
    "exabgp.reactor.daemon:Daemon.drop_privileges": ("a6091f186864fb54", "user root keeps root"),
}


def resolve(what: str) -> Any:
    module, _, path = what.partition(":")
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found


def fingerprint(what: str) -> str:
    return hashlib.sha256(inspect.getsource(resolve(what)).encode()).hexdigest()[:16]


def test_the_version_is_the_one_that_was_read():
    assert version("exabgp") == EXABGP_VERSION


@pytest.mark.parametrize("what", CONTRACT)
def test_a_piece_is_as_it_was_read(what: str):
    expected, why = CONTRACT[what]
    assert fingerprint(what) == expected, f"{what} changed; we rely on: {why}"


PLACES = [
    ("exabgp.reactor.loop", "Processes"),
    ("exabgp.reactor.loop", "Signal"),
    ("exabgp.reactor.loop", "Peer"),
    ("exabgp.reactor.peer", "Protocol"),
]


@pytest.mark.parametrize(("module", "name"), PLACES)
def test_a_place_where_we_step_in_is_a_global_of_its_module(module: str, name: str):
    assert name in vars(importlib.import_module(module))


OVERRIDDEN = {
    seams.Hooks: ("start", "terminate", "broken", "received", "up", "connected", "down"),
    seams.SessionProtocol: ("connect", "accept", "fd", "close", "read_message", "write"),
    seams.RestartingPeer: ("handle_connection",),
    seams.NoSignals: ("rearm",),
}


@pytest.mark.parametrize(
    ("ours", "name"), [(ours, name) for ours, names in OVERRIDDEN.items() for name in names]
)
def test_what_we_override_exists_with_the_same_parameters(ours: type, name: str):
    stock = getattr(ours.__mro__[1], name)
    wanted = list(inspect.signature(inspect.unwrap(stock)).parameters)
    if name in ("up", "connected", "down"):
        return  # behind a decorator that takes anything
    assert list(inspect.signature(getattr(ours, name)).parameters) == wanted


# -- the configuration

NEIGHBOUR = """
neighbor 10.0.0.2 {{
  router-id 10.0.0.1; local-address 10.0.0.1; local-as 64512; peer-as 64512; hold-time 90;
  passive true; {extra}
  capability {{ graceful-restart 120; add-path send/receive; }}
  family {{ ipv4 unicast; ipv6 unicast; {families} }}
}}
"""
CALICO = """
process rib { run /bin/cat; encoder json; }
neighbor 10.0.0.2 {
  router-id 10.0.0.1; local-address 10.0.0.1; local-as 64512; peer-as 64512;
  family { ipv4 unicast; }
  api { processes [ rib ]; neighbor-changes; receive { parsed; update; } }
}
"""


def neighbours(extra: str = "", families: str = "") -> Neighbors:
    return parse_neighbors(NEIGHBOUR.format(extra=extra, families=families), {})


def test_a_neighbour_is_adapted_to_our_sessions():
    (neighbor,) = neighbours(families="ipv4 flow;").neighbors.values()
    assert neighbor["manual-eor"] is True
    assert neighbor["adj-rib-in"] is False
    assert neighbor["capability"]["add-path"] == 0
    assert neighbor["capability"]["route-refresh"]
    assert neighbor["capability"]["graceful-restart"] == 120
    assert [(int(afi), int(safi)) for afi, safi in neighbor.families()] == [(1, 1), (2, 1)]
    assert isinstance(neighbor.rib, seams.NeighborRib)


def test_a_file_with_a_helper_process_needs_none():
    loaded = parse_neighbors(CALICO, {})
    (neighbor,) = loaded.neighbors.values()
    assert loaded.processes == {}
    assert [key for key, value in neighbor.api.items() if value] == ["neighbor-changes"]


def test_the_same_text_makes_equal_neighbours():
    one, two = (next(iter(neighbours().neighbors.values())) for _ in range(2))
    assert one == two
    changed = next(iter(neighbours("md5-password secret;").neighbors.values()))
    assert one != changed


def test_two_neighbours_and_none():
    text = NEIGHBOUR.format(extra="", families="")
    both = parse_neighbors(text + text.replace("10.0.0.2", "10.0.0.3"), {})
    assert both.addresses() == {"10.0.0.2", "10.0.0.3"}
    assert parse_neighbors("# nobody yet\n", {}).addresses() == set()


def test_without_a_local_address_a_passive_session_has_the_nodes():
    text = NEIGHBOUR.format(extra="", families="").replace("local-address 10.0.0.1;", "")
    loaded = parse_neighbors(text, {seams.FAMILIES[0]: "10.0.0.1"})
    (neighbor,) = loaded.neighbors.values()
    assert str(neighbor["local-address"]) == "10.0.0.1"
    assert neighbor.auto_discovery


BROKEN = {
    "unterminated": "neighbor 10.0.0.2 {",
    "nonsense": "nonsense;",
    "no AS": "neighbor 10.0.0.2 { router-id 1.1.1.1; local-address 10.0.0.1; }",
    "twice": NEIGHBOUR.format(extra="", families="") * 2,
    "a range": NEIGHBOUR.format(extra="", families="").replace("10.0.0.2", "10.0.0.0/24"),
    "no family of ours": NEIGHBOUR.format(extra="", families="ipv4 flow;").replace(
        "ipv4 unicast; ipv6 unicast;", ""
    ),
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN.keys())
def test_what_does_not_make_sense_is_refused_and_leaves_nothing_behind(text: str):
    for _ in range(2):
        with pytest.raises(ConfigError):
            parse_neighbors(text, {})
    assert neighbours().addresses() == {"10.0.0.2"}


if __name__ == "__main__":
    for piece in CONTRACT:
        print(piece, fingerprint(piece))
