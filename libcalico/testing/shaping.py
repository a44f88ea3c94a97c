"""Traffic control for tests: qdiscs and redirections on the links of a FakeKernel.

Layer: testing. Satisfies felix.dataplane.ports.ShapingPort by shape; never imports felix.

What it refuses, as observed on Linux 6.18: a bucket in place of another program's qdisc (EEXIST),
without burst or queue, or with a peak rate that is not above the rate (EINVAL); anything on an
interface that does not exist (ENODEV). What stands on an interface goes with it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from libcalico.errors import ProgrammingFailed
from libcalico.netlink import IngressFilter, Link, Qdisc, TokenBucket
from libcalico.netlink.qdisc import INGRESS, INGRESS_HANDLE, ROOT

HANDLE, PRIORITY = 0xCA110000, 0xCA11


class StepLike(Protocol):
    @property
    def operation(self) -> str: ...
    @property
    def ifname(self) -> str: ...
    @property
    def bucket(self) -> TokenBucket | None: ...
    @property
    def target(self) -> str: ...
    @property
    def mtu_bytes(self) -> int: ...
    @property
    def is_whole(self) -> bool: ...


class LinksLike(Protocol):
    def all_links(self) -> list[Link]: ...
    def add_link(self, name: str, *, mtu_bytes: int = 0, kind: str = "") -> int: ...
    def delete_link(self, name: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Image:
    links: tuple[Link, ...]
    qdiscs: tuple[Qdisc, ...]
    filters: tuple[IngressFilter, ...]


@dataclass(slots=True)
class FakeShaping:
    """`steps` are the accepted ones; `refuse` makes an operation fail until it is taken out."""

    links: LinksLike
    roots: dict[int, Qdisc] = field(default_factory=dict)
    hooks: dict[int, Qdisc] = field(default_factory=dict)
    filters: list[IngressFilter] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    refuse: dict[str, int] = field(default_factory=dict)
    reads: int = 0

    async def read_shaping(self) -> Image:
        self._maybe_refuse("read", "")
        self.reads += 1
        links = self.links.all_links()
        present = {link.ifindex for link in links}
        qdiscs = [q for q in (*self.roots.values(), *self.hooks.values()) if q.ifindex in present]
        filters = [one for one in self.filters if one.ifindex in present]
        return Image(tuple(links), tuple(qdiscs), tuple(filters))

    async def write_shaping(
        self, chains: Sequence[Sequence[StepLike]]
    ) -> Mapping[int, ProgrammingFailed]:
        refused = {}
        for index, chain in enumerate(chains):
            try:
                for step in chain:
                    self._step(step)
            except ProgrammingFailed as err:
                refused[index] = err
        return refused

    def put_root(self, ifname: str, kind: str, handle: int) -> None:
        """Another program's."""
        ifindex = self._need(ifname)
        self.roots[ifindex] = Qdisc(ifindex, kind, handle, ROOT)

    def put_filter(self, ifname: str, kind: str, priority: int) -> None:
        """Another program's."""
        ifindex = self._need(ifname)
        self.hooks.setdefault(ifindex, Qdisc(ifindex, "ingress", INGRESS_HANDLE, INGRESS))
        self.filters.append(IngressFilter(ifindex, kind, priority))

    def bucket(self, ifname: str) -> TokenBucket | None:
        root = self.roots.get(self._find(ifname))
        return None if root is None else root.bucket

    def target(self, ifname: str) -> str:
        """Where what comes in is sent by us; "" for nowhere."""
        names = {link.ifindex: link.name for link in self.links.all_links()}
        mine = [f for f in self.filters if f.ifindex == self._find(ifname) and f.target]
        return names.get(mine[0].target, "gone") if mine else ""

    # ------------------------------------------------------------------------------ inside

    def _step(self, step: StepLike) -> None:
        self._maybe_refuse(step.operation, step.ifname)
        ifindex = self._find(step.ifname)
        if step.operation == "set bucket":
            self._set_bucket(self._need(step.ifname), step)
        elif step.operation == "clear bucket":
            if ifindex in self.roots and self.roots[ifindex].handle == HANDLE:
                del self.roots[ifindex]
        elif step.operation == "add ifb":
            if not ifindex:
                self.links.add_link(step.ifname, mtu_bytes=step.mtu_bytes, kind="ifb")
        elif step.operation == "delete ifb":
            if ifindex:
                self.links.delete_link(step.ifname)
        elif step.operation == "redirect":
            self._redirect(self._need(step.ifname), self._need(step.target))
        else:
            assert step.operation == "clear redirect", step.operation
            self._clear_redirect(ifindex, is_whole=step.is_whole)
        self.steps.append(f"{step.operation} {step.ifname}")

    def _set_bucket(self, ifindex: int, step: StepLike) -> None:
        bucket, root = step.bucket, self.roots.get(ifindex)
        assert bucket is not None, "a bucket to set"
        if root is not None and root.handle not in (0, HANDLE):
            raise _refusal(step.operation, step.ifname, errno.EEXIST)
        if not (bucket.rate and bucket.burst_ticks and bucket.limit_bytes) or (
            bucket.peak_rate and bucket.peak_rate <= bucket.rate
        ):
            raise _refusal(step.operation, step.ifname, errno.EINVAL)
        self.roots[ifindex] = Qdisc(ifindex, "tbf", HANDLE, ROOT, bucket)

    def _redirect(self, ifindex: int, target: int) -> None:
        self._clear_redirect(ifindex, is_whole=False)
        self.hooks.setdefault(ifindex, Qdisc(ifindex, "ingress", INGRESS_HANDLE, INGRESS))
        self.filters.append(IngressFilter(ifindex, "u32", PRIORITY, target))

    def _clear_redirect(self, ifindex: int, *, is_whole: bool) -> None:
        others = [f for f in self.filters if (f.ifindex, f.priority) != (ifindex, PRIORITY)]
        self.filters = others
        if is_whole and not [one for one in others if one.ifindex == ifindex]:
            self.hooks.pop(ifindex, None)

    def _find(self, ifname: str) -> int:
        """0 for no such interface."""
        return next((x.ifindex for x in self.links.all_links() if x.name == ifname), 0)

    def _need(self, ifname: str) -> int:
        ifindex = self._find(ifname)
        if not ifindex:
            raise _refusal("traffic control", ifname, errno.ENODEV)
        return ifindex

    def _maybe_refuse(self, operation: str, key: str) -> None:
        if operation in self.refuse:
            raise _refusal(operation, key, self.refuse[operation])


def _refusal(operation: str, key: str, number: int) -> ProgrammingFailed:
    return ProgrammingFailed(operation, key, number, os.strerror(number))
