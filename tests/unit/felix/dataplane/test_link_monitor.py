"""felix.dataplane.link_monitor against the fake kernel."""

from __future__ import annotations

import errno

import pytest
from msgspec import structs

from felix.dataplane.link_monitor import LinkMonitor
from felix.dataplane.manager import InterfaceState
from libcalico.errors import ProgrammingFailed
from libcalico.netlink import Address, AddressEvent, Link, LinkEvent
from libcalico.testing.kernel import FakeKernel


class Listener:
    def __init__(self) -> None:
        self.heard: list[tuple[str, InterfaceState | None]] = []

    def on_interface(self, name: str, state: InterfaceState | None) -> None:
        self.heard.append((name, state))

    def take(self) -> list[tuple[str, InterfaceState | None]]:
        heard, self.heard = self.heard, []
        return heard


class World:
    def __init__(self) -> None:
        self.kernel = FakeKernel()
        self.monitor = LinkMonitor(self.kernel)
        self.listener = Listener()
        self.monitor.add_listener(self.listener)

    def follow(self) -> None:
        for event in self.kernel.read():
            if isinstance(event, LinkEvent):
                self.monitor.on_link_event(event)
            elif isinstance(event, AddressEvent):
                self.monitor.on_address_event(event)


@pytest.fixture
async def world() -> World:
    world = World()
    world.kernel.add_link("eth0")
    world.kernel.add_address("eth0", "192.0.2.1/24")
    await world.monitor.refresh()
    world.kernel.read()
    return world


async def test_the_first_listing_tells_of_everything(world):
    assert dict(world.listener.take()) == {
        "lo": InterfaceState("lo", 1, True, True),
        "eth0": InterfaceState("eth0", 2, True, True, ("192.0.2.1",)),
    }


async def test_a_listing_happens_only_when_asked_for(world):
    world.kernel.add_link("unseen")
    await world.monitor.refresh()
    assert world.monitor.interface("unseen") is None
    world.monitor.queue_relist("test")
    await world.monitor.refresh()
    assert world.monitor.interface("unseen") is not None


async def test_changes_are_told_once_and_in_order(world):
    world.listener.take()
    ifindex = world.kernel.add_link("cali1", is_up=False)
    world.kernel.set_link("cali1", is_up=True, has_carrier=False)
    world.kernel.set_link("cali1", has_carrier=True)
    world.kernel.set_link("cali1", has_carrier=True)
    world.kernel.delete_link("cali1")
    world.follow()
    assert world.listener.take() == [
        ("cali1", InterfaceState("cali1", ifindex, False, False)),
        ("cali1", InterfaceState("cali1", ifindex, True, False)),
        ("cali1", InterfaceState("cali1", ifindex, True, True)),
        ("cali1", None),
    ]


async def test_addresses_come_and_go_with_both_families_sorted(world):
    world.listener.take()
    world.kernel.add_address("eth0", "fd00::1/64")
    world.kernel.add_address("eth0", "10.0.0.1/32")
    world.kernel.delete_address("eth0", "192.0.2.1/24")
    world.follow()
    assert [state.addresses for _, state in world.listener.take()] == [
        ("192.0.2.1", "fd00::1"),
        ("10.0.0.1", "192.0.2.1", "fd00::1"),
        ("10.0.0.1", "fd00::1"),
    ]


async def test_it_says_whether_anybody_heard_of_an_event(world):
    eth0 = world.kernel.link("eth0")
    link, address = (
        lambda **changes: world.monitor.on_link_event(
            LinkEvent(structs.replace(eth0, **changes), False, 0)
        ),
        lambda cidr, *, gone: world.monitor.on_address_event(
            AddressEvent(Address(eth0.ifindex, cidr), gone, 0)
        ),
    )
    world.listener.take()
    for heard in (
        link(),
        link(alias="the uplink"),
        address("192.0.2.1/24", gone=False),
        address("192.0.2.2/24", gone=True),
        world.monitor.on_link_event(LinkEvent(Link(99, "ghost"), True, 0)),
    ):
        assert not heard
    assert world.listener.take() == []
    for hear in (
        lambda: link(is_up=False),
        lambda: address("192.0.2.1/24", gone=True),
        lambda: link(name="wan0"),
        lambda: world.monitor.on_link_event(LinkEvent(eth0, True, 0)),
        link,
    ):
        assert hear()
        assert world.listener.take()


