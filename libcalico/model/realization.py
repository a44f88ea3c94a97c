"""What one node says about the policies it enforces: the value of a PolicyRealizationKey.

Layer: libcalico.model, pure. Written by felix, read by calicoctl. Not a Calico format.

  RZ1  every policy of a kind whose mod revision is `revisions[kind]` or less is in force on the
       node as it is stored, or concerns nobody there, unless `exceptions` names it;
  RZ2  with `unlisted` exceptions that found no room nothing can be said of a policy that is not
       listed;
  RZ3  staged kinds are "in force" once their rules are computed: nothing of them is enforced.
"""

from __future__ import annotations

from msgspec import field

from libcalico.model.meta import Model


class PolicyException(Model, frozen=True, kw_only=True):
    """A policy that the node does not enforce as it is stored, and why."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    reason: str = ""


class PolicyRealization(Model, frozen=True, kw_only=True):
    """`revisions`: kind to etcd revision."""

    revisions: dict[str, int] = field(default_factory=dict)
    exceptions: tuple[PolicyException, ...] = ()
    unlisted: int = 0
