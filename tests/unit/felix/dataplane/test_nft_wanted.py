"""felix.dataplane.nft_wanted: closed under reference, and closed where something is missing."""

from __future__ import annotations

import pytest

from felix.dataplane.nft_port import ChainImage
from felix.dataplane.nft_wanted import WantedRuleset, stub
from felix.rules.chain import (
    ACCEPT,
    DROP,
    IFNAME,
    BaseHook,
    Chain,
    Dispatch,
    Field,
    Hook,
    Lookup,
    Rule,
    goto,
    jump,
)
from felix.rules.render_nft import chain_digest
from felix.rules.sets import MapValue, SetSpec, net_set

BASE = BaseHook(Hook.FORWARD, 0)
MAP = SetSpec("m", (IFNAME,), verdicts=True)


def base(*targets: str) -> Chain:
    return Chain("base", tuple(Rule((), (jump(target),)) for target in targets), BASE)


def using(name: str, set_name: str) -> Chain:
    return Chain(name, (Rule((Lookup((Field.IP4_SADDR,), set_name),), (ACCEPT,)),))


def plain(name: str) -> Chain:
    return Chain(name, (Rule((), (ACCEPT,)),))


@pytest.fixture
def wanted():
    made = WantedRuleset()
    yield made
    made.settle()
    made.check()


def effective(wanted: WantedRuleset) -> dict[str, Chain]:
    wanted.settle()
    return wanted.effective


def is_closed(wanted: WantedRuleset, name: str) -> bool:
    rules = effective(wanted)[name].rules
    return [rule.actions for rule in rules] == [(DROP,)]


def test_a_chain_nobody_refers_to_is_not_programmed(wanted: WantedRuleset):
    wanted.want_chain(plain("c"))
    assert effective(wanted) == {}
    wanted.want_chain(base("c"))
    assert effective(wanted).keys() == {"base", "c"}
    wanted.want_chain(base())
    assert effective(wanted).keys() == {"base"}


def test_a_map_entry_is_a_reference(wanted: WantedRuleset):
    wanted.want_set(MAP)
    wanted.want_chain(plain("c"))
    wanted.want_entry("m", b"k", MapValue(goto("c")))
    wanted.want_entry("m", b"l", MapValue(goto("c")))
    wanted.want_entry("m", b"k", None)
    assert effective(wanted).keys() == {"c"}
    wanted.want_entry("m", b"l", MapValue(DROP))
    assert effective(wanted) == {}


def test_an_entry_that_changes_its_comment_keeps_its_chain(wanted: WantedRuleset):
    wanted.want_set(MAP)
    wanted.want_chain(plain("c"))
    wanted.want_entry("m", b"k", MapValue(goto("c"), comment="x"))
    wanted.want_entry("m", b"k", MapValue(goto("c"), comment="y"))
    assert effective(wanted).keys() == {"c"}


def test_dropping_a_map_drops_its_references(wanted: WantedRuleset):
    wanted.want_set(MAP)
    wanted.want_chain(plain("c"))
    wanted.want_entry("m", b"k", MapValue(goto("c")))
    wanted.drop_set("m")
    assert effective(wanted) == {}


def test_an_unknown_chain_that_is_jumped_to_drops(wanted: WantedRuleset):
    wanted.want_chain(base("gone"))
    assert is_closed(wanted, "gone")
    wanted.want_chain(plain("gone"))
    assert effective(wanted)["gone"] == plain("gone")
    wanted.drop_chain("gone")
    assert is_closed(wanted, "gone")


def test_a_chain_that_uses_an_unknown_set_drops(wanted: WantedRuleset):
    wanted.want_chain(base("c"))
    wanted.want_chain(using("c", "s"))
    assert is_closed(wanted, "c")
    wanted.want_set(net_set("s", 4))
    assert effective(wanted)["c"] == using("c", "s")
    wanted.drop_set("s")
    assert is_closed(wanted, "c")


def test_a_chain_that_uses_a_refused_set_drops_until_it_is_good_again(wanted: WantedRuleset):
    wanted.want_chain(base("c", "d"))
    wanted.want_chain(using("c", "s"))
    wanted.want_chain(plain("d"))
    wanted.want_set(net_set("s", 4))
    wanted.refuse(set(), {"s"})
    assert is_closed(wanted, "c")
    assert effective(wanted)["d"] == plain("d")
    wanted.refuse(set(), set())
    assert effective(wanted)["c"] == using("c", "s")


