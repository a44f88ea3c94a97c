"""Readiness gates: URLs that must answer before a pod is connected.

Layer: edge (HTTP). Used by cni.add. Source: Calico cni-plugin/pkg/plugin (pollEndpointReadiness):
each gate is asked every 5 s for 30 s; 200 to 399 is ready. Asked at once first, where Calico waits
5 s before it asks at all.
"""

from __future__ import annotations

import asyncio
import http.client
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Sequence

from cni.skel import CniError, Code
from libcalico.runtime.clock import SYSTEM, Clock

INTERVAL_S = 5.0
TIMEOUT_S = 30.0
Probe = Callable[[str], Awaitable[str]]


async def probe(url: str) -> str:
    """Why the gate is not ready; "" when it is."""
    return await asyncio.to_thread(_ask, url)


def _ask(url: str) -> str:
    try:
        # A proxy of the environment is for other traffic than the node's own.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=INTERVAL_S) as answer:
            status = answer.status
    except urllib.error.HTTPError as err:
        with err:
            status = err.code
    except (OSError, ValueError, http.client.HTTPException) as err:
        return str(err)
    return "" if 200 <= status < 400 else f"response code {status}"


async def wait(urls: Sequence[str], *, ask: Probe = probe, clock: Clock = SYSTEM) -> None:
    """Errors: CniError code 11 naming the gate that never opened."""
    for url in urls:
        deadline = clock.monotonic() + TIMEOUT_S
        while problem := await ask(url):
            if clock.monotonic() + INTERVAL_S > deadline:
                raise CniError(Code.TRY_AGAIN_LATER, f"readiness gate {url} is not ready", problem)
            await clock.sleep(INTERVAL_S)
