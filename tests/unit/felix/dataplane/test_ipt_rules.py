"""felix.dataplane.ipt_rules: which chain stands in which table, and what is rendered again."""

from __future__ import annotations

from felix.dataplane.ipt_rules import IptRules, TableWish
from felix.dataplane.nft_wanted import WantedRuleset
from felix.rules.chain import (
    DROP,
    IFNAME,
    BaseHook,
    Chain,
    Compare,
    Dispatch,
    Field,
    Hook,
    Literal,
    Lookup,
    Rule,
    goto,
    ifname_bytes,
    jump,
    of_family,
)
from felix.rules.ipt_layout import HookSettings
from felix.rules.render_iptables import MarkWords
from felix.rules.sets import MapValue, SetSpec, net_element

MAP = SetSpec("dispatch-egress", (IFNAME,), verdicts=True)
NETS = Literal((net_element(4, 10 << 24, 8), net_element(4, 11 << 24, 8)), interval=True)


class Rig:
    def __init__(self) -> None:
        self.wanted = WantedRuleset()
        self.rules = IptRules(self.wanted, HookSettings(MarkWords.of_mask(0xFF)))
        self.wanted.want_set(MAP, isolates_elements=True)

    def base(self, name: str, hook: Hook, priority: int, *rules: Rule) -> None:
        self.wanted.want_chain(Chain(name, rules, BaseHook(hook, priority)))

    def build(self) -> dict[tuple[int, str], TableWish]:
        self.wanted.settle()
        return self.rules.build((4, 6))

    def names(self, version: int, table: str) -> set[str]:
        return set(self.build()[version, table].chains)


def test_a_chain_stands_where_it_is_reached_from_and_nowhere_else():
    rig = Rig()
    rig.base("raw-base", Hook.PREROUTING, -300, Rule((), (jump("shared"),)))
    rig.base("filter-base", Hook.FORWARD, 0, Rule((), (jump("shared"),)), Rule((), (jump("x"),)))
    rig.wanted.want_chain(Chain("shared", (Rule((), (DROP,)),)))
    rig.wanted.want_chain(Chain("x", (Rule((), (DROP,)),)))
    assert rig.names(4, "raw") == {"cali-PREROUTING", "cali-raw-base", "cali-shared"}
    assert rig.names(6, "filter") == {"cali-FORWARD", "cali-filter-base", "cali-shared", "cali-x"}
    assert rig.names(4, "nat") == set()
    assert rig.build()[4, "raw"].hooks == {"PREROUTING"}


def test_an_unknown_chain_is_closed_in_both_families():
    rig = Rig()
    rig.base("b", Hook.FORWARD, 0, Rule((), (jump("nobody-knows"),)))
    for version in (4, 6):
        chain = rig.build()[version, "filter"].chains["cali-nobody-knows"]
        assert [rule.split()[-1] for rule in chain.rules] == ["DROP"]


def test_a_base_chain_that_says_nothing_in_a_family_is_not_hooked_there():
    rig = Rig()
    rig.base("b", Hook.FORWARD, 0, Rule((of_family(4),), (DROP,)))
    assert rig.build()[4, "filter"].hooks == {"FORWARD"}
    assert rig.build()[6, "filter"].hooks == set()


def test_maps_lead_to_the_chains_of_their_entries():
    rig = Rig()
    rig.base("b", Hook.FORWARD, 0, Rule((), (Dispatch((Field.IIFNAME,), MAP.name),)))
    rig.wanted.want_chain(Chain("end", (Rule((), (DROP,)),)))
    assert rig.names(4, "filter") == {"cali-FORWARD", "cali-b", "cali-from-wl-dispatch"}
    rig.wanted.want_entry(MAP.name, ifname_bytes("cali1"), MapValue(goto("end")))
    assert "cali-end" in rig.names(4, "filter")


def test_what_did_not_change_is_the_same_object():
    rig = Rig()
    rig.base("b", Hook.FORWARD, 0, Rule((), (Dispatch((Field.IIFNAME,), MAP.name),)))
    for number in range(100):
        key = ifname_bytes(f"cali{number:02}")
        rig.wanted.want_entry(MAP.name, key, MapValue(DROP))
    before = dict(rig.build()[4, "filter"].chains)
    rig.wanted.want_entry(MAP.name, ifname_bytes("cali00"), None)
    after = rig.build()[4, "filter"].chains
    changed = {name for name, chain in after.items() if before.get(name) is not chain}
    assert len(changed) == 1
    assert "cali-b" not in changed


def test_sets_inside_rules_are_named_with_their_users():
    rig = Rig()
    lookup = Lookup((Field.IP4_SADDR,), NETS)
    rig.base("b", Hook.FORWARD, 0, Rule((of_family(4), lookup), (DROP,)))
    rig.build()
    (name,) = rig.rules.literals
    assert rig.rules.users_of_literal(name) == ["b"]
    assert rig.rules.model_name("cali-b") == "b"
    assert rig.rules.model_name("cali-FORWARD") is None
    rig.wanted.drop_chain("b")
    rig.build()
    assert rig.rules.literals == {}
    assert rig.rules.model_name("cali-b") is None


def test_a_chain_without_words_is_left_out_and_named():
    rig = Rig()
    rig.base("b", Hook.FORWARD, 0, Rule((), (jump("odd"),)))
    rig.wanted.want_chain(Chain("odd", (Rule((Compare(Field.ICMP_CODE, b"\1"),), (DROP,)),)))
    assert "cali-odd" not in rig.names(4, "filter")
    assert rig.rules.unrenderable == {"odd": "an ICMP code without its type"}
