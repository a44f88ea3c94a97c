"""The nft driver under everything at once: intents, restarts, vandals, refusals, lost answers.

Whatever happened, an apply that is left in peace ends with exactly the ruleset that a fresh node
would make from the present intents, and the next one writes nothing.
"""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from felix.dataplane.nft_port import TableImage
from felix.intent import (
    Intent,
    PolicyRemove,
    PolicyUpdate,
    ProfileRemove,
    SetDelta,
    SetRemove,
    SetUpdate,
    WorkloadEndpointRemove,
    WorkloadEndpointUpdate,
)
from felix.kernel.nft import NftKernel
from libcalico.compute.rules import Action, CompiledRule, EntityMatch, SetKind
from libcalico.errors import ProgrammingFailed
from libcalico.testing.fakenft import FakeNft
from tests.support import nft
from tests.support.nft import FakeNode

SET_IDS = st.sampled_from(["s:a", "s:b"])
MEMBERS = st.sets(st.sampled_from(["10.0.0.0/24", "10.0.0.1/32", "10.1.0.1/32", "fd00::1/128"]))
POLICIES = st.sampled_from(["p", "q", "r"])
WORKLOADS = st.sampled_from(["a", "b", "c"])
INTERFACES = st.sampled_from(["cali1", "cali2"])
RULES = st.lists(
    st.sampled_from(
        [
            CompiledRule(Action.ALLOW, 0, source=EntityMatch(sets=("s:a",))),
            CompiledRule(Action.DENY, 0, source=EntityMatch(not_sets=("s:b",))),
            CompiledRule(Action.PASS, 0, protocol=6),
            CompiledRule(Action.ALLOW, 0, source=EntityMatch(nets=("10.0.0.0/8", "11.0.0.0/8"))),
            CompiledRule(Action.LOG, 0),
        ]
    ),
    max_size=3,
)
NEW_RULE, NEW_SET, NEW_ELEMENT = 6, 9, 12


