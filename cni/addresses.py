"""Where a pod's addresses come from: our IPAM in process, or another IPAM plugin by execution.

Layer: edge. Used by cni.add and cni.delete. `calico-ipam` named as the ipam type is answered in
process (no executable is run); any other type is delegated to (cni.delegate).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Protocol

from cni import delegate, hostlocal
from cni.identity import Workload, sticky_identity
from cni.netconf import CALICO_IPAM, NetConf
from cni.pod_annotations import one_per_family
from cni.skel import CniError, Code, Request
from ipam import pools
from ipam.client import IpamClient
from ipam.client.sticky import Bound
from ipam.errors import PoolRefused
from ipam.requests import PLUGIN_ATTRIBUTE, WORKLOAD, AssignIP, AutoAssign, Release
from libcalico.errors import AlreadyExists, NotFound, PoolExhausted
from libcalico.net import Interface, Network, parse_ip

Foresee = Callable[[tuple[str, ...]], None]


class AddressManager(Protocol):
    async def assign(
        self,
        request: Request,
        conf: NetConf,
        workload: Workload,
        foresee: Foresee | None = None,
    ) -> tuple[str, ...]:
        """Plain addresses, IPv4 first. `foresee` may be told them while they are being made the
        pod's: likely, not certain. Errors: Exhausted, CniError, Transient."""
        ...

    async def claim(self, request: Request, conf: NetConf, workload: Workload) -> Bound:
        """As `assign`, of the workload's sticky addresses. Errors: also PoolRefused, Conflict."""
        ...

    async def release(self, request: Request, conf: NetConf, handle_id: str) -> None:
        """Give back all addresses of the attachment; none held is success."""
        ...

    async def release_handle(self, handle_id: str) -> None:
        """As `release`, of our own IPAM, without the request: for a DEL that was queued."""
        ...

    async def release_but(self, handle_id: str, kept: Sequence[str]) -> None:
        """As `release_handle`, but for these addresses."""
        ...

    async def held(self, handle_id: str) -> tuple[str, ...]:
        """The addresses a handle holds in our IPAM."""
        ...

    async def ask(self, request: Request, conf: NetConf, verb: str) -> None:
        """CHECK, STATUS and GC of another IPAM plugin; ours has nothing to say there.

        Errors: CniError."""
        ...

    async def shortage(self, conf: NetConf) -> str:
        """Why our IPAM could not give an address of a wanted family at all; "" when it could."""
        ...

    async def handles(self, network: str, node: str) -> tuple[str, ...]:
        """Handles of a network that hold an address on a node. Reads all handles: for GC only."""
        ...


def is_delegated(conf: NetConf) -> bool:
    """Whether another IPAM plugin gave the addresses."""
    return conf.ipam.type not in ("", CALICO_IPAM)


def named_pools(
    named: Sequence[str], known: Sequence[pools.Pool], version: int
) -> tuple[Network, ...]:
    """The CIDRs of what `ipv4_pools` or `ipv6_pools` names. Errors: CniError code 7."""
    try:
        return pools.resolve(named, known, version)
    except PoolRefused as err:
        raise CniError(Code.INVALID_CONFIG, f"ipv{version}_pools: {err}") from err


