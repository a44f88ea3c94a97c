"""A CNI verb in a process of its own, when felix does not answer: DEL and VERSION.

Layer: edge. Executed by the client (cni.client). The datastore is found as Calico does it:
the configuration's etcd_* members, else the environment, else /etc/calico/calicoctl.cfg. Route and
policy in the kernel are felix's: it removes them when it is back and sees the endpoint gone.
Exit code and output are CNI's; nothing but the answer goes to stdout.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from cni import skel
from cni.addresses import Addresses
from cni.agent import translate
from cni.delete import DeleteOperation
from cni.endpoints import EndpointStore
from cni.netconf import Members
from cni.skel import Answer, CniError, Code, Invocation, Verb
from ipam.client import IpamClient
from libcalico.datastore.config import ConnectionConfig, connect, load
from libcalico.errors import SuiteError
from libcalico.model.names import node_name
from libcalico.runtime import log, paths

DEADLINE_S = 60.0
_ETCD_MEMBERS = ("etcd_endpoints", "etcd_key_file", "etcd_cert_file", "etcd_ca_cert_file")


def main() -> int:
    log.setup("warning")
    plugin = sys.argv[1] if len(sys.argv) > 1 else "calico"
    environ = {name: value for name, value in os.environ.items() if name.startswith("CNI_")}
    invocation = Invocation(plugin, environ, sys.stdin.buffer.read())
    answer = asyncio.run(run(invocation, os.environ))
    sys.stderr.buffer.write(answer.stderr)
    sys.stdout.buffer.write(answer.stdout)
    sys.stdout.flush()
    return answer.exit_code


async def run(invocation: Invocation, environ: Mapping[str, str]) -> Answer:
    """One invocation without felix. Never raises for what a runtime can send."""
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
    else:
        return skel.success()
    return skel.failure(error, skel.error_version(invocation.stdin))


async def _delete(request: skel.Request, environ: Mapping[str, str]) -> None:
    datastore = connect(connection(request.config, environ))
    try:
        operation = DeleteOperation(
            EndpointStore(datastore),
            Addresses(IpamClient(datastore)),
            node_of(request.config, environ),
            environ.get("FELIX_INTERFACEPREFIX", "cali").partition(",")[0],
        )
        await operation.run(request)
    finally:
        await datastore.close()


def connection(config: Mapping[str, object], environ: Mapping[str, str]) -> ConnectionConfig:
    """The network configuration's etcd members win when it names endpoints."""
    members = Members(config, "")
    if members.text("etcd_endpoints"):
        values = {name: members.text(name) for name in _ETCD_MEMBERS}
        return replace(ConnectionConfig("CNI configuration", datastore_type="etcdv3"), **values)
    return load(None, environ)


def node_of(config: Mapping[str, object], environ: Mapping[str, str]) -> str:
    """nodename, else the file calico-node wrote, else the host's name (datamodel 1.7)."""
    members = Members(config, "")
    named = members.text("nodename") or environ.get("NODENAME", "")
    if named:
        return named
    file = members.text("nodename_file") or str(paths.lib_dir(environ) / "nodename")
    try:
        found = Path(file).read_text().strip()
    except OSError:
        found = ""
    return found or members.text("hostname") or node_name(os.uname().nodename)


if __name__ == "__main__":
    sys.exit(main())
