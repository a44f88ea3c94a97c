"""bgp.rib.policy: every field and operation of BGPFilter, and Calico's export rules in order."""

from __future__ import annotations

import pytest

from bgp.rib.attributes import PathAttributes
from bgp.rib.nlri import parse
from bgp.rib.path import LOCAL, LocalRoute, Path, Source
from bgp.rib.policy import PRIORITY_BASE, Policy, community, policy_inputs, run_chain
from libcalico.errors import ConfigError
from libcalico.model.bgp_filter import (
    BGPFilterAddCommunity,
    BGPFilterCommunityMatch,
    BGPFilterOperation,
    BGPFilterPrefixLengthV4,
    BGPFilterPrependASPath,
    BGPFilterRuleV4,
    BGPFilterRuleV6,
    BGPFilterSetPriority,
)
from libcalico.model.speaker import (
    Filter,
    KernelExport,
    LocalBlock,
    PoolExport,
    PrefixAdvertisement,
)
from tests.unit.bgp.builders import config, sequence

PEER = Source("p", bytes([10, 0, 0, 2]), local_as=64512, remote_as=64512)
HUNDRED_ONE = 100 << 16 | 1


def learned(**attributes) -> Path:
    return Path(PEER, PathAttributes(next_hop=bytes([10, 0, 0, 2]), **attributes))


def workload(metric: int = 0, interface: str = "cali1") -> Path:
    route = LocalRoute("workload", metric, interface)
    attributes = PathAttributes(local_pref=PRIORITY_BASE - (metric or 1024))
    return Path(LOCAL, attributes, local=route)


def verdict(rules, path: Path, cidr: str, *, to_ibgp: bool = True):
    """What an import filter with these rules says of a path to `cidr`."""
    is_v4 = ":" not in cidr
    item = Filter(name="f", **{"import_v4" if is_v4 else "import_v6": tuple(rules)})
    family, nlri = parse(cidr)
    policy = Policy(config(filters=(item,))).families[family]
    mask = policy.classifier.classify(nlri)
    return run_chain(policy.import_chain(["f"]), path, mask, to_ibgp=to_ibgp)


def reject(**fields) -> BGPFilterRuleV4:
    return BGPFilterRuleV4(action="Reject", **fields)


MATCHES = {
    "everything": ({}, learned(), "10.0.0.0/8", True),
    "inside": ({"cidr": "10.0.0.0/8", "match_operator": "In"}, learned(), "10.1.0.0/16", True),
    "outside": ({"cidr": "10.0.0.0/8", "match_operator": "In"}, learned(), "11.0.0.0/16", False),
    "not inside": (
        {"cidr": "10.0.0.0/8", "match_operator": "NotIn"},
        learned(),
        "11.0.0.0/16",
        True,
    ),
    "equal": ({"cidr": "10.0.0.0/8", "match_operator": "Equal"}, learned(), "10.0.0.0/8", True),
    "not equal": (
        {"cidr": "10.0.0.0/8", "match_operator": "NotEqual"},
        learned(),
        "10.0.0.0/8",
        False,
    ),
    "too short": (
        {
            "cidr": "10.0.0.0/8",
            "match_operator": "In",
            "prefix_length": BGPFilterPrefixLengthV4(min=24, max=28),
        },
        learned(),
        "10.1.0.0/16",
        False,
    ),
    "remote": ({"source": "RemotePeers"}, learned(), "10.0.0.0/8", True),
    "not remote": ({"source": "RemotePeers"}, workload(), "10.0.0.0/8", False),
    "interface": ({"interface": "cal*1"}, workload(), "10.0.0.0/8", True),
    "other interface": ({"interface": "eth?"}, workload(), "10.0.0.0/8", False),
    "learned has no interface": ({"interface": "*"}, learned(), "10.0.0.0/8", False),
    "internal": ({"peer_type": "iBGP"}, learned(), "10.0.0.0/8", True),
    "external": ({"peer_type": "eBGP"}, learned(), "10.0.0.0/8", False),
    "community": (
        {"communities": BGPFilterCommunityMatch(values=("100:1",))},
        learned(communities=(5, HUNDRED_ONE)),
        "10.0.0.0/8",
        True,
    ),
    "no community": (
        {"communities": BGPFilterCommunityMatch(values=("100:1",))},
        learned(communities=(5,)),
        "10.0.0.0/8",
        False,
    ),
    "large community": (
        {"communities": BGPFilterCommunityMatch(values=("1:2:3",))},
        learned(large_communities=((1, 2, 3),)),
        "10.0.0.0/8",
        True,
    ),
    "as path": ({"as_path_prefix": (1, 2)}, learned(as_path=sequence(1, 2, 3)), "10.0.0.0/8", True),
    "other as path": (
        {"as_path_prefix": (1, 2)},
        learned(as_path=sequence(1, 3)),
        "10.0.0.0/8",
        False,
    ),
    "priority": ({"priority": 512}, workload(512), "10.0.0.0/8", True),
    "other priority": ({"priority": 512}, workload(), "10.0.0.0/8", False),
    "all must match": (
        {"cidr": "10.0.0.0/8", "match_operator": "In", "source": "RemotePeers"},
        workload(),
        "10.1.0.0/16",
        False,
    ),
}


