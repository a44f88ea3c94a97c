"""felix.rules.ipt_layout: places, hooks and trees of interfaces."""

from __future__ import annotations

import pytest

from felix.rules import nat, qos, static
from felix.rules.chain import (
    DROP,
    BaseHook,
    Chain,
    Field,
    Hook,
    Verdict,
    goto,
    ifname_bytes,
    jump,
)
from felix.rules.ipt_layout import (
    LEAF,
    HookSettings,
    Place,
    hook_chain,
    hook_rule,
    map_chains,
    place_of,
)
from felix.rules.render_iptables import MapUse, MarkWords
from felix.rules.sets import MapValue
from felix.rules.settings import HostAction, IptablesSettings, RuleSettings

HOOKS = HookSettings(MarkWords.of_mask(0xFFFF0000))
EGRESS = MapUse("dispatch-egress", "cali-from-wl-dispatch", Field.IIFNAME)
MARKS = HOOKS.marks


@pytest.mark.parametrize(
    ("name", "base", "place"),
    [
        ("a", BaseHook(Hook.PREROUTING, -300), ("raw", "PREROUTING")),
        ("a", BaseHook(Hook.OUTPUT, -300), ("raw", "OUTPUT")),
        ("a", BaseHook(Hook.PREROUTING, -150), ("mangle", "PREROUTING")),
        ("a", BaseHook(Hook.FORWARD, -2), ("filter", "FORWARD")),
        ("a", BaseHook(Hook.INPUT, -1), ("filter", "INPUT")),
        ("a", BaseHook(Hook.OUTPUT, 0), ("filter", "OUTPUT")),
        ("a", BaseHook(Hook.POSTROUTING, 0), ("mangle", "POSTROUTING")),
        ("a", BaseHook(Hook.POSTROUTING, 100, "nat"), ("nat", "POSTROUTING")),
        ("a", BaseHook(Hook.OUTPUT, -100, "nat"), ("nat", "OUTPUT")),
        (qos.DSCP_BASE, BaseHook(Hook.FORWARD, 0), ("mangle", "FORWARD")),
    ],
)
def test_a_priority_says_the_table(name: str, base: BaseHook, place: tuple[str, str]):
    assert place_of(name, base) == Place(*place)


def test_all_base_chains_we_have_find_a_place():
    settings = RuleSettings()
    every = (*static.chains(settings), nat.outgoing_chain(settings), *nat.floating_chains())
    places = {c.name: place_of(c.name, c.base) for c in every if c.base is not None}
    assert places["antispoof"].table == "raw"
    assert places["floating-host"] == Place("nat", "OUTPUT")
    assert places["nat-outgoing"] == Place("nat", "POSTROUTING")


def bases(*names: str) -> list[Chain]:
    return [
        Chain(name, (), BaseHook(Hook.FORWARD, place))
        for place, name in zip(range(len(names), 0, -1), names, strict=True)
    ]


def test_base_chains_of_a_hook_run_in_order_and_each_is_asked():
    chain = hook_chain(Place("filter", "FORWARD"), bases("second", "first"), HOOKS)
    jumps = [rule for rule in chain.rules if "-j cali-" in rule]
    assert jumps == ["-j cali-first", "-j cali-second"]
    assert chain.rules[0] == "-j MARK --set-xmark 0x0/0xe0000000"
    # Between the two, "accepted" becomes "allowed", so the second does not return at once.
    at = chain.rules.index("-j cali-first") + 1
    assert chain.rules[at].endswith("-j MARK --set-xmark 0x40000000/0x60000000")
    assert chain.rules[-1].endswith("-j ACCEPT")


def test_an_allowed_packet_goes_on_where_it_is_configured_so():
    words = IptablesSettings(filter_accepts=False)
    returning = HookSettings.of(RuleSettings(iptables=words))
    chain = hook_chain(Place("filter", "FORWARD"), bases("a"), returning)
    assert not any("ACCEPT" in rule for rule in chain.rules)
    host = HookSettings.of(RuleSettings(endpoint_to_host=HostAction.RETURN))
    rules = hook_chain(Place("filter", "INPUT"), bases("a"), host).rules
    assert rules[-2] == "-i cali+ -j RETURN"
    assert (
        "-i cali+ -j RETURN" not in hook_chain(Place("filter", "FORWARD"), bases("a"), host).rules
    )