def test_a_refused_chain_drops_until_it_is_good_again(wanted: WantedRuleset):
    wanted.want_chain(base("c"))
    wanted.want_chain(plain("c"))
    wanted.refuse({"c"}, set())
    assert is_closed(wanted, "c")
    wanted.refuse(set(), set())
    assert effective(wanted)["c"] == plain("c")


def test_what_was_refused_of_a_chain_is_named(wanted: WantedRuleset):
    wanted.want_set(net_set("s", 4))
    for chain in (base("c", "d"), using("c", "s"), plain("d")):
        wanted.want_chain(chain)
    assert not wanted.has_refusals
    wanted.refuse({"d"}, {"s"})
    assert wanted.has_refusals
    assert [wanted.refused_part(name) for name in ("c", "d", "base", "nobody")] == [
        *("set s", "chain d", None, None)
    ]
    wanted.refuse(set(), set())
    assert wanted.refused_part("c") is None


def test_a_base_chain_is_never_turned_into_a_drop(wanted: WantedRuleset):
    wanted.want_chain(base())
    wanted.refuse({"base"}, set())
    assert effective(wanted) == {}


def test_dispatch_maps_are_references_to_sets(wanted: WantedRuleset):
    wanted.want_chain(base("c"))
    wanted.want_chain(Chain("c", (Rule((), (Dispatch((Field.IIFNAME,), "m"),)),)))
    assert is_closed(wanted, "c")


def test_what_is_programmed_is_compared_by_hook_and_digest(wanted: WantedRuleset):
    wanted.want_chain(base())
    wanted.settle()
    image = ChainImage(BASE, chain_digest(base()))
    assert wanted.chains.pending_updates() == {"base": image}
    wanted.chains.confirm("base", image)
    wanted.want_chain(base())
    wanted.settle()
    assert wanted.chains.in_sync()


def test_a_dropped_set_takes_its_members_along(wanted: WantedRuleset):
    wanted.want_set(net_set("s", 4))
    wanted.replace_members("s", {b"a" * 8})
    wanted.drop_set("s")
    assert wanted.members == {}
    wanted.want_set(net_set("s", 4))
    assert wanted.members["s"].wanted == set()


def test_a_set_dropped_and_wanted_again_remembers_what_is_programmed(wanted: WantedRuleset):
    wanted.want_set(net_set("s", 4))
    wanted.sets.confirm("s", net_set("s", 4))
    wanted.resync_members("s", {b"a" * 8})
    wanted.drop_set("s")
    wanted.want_set(net_set("s", 4))
    wanted.replace_members("s", {b"b" * 8})
    assert wanted.members["s"].to_delete == {b"a" * 8}


def test_a_set_that_becomes_a_map_forgets_its_members(wanted: WantedRuleset):
    wanted.want_set(net_set("s", 4))
    wanted.replace_members("s", {b"a" * 8})
    wanted.want_set(SetSpec("s", (IFNAME,), verdicts=True))
    assert wanted.members == {}
    assert wanted.entries.keys() == {"s"}


def test_the_ruleset_for_rendering_holds_everything(wanted: WantedRuleset):
    wanted.want_chain(base("gone"))
    wanted.want_set(MAP)
    wanted.want_set(net_set("s", 4))
    wanted.replace_members("s", {b"a" * 8})
    wanted.want_chain(base("gone", "c"))
    wanted.want_chain(using("c", "s"))
    found = wanted.ruleset()
    assert {chain.name for chain in found.chains} == {"base", "gone", "c"}
    assert {spec.name for spec in found.sets} == {"s"}, "nobody uses the map"
    assert found.members["s"] == {b"a" * 8}


def test_a_set_nobody_uses_is_not_programmed(wanted: WantedRuleset):
    wanted.want_set(net_set("s", 4))
    wanted.want_chain(base("c"))
    wanted.settle()
    assert not wanted.is_wanted_set("s")
    wanted.want_chain(using("c", "s"))
    wanted.settle()
    assert wanted.is_wanted_set("s")
    wanted.want_chain(plain("c"))
    wanted.settle()
    assert not wanted.is_wanted_set("s")


def test_a_stub_says_why():
    assert stub("c", "because").rules[0].comment == "because"
