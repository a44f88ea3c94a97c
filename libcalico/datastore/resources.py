"""The typed client for v3 objects: what Calico's clientv3 does, on any `Datastore`.

Layer: datastore edge. Used by calicoctl, node start-up, cni and controllers. Deleting a Node or an
IPPool here deletes the object only; what hangs on it (addresses, affinities, endpoints) is
`ipam.cascade`'s business, which sits above.

  R1  every write is compare-and-swap (create: must not exist; update: the resourceVersion given);
  R2  an object is completed (`with_defaults`) and validated before it is written; checks against
      other objects (tier, filters, overlapping pools) read them first, as Calico does, and are
      therefore advisory between two writers;
  R3  members that a foreign writer stored and we do not know survive our update;
  R4  a list skips values that do not parse, with a warning; a get of one raises DecodeError;
  R5  the profile `projectcalico-default-allow` is always there and cannot be written.

Source: reference/datamodel.md 0.3, 1.2, 1.3, 1.5; libcalico-go/lib/clientv3.
"""

from __future__ import annotations

import contextlib
import enum
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar, cast, overload

from msgspec.structs import replace

from libcalico.datastore.api import Datastore, EventType, KeyValue, WatchEvent
from libcalico.errors import (
    AlreadyExists,
    DecodeError,
    NotFound,
    RevisionConflict,
    SuiteError,
    Transient,
    ValidationError,
)
from libcalico.model import codec, validation
from libcalico.model.bgp import BGPPeer
from libcalico.model.cluster import ClusterInformation
from libcalico.model.defaults import (
    BUILT_IN_TIERS,
    DEFAULT_TIER,
    default_allow_profile,
    initial_cluster_information,
    initial_tiers,
    pool_with_read_defaults,
    updated_cluster_information,
    with_defaults,
)
from libcalico.model.ippool import IPPool
from libcalico.model.keys import (
    BlockKey,
    ResourceKey,
    blocks_prefix,
    identifier,
    key_of,
    parse,
    path_of,
    prefix_of,
)
from libcalico.model.kinds import KIND_BY_NAME, TIERED_POLICY_KINDS
from libcalico.model.meta import Resource
from libcalico.model.names import DEFAULT_ALLOW_PROFILE
from libcalico.model.policy import Profile, Tier
from libcalico.model.tolerant import NOTHING_UNKNOWN, Unknown
from libcalico.runtime import log
from libcalico.runtime.clock import SYSTEM, Clock

LOG = log.get(__name__)
R = TypeVar("R", bound=Resource)
MAX_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class ResourceList(Generic[R]):
    """Objects in key order, and the revision of the snapshot (where a watch may begin); `skipped`
    are the values that do not parse (R4)."""

    items: tuple[R, ...]
    revision: int
    skipped: tuple[DecodeError, ...] = ()

    def __iter__(self) -> Iterator[R]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