@pytest.mark.parametrize(("fields", "path", "cidr", "matches"), MATCHES.values(), ids=MATCHES)
def test_every_match_field(fields, path, cidr, matches):
    assert verdict([reject(**fields)], path, cidr) is (not matches)


def test_version_6_rules_are_for_version_6():
    rule = BGPFilterRuleV6(action="Reject", cidr="fd00::/16", match_operator="In")
    assert verdict([rule], learned(), "fd00:1::/32") is False
    assert verdict([rule], learned(), "fe00::/32") is True


def test_the_first_matching_rule_decides():
    accept = BGPFilterRuleV4(action="Accept", cidr="10.0.0.0/8", match_operator="In")
    assert verdict([accept, reject()], learned(), "10.1.0.0/16") == learned().attributes
    assert verdict([reject(), accept], learned(), "10.1.0.0/16") is False


def test_filters_run_in_order_and_unknown_names_filter_nothing():
    first = Filter(name="a", import_v4=(BGPFilterRuleV4(action="Accept"),))
    second = Filter(name="b", import_v4=(reject(),))
    family, nlri = parse("10.0.0.0/8")
    policy = Policy(config(filters=(first, second))).families[family]
    mask = policy.classifier.classify(nlri)
    for names, expected in (
        (["a", "b"], learned().attributes),
        (["b", "a"], False),
        (["nobody"], True),
    ):
        found = run_chain(policy.import_chain(names), learned(), mask, to_ibgp=True)
        assert found == expected


def test_operations_of_an_accepting_rule():
    operations = (
        BGPFilterOperation(add_community=BGPFilterAddCommunity(value="100:1")),
        BGPFilterOperation(add_community=BGPFilterAddCommunity(value="1:2:3")),
        BGPFilterOperation(prepend_as_path=BGPFilterPrependASPath(prefix=(7, 8))),
        BGPFilterOperation(prepend_as_path=BGPFilterPrependASPath(prefix=(9,))),
        BGPFilterOperation(set_priority=BGPFilterSetPriority(value=512)),
    )
    rule = BGPFilterRuleV4(action="Accept", operations=operations)
    found = verdict([rule], learned(as_path=sequence(1)), "10.0.0.0/8")
    assert found == PathAttributes(
        next_hop=bytes([10, 0, 0, 2]),
        as_path=sequence(9, 7, 8, 1),
        communities=(HUNDRED_ONE,),
        large_communities=((1, 2, 3),),
        local_pref=PRIORITY_BASE - 512,
    )


NONSENSE = {
    "source": BGPFilterRuleV4(action="Accept", source="Somewhere"),
    "peer type": BGPFilterRuleV4(action="Accept", peer_type="cBGP"),
    "action": BGPFilterRuleV4(action="Maybe"),
    "operator": reject(cidr="10.0.0.0/8", match_operator="Near"),
    "cidr": reject(cidr="10.0.0.0/99", match_operator="In"),
    "community": reject(communities=BGPFilterCommunityMatch(values=("70000:1",))),
}


@pytest.mark.parametrize("rule", NONSENSE.values(), ids=NONSENSE.keys())
def test_what_does_not_compile_is_named(rule):
    item = Filter(name="broken", export_v4=(BGPFilterRuleV4(action="Accept"), rule))
    with pytest.raises(ConfigError, match="filter broken rule 1"):
        Policy(config(filters=(item,)))


@pytest.mark.parametrize("changes", [{"pools": (PoolExport(cidr="x"),)}, {"service_cidrs": ("x",)}])
def test_bad_prefixes_are_refused(changes):
    with pytest.raises(ConfigError):
        Policy(config(**changes))


