"""felix.dataplane.ipt_sets: members as ipset prints them, and scripts of deltas."""

from __future__ import annotations

import pytest

from felix.dataplane.ipt_save import SavedSet, parse_sets
from felix.dataplane.ipt_sets import IpSets, SetScript, element_of, member_texts, type_of
from felix.dataplane.nft_wanted import WantedRuleset
from felix.rules import nat
from felix.rules.chain import DROP, BaseHook, Chain, Field, Hook, Lookup, Rule
from felix.rules.dispatch import SOURCE_NET_SETS, SOURCE_SETS, source_elements, source_net_elements
from felix.rules.ipt_match import LiteralSet
from felix.rules.sets import SetSpec, ip_port_element, ip_port_set, net_element, net_set, parse_net

NETS = net_set("set-s.a-4", 4)
NETS6 = net_set("set-s.a-6", 6)
NAME = "cali40s:a"


def net(text: str) -> bytes:
    return net_element(*parse_net(text))


def one(elements: set[bytes]) -> bytes:
    (found,) = elements
    return found


CASES: list[tuple[SetSpec, bytes, str, str]] = [
    (NETS, net("10.0.0.1/32"), "hash:net", "10.0.0.1"),
    (NETS, net("10.0.0.0/8"), "hash:net", "10.0.0.0/8"),
    (NETS6, net("fd00::/64"), "hash:net", "fd00::/64"),
    (NETS6, net("fd00::1/128"), "hash:net", "fd00::1"),
    (ip_port_set("x", 4), ip_port_element("10.0.0.1,tcp,80"), "hash:ip,port", "10.0.0.1,tcp:80"),
    (ip_port_set("x", 6), ip_port_element("fd00::1,sctp,1"), "hash:ip,port", "fd00::1,sctp:1"),
    (SOURCE_SETS[4], one(source_elements("cali1", ["10.0.0.1/32"], 4)),
     "hash:net,iface", "10.0.0.1,cali1"),
    (SOURCE_SETS[6], one(source_elements("cali1", ["fd00::1/128"], 6)),
     "hash:net,iface", "fd00::1,cali1"),
    (SOURCE_NET_SETS[4], one(source_net_elements("cali1", ["10.0.0.0/8"], 4)),
     "hash:net,iface", "10.0.0.0/8,cali1"),
    (SOURCE_NET_SETS[6], one(source_net_elements("cali1", ["fd00::/8"], 6)),
     "hash:net,iface", "fd00::/8,cali1"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "element", "kind", "text"), CASES)
def test_members_there_and_back(spec: SetSpec, element: bytes, kind: str, text: str):
    assert type_of(spec) == kind
    assert member_texts(spec, element) == [text]
    assert element_of(spec, text) == element


def test_everything_is_two_halves_and_a_range_its_networks():
    assert member_texts(NETS, net("0.0.0.0/0")) == ["0.0.0.0/1", "128.0.0.0/1"]
    assert member_texts(NETS6, net("::/0")) == ["::/1", "8000::/1"]
    first, last = bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])
    assert member_texts(NETS, first + last) == ["10.0.0.1", "10.0.0.2"]


class Rig:
    """A ruleset with one set in use, and the ipsets of a kernel."""

    def __init__(self, *, max_members: int = 8) -> None:
        self.wanted = WantedRuleset()
        lookup = Lookup((Field.IP4_SADDR,), NETS.name)
        self.user = Chain("u", (Rule((lookup,), (DROP,)),), BaseHook(Hook.FORWARD, 0))
        self.wanted.want_set(NETS)
        self.wanted.want_chain(self.user)
        self.sets = IpSets(self.wanted, max_members)

    def hold(self, *nets: str) -> None:
        self.wanted.replace_members(NETS.name, frozenset(map(net, nets)))

    def script(self) -> SetScript | None:
        self.wanted.settle()
        return self.sets.filling(frozenset())

    def lines(self) -> list[str]:
        script = self.script()
        return [] if script is None else script.lines

    def write(self) -> list[str]:
        script = self.script()
        if script is None:
            return []
        self.sets.confirm(script)
        return script.lines


def test_a_new_set_comes_with_its_members_and_then_nothing_is_missing():
    rig = Rig()
    rig.hold("10.0.0.1/32", "10.0.0.2/32")
    assert rig.write() == [
        f"create {NAME} hash:net family inet maxelem 8",
        f"add {NAME} 10.0.0.1",
        f"add {NAME} 10.0.0.2",
    ]
    assert rig.lines() == []


def test_changes_are_deltas_additions_first():
    rig = Rig()
    rig.hold("10.0.0.1/32", "10.0.0.2/32")
    rig.write()
    rig.hold("10.0.0.2/32", "10.0.0.3/32")
    assert rig.write() == [f"add {NAME} 10.0.0.3", f"del {NAME} 10.0.0.1"]
    assert rig.lines() == []


def test_a_reading_finds_what_others_did():
    rig = Rig()
    rig.hold("10.0.0.1/32", "0.0.0.0/0")
    rig.write()
    halves = ["0.0.0.0/1", "128.0.0.0/1"]
    rig.sets.absorb({NAME: SavedSet("hash:net", "inet", 8, [*halves, "10.0.0.1"])})
    assert rig.lines() == []
    rig.sets.absorb({NAME: SavedSet("hash:net", "inet", 8, [*halves, "9.9.9.9"])})
    assert rig.lines() == [f"add {NAME} 10.0.0.1", f"del {NAME} 9.9.9.9"]


