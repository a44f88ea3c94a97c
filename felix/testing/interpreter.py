"""What a packet meets, read from a FakeDataplane: a kernel made of plain Python.

Layer: testing. It takes the contents of a FakeDataplane as the only truth and asks
`felix.rules.verdict` about them, with sets looked through member by member, so that intents can be
held against `libcalico.policy.evaluate`. Slow and obvious on purpose.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_network

from felix.intent import PolicyUpdate, ProfileUpdate
from felix.rules import verdict
from felix.testing.dataplane import Contents
from libcalico import net
from libcalico.compute.rules import CompiledRule
from libcalico.model.keys import ResourceKey
from libcalico.policy.evaluate import Outcome, Stage, Verdict
from libcalico.policy.packet import Direction, Packet


class _Read:
    """felix.rules.verdict.Intents."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents

    @property
    def policies(self) -> Mapping[ResourceKey, PolicyUpdate]:
        return self._contents.policies

    @property
    def profiles(self) -> Mapping[str, ProfileUpdate]:
        return self._contents.profiles

    def holds(self, set_id: str, address: net.Address) -> bool:
        return any(address in ip_network(text) for text in self._contents.members(set_id))

    def offers(self, set_id: str, member: str) -> bool:
        return member in self._contents.members(set_id)


def outcome(
    contents: Contents,
    endpoint: ResourceKey,
    direction: Direction,
    packet: Packet,
    *,
    stage: Stage = Stage.NORMAL,
) -> Outcome:
    """What the tiers and profiles of one endpoint say, at one stage."""
    return decide(contents, endpoint, direction, packet, stage=stage).outcome


def decide(
    contents: Contents,
    endpoint: ResourceKey,
    direction: Direction,
    packet: Packet,
    *,
    stage: Stage = Stage.NORMAL,
) -> Verdict:
    """The same with what decided."""
    found = contents.endpoints[endpoint]
    return verdict.decide(_Read(contents), found, direction, packet, stage=stage)


def matches(contents: Contents, rule: CompiledRule, packet: Packet) -> bool:
    return verdict.matches(_Read(contents), rule, packet)
