"""`calico -v` and `calico -t` (calico-ipam likewise): the version, and a test of the datastore.

Layer: edge. Executed by the client (cni.client) with the plugin's name, the node's CALICO_LIB_DIR
and the option. `-t` reads a network configuration from standard input, as Calico's does: exit 0
when the datastore answers within two seconds and says it is ready, else 1 and an error of code 100
on standard output. The datastore is found as in cni.standalone. Calico's installer gates the
network configuration with it, because its appearance makes a runtime start pods.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping

from cni import skel
from cni.endpoints import EndpointStore
from cni.skel import CniError, Code
from cni.standalone import connection
from libcalico.datastore.config import connect
from libcalico.errors import SuiteError
from libcalico.runtime import log
from libcalico.runtime.version import VERSION

TIMEOUT_S = 2.0
_OPTIONS = {"-v": "version", "--v": "version", "-t": "test", "--t": "test"}


def main() -> int:
    log.setup("warning")
    plugin, lib_dir, *options = sys.argv[1:]
    os.environ.setdefault("CALICO_LIB_DIR", lib_dir)
    wanted = {_OPTIONS.get(option) for option in options}
    if None in wanted or not wanted:
        sys.stderr.write(f"usage: {plugin} [-v | -t]\n")
        return 2
    if "version" in wanted:
        sys.stdout.write(f"{VERSION}\n")
        return 0
    problem = asyncio.run(test(sys.stdin.buffer.read(), os.environ))
    if not problem:
        return 0
    error = CniError(Code.NETWORKING_FAILED, "data store connection failed", problem)
    sys.stdout.buffer.write(skel.failure(error).stdout)
    return 1


async def test(stdin: bytes, environ: Mapping[str, str]) -> str:
    """Why no pod could be connected with this configuration; "" when one could."""
    try:
        config = json.loads(stdin)
    except (ValueError, RecursionError) as err:
        return f"failed to load netconf: {err}"
    if not isinstance(config, dict):
        return "failed to load netconf: it is not a JSON object"
    try:
        datastore = connect(connection(config, environ))
    except SuiteError as err:
        return str(err)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            is_ready = await EndpointStore(datastore).is_datastore_ready()
    except TimeoutError:
        return f"no answer within {TIMEOUT_S:.0f} s"
    except SuiteError as err:
        return str(err)
    finally:
        await datastore.close()
    return "" if is_ready else "the datastore is not ready to process requests"


if __name__ == "__main__":
    sys.exit(main())
