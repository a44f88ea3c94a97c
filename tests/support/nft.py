"""One node's nftables dataplane for tests: managers and driver over a fake or a real kernel.

node = FakeNode()
await node.push(allow_all_profile(), workload("a", "cali1", "10.65.0.2/32"))
assert node.fake.forward(Packet("10.65.0.2", "8.8.8.8"), "cali1", "eth0") == "accept"
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from felix.dataplane.manager import ApplyResult, InterfaceState
from felix.dataplane.nft_wiring import nft_dataplane
from felix.intent import (
    HostEndpointUpdate,
    Intent,
    PolicyUpdate,
    ProfileUpdate,
    TierPolicies,
    WorkloadEndpointUpdate,
)
from felix.kernel.nft import NftKernel
from felix.rules.settings import RuleSettings
from libcalico.compute.rules import Action, CompiledRule, EntityMatch, PortRange
from libcalico.model.keys import ResourceKey
from libcalico.testing.clock import FakeClock
from libcalico.testing.fakenft import FakeNft

ALLOW = CompiledRule(Action.ALLOW, 0)
DENY = CompiledRule(Action.DENY, 0)
PROFILE = "kns.default"


def policy_key(name: str, namespace: str = "default") -> ResourceKey:
    kind = "NetworkPolicy" if namespace else "GlobalNetworkPolicy"
    return ResourceKey(kind, name, namespace)


def workload_key(name: str) -> ResourceKey:
    return ResourceKey("WorkloadEndpoint", name, "default")


def rule(
    action: Action = Action.ALLOW, index: int = 0, *, ports: Iterable[int] = (), **fields: object
) -> CompiledRule:
    """A rule; `ports` are destination ports, other fields are CompiledRule's."""
    made = CompiledRule(action, index, **fields)  # type: ignore[arg-type]
    numbers = tuple(PortRange(port, port) for port in ports)
    return replace(made, destination=replace(made.destination, ports=numbers)) if numbers else made


def from_nets(*nets: str) -> EntityMatch:
    return EntityMatch(nets=nets)


def policy(
    name: str,
    ingress: Iterable[CompiledRule] = (),
    egress: Iterable[CompiledRule] = (),
    *,
    tier: str = "default",
) -> PolicyUpdate:
    return PolicyUpdate(policy_key(name), tier, _numbered(ingress), _numbered(egress))


def _numbered(rules: Iterable[CompiledRule]) -> tuple[CompiledRule, ...]:
    return tuple(replace(one, index=index) for index, one in enumerate(rules))


def allow_all_profile(name: str = PROFILE) -> ProfileUpdate:
    return ProfileUpdate(name, (ALLOW,), (ALLOW,))


def tier(
    *policies: str, ingress: Iterable[str] = (), name: str = "default", default_deny: bool = True
) -> TierPolicies:
    """`policies` govern both directions, `ingress` that one only."""
    both = tuple(map(policy_key, policies))
    return TierPolicies(name, (*both, *map(policy_key, ingress)), both, default_deny)


def workload(
    name: str,
    interface: str,
    *nets: str,
    tiers: Iterable[TierPolicies] = (),
    profiles: Iterable[str] = (PROFILE,),
) -> WorkloadEndpointUpdate:
    return WorkloadEndpointUpdate(
        workload_key(name), interface, "", tuple(nets), tuple(profiles), tuple(tiers)
    )


def host_key(name: str) -> ResourceKey:
    return ResourceKey("HostEndpoint", name)


def host_endpoint(
    name: str,
    interface: str = "",
    *,
    ips: Iterable[str] = (),
    profiles: Iterable[str] = (),
    **stages: Iterable[TierPolicies],
) -> HostEndpointUpdate:
    """`stages`: tiers, untracked_tiers, pre_dnat_tiers, forward_tiers."""
    found = {"tiers": (), **{name: tuple(tiers) for name, tiers in stages.items()}}
    return HostEndpointUpdate(host_key(name), interface, tuple(ips), tuple(profiles), **found)


class Node:
    """Managers and driver over any kernel."""

    def __init__(self, kernel: NftKernel, settings: RuleSettings | None = None) -> None:
        self.clock = FakeClock()
        self.kernel = kernel
        made = nft_dataplane(kernel, settings or RuleSettings(), clock=self.clock)
        self.table, self.managers, self.host = made.table, made.managers, made.host

    def tell(self, *intents: Intent) -> None:
        """Hand intents to the managers, as the loop does, without writing anything."""
        for intent in intents:
            for manager in self.managers:
                manager.on_intent(intent)
        for manager in self.managers:
            manager.complete_deferred_work()
        self.table.wanted.settle()
        self.table.wanted.check()

    def interface(self, name: str, *addresses: str) -> None:
        """There is an interface of that name, with these addresses from now on."""
        self.host.on_interface(name, InterfaceState(name, 7, True, True, addresses))

    async def push(self, *intents: Intent) -> ApplyResult:
        """Hand over and apply."""
        self.tell(*intents)
        result = await self.table.apply()
        self.table.wanted.check()
        return result


class FakeNode(Node):
    """A node whose kernel is FakeNft. `restarted()` is the same kernel under a fresh process."""

    def __init__(
        self, settings: RuleSettings | None = None, *, fake: FakeNft | None = None
    ) -> None:
        self.fake = fake or FakeNft()
        super().__init__(NftKernel(self.fake), settings)

    def restarted(self, settings: RuleSettings | None = None) -> FakeNode:
        return FakeNode(settings, fake=self.fake)

    def chain_names(self) -> set[str]:
        return {name for table in self.fake.tables.values() for name in table.chains}

    def chain_named(self, beginning: str) -> str:
        """The one chain whose name begins so."""
        (found,) = [name for name in self.chain_names() if name.startswith(beginning)]
        return found
