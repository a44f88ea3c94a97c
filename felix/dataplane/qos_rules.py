"""Packet rates, connection limits and DSCP marks of the workloads that have some.

Layer: felix.dataplane. A part of endpoint_rules_mgr, which says who holds an interface; pushes into
the nft driver's wanted ruleset.

  G1  a map, and the rule that looks it up, exist while an interface has an entry in it;
  G2  an endpoint that is not active has no limits: nothing of it passes anyway.
"""

from __future__ import annotations

from felix.dataplane.nft_wanted import WantedRuleset
from felix.intent import NO_QOS, QosControls, WorkloadEndpointUpdate
from felix.rules import qos, static
from felix.rules.chain import ifname_bytes, jump
from felix.rules.qos import DSCP_MAP, PACKET_RATE_MAPS, limits_of
from felix.rules.sets import MapValue, SetSpec
from felix.rules.settings import RuleSettings

DIRECTIONS = ("out", "in")


class QosRules:
    """Remembers the controls of every interface that has some."""

    def __init__(self, wanted: WantedRuleset, settings: RuleSettings) -> None:
        self._wanted, self._settings = wanted, settings
        self._controls: dict[str, QosControls] = {}
        self._rated: dict[str, set[str]] = {direction: set() for direction in DIRECTIONS}
        self._marked: dict[int, set[str]] = {}

    def settle(self, ifname: str, endpoint: WorkloadEndpointUpdate | None) -> None:
        """This endpoint holds the interface from now on; None: nobody does."""
        before = self._controls.pop(ifname, NO_QOS)
        after = NO_QOS if endpoint is None or not endpoint.active else endpoint.qos
        if after != NO_QOS:
            self._controls[ifname] = after
        if before == after:
            return
        for direction in DIRECTIONS:
            self._settle_packet_rate(ifname, direction, after)
            self._settle_connections(ifname, direction, after)
        if before.dscp != after.dscp:
            self._settle_dscp(ifname, before.dscp, after.dscp)

    def connections_chain(self, ifname: str, direction: str) -> str:
        """The chain that counts connections, for the endpoint's chain to jump to; "" for none."""
        controls = self._controls.get(ifname, NO_QOS)
        if not limits_of(controls, direction).connections:
            return ""
        return qos.connections_chain_name(direction, ifname)

    def _settle_packet_rate(self, ifname: str, direction: str, controls: QosControls) -> None:
        limits, rated = limits_of(controls, direction), self._rated[direction]
        spec, name = PACKET_RATE_MAPS[direction], qos.packet_rate_chain_name(direction, ifname)
        had_any = bool(rated)
        if limits.packets_per_s:
            rated.add(ifname)
            self._wanted.want_chain(qos.packet_rate_chain(direction, ifname, limits))
            self._want_map(spec, is_new=not had_any)
            self._wanted.want_entry(spec.name, ifname_bytes(ifname), MapValue(jump(name)))
        elif ifname in rated:
            rated.discard(ifname)
            self._wanted.want_entry(spec.name, ifname_bytes(ifname), None)
            self._wanted.drop_chain(name)
        if had_any != bool(rated):
            chain = static.policing_chain(direction, self._settings, has_rates=bool(rated))
            self._wanted.want_chain(chain)
            if not rated:
                self._wanted.drop_set(spec.name)

    def _settle_connections(self, ifname: str, direction: str, controls: QosControls) -> None:
        limits = limits_of(controls, direction)
        if limits.connections:
            self._wanted.want_chain(qos.connections_chain(direction, ifname, limits))
        else:
            self._wanted.drop_chain(qos.connections_chain_name(direction, ifname))

    def _settle_dscp(self, ifname: str, before: int | None, after: int | None) -> None:
        had_any = bool(self._marked)
        if before is not None:
            self._marked[before].discard(ifname)
        if after is not None:
            self._marked.setdefault(after, set()).add(ifname)
            self._wanted.want_chain(qos.dscp_chain(after))
            self._want_map(DSCP_MAP, is_new=not had_any)
            mark = MapValue(jump(qos.dscp_chain_name(after)))
            self._wanted.want_entry(DSCP_MAP.name, ifname_bytes(ifname), mark)
        else:
            self._wanted.want_entry(DSCP_MAP.name, ifname_bytes(ifname), None)
        if before is not None and not self._marked[before]:
            del self._marked[before]
            self._wanted.drop_chain(qos.dscp_chain_name(before))
        if had_any and not self._marked:
            self._wanted.drop_chain(qos.DSCP_BASE)
            self._wanted.drop_set(DSCP_MAP.name)
        elif self._marked and not had_any:
            self._wanted.want_chain(qos.dscp_base_chain(self._settings))

    def _want_map(self, spec: SetSpec, *, is_new: bool) -> None:
        if is_new:
            # An element the kernel refuses costs one workload its limit; closing the users of the
            # map would cost every workload its traffic.
            self._wanted.want_set(spec, isolates_elements=True)

    def dump(self) -> dict[str, object]:
        return {ifname: repr(controls) for ifname, controls in sorted(self._controls.items())}
