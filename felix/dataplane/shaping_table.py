"""Driver for bandwidth: token buckets on workload interfaces and on the ifbs behind them.

Layer: felix.dataplane. Fed by endpoint_mgr with the shape each interface should have; reconciles
through ShapingPort. What belongs to what, and how it is recognised, is in shaping.py.

Invariants:
  B1  a bucket that is right is not written again, nor is the redirection to it;
  B2  a root qdisc or an ingress filter that is not ours is never touched: the direction is left
      unlimited, which is said in the log and by `problem`; ours follows when the other has gone;
  B3  a redirection comes after the bucket it leads to, and goes before it: no packet is sent
      through an interface that is not there;
  B4  what is ours and not wanted goes, also ifbs of interfaces that no longer exist.

An ingress qdisc has no owner's mark. One that holds our filter alone goes with the filter; one
without any filter is nobody's and serves for ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from felix.dataplane.manager import NOTHING_DONE, ApplyResult
from felix.dataplane.ports import ShapingImage, ShapingPort, ShapingWrite
from felix.dataplane.shaping import (
    BUCKET_HANDLE,
    IFB_PREFIX,
    REDIRECT_PRIORITY,
    Shape,
    ifb_name,
)
from felix.deltatracker import DeltaTracker
from libcalico.errors import SuiteError
from libcalico.netlink import IngressFilter, Link, Qdisc, TokenBucket
from libcalico.netlink.qdisc import INGRESS, ROOT
from libcalico.runtime import log

LOG = log.get(__name__)

# Something of ours is there, and not as it should be.
_PARTIAL = TokenBucket(0, 0, 0)


class _Place(NamedTuple):
    """Where a bucket stands: on the workload's interface, or on its ifb."""

    is_ifb: bool
    ifname: str


class _Redirection(NamedTuple):
    """`target` is the ifindex it leads to; `is_alone`: the ingress qdisc holds nothing else."""

    source: str
    target: int
    is_alone: bool


@dataclass(slots=True)
class _Observed:
    """A reading, in our terms."""

    buckets: dict[_Place, TokenBucket] = field(default_factory=dict)
    foreign: dict[_Place, str] = field(default_factory=dict)
    # Redirections of ours by the ifb they should lead to.
    redirected: dict[str, _Redirection] = field(default_factory=dict)


