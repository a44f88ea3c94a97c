"""libcalico.netlink.link: requests carry what was asked, answers are read."""

from __future__ import annotations

import struct

import pytest

from libcalico.errors import WireError
from libcalico.netlink.link import (
    RTM_DELLINK,
    RTM_NEWLINK,
    RTM_SETLINK,
    Link,
    LinkChange,
    VethEnd,
    change_link,
    create_link,
    create_veth,
    delete_group,
    delete_link,
    get_link,
    list_links,
    parse_link,
)
from libcalico.netlink.messages import (
    attr_s32,
    attr_text,
    attr_u32,
    iter_messages,
    message,
    nested,
    parse_attrs,
    read_text,
    read_u32,
)


def reread(request):
    (one,) = iter_messages(request.message)
    return one


def kernel_link(*, ifindex: int = 7, flags: int = 0x10001, attrs: bytes = b"", family: int = 0):
    body = struct.pack("=BxHiII", family, 1, ifindex, flags, 0) + attrs
    (one,) = iter_messages(message(RTM_NEWLINK, 0, body))
    return one


def test_a_link_is_read():
    attrs = attr_text(3, "cali1") + attr_u32(4, 1440) + attr_u32(5, 2) + attr_u32(10, 9)
    attrs += attr_u32(27, 3) + attr_s32(37, 0) + attr_text(20, "pod")
    attrs += nested(18, attr_text(1, "veth")) + b"\x0a\0\1\0\xee\xee\xee\xee\xee\xee\0\0"
    expected = Link(7, "cali1", "veth", "ee:ee:ee:ee:ee:ee", 1440, True, True, 9, 3, 2, 0, "pod")
    found = parse_link(kernel_link(attrs=attrs))
    assert found == expected
    assert found.is_running


def test_a_bare_link_has_defaults():
    found = parse_link(kernel_link(flags=0x1, attrs=attr_text(3, "lo")))
    assert found == Link(7, "lo", is_up=True)
    assert not found.is_running


def test_bridge_port_messages_and_short_ones():
    assert parse_link(kernel_link(family=7)) is None
    (short,) = iter_messages(message(RTM_NEWLINK, 0, b"abc"))
    with pytest.raises(WireError):
        parse_link(short)


def test_the_veth_request_names_both_ends():
    sent = reread(create_veth(VethEnd("cali1", mtu_bytes=1440), VethEnd("eth0", netns_fd=5)))
    attrs = parse_attrs(sent.body, 16)
    assert read_text(attrs[3]) == "cali1"
    assert read_u32(attrs[4]) == 1440
    info = parse_attrs(attrs[18], 0)
    assert read_text(info[1]) == "veth"
    peer = parse_attrs(parse_attrs(info[2], 0)[1], 16)
    assert (read_text(peer[3]), read_u32(peer[28])) == ("eth0", 5)
    assert struct.unpack_from("=I", sent.body, 8)[0] == 1, "the near end starts up"


def test_the_near_end_lives_where_the_socket_is():
    with pytest.raises(AssertionError):
        create_veth(VethEnd("a", netns_fd=3), VethEnd("b"))


def test_a_change_touches_only_what_it_names():
    sent = reread(change_link(7, LinkChange(mtu_bytes=1300)))
    assert sent.type == RTM_SETLINK
    assert struct.unpack_from("=BxHiII", sent.body) == (0, 0, 7, 0, 0)
    assert set(parse_attrs(sent.body, 16)) == {4}


@pytest.mark.parametrize(("is_up", "flag"), [(True, 1), (False, 0)])
def test_up_and_down_are_masked(is_up, flag):
    sent = reread(change_link("eth0", LinkChange(is_up=is_up)))
    assert struct.unpack_from("=BxHiII", sent.body) == (0, 0, 0, flag, 1)
    assert read_text(parse_attrs(sent.body, 16)[3]) == "eth0"


def test_every_change_has_its_attribute():
    change = LinkChange(
        mac="02:00:00:00:00:01", name="new", group=1, master=2, netns_fd=3, alias="x"
    )
    assert set(parse_attrs(reread(change_link(7, change)).body, 16)) == {1, 3, 20, 27, 10, 28}
    conf = reread(change_link(7, LinkChange(ipv4_conf=((3, 1), (8, 0)))))
    spec = parse_attrs(parse_attrs(conf.body, 16)[26], 0)
    settings = parse_attrs(parse_attrs(spec[2], 0)[1], 0)
    assert {index: read_u32(value) for index, value in settings.items()} == {3: 1, 8: 0}


def test_a_rename_by_name_is_a_bug():
    with pytest.raises(AssertionError):
        change_link("eth0", LinkChange(name="eth1"))


def test_create_link_carries_kind_and_data():
    sent = reread(create_link("vxlan.calico", "vxlan", mtu_bytes=1450, data=attr_u32(1, 4096)))
    attrs = parse_attrs(sent.body, 16)
    info = parse_attrs(attrs[18], 0)
    assert (read_text(attrs[3]), read_u32(attrs[4]), read_text(info[1])) == (
        "vxlan.calico",
        1450,
        "vxlan",
    )
    assert read_u32(parse_attrs(info[2], 0)[1]) == 4096


def test_deletes():
    assert reread(delete_link(7)).type == RTM_DELLINK
    assert read_u32(parse_attrs(reread(delete_group(9)).body, 16)[27]) == 9
    with pytest.raises(AssertionError):
        delete_group(0)


def test_queries_filter_what_old_kernels_send_anyway():
    veth = kernel_link(attrs=attr_text(3, "a") + nested(18, attr_text(1, "veth")) + attr_u32(10, 5))
    plain = kernel_link(attrs=attr_text(3, "b"))
    assert [list_links().parse(one).name for one in (veth, plain)] == ["a", "b"]
    assert list_links(kind="veth").parse(plain) is None
    assert list_links(master=5).parse(veth).name == "a"
    assert list_links(master=6).parse(veth) is None
    assert get_link("a").parse(veth).name == "a"
    (gone,) = iter_messages(message(RTM_DELLINK, 0, bytes(veth.body)))
    assert get_link("a").parse(gone) is None
