"""A CNI verb in a process of its own, when felix does not answer: DEL and VERSION.

Layer: edge. Executed by the client (cni.client) with the node's CALICO_LIB_DIR as argument. A
container runtime has neither our environment nor our configuration, so the datastore is, in this
order: the network configuration's etcd_* members, the file calico-node left for us in that folder,
the environment or /etc/calico/calicoctl.cfg. What a datastore that does not answer was to be told
is queued in that folder (cni.queue); felix replays it. Route and policy in the kernel are felix's:
it removes them when it is back and sees the endpoint gone.
Exit code and output are CNI's; nothing but the answer goes to stdout.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

from cni import ipam_plugin, skel
from cni.addresses import Addresses
from cni.agent import IPAM_PLUGIN, translate
from cni.delete import DeleteOperation
from cni.endpoints import EndpointStore
from cni.journal import Journal
from cni.netconf import Members, readable
from cni.queue import DeleteQueue, delete_of
from cni.skel import Answer, CniError, Code, Invocation, Verb
from ipam.client import IpamClient
from libcalico.datastore.api import Datastore
from libcalico.datastore.config import ConnectionConfig, connect, from_file, load
from libcalico.errors import DatastoreUnavailable, InvalidInput, SuiteError
from libcalico.runtime import log, nodename, paths

LOG = log.get(__name__)
DEADLINE_S = 60.0
_ETCD_MEMBERS = ("etcd_endpoints", "etcd_key_file", "etcd_cert_file", "etcd_ca_cert_file")


def main() -> int:
    log.setup("warning")
    plugin = sys.argv[1] if len(sys.argv) > 1 else "calico"
    if len(sys.argv) > 2:
        os.environ.setdefault("CALICO_LIB_DIR", sys.argv[2])
    environ = {name: value for name, value in os.environ.items() if name.startswith("CNI_")}
    try:
        invocation = Invocation(plugin, environ, sys.stdin.buffer.read())
    except OSError as err:
        error = CniError(Code.IO_FAILURE, f"cannot read standard input: {err.strerror}")
        answer = skel.failure(error)
    else:
        answer = asyncio.run(run(invocation, os.environ))
    sys.stderr.buffer.write(answer.stderr)
    sys.stdout.buffer.write(answer.stdout)
    sys.stdout.flush()
    return answer.exit_code


async def run(invocation: Invocation, environ: Mapping[str, str]) -> Answer:
    """One invocation without felix. Never raises."""
    if invocation.environ.get("CNI_COMMAND") == Verb.VERSION.value:
        return skel.version_answer(invocation.stdin)
    try:
        request = skel.parse(invocation)
        if request.verb is not Verb.DEL:
            raise CniError(Code.TRY_AGAIN_LATER, "felix does not answer on its CNI socket")
        async with asyncio.timeout(DEADLINE_S):
            await _delete(request, environ)
    except TimeoutError:
        error = CniError(Code.TRY_AGAIN_LATER, f"not finished within {DEADLINE_S:.0f} s")
    except CniError as err:
        error = err
    except SuiteError as err:
        error = translate(err)
    except Exception as err:  # noqa: BLE001 - a runtime reads no traceback: it gets the place
        error = CniError(Code.INTERNAL, f"{type(err).__name__}: {err}", _place_of(err))
        LOG.error("DEL failed unexpectedly", error=error)
    else:
        return skel.success()
    return skel.failure(error, skel.error_version(invocation.stdin))


def _place_of(err: Exception) -> str:
    last = traceback.extract_tb(err.__traceback__)[-1]
    return f"{last.filename}:{last.lineno} in {last.name}"


async def _delete(request: skel.Request, environ: Mapping[str, str]) -> None:
    try:
        datastore = connect(connection(request.config, environ))
    except (InvalidInput, CniError) as err:
        # The wire goes all the same (D3); felix knows where its datastore is, when it is back.
        datastore = cast(Datastore, _NoDatastore(f"no datastore is known here: {err}"))
    queue = DeleteQueue(paths.cni_queue_dir(environ))
    store, addresses = EndpointStore(datastore), Addresses(IpamClient(datastore))
    try:
        if request.plugin == IPAM_PLUGIN:
            await ipam_plugin.delete(request, store, addresses, queue)
            return
        operation = DeleteOperation(
            store,
            addresses,
            node_of(request.config, environ),
            environ.get("FELIX_INTERFACEPREFIX", "cali").partition(",")[0],
            queue=queue,
        )
        await operation.run(request)
        await forget_offline(request, Journal(paths.cni_journal_dir(environ)), queue)
    finally:
        await datastore.close()


async def forget_offline(request: skel.Request, journal: Journal, queue: DeleteQueue) -> None:
    """Take a pod that was made offline out of the journal. Felix may be recording it at this very
    moment: so the DEL is queued first, whatever has been done already (cni.offline F5)."""
    found = (request.network, request.container_id, request.ifname)
    entry = journal.of_attachment(*found)
    if entry is not None:
        await queue.put(delete_of(entry, time.time()))
        journal.remove(entry)


class _NoDatastore:
    """Stands where the datastore would: whatever is asked of it, it says why it is not there."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __getattr__(self, name: str) -> Callable[..., Awaitable[None]]:
        async def refuse(*_: object, **__: object) -> None:
            if name != "close":
                raise DatastoreUnavailable(self._reason)

        return refuse


def connection(config: Mapping[str, object], environ: Mapping[str, str]) -> ConnectionConfig:
    """The network configuration's etcd members win when it names endpoints."""
    members = Members(config, "")
    if members.text("etcd_endpoints"):
        values = {name: members.text(name) for name in _ETCD_MEMBERS}
        return replace(ConnectionConfig("CNI configuration", datastore_type="etcdv3"), **values)
    left_for_us = paths.cni_datastore_file(environ)
    return from_file(left_for_us) if left_for_us.exists() else load(None, environ)


def node_of(config: Mapping[str, object], environ: Mapping[str, str]) -> str:
    """The configuration's members, each before its equal in the rule of the whole node; one that is
    no text counts as absent, as in every DEL."""
    members = Members(config, "")
    named = readable(lambda: members.text("nodename"))
    file = readable(lambda: members.text("nodename_file"))
    hostname = readable(lambda: members.text("hostname"))
    return named or nodename.resolve(environ, file=Path(file) if file else None, hostname=hostname)


if __name__ == "__main__":
    sys.exit(main())