class ShapingTable:
    name = "shaping"

    def __init__(self, port: ShapingPort, interface_prefixes: tuple[str, ...]) -> None:
        self._port, self._prefixes = port, interface_prefixes
        self._tracker: DeltaTracker[_Place, TokenBucket] = DeltaTracker()
        self._shapes: dict[str, Shape] = {}
        self._ifname_by_ifb: dict[str, str] = {}
        self._observed = _Observed()
        self._refusals: dict[_Place, str] = {}
        self._resync_reason = "start"

    # ------------------------------------------------------------------------------- wanted

    def set_shape(self, ifname: str, shape: Shape | None) -> None:
        """What this interface should have; None: no limit, or no interface."""
        if shape == self._shapes.get(ifname):
            return
        ifb = ifb_name(ifname)
        if shape is None:
            del self._shapes[ifname]
        else:
            self._shapes[ifname] = shape
            self._ifname_by_ifb[ifb] = ifname
        self._tracker.want(_Place(False, ifname), None if shape is None else shape.ingress)
        self._tracker.want(_Place(True, ifb), None if shape is None else shape.egress)
        for place in _places(ifname):
            self._refusals.pop(place, None)

    def forget_written(self, ifname: str) -> None:
        """The interface was made anew or is gone, and with it what stood on it."""
        if any(self._tracker.programmed(place) is not None for place in _places(ifname)):
            self.queue_resync(f"{ifname} was made anew")

    def queue_resync(self, reason: str) -> None:
        self._resync_reason = self._resync_reason or reason

    # ---------------------------------------------------------------------------- reconcile

    async def apply(self) -> ApplyResult:
        try:
            if self._resync_reason:
                await self._read()
            writes = dict(self._plan())
            if not writes:
                return ApplyResult(deferred=self._blocked_count()) if self._shapes else NOTHING_DONE
            return await self._write(writes)
        except SuiteError as err:
            LOG.warning("bandwidth could not be limited", error=str(err))
            self.queue_resync("an attempt failed")
            return ApplyResult(failed=1, error=str(err))

    async def _read(self) -> None:
        self._observed = _observe(await self._port.read_shaping(), self._prefixes)
        LOG.debug("token buckets read", reason=self._resync_reason)
        self._resync_reason = ""
        self._tracker.resync(self._observed.buckets)
        for place, reason in self._observed.foreign.items():
            if self._tracker.wanted(place) is not None:
                self._refuse(place, reason)

    def _plan(self) -> Iterator[tuple[_Place, list[ShapingWrite]]]:
        """The steps of each place that differs, deletions first."""
        for place in sorted(self._tracker.pending_deletions()):
            yield place, list(self._removal(place))
        updates = self._tracker.pending_updates()
        for place in sorted(updates):
            if place not in self._observed.foreign:  # B2
                yield place, list(self._change(place, updates[place]))

    def _removal(self, place: _Place) -> Iterator[ShapingWrite]:
        if not place.is_ifb:
            yield ShapingWrite("clear bucket", place.ifname)
            return
        redirected = self._observed.redirected.get(place.ifname)
        if redirected is not None:
            is_whole = redirected.is_alone
            yield ShapingWrite("clear redirect", redirected.source, is_whole=is_whole)
        yield ShapingWrite("delete ifb", place.ifname)

    def _change(self, place: _Place, bucket: TokenBucket) -> Iterator[ShapingWrite]:
        if not place.is_ifb:
            yield ShapingWrite("set bucket", place.ifname, bucket)
            return
        present = self._tracker.programmed(place)
        is_whole = present is not None and present != _PARTIAL
        source = self._ifname_by_ifb[place.ifname]
        if not is_whole:
            mtu_bytes = self._shapes[source].mtu_bytes
            yield ShapingWrite("add ifb", place.ifname, mtu_bytes=mtu_bytes)
        yield ShapingWrite("set bucket", place.ifname, bucket)
        if not is_whole:
            yield ShapingWrite("redirect", source, target=place.ifname)

    async def _write(self, writes: dict[_Place, list[ShapingWrite]]) -> ApplyResult:
        refused = await self._port.write_shaping(list(writes.values()))
        written = deleted = 0
        for index, place in enumerate(writes):
            if index in refused:
                self._refuse(place, str(refused[index]))
                continue
            bucket = self._tracker.wanted(place)
            self._confirm(place, bucket)
            written, deleted = written + (bucket is not None), deleted + (bucket is None)
        if refused:
            self.queue_resync("the kernel refused a part")
        first = str(refused[min(refused)]) if refused else ""
        return ApplyResult(written, deleted, len(refused), self._blocked_count(), error=first)

    def _confirm(self, place: _Place, bucket: TokenBucket | None) -> None:
        self._tracker.confirm(place, bucket)
        self._refusals.pop(place, None)
        if not place.is_ifb:
            return
        if bucket is None:
            self._observed.redirected.pop(place.ifname, None)
            if self._ifname_by_ifb.get(place.ifname) not in self._shapes:
                self._ifname_by_ifb.pop(place.ifname, None)
        else:
            source = self._ifname_by_ifb[place.ifname]
            self._observed.redirected.setdefault(place.ifname, _Redirection(source, 0, True))

    def _refuse(self, place: _Place, reason: str) -> None:
        """Log once per reason."""
        if self._refusals.get(place) != reason:
            ifname = self._ifname_by_ifb.get(place.ifname, place.ifname)
            direction = "egress" if place.is_ifb else "ingress"
            LOG.warning(
                "bandwidth is not limited", ifname=ifname, direction=direction, reason=reason
            )
        self._refusals[place] = reason

    def _blocked_count(self) -> int:
        return sum(self._tracker.is_dirty(place) for place in self._observed.foreign)

    # ---------------------------------------------------------------------------- questions

    def problem(self, ifname: str) -> str:
        """Why a limit of this interface is not in force; "" when all are."""
        for place in _places(ifname):
            if self._tracker.wanted(place) is not None and self._tracker.is_dirty(place):
                return self._refusals.get(place, "its bandwidth is not limited yet")
        return ""

    def dump(self) -> dict[str, object]:
        foreign = {place.ifname: reason for place, reason in self._observed.foreign.items()}
        refusals = {place.ifname: reason for place, reason in self._refusals.items()}
        return self._tracker.dump() | {"foreign": foreign, "refusals": refusals}


