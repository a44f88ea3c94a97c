"""Any object of any kind: stored, read, stored again; foreign members; spellings; keys.

The objects are generated from the schema, so a new member is covered without a change here.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libcalico.errors import DecodeError
from libcalico.model import codec, ipam
from libcalico.model.documents import resource_from
from libcalico.model.keys import (
    BlockAffinityKey,
    BlockKey,
    HandleKey,
    IpamConfigKey,
    Key,
    ResourceKey,
    WorkloadEndpointStatusKey,
    parse,
    path_of,
)
from libcalico.model.kinds import KINDS, TIERED_POLICY_KINDS, KindInfo
from libcalico.model.meta import NAME_ANNOTATION
from libcalico.model.schema import Free, Listing, Mapping, Record, Scalar, Shape, record_of
from libcalico.net import network_of

quick = settings(
    derandomize=True, max_examples=150, deadline=None, suppress_health_check=list(HealthCheck)
)

texts = st.text(st.characters(codec="utf-8"), max_size=8)
words = st.text(string.ascii_letters + string.digits + "-._/%", min_size=1, max_size=12)
names = st.text(string.ascii_lowercase + string.digits + "-.", min_size=1, max_size=12)
free = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
_SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "str": texts,
    "bool": st.booleans(),
    "float": st.floats(allow_nan=False, allow_infinity=False),
    "bool_string": st.sampled_from(["", "true", "false"]),
    "duration": st.sampled_from(["0s", "1m30s", "1.5s", "500ms", "24h0m0s"]),
    "protocol": st.sampled_from(["TCP", "UDPLite", 1, 255]),
    "port": st.sampled_from([0, 80, 65535, "8000:8080", "http-alt"]),
    "dscp": st.sampled_from([0, 63, "EF", "AF11"]),
}


def json_of(shape: Shape) -> st.SearchStrategy[Any]:
    """JSON values of a shape, in the normal form and without empty members Go would drop."""
    if isinstance(shape, Record):
        return record_json(shape)
    if isinstance(shape, Listing):
        item = json_of(shape.item)
        return st.lists(st.none() | item if shape.nullable_items else item, max_size=2)
    if isinstance(shape, Mapping):
        return st.dictionaries(texts, json_of(shape.value), max_size=2)
    if isinstance(shape, Free):
        return free
    if shape.name in ("int", "as_number"):
        low = -(2**53) if shape.low is None else shape.low
        high = 2**53 if shape.high is None else shape.high
        return st.integers(low, high)
    return _SCALARS[shape.name]


@st.composite
def record_json(draw: st.DrawFn, record: Record) -> dict[str, Any]:
    members = draw(st.lists(st.sampled_from(sorted(record.members)), unique=True, max_size=6))
    return {name: draw(json_of(record.members[name].shape)) for name in members if name}


@st.composite
def resources(draw: st.DrawFn) -> tuple[KindInfo, dict[str, Any]]:
    info = draw(st.sampled_from(KINDS))
    value = draw(record_json(record_of(info.resource)))
    value["spec"] = draw(json_of(record_of(info.resource).members["spec"].shape))
    return info, value


def _without_revision(obj: Any) -> Any:
    metadata = {name: getattr(obj.metadata, name) for name in obj.metadata.__struct_fields__}
    del metadata["resource_version"], metadata["self_link"]
    return metadata, obj.spec, getattr(obj, "status", None)


def _key(info: KindInfo) -> ResourceKey:
    return ResourceKey(info.kind, "a", "ns" if info.namespaced else "")


@quick
@given(resources())
def test_what_was_stored_is_read_the_same_and_storing_again_changes_nothing(
    case: tuple[KindInfo, dict[str, Any]],
) -> None:
    info, value = case
    first = codec.decode(_key(info), json.dumps(value).encode(), 3)
    stored = codec.encode(first)
    second = codec.decode(_key(info), stored, 4)
    assert codec.encode(second) == stored
    head = json.loads(stored)
    assert list(head)[:4] == ["kind", "apiVersion", "metadata", "spec"]
    assert (head["kind"], head["apiVersion"]) == (info.kind, "projectcalico.org/v3")
    if info.kind not in TIERED_POLICY_KINDS:
        third = codec.decode(_key(info), stored, 3)
        again = codec.decode(_key(info), codec.encode(third), 3)
        assert _without_revision(again) == _without_revision(third)


@st.composite
def respelled(draw: st.DrawFn, record: Record, value: Any) -> Any:
    """The same JSON with member names in another case."""
    if not isinstance(value, dict):
        return value
    result = {}
    for name, item in value.items():
        shape = record.members[name].shape
        if isinstance(shape, Record):
            item = draw(respelled(shape, item))
        elif isinstance(shape, Listing) and isinstance(shape.item, Record):
            item = [draw(respelled(shape.item, part)) for part in item]
        result[draw(st.sampled_from([name, name.upper(), name.lower(), name.swapcase()]))] = item
    return result


@quick
@given(st.data(), resources())
def test_the_case_of_member_names_does_not_matter(
    data: st.DataObject, case: tuple[KindInfo, dict[str, Any]]
) -> None:
    info, value = case
    other = data.draw(respelled(record_of(info.resource), value))
    plain = codec.decode(_key(info), json.dumps(value).encode(), 3)
    assert codec.decode(_key(info), json.dumps(other).encode(), 3) == plain


@st.composite
def with_foreign(draw: st.DrawFn, record: Record, value: Any, marks: list[str]) -> Any:
    """The same JSON with members nobody knows, in every record."""
    if not isinstance(value, dict):
        return value
    result: dict[str, Any] = {}
    for name, item in value.items():
        shape = record.members[name].shape
        if isinstance(shape, Record):
            item = draw(with_foreign(shape, item, marks))
        elif isinstance(shape, Listing) and isinstance(shape.item, Record):
            item = [draw(with_foreign(shape.item, part, marks)) for part in item]
        result[name] = item
    if draw(st.booleans()):
        marks.append(f"mark-{len(marks)}")
        result["x-foreign"] = {"value": marks[-1], "more": draw(free)}
    return result


def _marks(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["x-foreign"]["value"]] if "x-foreign" in value else []
        return own + [
            mark for name, v in value.items() if name != "x-foreign" for mark in _marks(v)
        ]
    return [mark for item in value for mark in _marks(item)] if isinstance(value, list) else []


@quick
@given(st.data(), resources())
def test_foreign_members_survive_a_read_and_write(
    data: st.DataObject, case: tuple[KindInfo, dict[str, Any]]
) -> None:
    info, value = case
    marks: list[str] = []
    foreign = data.draw(with_foreign(record_of(info.resource), value, marks))
    plain = codec.decode(_key(info), json.dumps(value).encode(), 3)
    obj, unknown = codec.decode_preserving(_key(info), json.dumps(foreign).encode(), 3)
    assert obj == plain, "what we know is not disturbed by what we do not know"
    assert bool(unknown) == bool(marks)
    assert len(unknown.paths()) == len(marks)
    stored = codec.encode(obj, unknown=unknown)
    assert sorted(_marks(json.loads(stored))) == sorted(marks)
    obj_again, unknown_again = codec.decode_preserving(_key(info), stored, 3)
    assert codec.encode(obj_again, unknown=unknown_again) == stored


@quick
@given(resources())
def test_what_is_shown_to_a_user_can_be_applied_again(
    case: tuple[KindInfo, dict[str, Any]],
) -> None:
    info, value = case
    obj = codec.decode(_key(info), json.dumps(value).encode(), 3)
    obj = codec.decode(_key(info), codec.encode(obj), 3)
    shown = codec.to_shown(obj)
    assert NAME_ANNOTATION not in shown["metadata"].get("annotations", {}) or (
        info.kind not in TIERED_POLICY_KINDS
    )
    assert codec.to_shown(resource_from(json.loads(json.dumps(shown)))) == shown


@quick
@given(st.sampled_from(KINDS), st.binary(max_size=60) | free.map(lambda v: json.dumps(v).encode()))
def test_no_stored_bytes_raise_anything_but_a_decode_error(info: KindInfo, raw: bytes) -> None:
    for decode in (codec.decode, codec.decode_preserving):
        assert _outcome(decode, _key(info), raw)


def _outcome(decode: Callable[..., object], key: ResourceKey, raw: bytes) -> str:
    try:
        decode(key, raw, 1)
    except DecodeError as err:
        return str(err)
    return "decoded"


@st.composite
def blocks(draw: st.DrawFn) -> ipam.Block:
    size = draw(st.sampled_from([1, 4, 64]))
    count = draw(st.integers(0, 3))
    index = st.none() if not count else st.none() | st.integers(0, count - 1)
    allocations = tuple(draw(st.lists(index, min_size=size, max_size=size)))
    attribute = st.builds(
        ipam.AllocationAttribute,
        handle_id=st.none() | words,
        secondary=st.dictionaries(words, texts, max_size=2),
        released_at=st.none() | words,
    )
    return ipam.Block(
        cidr=str(network_of(4, draw(st.integers(0, 2**32 - 1)), 26)),
        affinity=draw(st.none() | words),
        affinity_claim_time=draw(st.none() | words),
        allocations=allocations,
        unallocated=tuple(i for i, value in enumerate(allocations) if value is None),
        attributes=tuple(draw(st.lists(attribute, min_size=count, max_size=count))) or None,
        sequence_number=draw(st.integers(0, 2**64 - 1)),
        sequence_number_for_allocation={
            str(i): draw(st.integers(0, 2**64 - 1)) for i in range(draw(st.integers(0, 3)))
        },
    )


@quick
@given(blocks())
def test_a_block_is_read_as_it_was_written(block: ipam.Block) -> None:
    raw = codec.encode(block)
    assert codec.decode(BlockKey(block.cidr), raw, 1) == block
    assert set(json.loads(raw)) >= {"cidr", "affinity", "allocations", "attributes", "deleted"}


@st.composite
def any_key(draw: st.DrawFn) -> Key:
    version = draw(st.sampled_from([4, 6]))
    bits = 32 if version == 4 else 128
    address, length = draw(st.integers(0, 2**bits - 1)), draw(st.integers(0, bits))
    cidr = str(network_of(version, address, length))
    segment = draw(words).replace("/", "")
    segment = segment or "x"
    info = draw(st.sampled_from(KINDS))
    return draw(
        st.sampled_from(
            [
                ResourceKey(info.kind, draw(names), draw(names) if info.namespaced else ""),
                BlockKey(cidr),
                BlockAffinityKey(segment, cidr, draw(st.sampled_from(["host", "virtual"]))),
                HandleKey(segment),
                IpamConfigKey(),
                WorkloadEndpointStatusKey(
                    segment, draw(words), draw(words), draw(words), draw(st.sampled_from(["", "r"]))
                ),
            ]
        )
    )


@quick
@given(any_key())
def test_every_key_comes_back_from_its_path(key: Key) -> None:
    assert parse(path_of(key)) == key


@quick
@given(st.text(max_size=40) | st.builds("/calico/{}".format, words))
def test_no_path_makes_the_parser_raise(path: str) -> None:
    key = parse(path)
    assert key is None or path_of(key) == path


def test_every_kind_has_a_scalar_strategy_for_each_of_its_members() -> None:
    seen: set[str] = set()

    def walk(shape: Shape) -> None:
        if isinstance(shape, Scalar):
            seen.add(shape.name)
        elif isinstance(shape, Record):
            for member in shape.members.values():
                walk(member.shape)
        elif isinstance(shape, Listing):
            walk(shape.item)
        elif isinstance(shape, Mapping):
            walk(shape.value)

    for info in KINDS:
        walk(record_of(info.resource))
    assert seen - set(_SCALARS) == {"int", "as_number"}