class NftConverges(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.fake = FakeNft()
        self.state: dict[object, Intent] = {}
        self.node = FakeNode(fake=self.fake)

    def teardown(self) -> None:
        self.node.kernel.close()

    def tell(self, *intents: Intent) -> None:
        self.node.tell(*intents)

    # ------------------------------------------------------------------------------- intents

    @rule(set_id=SET_IDS, members=MEMBERS, kind=st.sampled_from(list(SetKind)))
    def a_set_is_announced(self, set_id: str, members: set[str], kind: SetKind) -> None:
        if kind is SetKind.IP_PORT:
            members = {f"{member.split('/')[0]},tcp,80" for member in members}
        self._put(set_id, SetUpdate(set_id, kind, frozenset(members)))

    @rule(set_id=SET_IDS, members=MEMBERS)
    def a_set_changes(self, set_id: str, members: set[str]) -> None:
        known = self.state.get(set_id)
        if not isinstance(known, SetUpdate) or known.kind is not SetKind.NET:
            return
        added, removed = frozenset(members) - known.members, known.members - members
        self.state[set_id] = replace(known, members=frozenset(members))
        self.tell(SetDelta(set_id, added, frozenset(removed)))

    @rule(set_id=SET_IDS)
    def a_set_goes(self, set_id: str) -> None:
        if self.state.pop(set_id, None) is not None:
            self.tell(SetRemove(set_id))

    @rule(name=POLICIES, ingress=RULES, egress=RULES)
    def a_policy_is_written(self, name: str, ingress: list, egress: list) -> None:
        self._put(("policy", name), nft.policy(name, ingress, egress))

    @rule(name=POLICIES)
    def a_policy_goes(self, name: str) -> None:
        if self.state.pop(("policy", name), None) is not None:
            self.tell(PolicyRemove(nft.policy_key(name)))

    @rule(is_there=st.booleans())
    def the_profile(self, is_there: bool) -> None:
        if is_there:
            self._put("profile", nft.allow_all_profile())
        elif self.state.pop("profile", None) is not None:
            self.tell(ProfileRemove(nft.PROFILE))

    @rule(name=WORKLOADS, interface=INTERFACES, policies=st.lists(POLICIES, unique=True))
    def a_workload_comes(self, name: str, interface: str, policies: list[str]) -> None:
        tiers = (nft.tier(*policies),) if policies else ()
        address = f"10.65.0.{ord(name)}/32"
        self._put(("wep", name), nft.workload(name, interface, address, tiers=tiers))

    @rule(name=WORKLOADS)
    def a_workload_goes(self, name: str) -> None:
        if self.state.pop(("wep", name), None) is not None:
            self.tell(WorkloadEndpointRemove(nft.workload_key(name)))

    def _put(self, key: object, intent: Intent) -> None:
        self.state[key] = intent
        self.tell(intent)

    # -------------------------------------------------------------------------------- events

    @rule()
    def apply(self) -> None:
        asyncio.run(self.node.push())

    @rule()
    def restart(self) -> None:
        self.node.kernel.close()
        self.node = FakeNode(fake=self.fake)
        self.tell(*self._all())

    @rule(data=st.data())
    def somebody_breaks_something(self, data: st.DataObject) -> None:
        for table in self.fake.tables.values():
            chains = sorted(table.chains)
            if chains and data.draw(st.booleans()):
                name = data.draw(st.sampled_from(chains))
                table.chains[name] = replace(table.chains[name], rules=table.chains[name].rules[1:])
            members = sorted(name for name, found in table.sets.items() if found.elements)
            if members and data.draw(st.booleans()):
                table.sets[data.draw(st.sampled_from(members))].elements.clear()
        if data.draw(st.integers(0, 9)) == 0:
            self.fake.tables.clear()
        self.fake.touch()
        self.node.table.queue_resync("somebody was here")

    @rule(kind=st.sampled_from([NEW_RULE, NEW_SET, NEW_ELEMENT]), data=st.data())
    def the_kernel_refuses_something(self, kind: int, data: st.DataObject) -> None:
        names = [n for table in self.fake.tables.values() for n in (*table.chains, *table.sets)]
        ours = sorted(n for n in names if n.startswith(("set-", "policy-", "tier-", "dispatch")))
        if ours:
            self.fake.refuse(kind, data.draw(st.sampled_from(ours)), after=int(kind == NEW_RULE))
        asyncio.run(self.node.push())

    @rule()
    def an_answer_is_lost(self) -> None:
        receive = self.fake.receive

        def lose() -> bytes:
            self.fake.receive = receive  # type: ignore[method-assign]
            raise ProgrammingFailed("receive", "", errno.ENOBUFS)

        self.fake.receive = lose  # type: ignore[method-assign]
        asyncio.run(self.node.push())
        self.fake.receive = receive  # type: ignore[method-assign]

    @rule()
    def left_in_peace_it_converges(self) -> None:
        self.fake.allow()
        self.node.table.queue_resync("peace")
        result = asyncio.run(self.node.push())
        assert (result.failed, result.deferred) == (0, 0), result.error
        assert _image(self.fake) == self._expected()
        before = self.fake.commits
        self.node.table.queue_resync("again")
        asyncio.run(self.node.push())
        assert self.fake.commits == before, "a second apply wrote something"

    def _expected(self) -> TableImage:
        fresh = FakeNode()
        asyncio.run(fresh.push(*self._all()))
        fresh.kernel.close()
        return _image(fresh.fake)

    def _all(self) -> list[Intent]:
        order = (SetUpdate, PolicyUpdate, type(nft.allow_all_profile()), WorkloadEndpointUpdate)
        return sorted(self.state.values(), key=lambda intent: order.index(type(intent)))

    @invariant()
    def consistent(self) -> None:
        self.node.table.wanted.check()


def _image(fake: FakeNft) -> TableImage:
    """What a reading shows, without the generation and the comments of sets."""
    kernel = NftKernel(fake)
    image = asyncio.run(kernel.read())
    kernel.close()
    return replace(image, generation=0)


TestNftConverges = NftConverges.TestCase
TestNftConverges.settings = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