async def test_an_address_that_overtakes_its_link_is_kept_for_it(world):
    world.listener.take()
    ifindex = world.kernel.add_link("cali1")
    world.kernel.add_address("cali1", "10.0.0.9/32")
    link, address = world.kernel.read()
    world.monitor.on_address_event(address)
    assert world.listener.take() == []
    world.monitor.on_link_event(link)
    state = InterfaceState("cali1", ifindex, True, True, ("10.0.0.9",))
    assert world.listener.take() == [("cali1", state)]


async def test_an_interface_made_anew_is_first_said_to_be_gone(world):
    world.listener.take()
    world.kernel.delete_link("eth0")
    second = world.kernel.add_link("eth0")
    _, new = world.kernel.read()
    world.monitor.on_link_event(new)  # the notification of the removal was lost
    assert world.listener.take() == [
        ("eth0", None),
        ("eth0", InterfaceState("eth0", second, True, True)),
    ]


async def test_a_renamed_interface_leaves_its_old_name(world):
    world.listener.take()
    world.monitor.on_link_event(LinkEvent(Link(2, "wan0", is_up=True), False, 0))
    heard = world.listener.take()
    assert heard[0] == ("eth0", None)
    assert heard[1] == ("wan0", InterfaceState("wan0", 2, True, False, ("192.0.2.1",)))


async def test_the_end_of_an_unknown_interface_is_no_news(world):
    world.listener.take()
    world.monitor.on_link_event(LinkEvent(Link(99, "ghost"), True, 0))
    assert world.listener.take() == []


async def test_a_number_used_again_does_not_inherit_addresses(world):
    world.listener.take()
    world.monitor.on_link_event(LinkEvent(Link(2, "eth0"), True, 0))
    world.monitor.on_link_event(LinkEvent(Link(2, "eth9", is_up=True), False, 0))
    assert world.listener.take()[-1] == ("eth9", InterfaceState("eth9", 2, True, False))


async def test_a_listing_makes_up_for_lost_notifications(world):
    world.kernel.add_link("cali1")
    world.follow()
    world.kernel.delete_link("cali1")
    world.kernel.delete_address("eth0", "192.0.2.1/24")
    third = world.kernel.add_link("cali3")
    world.kernel.lose_events()
    world.follow()
    world.listener.take()
    world.monitor.queue_relist("lost")
    await world.monitor.refresh()
    assert dict(world.listener.take()) == {
        "cali1": None,
        "eth0": InterfaceState("eth0", 2, True, True),
        "cali3": InterfaceState("cali3", third, True, True),
    }


@pytest.mark.parametrize("what", ["list links", "list addresses"])
async def test_a_failed_listing_changes_nothing_and_is_still_due(world, what):
    world.kernel.delete_link("eth0")
    world.listener.take()
    world.monitor.queue_relist("test")
    world.kernel.fail_next(what, error=errno.ENOBUFS)
    with pytest.raises(ProgrammingFailed):
        await world.monitor.refresh()
    assert world.listener.take() == []
    await world.monitor.refresh()
    assert world.listener.take() == [("eth0", None)]


async def test_a_late_listener_hears_of_everything_known(world):
    late = Listener()
    world.monitor.add_listener(late)
    assert {name for name, _ in late.heard} == {"lo", "eth0"}
    assert set(world.monitor.dump()) == {"lo", "eth0"}


async def test_a_changed_mtu_is_told(world):
    world.listener.take()
    world.kernel.set_link("eth0", mtu_bytes=1400)
    world.follow()
    ((name, state),) = world.listener.take()
    assert (name, state.mtu_bytes) == ("eth0", 1400)