class ChangeType(enum.Enum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    ERROR = "ERROR"


@dataclass(frozen=True, slots=True)
class ResourceChange(Generic[R]):
    """One change. `object` is None for DELETED and ERROR, `previous` where it is not known."""

    type: ChangeType
    key: ResourceKey
    object: R | None = None
    previous: R | None = None
    error: DecodeError | None = None


class ResourceClient:
    """v3 objects by kind and name. `kind` may be a name (`"Node"`) or a class (`Node`)."""

    def __init__(
        self,
        datastore: Datastore,
        *,
        clock: Clock = SYSTEM,
        new_uid: Callable[[], uuid.UUID] = uuid.uuid4,
    ) -> None:
        self._datastore = datastore
        self._clock = clock
        self._new_uid = new_uid

    @property
    def datastore(self) -> Datastore:
        return self._datastore

    # ---- writing -------------------------------------------------------------------------------

    async def create(self, resource: R) -> R:
        """Returns the object as stored. Errors: ValidationError, AlreadyExists, NotFound (tier)."""
        if resource.kind == Profile.kind:
            validation.validate_profile_write("Create", resource.metadata.name)
        if resource.kind in TIERED_POLICY_KINDS:
            await self._check_tier(resource)
        complete = with_defaults(resource)
        validation.validate_create_metadata(complete)
        validation.validate(complete)
        await self._check_others(complete, is_new=True)
        stamped = self._stamped(complete)
        key = key_of(stamped)
        try:
            revision = await self._datastore.create(path_of(key), codec.encode(stamped))
        except AlreadyExists as err:
            raise AlreadyExists(identifier(key)) from err
        return _with_revision(stamped, revision)

    async def update(self, resource: R) -> R:
        """Replace the object read at `metadata.resource_version`; returns it as stored.

        Errors: ValidationError, NotFound, RevisionConflict.
        """
        if resource.kind == Profile.kind:
            validation.validate_profile_write("Update", resource.metadata.name)
        complete = with_defaults(resource)
        validation.validate_update_metadata(complete)
        key = key_of(complete)
        stored = await self._stored(key)
        # Before validation, as Calico does it for pools: "cannot be modified" is the better text.
        if stored.resource is not None:
            validation.validate_update(stored.resource, complete)
        validation.validate(complete)
        await self._check_others(complete, is_new=False)
        expected = int(complete.metadata.resource_version or 0)
        if stored.revision != expected:
            raise RevisionConflict(identifier(key), expected, stored.revision)
        value = codec.encode(complete, unknown=stored.unknown)
        try:
            revision = await self._datastore.update(path_of(key), value, expected)
        except NotFound as err:
            raise NotFound(identifier(key)) from err
        except RevisionConflict as err:
            raise RevisionConflict(identifier(key), expected, err.found) from err
        return _with_revision(complete, revision)

    async def apply(self, resource: R) -> R:
        """Create it, or put labels, annotations and spec of the input onto what is stored.

        A resourceVersion in the input is not looked at. Errors as create and update.
        """
        bare = replace(resource, metadata=replace(resource.metadata, resource_version=None))
        for _ in range(MAX_ATTEMPTS):
            with contextlib.suppress(AlreadyExists):
                return await self.create(bare)
            try:
                return await self._update_onto_stored(bare)
            except (NotFound, RevisionConflict) as err:
                last: SuiteError = err  # somebody was quicker: look again
        raise last

    async def _update_onto_stored(self, resource: R) -> R:
        return await self.update(await self.onto_stored(resource))

    async def onto_stored(self, resource: R) -> R:
        """The input as an update of what is stored: its labels, annotations and spec, the stored
        identity and revision. A stored value that does not parse lends only its revision: to
        replace it is how it is repaired. Errors: NotFound."""
        complete = with_defaults(resource)  # endpoints get their name here
        given = complete.metadata
        key = key_of(complete)
        stored = await self._stored(key)
        base = self._stamped(complete) if stored.resource is None else stored.resource
        kept = replace(
            base.metadata,
            labels=given.labels,
            annotations=given.annotations,
            resource_version=str(stored.revision),
        )
        return replace(complete, metadata=kept)

    async def delete(
        self, kind: str | type[Resource], name: str, namespace: str = "", *,
        revision: int | None = None,
    ) -> Resource | None:  # fmt: skip
        """Returns what was deleted, None when that did not parse.

        Errors: NotFound, RevisionConflict, NotSupported (tiers in use, built-in objects).
        """
        key = _key(kind, name, namespace)
        if key.kind == Profile.kind:
            validation.validate_profile_write("Delete", name)
        if key.kind == Tier.kind:
            count = 0 if name in BUILT_IN_TIERS else await self._count_policies(name)
            validation.validate_tier_delete(name, policies=count)
        try:
            deleted = await self._datastore.delete(path_of(key), mod_revision=revision)
        except NotFound as err:
            raise NotFound(identifier(key)) from err
        except RevisionConflict as err:
            raise RevisionConflict(identifier(key), revision, err.found) from err
        try:
            return _decoded(key, deleted)
        except DecodeError:
            return None

    # ---- reading -------------------------------------------------------------------------------

    @overload
    async def get(
        self, kind: type[R], name: str, namespace: str = "", *, revision: int = 0
    ) -> R: ...

    @overload
    async def get(
        self, kind: str, name: str, namespace: str = "", *, revision: int = 0
    ) -> Resource: ...

    async def get(
        self, kind: str | type[Resource], name: str, namespace: str = "", *, revision: int = 0
    ) -> Resource:
        """Errors: NotFound, DecodeError."""
        key = _key(kind, name, namespace)
        if _is_default_allow(key):
            return default_allow_profile()
        kv = await self._datastore.get(path_of(key), revision=revision)
        if kv is None:
            raise NotFound(identifier(key))
        found = _decoded(key, kv)
        if found.metadata.name != name:
            # A policy kept under an old key answers to its own name only, in lists (0.3).
            raise NotFound(identifier(key))
        return found

    @overload
    async def list(
        self, kind: type[R], namespace: str = "", *,
        name: str = "", is_prefix: bool = False, revision: int = 0,
    ) -> ResourceList[R]: ...  # fmt: skip

    @overload
    async def list(
        self, kind: str, namespace: str = "", *,
        name: str = "", is_prefix: bool = False, revision: int = 0,
    ) -> ResourceList[Resource]: ...  # fmt: skip

    async def list(
        self, kind: str | type[Resource], namespace: str = "", *,
        name: str = "", is_prefix: bool = False, revision: int = 0,
    ) -> ResourceList[Any]:  # fmt: skip
        """All of a kind, of one namespace (""=all), of one name or (`is_prefix`) name prefix."""
        kind_name = _kind_name(kind)
        prefix = prefix_of(kind_name, namespace or None)
        # Without a namespace the name is not at a fixed place of a namespaced kind's path.
        names_are_next = bool(namespace) or not KIND_BY_NAME[kind_name].namespaced
        items: list[Resource] = []
        skipped: list[DecodeError] = []
        snapshot = 0
        async with aclosing(
            self._datastore.list_pages(prefix + (name if names_are_next else ""), revision=revision)
        ) as pages:
            async for page in pages:
                snapshot = page.revision
                for kv in page.kvs:
                    found = _listed(kv, kind_name, name, is_prefix=is_prefix)
                    if isinstance(found, DecodeError):
                        skipped.append(found)
                    elif found is not None:
                        items.append(found)
        if kind_name == Profile.kind and name in ("", DEFAULT_ALLOW_PROFILE) and not is_prefix:
            items.append(default_allow_profile())
        return ResourceList(tuple(items), snapshot, tuple(skipped))

    async def watch(
        self, kind: str | type[Resource], namespace: str = "", *, name: str = "", revision: int = 0
    ) -> AsyncGenerator[ResourceChange[Any], None]:
        """Changes after `revision`; with 0 first everything that is there, as ADDED.

        Errors: WatchExpired (list again), Unauthorized. A value that does not parse is an ERROR
        and ends nothing.
        """
        kind_name = _kind_name(kind)
        if not revision:
            present = await self.list(kind_name, namespace, name=name)
            for item in present:
                yield ResourceChange(ChangeType.ADDED, key_of(item), item)
            revision = present.revision
        prefix = prefix_of(kind_name, namespace or None)
        async with aclosing(self._datastore.watch(prefix, revision + 1)) as batches:
            async for batch in batches:
                for event in batch.events:
                    key = parse(event.kv.key)
                    if isinstance(key, ResourceKey) and (not name or key.name == name):
                        yield _change(key, event)

    # ---- initialisation ------------------------------------------------------------------------

    async def ensure_initialized(self, *, calico_version: str = "", cluster_type: str = "") -> None:
        """ClusterInformation and the built-in tiers exist afterwards (datamodel 1.5).

        May be called any number of times, by any number of nodes at once. Does as much as it can
        and raises the first error at the end.
        """
        errors: list[SuiteError] = []
        try:
            await self._ensure_cluster_information(calico_version, cluster_type)
        except SuiteError as err:
            errors.append(err)
        for tier in initial_tiers():
            try:
                await self.create(tier)
            except AlreadyExists:
                continue
            except SuiteError as err:
                errors.append(err)
                if isinstance(err, Transient):
                    break  # it will not be there for the next one either
        if errors:
            raise errors[0]

    async def _ensure_cluster_information(self, calico_version: str, cluster_type: str) -> None:
        for _ in range(MAX_ATTEMPTS):
            fresh = initial_cluster_information(
                self._new_uid().hex, calico_version=calico_version, cluster_type=cluster_type
            )
            try:
                stored = await self.get(ClusterInformation, "default")
            except NotFound:
                try:
                    await self.create(fresh)
                except AlreadyExists:
                    continue
                return
            wanted = updated_cluster_information(
                stored,
                cluster_guid=self._new_uid().hex,
                calico_version=calico_version,
                cluster_type=cluster_type,
            )
            if wanted == stored:
                return
            try:
                await self.update(self._stamped(wanted))
            except RevisionConflict:
                continue
            return
        raise RevisionConflict("ClusterInformation(default)")

    # ---- checks that need other objects --------------------------------------------------------

    async def _check_others(self, resource: Resource, *, is_new: bool) -> None:
        if isinstance(resource, BGPPeer) and resource.spec.filters:
            names = await self._names("BGPFilter")
            validation.validate_peer_filters(resource, names)
        if isinstance(resource, IPPool) and is_new:
            others = await self.list(IPPool)
            validation.validate_pool_overlap(resource, others)
            version = 6 if ":" in resource.spec.cidr else 4
            listed = await self._datastore.list(blocks_prefix(version), keys_only=True)
            keys = (parse(kv.key) for kv in listed.kvs)
            cidrs = [key.cidr for key in keys if isinstance(key, BlockKey)]
            validation.validate_pool_blocks(resource, cidrs)

    async def _check_tier(self, policy: Any) -> None:
        tier = policy.spec.tier or DEFAULT_TIER
        found = await self._datastore.get(path_of(ResourceKey("Tier", tier)))
        validation.validate_policy_tier(policy, () if found is None else (tier,))

    async def _count_policies(self, tier: str) -> int:
        count = 0
        for kind in sorted(TIERED_POLICY_KINDS):
            policies: ResourceList[Any] = await self.list(kind)
            count += sum(1 for policy in policies if (policy.spec.tier or DEFAULT_TIER) == tier)
        return count

    async def _names(self, kind: str) -> frozenset[str]:
        listed = await self._datastore.list(prefix_of(kind), keys_only=True)
        keys = (parse(kv.key) for kv in listed.kvs)
        return frozenset(key.name for key in keys if isinstance(key, ResourceKey))

    # ---- inside --------------------------------------------------------------------------------

    def _stamped(self, resource: R) -> R:
        """Identity and birthday, where the writer gave none; nothing that is not stored."""
        metadata = resource.metadata
        now = datetime.fromtimestamp(self._clock.wall(), UTC)
        stamped = replace(
            metadata,
            uid=metadata.uid or str(self._new_uid()),
            creation_timestamp=metadata.creation_timestamp or now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
        return replace(resource, metadata=stamped)

    async def _stored(self, key: ResourceKey) -> _Stored:
        """What an update is going to replace. Errors: NotFound."""
        kv = await self._datastore.get(path_of(key))
        if kv is None:
            raise NotFound(identifier(key))
        try:
            found = codec.decode_preserving(key, kv.value, kv.mod_revision)
        except DecodeError:
            # Replacing an object that does not parse is how it is repaired.
            return _Stored(None, NOTHING_UNKNOWN, kv.mod_revision)
        return _Stored(found.obj, found.unknown, kv.mod_revision)


@dataclass(frozen=True, slots=True)
class _Stored:
    resource: Resource | None
    unknown: Unknown
    revision: int


def _kind_name(kind: str | type[Resource]) -> str:
    return kind if isinstance(kind, str) else kind.kind


def _key(kind: str | type[Resource], name: str, namespace: str) -> ResourceKey:
    """Errors: UnknownKind; ValidationError for a namespaced kind without a namespace."""
    key = ResourceKey(_kind_name(kind), name, namespace)
    info = KIND_BY_NAME.get(key.kind)
    if info is not None and info.namespaced and not namespace:
        reason = "namespace is not specified on namespaced resource"
        raise ValidationError.of("Metadata.Namespace", None, reason)
    path_of(key)
    return key


def _is_default_allow(key: ResourceKey) -> bool:
    return key.kind == Profile.kind and key.name == DEFAULT_ALLOW_PROFILE


def _decoded(key: ResourceKey, kv: KeyValue) -> Resource:
    """The object with the defaults that readers apply (datamodel 1.5). Errors: DecodeError."""
    found = cast(Resource, codec.decode(key, kv.value, kv.mod_revision))
    if isinstance(found, IPPool):
        return pool_with_read_defaults(found)
    if isinstance(found, Tier):
        return with_defaults(found)
    return found


def _listed(
    kv: KeyValue, kind: str, name: str, *, is_prefix: bool
) -> Resource | DecodeError | None:
    """A listed value, if it is of the kind and of the name; why it does not parse (R4)."""
    key = parse(kv.key)
    if not isinstance(key, ResourceKey) or key.kind != kind:
        return None
    if name and not (key.name.startswith(name) if is_prefix else key.name == name):
        return None
    if _is_default_allow(key):
        return None  # R5: somebody stored one by hand
    try:
        return _decoded(key, kv)
    except DecodeError as err:
        LOG.warning("a stored value does not parse, skipped", key=kv.key, error=err.reason)
        return err


def _change(key: ResourceKey, event: WatchEvent) -> ResourceChange[Any]:
    try:
        previous = None if event.previous is None else _decoded(key, event.previous)
    except DecodeError:
        previous = None
    if event.type is EventType.DELETE:
        return ResourceChange(ChangeType.DELETED, key, previous=previous)
    try:
        found = _decoded(key, event.kv)
    except DecodeError as err:
        return ResourceChange(ChangeType.ERROR, key, previous=previous, error=err)
    kind = ChangeType.ADDED if event.kv.version == 1 else ChangeType.MODIFIED
    return ResourceChange(kind, key, found, previous)


def _with_revision(resource: R, revision: int) -> R:
    metadata = replace(resource.metadata, resource_version=str(revision))
    return replace(resource, metadata=metadata)
