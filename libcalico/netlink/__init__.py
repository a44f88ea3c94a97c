"""Raw rtnetlink: a pure codec and the sockets that carry it.

Layer: bottom edge of libcalico (beside runtime). Shared by felix.kernel, cni, bgp, calicoctl.node.

    from libcalico.netlink import NetlinkSocket, NextHop, Route, replace_route

    with NetlinkSocket.in_namespace("/run/netns/x") as sock:
        sock.execute(replace_route(Route("10.0.0.0/24", (NextHop(gateway="192.0.2.1"),))))

Builders (`replace_route`, `create_veth`, `set_address`, …) return Requests, `list_*` and `get_*`
return Queries; both are only bytes until a NetlinkSocket sends them. For thousands of routes use
RouteTemplate with `transact_messages` (200,000 routes a second and more).
"""

from libcalico.netlink.addr import (
    Address,
    delete_address,
    list_addresses,
    set_address,
)
from libcalico.netlink.events import (
    AddressEvent,
    Event,
    EventStream,
    Group,
    LinkEvent,
    Overrun,
    RouteEvent,
    RouteInterest,
)
from libcalico.netlink.link import (
    Link,
    LinkChange,
    VethEnd,
    change_link,
    create_link,
    create_veth,
    delete_group,
    delete_link,
    get_link,
    get_netnsid,
    list_links,
)
from libcalico.netlink.messages import AF_INET, AF_INET6, Query, Refusal, Request
from libcalico.netlink.namespace import run_in_namespace
from libcalico.netlink.neigh import (
    Neighbour,
    delete_neighbour,
    list_neighbours,
    set_neighbour,
)
from libcalico.netlink.qdisc import (
    IngressFilter,
    Qdisc,
    TokenBucket,
    add_ingress,
    add_redirect,
    delete_qdisc,
    delete_redirect,
    list_ingress_filters,
    list_qdiscs,
    set_tbf,
)
from libcalico.netlink.route import (
    PROTO_BGP,
    PROTO_BOOT,
    PROTO_KERNEL,
    PROTO_STATIC,
    SCOPE_HOST,
    SCOPE_LINK,
    SCOPE_UNIVERSE,
    TABLE_MAIN,
    NextHop,
    Route,
    RouteFilter,
    RouteTemplate,
    RouteType,
    add_route,
    append_route,
    delete_route,
    device_route,
    list_routes,
    replace_route,
    resolve_route,
)
from libcalico.netlink.socket import NetlinkSocket

__all__ = [
    "AF_INET",
    "AF_INET6",
    "PROTO_BGP",
    "PROTO_BOOT",
    "PROTO_KERNEL",
    "PROTO_STATIC",
    "SCOPE_HOST",
    "SCOPE_LINK",
    "SCOPE_UNIVERSE",
    "TABLE_MAIN",
    "Address",
    "AddressEvent",
    "Event",
    "EventStream",
    "Group",
    "IngressFilter",
    "Link",
    "LinkChange",
    "LinkEvent",
    "Neighbour",
    "NetlinkSocket",
    "NextHop",
    "Overrun",
    "Qdisc",
    "Query",
    "Refusal",
    "Request",
    "Route",
    "RouteEvent",
    "RouteFilter",
    "RouteInterest",
    "RouteTemplate",
    "RouteType",
    "TokenBucket",
    "VethEnd",
    "add_ingress",
    "add_redirect",
    "add_route",
    "append_route",
    "change_link",
    "create_link",
    "create_veth",
    "delete_address",
    "delete_group",
    "delete_link",
    "delete_neighbour",
    "delete_qdisc",
    "delete_redirect",
    "delete_route",
    "device_route",
    "get_link",
    "get_netnsid",
    "list_addresses",
    "list_ingress_filters",
    "list_links",
    "list_neighbours",
    "list_qdiscs",
    "list_routes",
    "replace_route",
    "resolve_route",
    "run_in_namespace",
    "set_address",
    "set_neighbour",
    "set_tbf",
]
