"""Traffic control: token buckets, ifbs and the redirections to them.

Layer: felix.kernel (edge). Implements ShapingPort of felix.dataplane.ports over libcalico.netlink.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence

from felix.dataplane.ports import ShapingImage, ShapingWrite
from felix.dataplane.shaping import BUCKET_HANDLE, REDIRECT_PRIORITY
from felix.kernel.worker import KernelWorker
from libcalico.errors import ProgrammingFailed
from libcalico.netlink import (
    IngressFilter,
    LinkChange,
    NetlinkSocket,
    Request,
    add_ingress,
    add_redirect,
    change_link,
    create_link,
    delete_link,
    delete_qdisc,
    delete_redirect,
    get_link,
    list_ingress_filters,
    list_links,
    list_qdiscs,
    set_tbf,
)
from libcalico.netlink.qdisc import INGRESS, INGRESS_HANDLE, ROOT

# What a deletion wanted: no such interface, no such qdisc (or not ours), no such filter.
_ABSENT = frozenset({errno.ENODEV, errno.EINVAL, errno.ENOENT})


class KernelShaping:
    """ShapingPort. One socket, used only in the worker's thread."""

    def __init__(self, worker: KernelWorker, socket: NetlinkSocket) -> None:
        self._worker, self._socket = worker, socket
        self._steps: dict[str, Callable[[ShapingWrite], None]] = {
            "set bucket": self._set_bucket,
            "clear bucket": self._clear_bucket,
            "add ifb": self._add_ifb,
            "delete ifb": self._delete_ifb,
            "redirect": self._redirect,
            "clear redirect": self._clear_redirect,
        }

    async def read_shaping(self) -> ShapingImage:
        return await self._worker.run(self._read)

    async def write_shaping(
        self, chains: Sequence[Sequence[ShapingWrite]]
    ) -> Mapping[int, ProgrammingFailed]:
        return await self._worker.run(lambda: self._write(chains))

    def _read(self) -> ShapingImage:
        links = self._socket.query(list_links())
        qdiscs = self._socket.query(list_qdiscs())
        filters: list[IngressFilter] = []
        for qdisc in qdiscs:
            if qdisc.parent == INGRESS:
                filters += self._filters(qdisc.ifindex)
        return ShapingImage(tuple(links), tuple(qdiscs), tuple(filters))

    def _filters(self, ifindex: int) -> list[IngressFilter]:
        """Nothing when interface or qdisc went after they were listed."""
        try:
            return self._socket.query(list_ingress_filters(ifindex))
        except ProgrammingFailed as err:
            if err.errno in _ABSENT:
                return []
            raise

    def _write(self, chains: Sequence[Sequence[ShapingWrite]]) -> dict[int, ProgrammingFailed]:
        refused = {}
        for index, chain in enumerate(chains):
            refusal = self._write_chain(chain)
            if refusal is not None:
                refused[index] = refusal
        return refused

    def _write_chain(self, chain: Sequence[ShapingWrite]) -> ProgrammingFailed | None:
        for step in chain:
            try:
                self._steps[step.operation](step)
            except ProgrammingFailed as err:
                return ProgrammingFailed(step.operation, step.ifname, err.errno, err.detail)
        return None

    # -------------------------------------------------------------------------------- steps

    def _set_bucket(self, write: ShapingWrite) -> None:
        assert write.bucket is not None, "a bucket to set"
        ifindex = self._ifindex(write.ifname)
        self._socket.execute(set_tbf(ifindex, BUCKET_HANDLE, write.bucket))

    def _clear_bucket(self, write: ShapingWrite) -> None:
        ifindex = self._known_ifindex(write.ifname)
        if ifindex:
            self._delete(delete_qdisc(ifindex, ROOT, BUCKET_HANDLE))

    def _add_ifb(self, write: ShapingWrite) -> None:
        try:
            self._socket.execute(create_link(write.ifname, "ifb", mtu_bytes=write.mtu_bytes))
        except ProgrammingFailed as err:
            if err.errno != errno.EEXIST:
                raise
        self._socket.execute(change_link(write.ifname, LinkChange(is_up=True)))

    def _delete_ifb(self, write: ShapingWrite) -> None:
        self._delete(delete_link(write.ifname))

    def _redirect(self, write: ShapingWrite) -> None:
        ifindex, target = self._ifindex(write.ifname), self._ifindex(write.target)
        try:
            self._socket.execute(add_ingress(ifindex))
        except ProgrammingFailed as err:
            if err.errno != errno.EEXIST:
                raise
        self._delete(delete_redirect(ifindex, REDIRECT_PRIORITY))
        self._socket.execute(add_redirect(ifindex, target, REDIRECT_PRIORITY))

    def _clear_redirect(self, write: ShapingWrite) -> None:
        ifindex = self._known_ifindex(write.ifname)
        if not ifindex:
            return
        self._delete(delete_redirect(ifindex, REDIRECT_PRIORITY))
        # Somebody may have put a filter beside ours since the last reading.
        if write.is_whole and not self._filters(ifindex):
            self._delete(delete_qdisc(ifindex, INGRESS, INGRESS_HANDLE))

    # ------------------------------------------------------------------------------- inside

    def _ifindex(self, ifname: str) -> int:
        return self._socket.query_one(get_link(ifname)).ifindex

    def _known_ifindex(self, ifname: str) -> int:
        """0 when there is no such interface."""
        try:
            return self._ifindex(ifname)
        except ProgrammingFailed as err:
            if err.errno == errno.ENODEV:
                return 0
            raise

    def _delete(self, request: Request) -> None:
        """P3."""
        try:
            self._socket.execute(request)
        except ProgrammingFailed as err:
            if err.errno not in _ABSENT:
                raise
