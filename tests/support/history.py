"""Audit the whole history of an etcd: `python -m tests.support.history ENDPOINT`.

A program of its own, for an etcd that lives in another network namespace. One line for each
violation; fails when what blocks, handles and affinities say at the end does not agree.
"""

from __future__ import annotations

import asyncio
import sys

from libcalico.datastore.etcd import EtcdDatastore
from libcalico.datastore.etcd_link import EtcdConfig
from tests.support.ipam import audited, consistent


async def main(endpoint: str) -> None:
    store = EtcdDatastore(EtcdConfig((endpoint,)))
    for violation in await audited(store):
        sys.stdout.write(f"{violation}\n")
    await consistent(store)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
