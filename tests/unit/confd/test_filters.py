"""confd.filters: what is not understood rejects, and costs no other rule."""

from __future__ import annotations

import pytest

from confd.filters import check_community, sound_filter
from libcalico.model import BGPFilter
from libcalico.model.bgp_filter import (
    BGPFilterAddCommunity,
    BGPFilterCommunityMatch,
    BGPFilterOperation,
    BGPFilterRuleV4,
    BGPFilterRuleV6,
    BGPFilterSpec,
)
from libcalico.model.meta import ObjectMeta
from libcalico.model.speaker import Filter

GOOD_V4 = BGPFilterRuleV4(
    cidr="10.0.0.0/8",
    match_operator="NotIn",
    source="RemotePeers",
    peer_type="eBGP",
    communities=BGPFilterCommunityMatch(values=("1:2:3",)),
    action="Accept",
    operations=(BGPFilterOperation(add_community=BGPFilterAddCommunity(value="64512:1")),),
)
GOOD_V6 = BGPFilterRuleV6(cidr="fd00::/8", match_operator="In", action="Accept")


def sound(**spec) -> tuple[Filter, list[str]]:
    warnings: list[str] = []
    made = BGPFilter(metadata=ObjectMeta(name="f"), spec=BGPFilterSpec(**spec))
    return sound_filter("f", made, warnings), warnings


def test_what_is_understood_stays_as_it_is():
    found, warnings = sound(export_v4=(GOOD_V4,), import_v6=(GOOD_V6,))
    assert (found.export_v4, found.import_v6, warnings) == ((GOOD_V4,), (GOOD_V6,), [])


@pytest.mark.parametrize(
    "wrong",
    [
        {"action": ""},
        {"action": "accept"},
        {"action": "Accept", "source": "LocalPeers"},
        {"action": "Accept", "peer_type": "ebgp"},
        {"action": "Accept", "cidr": "10.0.0.0/8", "match_operator": "Within"},
        {"action": "Accept", "cidr": "10.0.0.0/80", "match_operator": "In"},
        {"action": "Accept", "communities": BGPFilterCommunityMatch(values=("1:70000",))},
        {
            "action": "Accept",
            "operations": (
                BGPFilterOperation(add_community=BGPFilterAddCommunity(value="no-export")),
            ),
        },
    ],
)
@pytest.mark.parametrize(
    ("member", "make"),
    [
        ("export_v4", BGPFilterRuleV4),
        ("import_v4", BGPFilterRuleV4),
        ("export_v6", BGPFilterRuleV6),
        ("import_v6", BGPFilterRuleV6),
    ],
)
def test_what_is_not_understood_rejects_everything_that_comes_to_it(wrong, member, make):
    good = make(action="Accept")
    if make is BGPFilterRuleV6 and wrong.get("cidr") == "10.0.0.0/8":
        wrong = wrong | {"cidr": "fd00::/8"}
    found, warnings = sound(**{member: (good, make(**wrong), good)})
    assert getattr(found, member) == (good, make(action="Reject"), good)
    (warning,) = warnings
    assert warning.startswith("BGPFilter(f).")
    assert "[1] rejects all: " in warning


def test_a_prefix_of_the_other_family_rejects():
    found, _ = sound(export_v4=(BGPFilterRuleV4(cidr="fd00::/8", action="Accept"),))
    assert found.export_v4 == (BGPFilterRuleV4(action="Reject"),)
    found, _ = sound(import_v6=(BGPFilterRuleV6(cidr="10.0.0.0/8", action="Accept"),))
    assert found.import_v6 == (BGPFilterRuleV6(action="Reject"),)


@pytest.mark.parametrize("text", ["65535:65535", "4294967295:0:1"])
def test_communities(text):
    check_community(text)


@pytest.mark.parametrize("text", ["", "1", "1:", "-1:2", "65536:0", "1:2:4294967296", "1:2:3:4"])
def test_what_is_no_community(text):
    with pytest.raises(ValueError, match="no community"):
        check_community(text)