class Addresses:
    """The AddressManager of the agent. `now` gives UTC, for the timestamp attribute."""

    def __init__(self, ipam: IpamClient, now: Callable[[], datetime] | None = None) -> None:
        self._ipam = ipam
        self._now = now or (lambda: datetime.now(UTC))

    async def assign(
        self,
        request: Request,
        conf: NetConf,
        workload: Workload,
        foresee: Foresee | None = None,
    ) -> tuple[str, ...]:
        if conf.ipam.type != CALICO_IPAM:
            return await self._delegated(request, conf)
        if conf.pod.addresses_no_ipam:
            # The pod's owner answers for it that nobody else has them.
            return conf.pod.addresses_no_ipam
        if conf.addresses:
            return await self._requested(request, conf, workload)
        attributes = self.attributes(request, workload)
        wish = await self._wish(conf, workload, workload.handle_id, attributes)
        if foresee is not None:
            wish = replace(wish, foresee=lambda found: foresee(_plain(found)))
        assigned = await self._ipam.auto_assign(wish)
        error = assigned.partial_error()
        if error is not None:
            raise CniError(Code.NETWORKING_FAILED, f"failed to request addresses: {error}")
        return _plain(assigned.addresses)

    async def _wish(
        self, conf: NetConf, workload: Workload, handle_id: str, attributes: Mapping[str, str]
    ) -> AutoAssign:
        known = (await self._ipam.source.facts()).pools
        return AutoAssign(
            host=workload.ids.node,
            use=WORKLOAD,
            handle_id=handle_id,
            attributes=attributes,
            num_v4=int(conf.ipam.assign_ipv4),
            num_v6=int(conf.ipam.assign_ipv6),
            pools_v4=named_pools(conf.ipam.ipv4_pools, known, 4),
            pools_v6=named_pools(conf.ipam.ipv6_pools, known, 6),
        )

    async def claim(self, request: Request, conf: NetConf, workload: Workload) -> Bound:
        identity = sticky_identity(request.network, workload)
        attributes = identity.attributes(workload.ids.node, workload.container_id)
        attributes["timestamp"] = self._stamp()
        wish = await self._wish(conf, workload, identity.handle_id, attributes)
        wanted = [ipaddress.ip_address(address) for address in conf.addresses]
        try:
            return await self._ipam.claims.bind(wish, wanted)
        except PoolExhausted as err:
            said = f"failed to request addresses: {err}"
            raise CniError(Code.NETWORKING_FAILED, said) from err
        except AlreadyExists as err:
            raise CniError(Code.NETWORKING_FAILED, "the sticky address is taken", str(err)) from err

    async def _requested(
        self, request: Request, conf: NetConf, workload: Workload
    ) -> tuple[str, ...]:
        found = [ipaddress.ip_address(address) for address in conf.addresses]
        for address in found:
            await self._ipam.assign_ip(
                AssignIP(
                    address=address,
                    host=workload.ids.node,
                    use=WORKLOAD,
                    handle_id=workload.handle_id,
                    attributes=self.attributes(request, workload),
                )
            )
        return tuple(map(str, found))

    async def _delegated(self, request: Request, conf: NetConf) -> tuple[str, ...]:
        if not conf.ipam.type:
            raise CniError(Code.INVALID_CONFIG, "ipam.type: required")
        result = await delegate.run(request, conf.ipam.type, "ADD")
        found = tuple(str(ipaddress.ip_interface(ip.address).ip) for ip in result.ips)
        if not found:
            raise CniError(
                Code.NETWORKING_FAILED, f"IPAM plugin {conf.ipam.type} returned no IP addresses"
            )
        return one_per_family(found, f"IPAM plugin {conf.ipam.type}")

    async def release(self, request: Request, conf: NetConf, handle_id: str) -> None:
        if is_delegated(conf):
            if hostlocal.needs_pod_cidrs(request.config):
                request = hostlocal.with_pod_cidrs(request, hostlocal.ANY_CIDRS, "")
            await delegate.run(request, conf.ipam.type, "DEL")
            return
        await self.release_handle(handle_id)

    async def release_handle(self, handle_id: str) -> None:
        try:
            await self._ipam.release_by_handle(handle_id)
        except NotFound:
            # Never assigned, or released by an earlier DEL.
            return

    async def release_but(self, handle_id: str, kept: Sequence[str]) -> None:
        if not kept:
            await self.release_handle(handle_id)
            return
        gone = [text for text in await self.held(handle_id) if text not in kept]
        wishes = [Release(address=parse_ip(text), handle_id=handle_id) for text in gone]
        (await self._ipam.release_ips(wishes)).raise_failed()

    async def held(self, handle_id: str) -> tuple[str, ...]:
        try:
            return tuple(map(str, await self._ipam.ips_by_handle(handle_id)))
        except NotFound:
            return ()

    async def handles(self, network: str, node: str) -> tuple[str, ...]:
        found = {
            attribute.handle_id or ""
            for block in await self._ipam.blocks()
            for attribute in block.attributes or ()
            if (attribute.secondary or {}).get("node") == node
        }
        return tuple(sorted(h for h in found if h.startswith(f"{network}.")))

    async def ask(self, request: Request, conf: NetConf, verb: str) -> None:
        if conf.ipam.type and conf.ipam.type != CALICO_IPAM:
            if hostlocal.needs_pod_cidrs(request.config):
                request = hostlocal.with_pod_cidrs(request, hostlocal.ANY_CIDRS, "")
            await delegate.run(request, conf.ipam.type, verb)

    async def shortage(self, conf: NetConf) -> str:
        if conf.ipam.type != CALICO_IPAM:
            return ""
        known = (await self._ipam.source.facts()).pools
        wanted = (
            (4, conf.ipam.assign_ipv4, conf.ipam.ipv4_pools),
            (6, conf.ipam.assign_ipv6, conf.ipam.ipv6_pools),
        )
        for version, is_wanted, named in wanted:
            usable = [p for p in known if p.version == version and p.enabled]
            cidrs = set(named_pools(named, known, version)) if is_wanted else set()
            if is_wanted and not any(not named or pool.cidr in cidrs for pool in usable):
                return f"there is no enabled IP pool for IPv{version}"
        return ""

    def attributes(self, request: Request, workload: Workload) -> dict[str, str]:
        """As Calico's plugin writes them; the timestamp is Go's time.Time.String() in UTC. Where no
        endpoint will name the address it says so: nobody shall take it for a leak."""
        attributes = {"node": workload.ids.node, "timestamp": self._stamp()}
        if workload.is_kubernetes:
            attributes |= {"namespace": workload.key.namespace, "pod": workload.ids.pod}
        if request.plugin == CALICO_IPAM:
            attributes[PLUGIN_ATTRIBUTE] = CALICO_IPAM
        return attributes

    def _stamp(self) -> str:
        """As Go prints a time."""
        now = self._now()
        return f"{now:%Y-%m-%d %H:%M:%S}.{now.microsecond:06d} +0000 UTC"


def _plain(interfaces: Iterable[Interface]) -> tuple[str, ...]:
    return tuple(str(interface.ip) for interface in interfaces)
