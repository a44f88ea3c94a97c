"""Route filters that BGP peers refer to by name.

Layer: libcalico.model, pure. Used by confd, bgp, `libcalico.model.speaker` and the CLI.
Source: datamodel §1.9; Calico api/pkg/apis/projectcalico/v3/bgpfilter.go.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import field

from libcalico.model.meta import Model, Resource
from libcalico.model.scalars import ASNumber, Int32


class BGPFilterPrefixLength(Model, frozen=True, kw_only=True):
    """Bounds of both families, both included."""

    min: Int32 | None = None
    max: Int32 | None = None


class BGPFilterPrefixLengthV4(BGPFilterPrefixLength, frozen=True, kw_only=True):
    """0-32."""


class BGPFilterPrefixLengthV6(BGPFilterPrefixLength, frozen=True, kw_only=True):
    """0-128."""


class BGPFilterCommunityMatch(Model, frozen=True, kw_only=True):
    """Exactly one value."""

    ALWAYS: ClassVar[tuple[str, ...]] = ("values",)

    values: tuple[str, ...] = ()


class BGPFilterAddCommunity(Model, frozen=True, kw_only=True):
    """Add a community."""

    ALWAYS: ClassVar[tuple[str, ...]] = ("value",)

    value: str = ""


class BGPFilterPrependASPath(Model, frozen=True, kw_only=True):
    """Prepend AS numbers, first one nearest to the peer."""

    ALWAYS: ClassVar[tuple[str, ...]] = ("prefix",)

    prefix: tuple[ASNumber, ...] = ()


class BGPFilterSetPriority(Model, frozen=True, kw_only=True):
    """Set the route's priority."""

    ALWAYS: ClassVar[tuple[str, ...]] = ("value",)

    value: int = 0


class BGPFilterOperation(Model, frozen=True, kw_only=True):
    """Exactly one member is set."""

    add_community: BGPFilterAddCommunity | None = field(default=None, name="addCommunity")
    prepend_as_path: BGPFilterPrependASPath | None = field(default=None, name="prependASPath")
    set_priority: BGPFilterSetPriority | None = field(default=None, name="setPriority")


class BGPFilterRule(Model, frozen=True, kw_only=True):
    """All given members must match; the first matching rule decides."""

    ALWAYS: ClassVar[tuple[str, ...]] = ("action",)

    cidr: str | None = None
    prefix_length: BGPFilterPrefixLength | None = field(default=None, name="prefixLength")
    source: str | None = None
    interface: str | None = None
    match_operator: str | None = field(default=None, name="matchOperator")
    peer_type: str | None = field(default=None, name="peerType")
    communities: BGPFilterCommunityMatch | None = None
    as_path_prefix: tuple[ASNumber, ...] = field(default=(), name="asPathPrefix")
    priority: int | None = None
    action: str = ""
    operations: tuple[BGPFilterOperation, ...] = ()


class BGPFilterRuleV4(BGPFilterRule, frozen=True, kw_only=True):
    """The rules of validation depend on the class of the lengths."""

    # Stays where the base has it: a member that is defined again keeps its place.
    prefix_length: BGPFilterPrefixLengthV4 | None = field(default=None, name="prefixLength")


class BGPFilterRuleV6(BGPFilterRule, frozen=True, kw_only=True):
    """The rules of validation depend on the class of the lengths."""

    # Stays where the base has it: a member that is defined again keeps its place.
    prefix_length: BGPFilterPrefixLengthV6 | None = field(default=None, name="prefixLength")


class BGPFilterSpec(Model, frozen=True, kw_only=True):
    """Ordered rules; after the last one the built-in policy goes on."""

    export_v4: tuple[BGPFilterRuleV4, ...] = field(default=(), name="exportV4")
    import_v4: tuple[BGPFilterRuleV4, ...] = field(default=(), name="importV4")
    export_v6: tuple[BGPFilterRuleV6, ...] = field(default=(), name="exportV6")
    import_v6: tuple[BGPFilterRuleV6, ...] = field(default=(), name="importV6")


class BGPFilter(Resource, frozen=True, kw_only=True, tag="BGPFilter"):
    """Route filters that peers refer to by name."""

    kind: ClassVar[str] = "BGPFilter"

    spec: BGPFilterSpec = field(default_factory=BGPFilterSpec)