def test_raw_never_accepts_for_good():
    chain = hook_chain(Place("raw", "PREROUTING"), bases("a"), HOOKS)
    assert not any("ACCEPT" in rule for rule in chain.rules)


def test_the_rule_in_the_kernels_chain_carries_its_hash():
    assert hook_rule("FORWARD").startswith('-m comment --comment "cali:')
    assert hook_rule("FORWARD").endswith("-j cali-FORWARD")
    assert hook_rule("FORWARD").split()[3] != hook_rule("INPUT").split()[3]


def entries(*names: str, verdict: Verdict = DROP) -> dict[bytes, MapValue]:
    return {ifname_bytes(name): MapValue(verdict, comment="ns/pod") for name in names}


def test_few_interfaces_are_one_chain():
    (chain,) = map_chains(EGRESS, entries("cali2", "cali1", verdict=goto("endpoint")), MARKS)
    assert chain.rules == (
        '-i cali1 -m comment --comment "ns/pod" -g cali-endpoint',
        '-i cali2 -m comment --comment "ns/pod" -g cali-endpoint',
    )


def find(chains: dict[str, tuple[str, ...]], ifname: str) -> tuple[list[str], int]:
    """(targets of rules that match, rules looked at), as a packet goes."""
    name, looked_at, found = "cali-from-wl-dispatch", 0, []
    while name:
        next_name = ""
        for rule in chains[name]:
            looked_at += 1
            words = rule.split()
            pattern, target = words[1], words[-1]
            matches = ifname.startswith(pattern[:-1]) if pattern[-1] == "+" else ifname == pattern
            if matches and target in chains:
                next_name = target
                break
            if matches:
                found.append(target)
        name = next_name
    return found, looked_at


def test_many_interfaces_are_a_tree_in_which_each_is_found_soon():
    names = [f"cali{number:03x}" for number in range(1000)] + ["cali", "calix", "other0"]
    made = map_chains(EGRESS, entries(*names), MARKS)
    chains = {chain.name: chain.rules for chain in made}
    assert made[0].name == "cali-from-wl-dispatch"
    assert len(chains) == len(made)
    assert all(len(name) <= 28 for name in chains)
    for name in names:
        targets, looked_at = find(chains, name)
        assert targets == ["DROP"], name
        assert looked_at <= 60
    assert find(chains, "caliz")[0] == []


def test_what_is_not_in_the_map_goes_on_behind_it():
    use = MapUse("m", "cali-m", Field.OIFNAME, then="cali-rest")
    assert [c.rules for c in map_chains(use, {}, MARKS)] == [("-g cali-rest",)]
    (chain,) = map_chains(use, entries("cali1", verdict=jump("limit")), MARKS)
    assert chain.rules == (
        '-o cali1 -m comment --comment "ns/pod" -j cali-limit',
        "-m mark --mark 0x20000000/0x20000000 -j RETURN",
        "-g cali-rest",
    )
    names = [f"cali{number:03}" for number in range(100)]
    many = map_chains(use, entries(*names), MARKS)
    assert len(many) > 1
    assert all(chain.rules[-1] == "-g cali-rest" for chain in many)


def test_a_workload_more_changes_one_leaf():
    names = [f"cali{number:03x}" for number in range(200)]
    before = {c.name: c for c in map_chains(EGRESS, entries(*names), MARKS)}
    after = {c.name: c for c in map_chains(EGRESS, entries(*names, "cali0a1x"), MARKS)}
    changed = {name for name in after if before.get(name) != after[name]}
    assert len(changed) <= 2
    assert len(before) > LEAF


def test_maps_of_addresses_are_translations():
    key, value = bytes([1, 1, 1, 1]), MapValue(data=bytes([2, 2, 2, 2]))
    inward = MapUse("floating-4", "cali-floating-4", Field.IP4_DADDR, is_nat=True)
    (chain,) = map_chains(inward, {key: value}, MARKS)
    assert chain.rules == ("-d 1.1.1.1 -j DNAT --to-destination 2.2.2.2",)
    hairpin = MapUse(
        "hairpins-4", "cali-hairpins-4", Field.IP4_SADDR, is_nat=True, is_source_nat=True
    )
    (chain,) = map_chains(hairpin, {key: value}, MARKS)
    assert chain.rules == ("-s 1.1.1.1 -d 1.1.1.1 -j SNAT --to-source 2.2.2.2",)
