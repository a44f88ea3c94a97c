"""What deleting a Node or an IPPool takes with it, in the order that survives a crash at any step.

Layer: ipam edge. Used by calicoctl and the controllers, which must not delete these two kinds
without it.

  C1  addresses go before what names their owner (endpoints, the node), so that nothing is left
      that only a scan would find; every step may be repeated;
  C2  a pool is disabled before its blocks are given up, and deleted last: nobody claims a new block
      in between. Blocks with addresses survive as orphans (datamodel §2.6).

Source: datamodel §1.9 Node, §2.6; Calico libcalico-go/lib/clientv3/{node,ippool}.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TypeVar

import msgspec

from ipam import sticky
from ipam.client import IpamClient
from ipam.client.fanout import for_each
from ipam.errors import AddressInCooldown
from ipam.handles import Tunnel
from ipam.leaks import tunnel_addresses
from ipam.requests import Release
from libcalico.datastore.api import Datastore, KeyValue
from libcalico.errors import DecodeError, NotFound, Stale
from libcalico.model import codec
from libcalico.model.bgp import BGPPeer
from libcalico.model.endpoints import HostEndpoint, WorkloadEndpoint
from libcalico.model.ippool import IPPool
from libcalico.model.keys import Key, ResourceKey, identifier, parse, path_of, prefix_of
from libcalico.model.meta import Resource
from libcalico.model.names import EndpointIds, endpoint_name_prefix
from libcalico.model.node import Node
from libcalico.net import Address, AddressError, parse_cidr, parse_cidr_or_ip
from libcalico.runtime import log
from libcalico.runtime.clock import SYSTEM, Clock

LOG = log.get(__name__)
# Requests that still saw the pool enabled finish within this.
POOL_DISABLED_FOR_S = 0.5
_PASSES = 3

R = TypeVar("R", bound=Resource)


async def delete_node(ipam: IpamClient, name: str, *, mod_revision: int | None = None) -> None:
    """Delete a Node with its addresses, endpoints, affinities and per-node configuration.

    Errors: NotFound, when there is no such Node; what it left behind is cleaned up nevertheless.
    RevisionConflict, when `mod_revision` is not the stored one."""
    store = ipam.records.datastore
    key = ResourceKey("Node", name)
    kv = await store.get(path_of(key))
    if kv is not None and mod_revision is not None and kv.mod_revision != mod_revision:
        await store.delete(path_of(key), mod_revision=mod_revision)  # raises before anything goes
    endpoints = await _endpoints_on(store, name)
    addresses = [a for _, endpoint in endpoints for a in _addresses(endpoint.spec.ip_networks)]
    if kv is not None:
        for _, node in _decoded([kv], Node):
            addresses += _addresses(tunnel_addresses(node))
    await _release_those_of(ipam, name, addresses)
    for tunnel in Tunnel:
        await ipam.tunnels.release(tunnel, name)
    await ipam.reserves.release_all(name)
    for endpoint_key, _ in endpoints:
        await _delete(store, endpoint_key)
    await ipam.affinities.remove_host(name)
    await _delete_belongings(store, name)
    if kv is None:
        raise NotFound(identifier(key))
    await store.delete(path_of(key))


async def delete_pool(
    ipam: IpamClient, name: str, *, mod_revision: int | None = None, clock: Clock = SYSTEM
) -> None:
    """Delete an IPPool after giving up the affinities of its blocks. One that does not parse, or
    whose CIDR does not, has none: nobody assigns from it.

    Errors: NotFound, RevisionConflict (`mod_revision`, or written while we worked)."""
    store = ipam.records.datastore
    key = ResourceKey("IPPool", name)
    path = path_of(key)
    kv = await store.get(path)
    if kv is None:
        raise NotFound(identifier(key))
    revision = kv.mod_revision if mod_revision is None else mod_revision
    try:
        pool, unknown = codec.decode_preserving(key, kv.value, kv.mod_revision)
        assert isinstance(pool, IPPool)
        network = parse_cidr(pool.spec.cidr)
    except (DecodeError, AddressError) as err:
        LOG.warning("object does not parse, deleted alone", key=kv.key, error=err)
        await store.delete(path, mod_revision=revision)
        return
    if not pool.spec.disabled:
        spec = msgspec.structs.replace(pool.spec, disabled=True)
        disabled = msgspec.structs.replace(pool, spec=spec)
        value = codec.encode(disabled, unknown=unknown)
        revision = await store.update(path, value, revision)
    await clock.sleep(POOL_DISABLED_FOR_S)
    await ipam.affinities.release_pool(network)
    await store.delete(path, mod_revision=revision)


async def _release_those_of(ipam: IpamClient, node: str, addresses: Iterable[Address]) -> None:
    """Release what the node holds of these. An endpoint may be a leftover whose address belongs to
    a workload of another node by now: that one is left alone (Calico would release it)."""
    wanted = sorted(set(addresses), key=lambda address: (address.version, int(address)))
    for _ in range(_PASSES):
        held = await for_each(partial(_held_by, ipam, node), wanted)
        outcome = await ipam.release_ips([release for release in held if release is not None])
        for failure in outcome.failed:
            if not isinstance(failure.error, Stale):
                raise failure.error
        if not outcome.failed:
            return
        wanted = [failure.request.address for failure in outcome.failed]


async def _held_by(ipam: IpamClient, node: str, address: Address) -> Release | None:
    try:
        found = await ipam.assignment(address)
    except (NotFound, AddressInCooldown):
        return None
    if sticky.is_claim(found.handle_id, found.attributes):
        return None  # belongs to an identity, which goes on elsewhere
    if found.attributes.get("node", node) != node:
        LOG.warning("address is held by another node", cidr=address, node=node)
        return None
    handle_id, sequence_number = found.handle_id or "", found.sequence_number
    return Release(address=address, handle_id=handle_id, sequence_number=sequence_number)


async def _delete_belongings(store: Datastore, node: str) -> None:
    for key, peer in await _listed(store, BGPPeer):
        if peer.spec.node == node:
            await _delete(store, key)
    for kind in ("FelixConfiguration", "BGPConfiguration"):
        await _delete(store, ResourceKey(kind, f"node.{node}"))
    for key, endpoint in await _listed(store, HostEndpoint):
        if endpoint.spec.node == node:
            await _delete(store, key)


async def _endpoints_on(store: Datastore, node: str) -> list[tuple[Key, WorkloadEndpoint]]:
    """The node's workload endpoints. The name only narrows it down: other nodes may share the
    prefix."""
    prefix = endpoint_name_prefix(EndpointIds(node=node))
    listed = (await store.list(prefix_of("WorkloadEndpoint"))).kvs
    named = [kv for kv in listed if kv.key.rpartition("/")[2].startswith(prefix)]
    found = _decoded(named, WorkloadEndpoint)
    return [(key, endpoint) for key, endpoint in found if endpoint.spec.node == node]


def _addresses(texts: Iterable[str]) -> Iterator[Address]:
    for text in texts:
        try:
            yield parse_cidr_or_ip(text).network_address
        except AddressError as err:
            LOG.warning("address of a deleted node not released", cidr=text, error=err)


async def _listed(store: Datastore, kind: type[R]) -> list[tuple[Key, R]]:
    return list(_decoded((await store.list(prefix_of(kind.kind))).kvs, kind))


def _decoded(kvs: Iterable[KeyValue], kind: type[R]) -> Iterator[tuple[Key, R]]:
    for kv in kvs:
        key = parse(kv.key)
        if key is None:
            continue
        try:
            yield key, codec.decode_as(kind, key, kv.value, kv.mod_revision)
        except DecodeError as err:
            LOG.warning("object skipped", key=kv.key, error=err)


async def _delete(store: Datastore, key: Key) -> None:
    try:
        await store.delete(path_of(key))
    except NotFound:
        return
