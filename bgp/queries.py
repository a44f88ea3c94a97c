"""Answers about the running speaker, as plain values for JSON.

Layer: edge-free: reads a RIB and session states, changes nothing. Used by the control socket and
the state dump. The schema is a contract with calicoctl, documented in bgp/DESIGN.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from bgp.kernel.writer import RouteWriter
from bgp.rib import explain
from bgp.rib.admission import peer_key
from bgp.rib.attributes import AS_SET, AsPath, PathAttributes
from bgp.rib.nlri import FAMILIES, Family, Nlri, address_text, parse, text
from bgp.rib.path import Path
from bgp.rib.peer import RibPeer
from bgp.rib.rib import Rib
from bgp.speaker.engine import SessionState
from libcalico.errors import ConfigError, NotFound, ValidationError

Answer = dict[str, Any]
_ORIGINS = ("IGP", "EGP", "incomplete")
# ExaBGP's names of RFC 4271's states, as everybody else writes them.
_STATES = {
    "IDLE": "Idle",
    "CONNECT": "Connect",
    "ACTIVE": "Active",
    "OPENSENT": "OpenSent",
    "OPENCONFIRM": "OpenConfirm",
    "ESTABLISHED": "Established",
}
ROUTES_AT_MOST = 10_000


def peers(rib: Rib, states: Mapping[str, SessionState]) -> Answer:
    """Every configured peer, by name."""
    found = [_peer(peer, states.get(peer.address)) for peer in rib.peers.values()]
    return {"peers": sorted(found, key=lambda peer: str(peer["name"]))}


def _peer(peer: RibPeer, state: SessionState | None) -> Answer:
    options, session = peer.options, peer.session
    restart = session.restart if session else None
    return {
        "address": peer.address,
        "name": options.name,
        "kind": options.kind,
        "state": _STATES.get(state.state, state.state) if state else "Idle",
        "since": state.since if state else 0.0,
        "remote_as": options.remote_as,
        "local_as": options.local_as,
        "hold_time_s": state.hold_time_s if state else 0,
        "last_error": state.last_error if state else "",
        "received": peer.received(),
        "sent": peer.advertised(),
        "stale": sum(len(stale) for stale in peer.stale.values()),
        "families": [family.name for family in session.families] if session else [],
        "router_id": address_text(session.router_id) if session else "",
        "graceful_restart_s": restart.restart_time_s if restart else 0,
        "rr_client": options.rr_client,
        "updates_received": peer.counters.updates,
        "updates_malformed": peer.counters.malformed,
        "last_malformed": peer.counters.last_malformed,
    }


def routes(rib: Rib, *, family: str = "", limit: int = 1000) -> Answer:
    """The selected paths of every prefix, at most `limit` prefixes."""
    limit = max(0, min(limit, ROUTES_AT_MOST))
    tables = [rib.tables[f] for f in FAMILIES if family in ("", f.name)]
    if not tables:
        raise ValidationError.of("family", family, "must be ipv4 or ipv6")
    total = sum(len(table.selected) for table in tables)
    entries = (
        (table.family, nlri, paths) for table in tables for nlri, paths in table.selected.items()
    )
    found = [
        {"cidr": text(of, nlri), "paths": [path_answer(path) for path in paths]}
        for of, nlri, paths in islice(entries, limit)
    ]
    return {"routes": found, "total": total, "truncated": total > len(found)}


def tables(rib: Rib) -> Answer:
    """Sizes, and who hears what together: for the state dump."""
    found: Answer = {"unreachable": sorted(map(address_text, rib.next_hops.unreachable))}
    for family, table in rib.tables.items():
        groups = [
            {
                "key": str(group.key),
                "sent": len(group.sent),
                "log_messages": len(group.records),
                "log_bytes": group.log_bytes,
                "behind": {s.source.name: len(s.pending) for s in group.streams if s.pending},
                "peers": [stream.source.name for stream in group.streams],
            }
            for group in table.groups.values()
        ]
        sizes = {"candidates": len(table.candidates), "selected": len(table.selected)}
        found[family.name] = {**sizes, "groups": groups}
    return found


def route(rib: Rib, writer: RouteWriter | None, cidr: str) -> Answer:
    """One prefix: every path, which are used and why the others are not, and the kernel's route."""
    family, nlri = _prefix(cidr)
    table = rib.tables[family]
    selected = table.selected.get(nlri, ())
    found = []
    for path in table.candidates.get(nlri, ()):
        answer = path_answer(path)
        answer["selected"] = path in selected
        answer["best"] = bool(selected) and path is selected[0]
        answer["reachable"] = path.attributes.next_hop not in rib.next_hops.unreachable
        found.append(answer)
    for path in _refused(rib, family, nlri, {id(p.source) for p in table.candidates.get(nlri, ())}):
        answer = path_answer(path)
        peer = rib.peers[path.source.address]
        mask = table.policy.classifier.classify(nlri)
        answer["refused"] = explain.imported(table.policy, peer.options.filters, path, mask)
        found.append(answer)
    if not found:
        raise NotFound(cidr)
    found.sort(key=lambda answer: (not answer.get("best"), not answer.get("selected")))
    return {"cidr": text(family, nlri), "paths": found, "kernel": _kernel(writer, family, nlri)}