def test_half_of_everything_is_neither_left_alone_nor_taken_away():
    rig = Rig()
    rig.hold("0.0.0.0/0")
    rig.wanted.settle()
    rig.sets.absorb({NAME: SavedSet("hash:net", "inet", 8, ["0.0.0.0/1"])})
    both = [f"add {NAME} 0.0.0.0/1", f"add {NAME} 128.0.0.0/1"]
    assert rig.write() == both
    rig.hold("0.0.0.0/1")
    assert rig.write() == [both[0], f"del {NAME} 128.0.0.0/1"]
    rig.hold("0.0.0.0/0")
    assert rig.write() == both


def test_a_set_too_small_is_filled_beside_and_swapped():
    rig = Rig(max_members=2)
    rig.hold("10.0.0.1/32")
    rig.write()
    rig.hold("10.0.0.1/32", "10.0.0.2/32", "10.0.0.3/32")
    lines = rig.write()
    beside = lines[0].split()[1]
    assert lines == [
        f"create {beside} hash:net family inet maxelem 6",
        f"add {beside} 10.0.0.1",
        f"add {beside} 10.0.0.2",
        f"add {beside} 10.0.0.3",
        f"swap {beside} {NAME}",
        f"destroy {beside}",
    ]
    assert rig.lines() == []
    rig.hold("10.0.0.1/32")
    assert rig.write() == [f"del {NAME} 10.0.0.2", f"del {NAME} 10.0.0.3"]


def test_a_set_of_another_type_is_made_anew():
    rig = Rig()
    rig.hold("10.0.0.1/32")
    rig.wanted.settle()
    rig.sets.absorb({NAME: SavedSet("hash:ip,port", "inet", 8, ["10.0.0.1,tcp:80"])})
    assert rig.write()[:2] == [f"destroy {NAME}", f"create {NAME} hash:net family inet maxelem 8"]
    assert rig.lines() == []


def test_a_set_goes_when_nothing_uses_it_and_not_before():
    rig = Rig()
    rig.hold("10.0.0.1/32")
    rig.write()
    assert rig.sets.doomed() == []
    rig.wanted.drop_chain(rig.user.name)
    rig.wanted.settle()
    assert rig.sets.doomed() == [NAME]
    rig.sets.destroyed([NAME])
    assert rig.sets.doomed() == []
    rig.wanted.want_chain(rig.user)
    assert rig.write()[0].startswith(f"create {NAME}")


def test_one_that_stayed_although_given_up_is_replaced_whole():
    """Nobody kept track of its members meanwhile: a delta would leave old ones in it."""
    rig = Rig()
    rig.hold("10.0.0.1/32")
    rig.write()
    rig.wanted.drop_chain(rig.user.name)
    rig.wanted.settle()
    rig.sets.kept.add(NAME)
    rig.sets.forget_destroyed()
    rig.hold("10.0.0.2/32")
    rig.wanted.want_chain(rig.user)
    lines = rig.write()
    assert f"swap {lines[0].split()[1]} {NAME}" in lines
    assert not any("10.0.0.1" in line for line in lines)


def test_sets_of_an_earlier_process_are_doomed():
    rig = Rig()
    listing = "create cali40s:old hash:net family inet maxelem 8\n"
    rig.sets.absorb(parse_sets(listing + listing.replace("cali40s:old", "foreign")))
    rig.wanted.settle()
    assert rig.sets.doomed() == ["cali40s:old"]


def test_literals_are_there_while_a_rule_holds_them():
    rig = Rig()
    rig.write()
    elements = (net("10.0.0.0/8"), net("11.0.0.0/8"))
    literal = LiteralSet("cali40l:x", net_set("cali40l:x", 4), elements)
    rig.sets.want_literals({literal.name: literal})
    assert rig.write() == [
        "create cali40l:x hash:net family inet maxelem 8",
        "add cali40l:x 10.0.0.0/8",
        "add cali40l:x 11.0.0.0/8",
    ]
    assert rig.lines() == []
    rig.sets.want_literals({})
    assert rig.sets.doomed() == ["cali40l:x"]


def test_maps_and_pairs_are_no_sets_of_ipset():
    rig = Rig()
    for spec in (*nat.FLOATING_SETS, *SOURCE_SETS.values()):
        rig.wanted.want_set(spec)
    for chain in nat.floating_chains():
        rig.wanted.want_chain(chain)
    assert not any("floating" in line or "hairpin" in line for line in rig.write())


def test_a_line_says_which_set_and_element_it_is_about():
    rig = Rig()
    rig.hold("10.0.0.1/32", "10.0.0.2/32")
    script = rig.script()
    assert script is not None
    change = script.change_at(3)
    assert change is not None
    assert change.model_name == NETS.name
    assert rig.sets.element_at(script, change, 3) == net("10.0.0.2/32")
    assert rig.sets.element_at(script, change, 1) == b""
    assert script.change_at(0) is None
