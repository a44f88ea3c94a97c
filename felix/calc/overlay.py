"""Local endpoints ahead of the datastore: what the CNI agent knows before its echo comes back.

Layer: felix.calc, pure. Used by graph.py, between the syncer and everything else; the promises are
P1 and P2 of cni/ports.py.

For one key, what the graph is told:

                pin                     confirm(r)              update, revision >= r
    datastore ──────► pinned endpoint ─────────────► the same ───────────────────────► datastore
        │ ▲                 │                            │
        │ │ update newer    │ retract                    │ retract
        ▼ │ than hidden     ▼                            ▼
      hidden: absent, until the syncer has something newer than what was retracted

  E1  a pinned endpoint stands, whatever the syncer delivers or leaves out of a re-list, until it is
      retracted, or confirmed at r and the syncer has delivered revision r (or newer) of that key;
  E2  a retracted endpoint is absent, though the datastore may still show it, until the syncer
      delivers something newer than what was known when it was retracted;
  E3  only an update of the key itself ends a hold. IN_SYNC does not: the list it closes may have
      been read before the agent's write, or be of other kinds only;
  E4  without pins and retractions the overlay changes nothing.

A key is of one node for ever: its name begins with the node's, and an object that says otherwise is
invalid (reference/datamodel.md 1.7). So only the endpoints of this node are remembered here.

What E3 costs: an endpoint that somebody else deletes before our syncer has seen it once, while the
watch is interrupted, stays until the runtime's DEL retracts it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from libcalico.model import WorkloadEndpoint
from libcalico.model.keys import ResourceKey
from libcalico.syncer.api import Update


@dataclass(frozen=True, slots=True)
class _Hold:
    """Why the datastore is not believed for one key.

    `endpoint` None: hidden. `revision` None: not confirmed, nothing ends it but a call.
    """

    endpoint: WorkloadEndpoint | None
    revision: int | None

    def ends_with(self, update: Update) -> bool:
        if self.revision is None:
            return False
        if self.endpoint is None:
            return update.revision > self.revision  # E2
        return update.revision >= self.revision  # E1


class EndpointOverlay:
    def __init__(self, node: str) -> None:
        self._node = node
        self._hold_by_key: dict[ResourceKey, _Hold] = {}
        # The syncer's word for held keys and for the endpoints of this node: what a release shows,
        # and what a retraction hides.
        self._latest: dict[ResourceKey, Update] = {}

    def on_update(self, key: ResourceKey, update: Update) -> Update:
        """The syncer's update -> what the graph is to believe of that key."""
        hold = self._hold_by_key.get(key)
        if hold is not None or self._is_local(update.value):
            self._latest[key] = update
        else:
            self._latest.pop(key, None)
        if hold is None:
            return update
        if hold.ends_with(update):
            return self._release(key)
        return replace(update, value=hold.endpoint, error=None)

    def pin(self, key: ResourceKey, endpoint: WorkloadEndpoint) -> Update:
        """Believe in `endpoint` from now on (E1). A new pin replaces an old one."""
        self._hold_by_key[key] = _Hold(endpoint, None)
        return Update(key, endpoint, self._revision(key))

    def pinned(self, key: ResourceKey) -> WorkloadEndpoint | None:
        hold = self._hold_by_key.get(key)
        return None if hold is None else hold.endpoint

    def is_echoed(self, key: ResourceKey) -> bool:
        """Whether the datastore has said of a pinned endpoint what governs it: the same labels and
        profiles. True for what is not pinned."""
        hold = self._hold_by_key.get(key)
        if hold is None or hold.endpoint is None:
            return True
        latest = self._latest.get(key)
        if latest is None or not isinstance(latest.value, WorkloadEndpoint):
            return False
        said, pinned = latest.value, hold.endpoint
        return (
            said.metadata.labels == pinned.metadata.labels
            and said.spec.profiles == pinned.spec.profiles
            and said.spec.service_account_name == pinned.spec.service_account_name
        )

    def confirm(self, key: ResourceKey, revision: int) -> Update | None:
        """The pinned endpoint was written at `revision`. None: nothing becomes visible yet.

        Of an endpoint that was retracted meanwhile, the write is hidden too.
        """
        hold = self._hold_by_key.get(key)
        if hold is None:
            return None
        hold = replace(hold, revision=max(revision, hold.revision or 0))
        self._hold_by_key[key] = hold
        latest = self._latest.get(key)
        if latest is not None and hold.ends_with(latest):
            return self._release(key)  # the echo was faster than the answer to the write
        return None

    def retract(self, key: ResourceKey) -> Update | None:
        """Believe that the endpoint is gone, though its delete may not have come back yet (E2).

        None: this node had no such endpoint, nothing changes.
        """
        hold = self._hold_by_key.pop(key, None)
        latest = self._latest.get(key)
        if hold is None and latest is None:
            return None
        confirmed = 0 if hold is None or hold.revision is None else hold.revision
        shown = latest.revision if latest is not None and self._is_local(latest.value) else 0
        if not (confirmed or shown):
            return self._forget(key)  # pinned, and never written as far as we know
        known = max(confirmed, shown)
        self._hold_by_key[key] = _Hold(None, known)
        return Update(key, None, known)

    def held_keys(self) -> frozenset[ResourceKey]:
        return frozenset(self._hold_by_key)

    def dump(self) -> dict[str, object]:
        return {
            f"{key.namespace}/{key.name}": {
                "state": "hidden" if hold.endpoint is None else "pinned",
                "revision": hold.revision,
            }
            for key, hold in sorted(self._hold_by_key.items())
        }

    def _release(self, key: ResourceKey) -> Update:
        """Let the datastore speak again."""
        del self._hold_by_key[key]
        return self._forget(key)

    def _forget(self, key: ResourceKey) -> Update:
        """The syncer's word for a key that is no longer held, kept only while it is ours."""
        latest = self._latest.get(key, Update(key, None, 0))
        if not self._is_local(latest.value):
            self._latest.pop(key, None)
        return latest

    def _revision(self, key: ResourceKey) -> int:
        latest = self._latest.get(key)
        return 0 if latest is None else latest.revision

    def _is_local(self, value: object) -> bool:
        return isinstance(value, WorkloadEndpoint) and value.spec.node == self._node
