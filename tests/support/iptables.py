"""One node's iptables dataplane for tests: managers and driver over a fake or a real kernel.

node = FakeIptNode()
await node.push(allow_all_profile(), workload("a", "cali1", "10.65.0.2/32"))
assert node.fake.forward(Packet("10.65.0.2", "8.8.8.8"), "cali1", "eth0") == "accept"

Intents are made by tests.support.nft: they are the same for both dataplanes.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from felix.dataplane.ipt_table import DEFAULTS, IptOptions
from felix.dataplane.ipt_wiring import iptables_dataplane
from felix.dataplane.manager import ApplyResult, InterfaceState
from felix.intent import Intent
from felix.kernel.iptables import IptablesKernel, Runner, Variant
from felix.kernel.worker import KernelWorker
from felix.rules.settings import RuleSettings
from libcalico.testing.clock import FakeClock
from libcalico.testing.fakeiptables import FakeIptables

SETTINGS = RuleSettings(folds=False, guards_maps=False)


class InlineWorker(KernelWorker):
    """Runs everything where it is called: tests of decisions need no thread."""

    async def run(self, work: Any, *, items: int = 0) -> Any:
        return work()


class IptNode:
    """Managers and driver over any kernel."""

    def __init__(
        self,
        runner: Runner,
        settings: RuleSettings | None = None,
        *,
        options: IptOptions = DEFAULTS,
        variant: Variant = Variant.NFT,
    ) -> None:
        self.clock = FakeClock()
        self.kernel = IptablesKernel(runner, variant, InlineWorker())
        made = iptables_dataplane(self.kernel, settings or SETTINGS, options, clock=self.clock)
        self.table, self.managers, self.host = made.table, made.managers, made.host

    def tell(self, *intents: Intent) -> None:
        """Hand intents to the managers, as the loop does, without writing anything."""
        for intent in intents:
            for manager in self.managers:
                manager.on_intent(intent)
        for manager in self.managers:
            manager.complete_deferred_work()

    def interface(self, name: str, *addresses: str) -> None:
        """There is an interface of that name, with these addresses from now on."""
        self.host.on_interface(name, InterfaceState(name, 7, True, True, addresses))

    async def push(self, *intents: Intent) -> ApplyResult:
        """Hand over and apply."""
        self.tell(*intents)
        result = await self.table.apply()
        self.table.wanted.check()
        return result


class FakeIptNode(IptNode):
    """A node whose kernel is FakeIptables. `restarted()`: the same kernel, a fresh process."""

    def __init__(
        self,
        settings: RuleSettings | None = None,
        *,
        fake: FakeIptables | None = None,
        options: IptOptions = DEFAULTS,
    ) -> None:
        self.fake = fake or FakeIptables()
        self._options = options
        super().__init__(self.fake, settings, options=options)
        self.kernel._which = lambda name: name  # type: ignore[assignment]

    def restarted(self, settings: RuleSettings | None = None) -> FakeIptNode:
        return FakeIptNode(settings, fake=self.fake, options=self._options)

    def pushed(self, *intents: Intent) -> ApplyResult:
        return asyncio.run(self.push(*intents))


def with_settings(**fields: object) -> RuleSettings:
    return replace(SETTINGS, **fields)  # type: ignore[arg-type]