def _places(ifname: str) -> tuple[_Place, _Place]:
    return _Place(False, ifname), _Place(True, ifb_name(ifname))


# ------------------------------------------------------------------------------------- reading


def _observe(image: ShapingImage, prefixes: tuple[str, ...]) -> _Observed:
    observed = _Observed()
    roots = {qdisc.ifindex: qdisc for qdisc in image.qdiscs if qdisc.parent == ROOT}
    hooks = {qdisc.ifindex: qdisc for qdisc in image.qdiscs if qdisc.parent == INGRESS}
    for link in image.links:
        if link.name.startswith(prefixes):
            _observe_root(observed, link, roots.get(link.ifindex))
            filters = [one for one in image.filters if one.ifindex == link.ifindex]
            _observe_hook(observed, link, hooks.get(link.ifindex), filters)
    for link in image.links:
        if link.kind == "ifb" and link.name.startswith(IFB_PREFIX):
            _observe_ifb(observed, link, roots.get(link.ifindex))
    return observed


def _observe_root(observed: _Observed, link: Link, root: Qdisc | None) -> None:
    place = _Place(False, link.name)
    if root is None or not root.handle:
        return
    if root.handle == BUCKET_HANDLE:
        observed.buckets[place] = root.bucket or _PARTIAL
    else:
        observed.foreign[place] = f"{link.name} has a qdisc of another program: {_shown(root)}"


def _observe_hook(
    observed: _Observed, link: Link, hook: Qdisc | None, filters: list[IngressFilter]
) -> None:
    if hook is None:
        return
    place = _Place(True, ifb_name(link.name))
    ours = [one for one in filters if _is_ours(one)]
    others = [one for one in filters if not _is_ours(one)]
    if hook.kind != "ingress":
        observed.foreign[place] = f"{link.name} has a qdisc of another program: {_shown(hook)}"
    elif others:
        shown = f"{others[0].kind} of priority {others[0].priority}"
        observed.foreign[place] = f"{link.name} has an ingress filter of another program: {shown}"
    if ours:
        # Until its ifb is seen to be right, this redirection is half a thing.
        is_alone = hook.kind == "ingress" and len(filters) == 1
        observed.redirected[place.ifname] = _Redirection(link.name, ours[0].target, is_alone)
        observed.buckets[place] = _PARTIAL


def _observe_ifb(observed: _Observed, link: Link, root: Qdisc | None) -> None:
    redirected = observed.redirected.get(link.name)
    is_fed = redirected is not None and redirected.target == link.ifindex
    is_ours = root is not None and root.handle == BUCKET_HANDLE
    bucket = root.bucket if root is not None and is_ours and is_fed and link.is_up else None
    observed.buckets[_Place(True, link.name)] = bucket or _PARTIAL


def _is_ours(one: IngressFilter) -> bool:
    return one.kind == "u32" and one.priority == REDIRECT_PRIORITY


def _shown(qdisc: Qdisc) -> str:
    return f"{qdisc.kind} {qdisc.handle >> 16:x}:"
