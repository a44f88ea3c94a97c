"""Which BGP sessions a node should have: the mesh and every BGPPeer that concerns it.

Layer: pure. Used by confd.context.

Semantics follow Calico (reference/bgp.md 6; confd client.go updatePeersV1):
  P1  the mesh has every other node with an address of the family, unless it is switched off, this
      node is a route reflector, or that node is one;
  P2  a peer without `node` and `nodeSelector` is global and wins over a node-specific peer of the
      same address and port; a node never peers with one of its own addresses;
  P3  `peerSelector` makes one session per matching node and family; with reversePeering Auto (the
      default) the selected nodes peer back;
  P4  of two nodes in the mesh the one with the smaller address (compared as text, as Calico does)
      connects, the other waits; the same holds for global peers that are nodes;
  P5  we reflect to an iBGP peer when we have a cluster id and it has none or another one;
  P6  a session whose password is not to be found is left out, and nothing of lower precedence takes
      its place: Calico would run it without a password. `secretKeyRef.optional` allows that.
An unset asNumber of a peerIP means the AS number of the node that owns the address, or else the
cluster's: a router's operator expects iBGP then.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from confd.view import DatastoreView
from libcalico.errors import InvalidInput
from libcalico.model import BGPConfiguration, Node
from libcalico.model.bgp import BGPConfigurationSpec, BGPPassword, BGPPeerSpec
from libcalico.model.scalars import seconds
from libcalico.selector import parse

DEFAULT_AS = 64512
DEFAULT_PORT = 179
DEFAULT_RESTART_S = 120
DEFAULT_HOLD_S = 90
# RFC 4271 4.2: zero, or at least three seconds.
MIN_HOLD_S = 3

Secrets = Callable[[str, str], str | None]


@dataclass(frozen=True, slots=True)
class Session:
    """One neighbour. `kind` is mesh, node or global; times in seconds; `ttl_security` hops.

    `reachable_by` is the gateway of a static route to it. `withheld` says why it must not run
    although it is wanted (P6); sessions() has none of those."""

    address: str
    port: int
    kind: str
    remote_as: int
    local_as: int
    local_address: str
    passive: bool = False
    password: str | None = None
    hold_s: int = DEFAULT_HOLD_S
    restart_s: int = DEFAULT_RESTART_S
    ttl_security: int = 0
    cluster_id: str = ""
    remote_cluster_id: str = ""
    next_hop_mode: str = "Auto"
    keep_original_next_hop: bool = False
    filters: tuple[str, ...] = ()
    allowed_local_as: int = 0
    is_calico_node: bool = False
    reachable_by: str = ""
    withheld: str = ""

    @property
    def name(self) -> str:
        """Calico's protocol name: Mesh_10_0_0_2, Node_…, Global_…, with the port if not 179."""
        suffix = "" if self.port == DEFAULT_PORT or self.kind == "mesh" else f"_port_{self.port}"
        return f"{self.kind.capitalize()}_{self.address.translate(_TO_NAME)}{suffix}"

    @property
    def is_ibgp(self) -> bool:
        return self.remote_as == self.local_as

    @property
    def rr_client(self) -> bool:
        return bool(self.cluster_id) and self.is_ibgp and self.remote_cluster_id != self.cluster_id

    @property
    def version(self) -> int:
        return 6 if ":" in self.address else 4


