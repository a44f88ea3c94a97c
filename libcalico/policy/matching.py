"""Does a rule match a packet? Every clause in its own few lines.

Layer: pure, above policy.world. User: policy.evaluate.

All clauses of a rule must hold, any member of a list suffices; `not` clauses exclude. A clause
about HTTP is for layer 7. Here, where nobody can check it, it holds for Deny and for nothing else:
what was written to let some requests through must not let all of them through.

Source: reference/datamodel.md 3.4, 5.2, 7.3, 7.5, 7.6, 7.8.
"""

from __future__ import annotations

from typing import TypeGuard

from libcalico import net
from libcalico.model import EntityRule, ICMPFields, Rule
from libcalico.model.scalars import PortRange, parse_port, protocol_number
from libcalico.policy.packet import ICMP, ICMPV6, TCP, Packet
from libcalico.policy.world import Entity, World
from libcalico.selector import Selector, scope

_NO_ENTITY = EntityRule()


def matches(world: World, rule: Rule, namespace: str, packet: Packet) -> bool:
    """`namespace`: the policy's, "" for global policies and profiles."""
    return (
        _http(rule)
        and _version(rule, packet)
        and _protocol(rule, packet)
        and _icmp(rule, packet)
        and _Side(world, rule, namespace, packet, is_source=True).matches()
        and _Side(world, rule, namespace, packet, is_source=False).matches()
    )


def _http(rule: Rule) -> bool:
    return rule.http is None or rule.action == "Deny"


def _version(rule: Rule, packet: Packet) -> bool:
    return rule.ip_version in (None, packet.version)


def _protocol(rule: Rule, packet: Packet) -> bool:
    if rule.protocol is not None:
        number = protocol_number(rule.protocol)
        family = {ICMP: 4, ICMPV6: 6}.get(number, packet.version)
        if number != packet.protocol or family != packet.version:
            return False
    return rule.not_protocol is None or protocol_number(rule.not_protocol) != packet.protocol


def _icmp(rule: Rule, packet: Packet) -> bool:
    if _constrains(rule.icmp) and not _is_icmp(rule.icmp, packet):
        return False
    # A negated type with a code excludes the pair only.
    return not _constrains(rule.not_icmp) or not _is_icmp(rule.not_icmp, packet)


def _constrains(fields: ICMPFields | None) -> TypeGuard[ICMPFields]:
    """A clause without a type says nothing."""
    return fields is not None and fields.type is not None


def _is_icmp(fields: ICMPFields, packet: Packet) -> bool:
    return packet.icmp_type == fields.type and fields.code in (None, packet.icmp_code)


class _Side:
    """The source or the destination of one rule, against that side of one packet."""

    def __init__(
        self, world: World, rule: Rule, namespace: str, packet: Packet, *, is_source: bool
    ) -> None:
        self._world = world
        self._namespace = namespace
        self._packet = packet
        self._is_source = is_source
        self._entity = (rule.source if is_source else rule.destination) or _NO_ENTITY
        self._address = packet.source if is_source else packet.destination
        self._port = packet.source_port if is_source else packet.destination_port
        self._rule_protocol = TCP if rule.protocol is None else protocol_number(rule.protocol)
        self._selectors = scope.entity_selectors(self._entity, namespace)

    def matches(self) -> bool:
        return (
            self._nets()
            and self._not_nets()
            and self._selected()
            and self._ports()
            and self._not_ports()
            and self._services()
        )

    def _nets(self) -> bool:
        nets = self._entity.nets
        return not nets or any(self._inside(text) for text in nets)

    def _not_nets(self) -> bool:
        """Exceptions of the other family only keep the whole rule out of this one."""
        nets = [net.parse_cidr_or_ip(text) for text in self._entity.not_nets]
        if not nets:
            return True
        mine = [network for network in nets if network.version == self._packet.version]
        return bool(mine) and not any(self._address in network for network in mine)

    def _inside(self, text: str) -> bool:
        return self._address in net.parse_cidr_or_ip(text)

    def _selected(self) -> bool:
        positive, negative = self._selectors.positive, self._selectors.negative
        if positive is not None and not self._belongs_to(positive):
            return False
        return negative is None or not self._belongs_to(negative)

    def _belongs_to(self, selector: Selector) -> bool:
        """Whether anything that matches the selector owns the address."""
        return any(
            entity.owns(self._address)
            for entity in self._world.entities
            if selector.evaluate(entity.labels)
        )

    def _ports(self) -> bool:
        ports = self._entity.ports
        return not ports or any(self._is_port(port) for port in ports)

    def _not_ports(self) -> bool:
        return not any(self._is_port(port) for port in self._entity.not_ports)

    def _is_port(self, stored: int | str) -> bool:
        port = parse_port(stored)
        if isinstance(port, PortRange):
            return self._port is not None and port.first <= self._port <= port.last
        return self._is_named_port(port)

    def _is_named_port(self, name: str) -> bool:
        """An endpoint that matches the positive selector owns the address and offers the port."""
        if self._packet.protocol != self._rule_protocol:
            return False
        return any(
            entity.owns(self._address) and self._offers(entity, name)
            for entity in self._world.entities
            if self._selectors.positive is None or self._selectors.positive.evaluate(entity.labels)
        )

    def _offers(self, entity: Entity, name: str) -> bool:
        return any(
            port.name == name and port.protocol == self._rule_protocol and port.port == self._port
            for port in entity.ports
        )

    def _services(self) -> bool:
        """Sources by address only, destinations by address, protocol and port."""
        service = self._entity.services
        if service is None:
            return True
        key = (service.namespace or self._namespace, service.name or "")
        for address, protocol, port in self._world.services.get(key, ()):
            if address != self._address:
                continue
            if self._is_source or (protocol, port) == (self._packet.protocol, self._port):
                return True
        return False
