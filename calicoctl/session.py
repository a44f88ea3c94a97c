"""One connection to the datastore for one command, and the operations on it.

Layer: edge. Used by calicoctl.commands. `run(ctx, config, work)` opens the datastore, checks that
client and cluster are of one version, runs `work(session)` and closes.

The typed operations are libcalico's ResourceClient; deleting a Node or a pool takes along what
belongs to it (ipam.cascade).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from calicoctl.results import CommandFailed
from ipam import cascade, pools
from ipam.client import IpamClient
from libcalico.datastore.api import Datastore
from libcalico.datastore.config import DEFAULT_FILE, connect, load
from libcalico.datastore.resources import ResourceClient
from libcalico.errors import (
    AlreadyExists,
    NotFound,
    NotSupported,
    RevisionConflict,
    SuiteError,
    Transient,
    Unauthorized,
)
from libcalico.model import ClusterInformation, IPPool
from libcalico.model.meta import Resource
from libcalico.net import AddressError
from libcalico.runtime.version import VERSION

T = TypeVar("T")
UPDATE_ATTEMPTS, UPDATE_WAIT_S = 5, 1.0
K8S_POLICY_PREFIX = "knp.default."


@dataclass(slots=True)
class Session:
    """What a command works with."""

    datastore: Datastore
    resources: ResourceClient

    async def create(self, resource: Resource) -> Resource:
        refuse_write(resource, "create or apply")
        if isinstance(resource, IPPool):
            await self._check_blocks(resource)
        return await self.resources.create(for_create(resource))

    async def _check_blocks(self, resource: IPPool) -> None:
        """Blocks of another size may be left in the range by an earlier pool.

        Errors: ValidationError (a CIDR that does not parse is left to the pool's own checks)."""
        try:
            pool = pools.from_resource(resource)
        except AddressError:
            return
        present = await IpamClient(self.datastore).records.block_cidrs(pool.version)
        pools.check_block_size(pool, present)

    async def update(self, resource: Resource) -> Resource:
        """Labels, annotations and spec of the input onto the stored object. A resourceVersion in
        the input must be the stored one; without, a lost race is run again a few times."""
        refuse_write(resource, "replace")
        metadata = metadata_of(resource)
        attempts = 1 if metadata.resource_version else UPDATE_ATTEMPTS
        for attempt in range(attempts):
            wanted = await self.resources.onto_stored(resource)
            if metadata.resource_version:
                given = msgspec.structs.replace(
                    metadata_of(wanted), resource_version=metadata.resource_version
                )
                wanted = msgspec.structs.replace(wanted, metadata=given)
            try:
                return await self.resources.update(wanted)
            except RevisionConflict:
                if attempt == attempts - 1:
                    raise
                await asyncio.sleep(UPDATE_WAIT_S)
        raise AssertionError("unreachable")

    async def apply(self, resource: Resource) -> Resource:
        refuse_write(resource, "apply")
        try:
            return await self.create(resource)
        except (AlreadyExists, NotSupported) as err:
            try:
                return await self.update(resource)
            except NotFound:
                # The kind cannot be created, and there is none to update: the first error tells.
                raise err from None

    async def delete(self, resource: Resource) -> None:
        refuse_write(resource, "delete")
        metadata = metadata_of(resource)
        revision = int(metadata.resource_version) if metadata.resource_version else None
        if resource.kind == "Node":
            ipam = IpamClient(self.datastore)
            await cascade.delete_node(ipam, metadata.name, mod_revision=revision)
        elif resource.kind == "IPPool":
            ipam = IpamClient(self.datastore)
            await cascade.delete_pool(ipam, metadata.name, mod_revision=revision)
        else:
            await self.resources.delete(
                resource.kind, metadata.name, metadata.namespace, revision=revision
            )


def metadata_of(resource: Resource) -> Any:
    return resource.metadata


def for_create(resource: Resource) -> Resource:
    """Only name, namespace, labels and annotations are sent with a create (6.4)."""
    metadata = metadata_of(resource)
    bare = type(metadata)(
        name=metadata.name,
        namespace=metadata.namespace,
        labels=metadata.labels,
        annotations=metadata.annotations,
    )
    return msgspec.structs.replace(resource, metadata=bare)


def refuse_write(resource: Resource, operation: str) -> None:
    """What calicoctl does not write (6.7). Errors: NotSupported."""
    if resource.kind == "ClusterInformation":
        raise NotSupported(operation, "ClusterInformation", "resource is readonly")
    metadata = metadata_of(resource)
    if resource.kind == "NetworkPolicy" and metadata.name.startswith(K8S_POLICY_PREFIX):
        raise NotSupported(
            operation.split()[0],
            f"NetworkPolicy({metadata.namespace}/{metadata.name})",
            "kubernetes network policies must be managed through the kubernetes API",
        )


def run(
    ctx: click.Context,
    config: str,
    work: Callable[[Session], Awaitable[T]],
    *,
    checks_version: bool = True,
) -> T:
    """Errors: SuiteError; CommandFailed when there is no way to the datastore."""
    must_match = checks_version and not (ctx.obj or {}).get("allow_version_mismatch")
    return asyncio.run(_run(config, work, must_match))


async def _run(config: str, work: Callable[[Session], Awaitable[T]], must_match: bool) -> T:
    path = Path(config) if config else DEFAULT_FILE
    settings = load(path, _environ())
    # An operator waits for an answer, not for the datastore to come back some day.
    datastore = connect(settings)
    try:
        session = Session(datastore, ResourceClient(datastore))
        if must_match:
            await check_version(session)
        return await work(session)
    except Transient as err:
        raise CommandFailed(f"failed to reach the datastore: {err}") from err
    finally:
        await datastore.close()


def _environ() -> Mapping[str, str]:
    import os

    return os.environ


async def check_version(session: Session) -> None:
    """Client and cluster must be of one version, unless nothing is known of the cluster's."""
    try:
        information = await session.resources.get("ClusterInformation", "default")
    except (NotFound, Transient, Unauthorized):
        return
    except SuiteError as err:
        raise CommandFailed(
            f"unable to get Cluster Information to verify version mismatch: {err}\n"
            "Use --allow-version-mismatch to override"
        ) from err
    assert isinstance(information, ClusterInformation)
    cluster = trimmed(information.spec.calico_version or "")
    if cluster and cluster != trimmed(VERSION):
        raise CommandFailed(
            f"version mismatch.\nClient Version:   {VERSION}\nCluster Version:  {cluster}\n"
            "Use --allow-version-mismatch to override"
        )


def trimmed(version: str) -> str:
    """Without the leading v and anything after the first dash."""
    return version.removeprefix("v").partition("-")[0]