_TO_NAME = str.maketrans(".:", "__")


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What BGP needs to know of a node; addresses without prefix length, "" = none."""

    name: str
    ipv4: str
    ipv6: str
    as_number: int
    cluster_id: str
    port: int

    def address(self, version: int) -> str:
        return self.ipv4 if version == 4 else self.ipv6


class PeerCalculator:
    """Computes the sessions of `node_name`; `secrets(name, key)` looks passwords up."""

    def __init__(self, view: DatastoreView, node_name: str, secrets: Secrets) -> None:
        self._view = view
        self._secrets = secrets
        self.warnings: list[str] = []
        self.settings = _settings(view.bgp_configuration("default"))
        self._nodes = view.nodes()
        self.facts = {name: self._facts(name, node) for name, node in self._nodes.items()}
        self.me = self.facts.get(node_name)

    def sessions(self) -> tuple[Session, ...]:
        """Sorted by name. Empty while the node has no BGP address."""
        if self.me is None or not (self.me.ipv4 or self.me.ipv6):
            return ()
        chosen: dict[tuple[str, int], Session] = {}
        # Order is precedence: explicit peers before the mesh, global before node-specific (P2).
        for session in (*self._explicit("global"), *self._explicit("node"), *self._mesh()):
            if session.address not in (self.me.ipv4, self.me.ipv6):
                chosen.setdefault((session.address, session.port), session)
        for session in chosen.values():
            if session.withheld:
                self.warnings.append(f"{session.name} is left out: {session.withheld}")
        running = (session for session in chosen.values() if not session.withheld)
        return tuple(sorted(running, key=lambda session: session.name))

    # --- facts --------------------------------------------------------------------------------

    def _facts(self, name: str, node: Node) -> NodeFacts:
        bgp = node.spec.bgp
        own = _settings(self._view.bgp_configuration(f"node.{name}"))
        default_as = self.settings.as_number or DEFAULT_AS
        return NodeFacts(
            name=name,
            ipv4=self._host(name, bgp.ipv4_address) if bgp else "",
            ipv6=self._host(name, bgp.ipv6_address) if bgp else "",
            as_number=(bgp.as_number if bgp else None) or default_as,
            cluster_id=(bgp.route_reflector_cluster_id if bgp else None) or "",
            port=own.listen_port or self.settings.listen_port or DEFAULT_PORT,
        )

    def _host(self, node: str, interface: str | None) -> str:
        """ "192.0.2.11/24" -> "192.0.2.11" in canonical form; "" for nothing, or nothing usable."""
        if not interface:
            return ""
        try:
            return str(ipaddress.ip_interface(interface).ip)
        except ValueError as err:
            self.warnings.append(f"Node({node}): {err}")
            return ""

    def _base(self, address: str, port: int, *, kind: str, remote_as: int) -> Session | None:
        """A session with our side filled in; None when we have no address of the family."""
        assert self.me is not None
        local = self.me.address(6 if ":" in address else 4)
        if not local:
            return None
        return Session(
            address=address,
            port=port,
            kind=kind,
            remote_as=remote_as,
            local_as=self.me.as_number,
            local_address=local,
            cluster_id=self.me.cluster_id,
        )

    # --- the mesh (P1) ------------------------------------------------------------------------

    def _mesh(self) -> Iterator[Session]:
        assert self.me is not None
        if self.settings.node_to_node_mesh_enabled is False or self.me.cluster_id:
            return
        password, withheld = self._password(self.settings.node_mesh_password)
        restart_s = self._mesh_restart_s()
        for other in self.facts.values():
            if other.name == self.me.name or other.cluster_id:
                continue
            for address in filter(None, (other.ipv4, other.ipv6)):
                base = self._base(address, other.port, kind="mesh", remote_as=other.as_number)
                if base is not None:
                    yield replace(
                        base,
                        passive=address > base.local_address,
                        password=password,
                        withheld=withheld,
                        restart_s=restart_s,
                        is_calico_node=True,
                    )

    def _mesh_restart_s(self) -> int:
        try:
            return _restart_s(self.settings.node_mesh_max_restart_time)
        except InvalidInput as err:
            self.warnings.append(f"BGPConfiguration(default): nodeMeshMaxRestartTime: {err}")
            return DEFAULT_RESTART_S

    # --- BGPPeer objects (P2, P3) -------------------------------------------------------------

    def _explicit(self, kind: str) -> Iterator[Session]:
        for name, peer in self._view.bgp_peers():
            spec = peer.spec
            is_global = not spec.node and not spec.node_selector
            if spec.local_workload_selector or is_global != (kind == "global"):
                continue
            try:
                yield from self._of_peer(kind, spec)
            except (InvalidInput, ValueError) as err:
                self.warnings.append(f"BGPPeer({name}): {err}")

    def _of_peer(self, kind: str, spec: BGPPeerSpec) -> Iterator[Session]:
        assert self.me is not None
        is_local = self._has_peer(spec, self.me.name)
        if spec.peer_selector:
            remotes = self._selected(spec.peer_selector)
            if is_local:
                yield from self._to_nodes(kind, spec, remotes)
            if spec.reverse_peering != "Manual" and self.me.name in remotes:
                locals_ = {n: f for n, f in self.facts.items() if self._has_peer(spec, n)}
                yield from self._to_nodes(kind, spec, locals_)
        elif is_local and spec.peer_ip:
            address, port = split_peer_ip(spec.peer_ip)
            owner = next((f for f in self.facts.values() if address in (f.ipv4, f.ipv6)), None)
            fallback = owner.as_number if owner else self.settings.as_number or DEFAULT_AS
            base = self._base(address, port, kind=kind, remote_as=spec.as_number or fallback)
            if base is not None:
                is_passive = kind == "global" and owner is not None and address > base.local_address
                session = replace(base, is_calico_node=owner is not None, passive=is_passive)
                allowed = max(spec.num_allowed_local_as_numbers or 0, 0)
                yield self._with_options(replace(session, allowed_local_as=allowed), spec)

    def _has_peer(self, spec: BGPPeerSpec, node: str) -> bool:
        if spec.node:
            return spec.node == node
        return not spec.node_selector or node in self._selected(spec.node_selector)

    def _selected(self, selector: str) -> dict[str, NodeFacts]:
        parsed = parse(selector)
        return {
            name: self.facts[name]
            for name, node in self._nodes.items()
            if parsed.evaluate(node.metadata.labels)
        }

    def _to_nodes(
        self, kind: str, spec: BGPPeerSpec, nodes: Mapping[str, NodeFacts]
    ) -> Iterator[Session]:
        assert self.me is not None
        for other in nodes.values():
            if other.name == self.me.name:
                continue
            for address in filter(None, (other.ipv4, other.ipv6)):
                base = self._base(address, other.port, kind=kind, remote_as=other.as_number)
                if base is not None:
                    session = replace(base, remote_cluster_id=other.cluster_id, is_calico_node=True)
                    yield self._with_options(session, spec)

    def _with_options(self, session: Session, spec: BGPPeerSpec) -> Session:
        keepalive_s = seconds(spec.keepalive_time) if spec.keepalive_time else 0
        hold_s = max(round(3 * keepalive_s), MIN_HOLD_S) if keepalive_s else DEFAULT_HOLD_S
        password, withheld = self._password(spec.password)
        return replace(
            session,
            local_as=spec.local_as_number or session.local_as,
            local_address="" if spec.source_address == "None" else session.local_address,
            password=password,
            withheld=withheld,
            hold_s=hold_s,
            restart_s=_restart_s(spec.max_restart_time),
            ttl_security=spec.ttl_security or 0,
            next_hop_mode=spec.next_hop_mode or "Auto",
            reachable_by=_gateway(spec.reachable_by, session.version),
            keep_original_next_hop=spec.keep_original_next_hop and not spec.next_hop_mode,
            filters=spec.filters,
        )

    def _password(self, password: BGPPassword | None) -> tuple[str | None, str]:
        """The password, and why the session must not run without one (P6)."""
        reference = password.secret_key_ref if password else None
        if reference is None:
            return None, ""
        found = self._secrets(reference.name or "", reference.key)
        if found or reference.optional:
            return found or None, ""
        return None, f"its password, key {reference.key} of secret {reference.name}, is not found"


def _settings(configuration: BGPConfiguration | None) -> BGPConfigurationSpec:
    return configuration.spec if configuration else BGPConfigurationSpec()


def _gateway(text: str | None, version: int) -> str:
    """reachableBy; one of the other family leads nowhere, as in Calico. Errors: ValueError."""
    gateway = ipaddress.ip_address(text) if text else None
    return str(gateway) if gateway is not None and gateway.version == version else ""


def _restart_s(duration: str | None) -> int:
    return round(seconds(duration)) if duration else DEFAULT_RESTART_S


def split_peer_ip(text: str) -> tuple[str, int]:
    """ "192.0.2.1", "192.0.2.1:1179" or "[2001:db8::1]:1179" -> canonical address and port.

    Errors: ValueError with the reason."""
    host, port = text, str(DEFAULT_PORT)
    if text.startswith("["):
        host, bracket, tail = text[1:].partition("]")
        if not bracket or (tail and not tail.startswith(":")):
            raise ValueError(f"peerIP {text!r} is not an address or [address]:port")
        port = tail[1:] or port
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"peerIP {text!r}: port must be between 1 and 65535")
    return str(ipaddress.ip_address(host)), int(port)