@pytest.mark.parametrize("text", ["1", "1:2:3:4", "a:b", "65536:1", "-1:1", "1:2:4294967296"])
def test_bad_communities(text):
    with pytest.raises(ValueError):  # noqa: PT011
        community(text)


# -- Calico's export rules

EXPORT = {
    "pools": (PoolExport(cidr="10.65.0.0/16"), PoolExport(cidr="10.66.0.0/16", export=False)),
    "blocks": (LocalBlock(cidr="10.65.1.0/26"), LocalBlock(cidr="10.65.2.0/26", export=False)),
    "service_cidrs": ("10.96.0.0/12",),
    "prefix_advertisements": (
        PrefixAdvertisement(cidr="10.65.0.0/24", communities=("100:1",)),
        PrefixAdvertisement(cidr="10.65.1.0/24", large_communities=("1:2:3",)),
    ),
}
PRIORITY_512 = learned(local_pref=PRIORITY_BASE - 512)

VERDICTS = {
    "in an enabled pool": ("10.65.9.0/26", learned(), True),
    "nowhere": ("172.16.0.0/12", learned(), False),
    "the default route": ("0.0.0.0/0", learned(), False),
    "wider than the pool": ("10.64.0.0/15", learned(), False),
    "in a disabled pool": ("10.66.0.0/26", learned(), False),
    "our block": ("10.65.1.0/26", workload(), True),
    "inside our block": ("10.65.1.5/32", workload(), False),
    "inside our block, migrating here": ("10.65.1.5/32", workload(512), True),
    "inside our block, learned": ("10.65.1.5/32", learned(), False),
    "inside our block, migrating elsewhere": ("10.65.1.5/32", PRIORITY_512, True),
    "borrowed": ("10.65.7.5/32", workload(), True),
    "a block not to be exported": ("10.65.2.0/26", workload(), False),
    "inside a block not to be exported": ("10.65.2.5/32", workload(512), False),
    "service range": ("10.96.0.0/12", workload(), True),
    "service address": ("10.96.0.7/32", learned(), True),
}


@pytest.mark.parametrize(("cidr", "path", "is_told"), VERDICTS.values(), ids=VERDICTS.keys())
def test_what_leaves_the_node(cidr, path, is_told):
    family, nlri = parse(cidr)
    policy = Policy(config(**EXPORT)).families[family]
    found = policy.export(path, policy.classifier.classify(nlri))
    assert (found is not None) is is_told


def test_advertised_prefixes_get_their_communities():
    family, nlri = parse("10.65.1.0/26")
    policy = Policy(config(**EXPORT)).families[family]
    found = policy.export(workload(), policy.classifier.classify(nlri))
    assert found is not None
    assert found.communities == ()
    assert found.large_communities == ((1, 2, 3),)
    family, nlri = parse("10.65.0.64/26")
    found = policy.export(learned(), policy.classifier.classify(nlri))
    assert found is not None
    assert found.communities == (HUNDRED_ONE,)


def test_priorities_and_metrics_are_two_forms_of_one_thing():
    policy = next(iter(Policy(config(kernel=KernelExport(metric=900))).families.values()))
    assert policy.metric_of(workload(512)) == 512
    assert policy.metric_of(workload()) == 900
    assert policy.metric_of(learned(local_pref=PRIORITY_BASE - 512)) == 512
    assert policy.local_attributes(LocalRoute("block")).local_pref == PRIORITY_BASE - 900


def test_each_family_has_its_own_normal_metric():
    made = config(kernel=KernelExport(metric=900, metric_v6=800))
    assert [p.metric_of(workload()) for p in Policy(made).families.values()] == [900, 800]
    assert policy_inputs(made) != policy_inputs(config(kernel=KernelExport(metric=900)))


def test_local_routes_of_a_configuration():
    made = config(
        blocks=(
            LocalBlock(cidr="10.65.1.0/26"),
            LocalBlock(cidr="10.65.1.128/26", blackhole=False),
            LocalBlock(cidr="10.65.1.200/32"),
            LocalBlock(cidr="fd65::/122"),
            LocalBlock(cidr="fd65::99/128"),
        ),
        service_cidrs=("10.96.0.0/12",),
    )
    found = Policy(made).local_routes(made)
    assert {nlri[0]: route.blackhole for (_, nlri), route in found.items() if nlri[0] != 26} == {
        32: False,
        122: True,
        128: False,
        12: False,
    }
    assert found[parse("10.65.1.0/26")].blackhole
    assert not found[parse("10.65.1.128/26")].blackhole
