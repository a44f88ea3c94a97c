"""confd.context and the shipped templates: datastore content in, configuration text out."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest

from confd.context import NodeIdentity, build, router_id_of
from confd.render import Renderer, TemplateError
from confd.view import DatastoreView
from libcalico.errors import DecodeError, ValidationError
from libcalico.model import BGPConfiguration, BGPFilter, BGPPeer, IPPool, Node
from libcalico.model.bgp import (
    BGPConfigurationSpec,
    BGPPeerSpec,
    Community,
    PrefixAdvertisement,
    ServiceClusterIPBlock,
    ServiceLoadBalancerIPBlock,
)
from libcalico.model.ipam import BlockAffinity
from libcalico.model.ippool import IPPoolSpec
from libcalico.model.keys import BlockAffinityKey, ResourceKey, key_of
from libcalico.model.meta import ObjectMeta
from libcalico.model.node import NodeBGPSpec, NodeSpec
from libcalico.model.speaker import LocalBlock, SpeakerConfig
from libcalico.syncer.api import SyncStatus, Update

TEMPLATES = Path(__file__).resolve().parents[3] / "confd/templates"


def node(name: str, ipv4: str | None, ipv6: str | None = None) -> Node:
    bgp = NodeBGPSpec(ipv4_address=ipv4, ipv6_address=ipv6)
    return Node(metadata=ObjectMeta(name=name), spec=NodeSpec(bgp=bgp))


def update(resource) -> Update:
    return Update(key_of(resource), resource, 1)


def affinity(host: str, cidr: str, state: str = "confirmed") -> Update:
    return Update(BlockAffinityKey(host, cidr), BlockAffinity(state=state), 1)


UPDATES = [
    update(node("a", "192.0.2.9/24", "2001:db8::9/64")),
    update(node("b", "192.0.2.10/24", "2001:db8::a/64")),
    update(IPPool(metadata=ObjectMeta(name="p"), spec=IPPoolSpec(cidr="10.65.0.0/16"))),
    update(
        IPPool(
            metadata=ObjectMeta(name="q"),
            spec=IPPoolSpec(cidr="fd65::/48", disable_bgp_export=True),
        )
    ),
    affinity("a", "10.65.1.0/26"),
    affinity("a", "fd65::1:0/122", ""),
    affinity("a", "10.65.2.0/26", "pending"),
    affinity("a", "10.65.3.1/32"),
    affinity("b", "10.65.4.0/26"),
]


def view_of(updates=UPDATES) -> DatastoreView:
    view = DatastoreView()
    view.on_updates(updates)
    view.on_status(SyncStatus.IN_SYNC)
    return view


def context(updates=UPDATES, **identity):
    return build(view_of(updates), NodeIdentity("a", **identity), lambda name, key: None)


def test_only_confirmed_blocks_of_this_node_are_announced_and_single_addresses_not_blackholed():
    assert context().speaker.blocks == (
        LocalBlock(cidr="10.65.1.0/26"),
        LocalBlock(cidr="10.65.3.1/32", blackhole=False),
        LocalBlock(cidr="fd65::1:0/122"),
    )


def test_a_disabled_pool_gives_no_new_addresses_but_keeps_its_routes():
    spec = IPPoolSpec(cidr="10.65.0.0/16", disabled=True)
    disabled = update(IPPool(metadata=ObjectMeta(name="p"), spec=spec))
    exported = {pool.cidr: pool.export for pool in context([*UPDATES, disabled]).speaker.pools}
    assert exported["10.65.0.0/16"]


def test_pools_say_whether_they_are_exported():
    assert {pool.cidr: pool.export for pool in context().speaker.pools} == {
        "10.65.0.0/16": True,
        "fd65::/48": False,
    }


def test_the_order_of_updates_does_not_change_a_byte():
    def rendered(updates):
        found = context(updates)
        return Renderer(TEMPLATES).render("exabgp.conf.j2", {"bgp": found}), found.speaker

    assert rendered(UPDATES) == rendered(UPDATES[::-1]) == rendered(UPDATES * 2)


def test_there_is_no_configuration_before_the_node_is_registered():
    assert context([]) is None
    assert context([update(Node(metadata=ObjectMeta(name="a")))]) is None


def test_router_ids():
    assert router_id_of(NodeIdentity("a"), "192.0.2.9") == "192.0.2.9"
    assert router_id_of(NodeIdentity("a", router_id="10.0.0.7"), "192.0.2.9") == "10.0.0.7"
    digest = hashlib.sha256(b"node-7").digest()
    first = digest[0] - 32 if digest[0] > 223 else digest[0]
    expected = ".".join(map(str, (first, *digest[1:4])))
    assert router_id_of(NodeIdentity("node-7", router_id="hash"), "192.0.2.9") == expected
    assert router_id_of(NodeIdentity("node-7"), "") == expected


def test_community_names_are_resolved_and_sorted_by_width():
    settings = BGPConfiguration(
        metadata=ObjectMeta(name="default"),
        spec=BGPConfigurationSpec(
            communities=(Community(name="rack", value="64512:7"),),
            prefix_advertisements=(
                PrefixAdvertisement(cidr="10.65.0.0/16", communities=("rack", "1:2:3")),
            ),
            service_cluster_ips=(ServiceClusterIPBlock(cidr="10.96.0.0/12"),),
            service_load_balancer_ips=(
                ServiceLoadBalancerIPBlock(cidr="203.0.113.7/32"),
                ServiceLoadBalancerIPBlock(cidr="203.0.113.64/27"),
            ),
        ),
    )
    speaker = context([*UPDATES, update(settings)]).speaker
    (advertisement,) = speaker.prefix_advertisements
    assert advertisement.communities == ("64512:7",)
    assert advertisement.large_communities == ("1:2:3",)
    assert speaker.service_cidrs == ("10.96.0.0/12", "203.0.113.64/27")


def settings(name: str = "default", **spec) -> Update:
    return update(
        BGPConfiguration(metadata=ObjectMeta(name=name), spec=BGPConfigurationSpec(**spec))
    )


def test_a_bad_object_costs_itself_and_a_warning_and_the_rest_goes_on():
    updates = [
        *UPDATES,
        update(IPPool(metadata=ObjectMeta(name="bad"), spec=IPPoolSpec(cidr="10.300.0.0/16"))),
        affinity("a", "10.65.9.0/99"),
        settings(
            communities=(Community(name="rack", value="64512:7"),),
            prefix_advertisements=(
                PrefixAdvertisement(cidr="nowhere", communities=("rack",)),
                PrefixAdvertisement(cidr="10.65.0.0/16", communities=("no-such",)),
                PrefixAdvertisement(cidr="fd65::/48", communities=("rack",)),
            ),
            service_cluster_ips=(
                ServiceClusterIPBlock(cidr="10.96.0.1/12"),
                ServiceClusterIPBlock(cidr="fd96::/108"),
            ),
            service_load_balancer_ips=(
                ServiceLoadBalancerIPBlock(cidr="203.0.113.0/x"),
                ServiceLoadBalancerIPBlock(cidr="203.0.113.64/27"),
            ),
        ),
    ]
    found = context(updates)
    speaker = found.speaker
    assert [pool.cidr for pool in speaker.pools] == ["10.65.0.0/16", "fd65::/48"]
    assert len(speaker.blocks) == 3
    assert [item.cidr for item in speaker.prefix_advertisements] == ["fd65::/48"]
    assert speaker.service_cidrs == ("203.0.113.64/27", "fd96::/108")
    assert {warning.partition(": ")[0] for warning in found.warnings} == {
        "IPPool(bad)",
        "BlockAffinity(10.65.9.0/99)",
        "BGPConfiguration.prefixAdvertisements",
        "BGPConfiguration(default).serviceClusterIPs",
        "BGPConfiguration(default).serviceLoadBalancerIPs",
    }
    assert len(found.warnings) == 6


def test_route_priorities_of_both_families_reach_the_kernel_export_the_nodes_own_first():
    kernel = context().speaker.kernel
    assert (kernel.metric_of(4), kernel.metric_of(6)) == (1024, 1024)
    both = settings(ipv4_normal_route_priority=500, ipv6_normal_route_priority=600)
    kernel = context([*UPDATES, both]).speaker.kernel
    assert (kernel.metric_of(4), kernel.metric_of(6)) == (500, 600)
    own = settings("node.a", ipv6_normal_route_priority=700)
    kernel = context([*UPDATES, both, own]).speaker.kernel
    assert (kernel.metric_of(4), kernel.metric_of(6)) == (500, 700)


def test_filters_that_are_named_are_shipped_and_missing_ones_warned_about():
    peer = BGPPeer(
        metadata=ObjectMeta(name="x"),
        spec=BGPPeerSpec(peer_ip="198.51.100.1", as_number=65000, filters=("f", "gone")),
    )
    unused = BGPFilter(metadata=ObjectMeta(name="unused"))
    used = BGPFilter(metadata=ObjectMeta(name="f"))
    found = context([*UPDATES, update(peer), update(used), update(unused)])
    assert [item.name for item in found.speaker.filters] == ["f"]
    assert found.warnings == ("BGPFilter(gone) does not exist",)


def drained(value: str) -> list[Update]:
    made = node("a", "192.0.2.9/24")
    metadata = ObjectMeta(name="a", annotations={"projectcalico.org/BGPDrain": value})
    return [update(msgspec.structs.replace(made, metadata=metadata))]


def test_the_drain_of_this_node_reaches_the_speaker_and_nonsense_drains_nothing():
    assert context().speaker.drain == ""
    assert context(drained("graceful-shutdown")).speaker.drain == "graceful-shutdown"
    assert context(drained("withdrawn")).speaker.drain == "withdrawn"
    found = context(drained("soon"))
    assert found.speaker.drain == ""
    assert found.warnings == (
        "Node(a): projectcalico.org/BGPDrain 'soon' is none of graceful-shutdown, withdrawn",
    )


def test_bind_mode_node_ip_listens_on_the_nodes_own_addresses():
    bound = BGPConfiguration(
        metadata=ObjectMeta(name="default"),
        spec=BGPConfigurationSpec(bind_mode="NodeIP", listen_port=1179),
    )
    found = context([*UPDATES, update(bound)])
    assert found.speaker.listen_addresses == ("192.0.2.9", "2001:db8::9")
    assert found.speaker.listen_port == 1179
    assert context().speaker.listen_addresses == ()


def test_speaker_json_names_the_configuration_it_belongs_to():
    renderer, found = Renderer(TEMPLATES), context()
    text = renderer.render("exabgp.conf.j2", {"bgp": found})
    variables = {"speaker": found.speaker, "rendered": {"exabgp.conf.j2": text}}
    written = msgspec.json.decode(
        renderer.render("speaker.json.j2", variables).encode(), type=SpeakerConfig
    )
    assert written.exabgp_sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert written.blocks == found.speaker.blocks
    assert written.peers == found.speaker.peers


def test_an_unknown_name_in_a_template_is_an_error_and_not_a_hole(tmp_path):
    (tmp_path / "x.j2").write_text("one\n{{ bgp.no_such_thing }}\n")
    (tmp_path / "y.j2").write_text("{% if %}")
    renderer = Renderer(tmp_path)
    with pytest.raises(TemplateError, match=r"x\.j2.*no_such_thing"):
        renderer.render("x.j2", {"bgp": context()})
    with pytest.raises(TemplateError, match=r"y\.j2:1"):
        renderer.render("y.j2", {})
    with pytest.raises(TemplateError, match=r"z\.j2"):
        renderer.render("z.j2", {})


def test_an_object_that_does_not_parse_or_validate_is_absent_and_named():
    def refuse_b(value):
        if isinstance(value, Node) and value.metadata.name == "b":
            raise ValidationError.of("Metadata.Name", "b", "no b")

    view = DatastoreView(refuse_b)
    bad = ResourceKey("IPPool", "p")
    view.on_updates([*UPDATES, Update(bad, None, 2, DecodeError("k", b"{", "truncated"))])
    assert set(view.nodes()) == {"a"}
    assert [name for name, _ in view.pools()] == ["q"]
    assert set(view.problems) == {ResourceKey("Node", "b"), bad}


def test_the_generation_grows_only_with_a_change():
    view = view_of()
    before = view.generation
    view.on_updates(UPDATES)
    assert view.generation == before
    view.on_updates([Update(ResourceKey("Node", "b"), None, 9)])
    assert view.generation == before + 1
