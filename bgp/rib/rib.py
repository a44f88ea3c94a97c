"""The front door of the RIB: configuration, local routes, sessions and UPDATEs in; changes out.

Layer: pure; time is an argument. Used by bgp.speaker (sessions, messages) and bgp.daemon (rest).

    configure / set_local / session_up / receive / session_down / set_reachable / tick
        └─► adj-rib-in per peer ─► candidates per prefix ─► dirty set
    flush ─► selected paths ─┬─► changes, for the kernel
                             └─► update groups, whose messages the peers take

Invariants (check()):
  I1  the outcome depends on the state (configuration, local routes, adj-ribs-in, reachability), not
      on order or number of events: flush looks at dirty prefixes once, however often they changed;
  I2  candidates hold exactly the accepted path of every peer that announced the prefix;
  I3  selected[n] is select(candidates[n]) for every prefix that is not dirty;
  I4  a configuration that does not compile changes nothing (ConfigError before the first write).

Source: RFC 4271 9, RFC 4456, RFC 4724, RFC 7606; bgp reference 4.2.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from bgp.rib.adj_rib_out import Stream
from bgp.rib.admission import Identity, accepted, as_received, missing, peer_key
from bgp.rib.attributes import Malformed
from bgp.rib.deferral import Deferral
from bgp.rib.export import GroupKey
from bgp.rib.next_hops import NextHops
from bgp.rib.nlri import FAMILIES, IPV4, Family, Nlri, is_martian, pack_address, split
from bgp.rib.path import LOCAL, LocalRoute, Path
from bgp.rib.peer import STALE_AFTER_RECONNECT_S, RibPeer, Session
from bgp.rib.policy import Policy, policy_inputs
from bgp.rib.table import Change, Table
from bgp.rib.update import Fields, locate, parse
from libcalico.model.speaker import PeerOptions, SpeakerConfig

LocalRoutes = dict[tuple[Family, Nlri], LocalRoute]


class Rib:
    """Everything one speaker knows. See the module for the flow."""

    def __init__(self, config: SpeakerConfig, *, now: float) -> None:
        """Errors: ConfigError."""
        self.config = config
        self.policy = Policy(config)
        self.identity = Identity.of(config)
        self.tables = {family: Table(family, self.policy.families[family]) for family in FAMILIES}
        self.peers: dict[bytes, RibPeer] = {}
        self.next_hops = NextHops()
        self.deferral = Deferral(now)
        self.workloads: LocalRoutes = {}
        self.configured: LocalRoutes = {}
        self.has_new_output = False
        self._apply(config, self.policy, self.identity)

    # -- configuration

    def configure(self, config: SpeakerConfig) -> None:
        """Take over a new speaker file. Errors: ConfigError, and nothing has changed (I4)."""
        identity = Identity.of(config)
        policy = self.policy
        # Who is a client decides who hears what: answers remembered under the old roles are void.
        if policy_inputs(config) != policy_inputs(self.config) or _roles(config) != _roles(
            self.config
        ):
            policy = Policy(config)
        for options in config.peers:
            peer_key(options.address)
        self._apply(config, policy, identity)

    def _apply(self, config: SpeakerConfig, policy: Policy, identity: Identity) -> None:
        is_new_policy = policy is not self.policy
        recheck = is_new_policy or identity != self.identity
        self.config, self.policy, self.identity = config, policy, identity
        wanted = {peer_key(options.address): options for options in config.peers}
        for key in [key for key in self.peers if key not in wanted]:
            self._remove_peer(key)
        for key, options in wanted.items():
            self._apply_peer(key, options, recheck=recheck)
        self._apply_local(policy.local_routes(config))
        if is_new_policy:
            for family, table in self.tables.items():
                table.use_policy(policy.families[family])
        self._regroup()

    def _apply_peer(self, key: bytes, options: PeerOptions, *, recheck: bool) -> None:
        peer = self.peers.get(key)
        if peer is not None and not _is_same_neighbour(peer.options, options):
            self._remove_peer(key)
            peer = None
        if peer is None:
            peer = self.peers[key] = RibPeer.of(options, key)
        old, peer.options = peer.options, options
        peer.source.is_client = options.rr_client
        recheck = recheck or old.allowed_local_as != options.allowed_local_as
        for family in FAMILIES:
            chain = self.policy.families[family].import_chain(options.filters)
            before, peer.import_chains[family] = peer.import_chains[family], chain
            if recheck or chain != before:
                self._readmit(peer, family)

    def _readmit(self, peer: RibPeer, family: Family) -> None:
        """Judge again everything the peer ever said: no refresh is needed, we kept it."""
        routes = peer.adj_in[family]
        for path in set(routes.values()):
            path.ineligible = self.identity.objection(peer, path.attributes)
            path.generation = None
        for nlri, path in routes.items():
            self._admit(peer, family, nlri, path)

    def _remove_peer(self, key: bytes) -> None:
        peer = self.peers.pop(key)
        peer.session = None  # who still holds it sees that it is over
        self._close_streams(peer)
        for family in FAMILIES:
            self._drop_routes(peer, family, list(peer.adj_in[family]))
        self.deferral.forget(peer)

    def _apply_local(self, configured: LocalRoutes) -> None:
        for key in [key for key in self.configured if key not in configured]:
            del self.configured[key]
            self._renew_local(*key)
        self.configured = configured
        # A workload's preference depends on the normal metric, which is configuration.
        for key in (*configured, *self.workloads):
            self._renew_local(*key)

    def _regroup(self) -> None:
        """What peers hear together may have changed: move their streams."""
        for peer in self.peers.values():
            for family, stream in peer.streams.items():
                assert peer.session is not None, "streams are a session's"
                key = self._group_key(peer, peer.session, family)
                if stream.group.key != key:
                    stream.move(self.tables[family].group(key))
        for table in self.tables.values():
            table.drop_empty_groups()

    # -- routes of this node

    def set_local(self, family: Family, nlri: Nlri, route: LocalRoute | None) -> None:
        """A workload's route, as the kernel has it; None: gone. Repeating changes nothing."""
        if route is None:
            self.workloads.pop((family, nlri), None)
        else:
            self.workloads[family, nlri] = route
        self._renew_local(family, nlri)

    def _renew_local(self, family: Family, nlri: Nlri) -> None:
        # A block of one address is configured and a workload: the kernel's route says more.
        route = self.workloads.get((family, nlri)) or self.configured.get((family, nlri))
        table = self.tables[family]
        if route is None:
            table.drop(nlri, LOCAL)
            return
        attributes = self.policy.families[family].local_attributes(route)
        present = table.candidates.get(nlri, ())
        ours = next((path for path in present if path.local is not None), None)
        if ours is None or (ours.local, ours.attributes) != (route, attributes):
            table.put(nlri, Path(LOCAL, attributes, local=route))

    # -- sessions

    def session_up(self, peer: RibPeer, session: Session, *, now: float) -> None:
        """A session reached Established."""
        assert peer.session is None, "one session at a time"
        # The router id breaks ties and the AS width is the session's: intern anew.
        peer.source.router_id = session.router_id
        peer.paths.clear()
        peer.session = session
        peer.eor_received = set()
        kept = session.restart.forwarding if session.restart else frozenset()
        for family in FAMILIES:
            if family not in kept or family not in session.families:
                self._sweep(peer, family)
        peer.stale_deadline = None
        if any(peer.stale.values()):
            restart_s = session.restart.restart_time_s if session.restart else 0
            peer.stale_deadline = now + max(STALE_AFTER_RECONNECT_S, restart_s)
        for family in session.families:
            group = self.tables[family].group(self._group_key(peer, session, family))
            peer.streams[family] = Stream(group, peer.source)
        self.deferral.session_up(peer, now)
        self._hold_end_of_rib(peer)

    def session_down(self, peer: RibPeer, *, may_restart: bool, now: float) -> None:
        """The session is gone. `may_restart`: nobody said NOTIFICATION, so RFC 4724 applies."""
        session = peer.session
        if session is None:
            return
        peer.session = None
        self._close_streams(peer)
        peer.eor_received = set()
        restart = session.restart if may_restart and peer.options.restart_time_s > 0 else None
        for family in FAMILIES:
            self._sweep(peer, family)
            routes = list(peer.adj_in[family])
            if restart is not None and family in restart.families:
                peer.stale[family] = set(routes)
            else:
                self._drop_routes(peer, family, routes)
        peer.stale_deadline = None
        if restart is not None and any(peer.stale.values()):
            peer.stale_deadline = now + restart.restart_time_s
        self.deferral.session_down(peer)

    def _close_streams(self, peer: RibPeer) -> None:
        for stream in peer.streams.values():
            stream.close()
        peer.streams = {}
        for table in self.tables.values():
            table.drop_empty_groups()

    def _sweep(self, peer: RibPeer, family: Family) -> None:
        """What is still stale was not confirmed: it goes."""
        stale = peer.stale[family]
        if stale:
            peer.stale[family] = set()
            self._drop_routes(peer, family, stale)

    def _drop_routes(self, peer: RibPeer, family: Family, nlris: Iterable[Nlri]) -> None:
        table, adj_in = self.tables[family], peer.adj_in[family]
        for nlri in nlris:
            if adj_in.pop(nlri, None) is not None:
                table.drop(nlri, peer.source)

    # -- UPDATEs

    def receive(self, peer: RibPeer, body: bytes) -> None:
        """One UPDATE, without its header. Errors: WireError, the session must be reset."""
        session = peer.session
        assert session is not None, "an UPDATE needs a session"
        peer.counters.updates += 1
        start, end = locate(body)
        if start == 4 and end < len(body):
            # The common case, without looking into attributes that were seen before.
            path = peer.paths.get(body[4:end])
            if path is not None:
                self._announce(peer, IPV4, split(IPV4, body, end, len(body)), path)
                return
        self._receive_fields(peer, session, parse(body))

    def _receive_fields(self, peer: RibPeer, session: Session, fields: Fields) -> None:
        if fields.end_of_rib is not None:
            self._end_of_rib(peer, fields.end_of_rib)
            return
        for family, nlris in fields.withdrawn:
            self._withdraw(peer, family, nlris)
        for family, nlris, next_hop in fields.announced:
            if family not in session.families or not nlris:
                continue
            found = self._intern(peer, session, fields, (family, next_hop))
            if isinstance(found, Malformed):
                # RFC 7606 2: treat-as-withdraw.
                peer.counters.malformed += 1
                peer.counters.last_malformed = found.reason
                self._withdraw(peer, family, nlris)
            else:
                self._announce(peer, family, nlris, found)

    def _intern(
        self, peer: RibPeer, session: Session, fields: Fields, reach: tuple[Family, bytes]
    ) -> Path | Malformed:
        if fields.malformed:
            return Malformed(fields.malformed)
        next_hop = reach[1]
        key: object = (fields.plain, reach) if next_hop else fields.plain
        known = peer.paths.get(key)
        if known is not None:
            return known
        absent = missing(fields.codes, is_classic=not next_hop)
        decoded = absent or session.decode(fields.plain)
        if not isinstance(decoded, Malformed):
            decoded = as_received(peer, decoded)
        if isinstance(decoded, Malformed):
            return decoded
        if next_hop:
            decoded = replace(decoded, next_hop=next_hop)
        objection = self.identity.objection(peer, decoded)
        path = peer.paths[key] = Path(peer.source, decoded, ineligible=objection)
        self.next_hops.note(decoded.next_hop)
        return path

    def _announce(self, peer: RibPeer, family: Family, nlris: list[Nlri], path: Path) -> None:
        adj_in, stale = peer.adj_in[family], peer.stale[family]
        table = self.tables[family]
        candidates, dirty, alone = table.candidates, table.dirty, path.alone
        is_plain = not path.ineligible and not peer.import_chains[family]
        for nlri in nlris:
            if stale:
                stale.discard(nlri)
            before = adj_in.get(nlri)
            if before is path:
                continue
            if before is None and is_martian(family, nlri):
                peer.counters.martians += 1
                continue
            adj_in[nlri] = path
            if is_plain and nlri not in candidates:
                candidates[nlri] = alone
                dirty[nlri] = None
            else:
                self._admit(peer, family, nlri, path)

    def _admit(self, peer: RibPeer, family: Family, nlri: Nlri, path: Path) -> None:
        """Make what the import policy leaves of the path the peer's candidate."""
        found = accepted(peer, self.policy.families[family], nlri, path)
        if found is None:
            self.tables[family].drop(nlri, peer.source)
        else:
            self.tables[family].put(nlri, found)

    def _withdraw(self, peer: RibPeer, family: Family, nlris: Iterable[Nlri]) -> None:
        peer.stale[family].difference_update(nlris)
        self._drop_routes(peer, family, nlris)

    def _end_of_rib(self, peer: RibPeer, family: Family) -> None:
        peer.eor_received.add(family)
        self._sweep(peer, family)
        if not any(peer.stale.values()):
            peer.stale_deadline = None
        self.deferral.end_of_rib(peer, family)

    # -- reachability and time

    def set_reachable(self, next_hop: bytes, *, reachable: bool) -> None:
        """Routes over an unreachable next hop are never selected (RFC 4271 9.1.2.1)."""
        if self.next_hops.set_reachable(next_hop, reachable=reachable):
            for table in self.tables.values():
                table.touch_next_hop(next_hop)

    def tick(self, now: float) -> None:
        """Timers: stale routes whose time is up, and the end of the restart deferral."""
        for peer in self.peers.values():
            if peer.stale_deadline is not None and now >= peer.stale_deadline:
                peer.stale_deadline = None
                for family in FAMILIES:
                    self._sweep(peer, family)
        if self.deferral.tick(now, self.peers.values()):
            self.has_new_output = True
            for peer in self.peers.values():
                self._hold_end_of_rib(peer)
        self.next_hops.prune(self.peers.values())

    def _hold_end_of_rib(self, peer: RibPeer) -> None:
        held = self.deferral.holds_end_of_rib and self._hears_learned_routes(peer)
        for stream in peer.streams.values():
            stream.eor_is_held = held

    def _hears_learned_routes(self, peer: RibPeer) -> bool:
        """Whether what we tell it depends on what others tell us."""
        if not peer.source.is_ibgp or peer.source.is_client:
            return True
        return any(p.source.is_client or not p.source.is_ibgp for p in self.peers.values())

    # -- output

    def flush(self) -> list[Change]:
        """Select again what is dirty, tell the groups; returns what changed, for the kernel."""
        changes: list[Change] = []
        for table in self.tables.values():
            if table.flush(self.next_hops.unreachable, changes):
                self.has_new_output = True
        return changes

    def take_new_output(self) -> bool:
        """Whether peers have something to take that they had not before the last call."""
        found, self.has_new_output = self.has_new_output, False
        return found

    def _group_key(self, peer: RibPeer, session: Session, family: Family) -> GroupKey:
        options, source = peer.options, peer.source
        own = session.local_address
        if len(own) != family.bits >> 3:
            own = self.identity.own_address(family)
        mode = options.next_hop_mode
        if options.keep_original_next_hop and mode == "Auto" and not source.is_ibgp:
            mode = "Keep"
        cluster_id = self.identity.cluster_id
        if options.rr_client and options.cluster_id:
            cluster_id = pack_address(options.cluster_id)
        return GroupKey(
            family=family,
            is_ibgp=source.is_ibgp,
            is_client=source.is_client,
            local_as=options.local_as,
            asn4=session.asn4,
            own_address=own,
            next_hop_mode=mode,
            cluster_id=cluster_id,
            extended_next_hop=session.extended_next_hop and family is IPV4,
            filters=options.filters,
        )

    def check(self) -> None:
        """Assert the invariants; flush first."""
        for family, table in self.tables.items():
            table.check(self.next_hops.unreachable)
            for peer in self.peers.values():
                assert peer.stale[family] <= peer.adj_in[family].keys()
                for nlri, path in peer.adj_in[family].items():
                    found = accepted(peer, self.policy.families[family], nlri, path)
                    assert (found is not None) is any(
                        candidate.source is peer.source
                        for candidate in table.candidates.get(nlri, ())
                    ), "I2"


def _roles(config: SpeakerConfig) -> set[tuple[str, bool]]:
    return {(options.address, options.rr_client) for options in config.peers}


def _is_same_neighbour(old: PeerOptions, new: PeerOptions) -> bool:
    """Another AS makes it another neighbour: its routes were judged by it."""
    return (old.remote_as, old.local_as) == (new.remote_as, new.local_as)