def explanation(rib: Rib, writer: RouteWriter | None, cidr: str, address: str = "") -> Answer:
    """A route with the `outcome` of each path, and which peers (or the one) hear it and why."""
    answer = route(rib, writer, cidr)
    family, nlri = _prefix(cidr)
    why = explain.outcomes(rib.tables[family].candidates.get(nlri, ()), rib.next_hops.unreachable)
    shown = {(path.source.name, address_text(path.source.address)): why[path] for path in why}
    for path in answer["paths"]:
        path["outcome"] = path.get("refused") or shown[path["from"], path["peer"]]
    asked = [_peer_at(rib, address)] if address else rib.peers.values()
    told = []
    for peer in sorted(asked, key=lambda peer: peer.options.name):
        hears, reason = _hears(rib, peer, family, nlri)
        told.append({"peer": peer.address, "name": peer.options.name, "told": hears, "why": reason})
    return {**answer, "peers": told}


def _hears(rib: Rib, peer: RibPeer, family: Family, nlri: Nlri) -> explain.Decision:
    if peer.session is None:
        return False, "no session"
    stream = peer.streams.get(family)
    if stream is None:
        return False, f"the session carries no {family.name}"
    table = rib.tables[family]
    selected = table.selected.get(nlri)
    if not selected:
        return False, "no path is usable"
    if selected[0].source is peer.source:
        return False, "the best path came from it"
    mask = table.policy.classifier.classify(nlri)
    return explain.told(table.policy, stream.group.exporter, selected[0], mask)


def _refused(rib: Rib, family: Family, nlri: Nlri, candidates: set[int]) -> Iterator[Path]:
    for peer in rib.peers.values():
        path = peer.adj_in[family].get(nlri)
        if path is not None and id(peer.source) not in candidates:
            yield path


def received(rib: Rib, address: str) -> Answer:
    """What a peer told us, before the import policy."""
    peer = _peer_at(rib, address)
    found = [
        {"cidr": text(family, nlri), "stale": nlri in peer.stale[family], **path_answer(path)}
        for family in FAMILIES
        for nlri, path in islice(peer.adj_in[family].items(), ROUTES_AT_MOST)
    ]
    return {"peer": peer.address, "routes": found}


def advertised(rib: Rib, address: str) -> Answer:
    """What a peer has been told (or is about to be)."""
    peer = _peer_at(rib, address)
    found = []
    for family, stream in peer.streams.items():
        for nlri, out in islice(stream.group.sent.items(), ROUTES_AT_MOST):
            if out.source is not peer.source:
                found.append({"cidr": text(family, nlri), **attributes_answer(out.attributes)})
    return {"peer": peer.address, "routes": found}


def path_answer(path: Path) -> Answer:
    answer: Answer = {"from": path.source.name, "peer": address_text(path.source.address)}
    if path.local is not None:
        answer["local"] = path.local.kind
        answer["interface"] = path.local.interface
    return {**answer, **attributes_answer(path.attributes)}


def attributes_answer(attributes: PathAttributes) -> Answer:
    return {
        "next_hop": address_text(attributes.next_hop),
        "as_path": _as_path(attributes.as_path),
        "origin": _ORIGINS[attributes.origin],
        "local_pref": attributes.local_pref,
        "med": attributes.med,
        "communities": [f"{value >> 16}:{value & 0xFFFF}" for value in attributes.communities],
        "large_communities": [":".join(map(str, item)) for item in attributes.large_communities],
        "originator_id": address_text(attributes.originator_id or b""),
        "cluster_list": [address_text(item) for item in attributes.cluster_list],
    }


def _as_path(path: AsPath) -> str:
    parts = []
    for segment in path:
        shown = " ".join(map(str, segment.asns))
        parts.append(f"{{{shown}}}" if segment.kind == AS_SET else shown)
    return " ".join(parts)


def _kernel(writer: RouteWriter | None, family: Family, nlri: Nlri) -> Answer | None:
    spec = writer.installed.get((family, nlri)) if writer is not None else None
    if spec is None:
        return None
    return {
        "type": spec.type.name.lower(),
        "metric": spec.metric,
        "next_hops": [
            {"gateway": hop.gateway, "ifindex": hop.ifindex, "onlink": hop.is_onlink}
            for hop in spec.nexthops
        ],
    }


def _prefix(cidr: str) -> tuple[Family, Nlri]:
    try:
        return parse(cidr)
    except ValueError as err:
        raise ValidationError.of("cidr", cidr, str(err)) from err


def _peer_at(rib: Rib, address: str) -> RibPeer:
    try:
        peer = rib.peers.get(peer_key(address))
    except ConfigError as err:
        raise ValidationError.of("peer", address, "not an address") from err
    if peer is None:
        raise NotFound(f"peer {address}")
    return peer
