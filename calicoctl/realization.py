"""On how many nodes a policy is in force as it is stored, and why not on the others.

Layer: pure. Used by calicoctl.commands.get, from what the nodes say of themselves
(libcalico.model.realization).

  RC1  a node counts as long as its report stands in the datastore: it has a lease, and ends with
       the node;
  RC2  what a node does not say for certain counts as not realized (RZ2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from libcalico.model.keys import ResourceKey
from libcalico.model.realization import PolicyRealization

_SHOWN_NODES = 3


@dataclass(frozen=True, slots=True)
class Realized:
    """`missing`: (node, reason) of those that do not enforce it, by node."""

    nodes: int
    missing: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        """3/3, or 1/3 (n2: refused: ...; n3: behind, at revision 7)"""
        text = f"{self.nodes - len(self.missing)}/{self.nodes}"
        shown = [f"{node}: {why}" for node, why in self.missing[:_SHOWN_NODES]]
        if len(self.missing) > _SHOWN_NODES:
            shown.append(f"and {len(self.missing) - _SHOWN_NODES} more")
        return f"{text} ({'; '.join(shown)})" if shown else text


class Realization:
    """The reports of all nodes."""

    def __init__(self, by_node: Mapping[str, PolicyRealization]) -> None:
        self._by_node = {
            node: (
                said,
                {
                    ResourceKey(item.kind, item.name, item.namespace): item.reason
                    for item in said.exceptions
                },
            )
            for node, said in sorted(by_node.items())
        }

    def of(self, policy: ResourceKey, revision: int) -> Realized:
        """`revision`: the policy's mod revision."""
        reasons = (
            (node, _why_not(policy, revision, said, exceptions.get(policy)))
            for node, (said, exceptions) in self._by_node.items()
        )
        missing = tuple((node, why) for node, why in reasons if why is not None)
        return Realized(len(self._by_node), missing)


def _why_not(
    policy: ResourceKey, revision: int, said: PolicyRealization, exception: str | None
) -> str | None:
    reached = said.revisions.get(policy.kind, 0)
    if reached < revision:
        return f"behind, at revision {reached}"
    if exception is not None:
        return exception
    if said.unlisted:
        return f"unknown, {said.unlisted} problems are not listed"
    return None
