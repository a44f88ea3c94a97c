"""typha.spans_feed and spans_fanout: what each client is sent, and what is kept for it."""

from __future__ import annotations

from libcalico.model.codec import encode
from libcalico.model.keys import path_of
from tests.support import calc
from tests.support.calc import ELSEWHERE, HERE, Object, rule
from tests.support.spans import SpansNode, SpansServer
from typha.spans_fanout import _SLACK

FROM_A = rule(source={"selector": "app == 'a'"})


class World:
    def __init__(self, *objects: Object) -> None:
        self.server = SpansServer()
        self.revision = 0
        self.put(*objects)

    def put(self, *objects: Object) -> None:
        for key, value in objects:
            self.revision += 1
            self.server.change(path_of(key), encode(value), self.revision)
        self.server.cut()

    def drop(self, *objects: Object) -> None:
        for key, _ in objects:
            self.revision += 1
            self.server.change(path_of(key), None, self.revision)
        self.server.cut()

    def client(self, node: str = HERE) -> SpansNode:
        made = SpansNode(node)
        made.connect(self.server)
        made.read()
        return made


def pod(name: str, address: str, node: str = HERE, **labels: str) -> Object:
    return calc.wep(name, address, node=node, labels=labels)


def names(client: SpansNode) -> set[str]:
    return {path.rpartition("/")[2] for path in client.state._known}


def test_a_node_has_what_concerns_it_and_what_concerns_all():
    world = World(
        pod("mine", "10.0.0.1", app="b"),
        pod("other", "10.0.0.2", node=ELSEWHERE, app="a"),
        calc.netset("far", "192.0.2.0/24", labels={"app": "a"}),
        calc.np("for-b", selector="app == 'b'", ingress=(FROM_A,)),
        calc.np("for-a", selector="app == 'a'", ingress=(FROM_A,)),
        calc.tier("t", 1.0),
        calc.pool("p", "10.0.0.0/8"),
        calc.node("n"),
    )
    here, there = world.client(), world.client(ELSEWHERE)
    assert names(here) == {"mine", "for-b", "t", "p", "n"}
    assert names(there) == {"other", "for-a", "t", "p", "n"}
    groups = [change for step in here.steps for change in step.groups]
    assert [sorted(change.added) for change in groups] == [["10.0.0.2/32", "192.0.2.0/24"]]


def test_a_policy_that_comes_back_as_it_was_is_told_again():
    policy, web = calc.np("p", selector="app == 'b'"), pod("web", "10.0.0.1", app="b")
    world = World(policy, web)
    client = world.client()
    world.put(pod("web", "10.0.0.1", app="c"))
    client.read()
    assert names(client) == {"web"}
    world.put(web)
    client.read()
    assert names(client) == {"web", "p"}
    assert client.state._known[path_of(policy[0])] == 1


def test_members_travel_as_what_came_and_went():
    world = World(
        pod("mine", "10.0.0.1", app="b"), calc.np("p", selector="app == 'b'", ingress=(FROM_A,))
    )
    client = world.client()
    world.put(*(pod(f"a{i}", f"10.0.1.{i}", node=ELSEWHERE, app="a") for i in range(50)))
    client.read()
    before = world.server.bytes_sent
    world.put(pod("a50", "10.0.1.50", node=ELSEWHERE, app="a"))
    world.drop(pod("a1", "10.0.1.1"))
    client.read()
    (change,) = client.steps[-1].groups
    assert (change.added, change.removed) == ({"10.0.1.50/32"}, {"10.0.1.1/32"})
    assert world.server.bytes_sent - before < 400


def test_profiles_come_where_they_are_listed_with_the_groups_their_rules_name():
    profile = calc.profile("kns.prod", labels={"pcns.team": "x"}, ingress=(FROM_A,))
    world = World(profile, pod("other", "10.0.0.2", node=ELSEWHERE, app="a"))
    client = world.client()
    assert names(client) == set()
    world.put(calc.wep("mine", "10.0.0.1", profiles=("kns.prod",)))
    client.read()
    assert names(client) == {"mine", "kns.prod"}
    (change,) = client.steps[-1].groups
    assert change.added == {"10.0.0.2/32"}
    world.drop(pod("mine", ""))
    client.read()
    assert names(client) == set()
    assert client.steps[-1].groups[0].gone


def test_an_invalid_policy_is_everybodys_and_selects_nobody():
    world = World(pod("mine", "10.0.0.1"))
    client = world.client()
    key, _ = calc.np("bad")
    world.revision += 1
    world.server.change(path_of(key), b'{"spec":{"selector":"a =="}}', world.revision)
    world.server.cut()
    client.read()
    assert names(client) == {"mine", "bad"}
    assert [problem[0] for problem in world.server.problems] == [key]
    world.put(calc.np("bad", selector="app == 'nobody'"))
    client.read()
    assert names(client) == {"mine"}


def test_positions_move_on_though_nothing_concerns_the_node():
    world = World(pod("mine", "10.0.0.1"))
    client = world.client()
    fanout = world.server.fanout
    world.put(pod("other", "10.0.0.2", node=ELSEWHERE))
    assert fanout.next_frames(client.cursor) == ()
    assert client.cursor.told is not fanout.changed
    assert fanout.position_frame(client.cursor)
    assert client.cursor.told is fanout.changed


def test_a_client_that_reads_nothing_costs_what_it_has_however_much_comes_and_goes():
    world = World(
        pod("mine", "10.0.0.1", app="b"), calc.np("p", selector="app == 'b'", ingress=(FROM_A,))
    )
    client = world.client()
    for number in range(3 * _SLACK):
        address = f"10.{number >> 8}.{number & 255}.1"
        passing = (
            calc.np(f"p{number}", selector="app == 'b'"),
            pod(f"w{number}", address, app="a"),
        )
        world.put(*passing)
        world.drop(*passing)
        assert client.cursor.cost <= 2 * len(client.cursor.has_paths) + _SLACK + 32
    client.read()
    assert names(client) == {"mine", "p"}


def test_a_backlog_is_digested_in_slices_and_nobody_sees_half_of_it():
    world = World(pod("mine", "10.0.0.1", app="b"))
    client = world.client()
    fanout = world.server.fanout
    for number in range(1200):
        key, value = pod(f"w{number}", f"10.1.{number >> 8}.{number & 255}", app="b")
        world.server.change(path_of(key), encode(value), 100 + number)
    slices = 0
    while not fanout.digest():
        slices += 1
        assert not world.server.feed.is_settled
        assert not fanout.cut(0.0)
    assert slices == 2
    assert fanout.cut(0.0)
    client.read()
    assert len(names(client)) == 1201
