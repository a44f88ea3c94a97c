"""Users' YAML and JSON -> resources, strictly, with every error named.

Layer: libcalico.model, pure (text in, objects out; files are the CLI's). Used by calicoctl.

  DC1  nothing but InvalidInput leaves this module, whatever the text;
  DC2  a document either gives all its resources or errors, and every error that can be found is
       reported, with the document's number and the field's path; one document's errors do not
       affect another;
  DC3  strict where Calico is: unknown and duplicate members, wrong types; liberal where Calico is:
       member names in any case, unquoted numbers for strings, null for absent;
  DC4  what comes out is in the normal form Calico stores (durations, ports, AS numbers).

The texts are those of Calico's decoder, because people search for them.
Source: datamodel §1.4, §6.4; sigs.k8s.io/yaml, Go encoding/json.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from libcalico.errors import InvalidInput
from libcalico.model.kinds import KIND_BY_NAME, KindInfo
from libcalico.model.meta import API_VERSION, ListMeta, Resource
from libcalico.model.schema import record_of
from libcalico.model.strict import DECODE_PREFIX, Reader, go_kind
from libcalico.model.tolerant import is_deeper_than
from libcalico.model.yamltext import MAX_DEPTH, YamlError, load

MAX_DOCUMENT_BYTES = 10 * 1024 * 1024
# One wrong file should not fill a terminal.
MAX_ERRORS_PER_DOCUMENT = 100

_REFUSED = object()


class DocumentError(InvalidInput):
    """One thing wrong with one document. `document` counts from 1; `path` is "" for all of it."""

    def __init__(self, document: int, path: str, reason: str) -> None:
        super().__init__(document, path, reason)
        self.document, self.path, self.reason = document, path, reason

    def __str__(self) -> str:
        place = f"document {self.document}" + (f", field {self.path}" if self.path else "")
        return f"{self.reason} ({place})"


class DocumentErrors(InvalidInput):
    """Everything wrong with a text."""

    def __init__(self, errors: tuple[DocumentError, ...]) -> None:
        super().__init__(errors)
        self.errors = errors

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)


@dataclass(frozen=True, slots=True)
class Document:
    """What one document gave: resources, or errors."""

    number: int
    resources: tuple[Resource, ...] = ()
    errors: tuple[DocumentError, ...] = ()


def read_documents(text: str | bytes) -> tuple[Document, ...]:
    """Every non-empty document of a text, each with its resources or its errors."""
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8-sig")
        except UnicodeDecodeError as err:
            return (_failed(1, f"error converting YAML to JSON: yaml: invalid UTF-8: {err}"),)
    documents: list[Document] = []
    for line, part in split_documents(text):
        document = _read_document(len(documents) + 1, line, part)
        if document is not None:
            documents.append(document)
    return tuple(documents)


def read_resources(text: str | bytes) -> tuple[Resource, ...]:
    """The resources of all documents. Errors: DocumentErrors with everything that is wrong."""
    documents = read_documents(text)
    errors = tuple(error for document in documents for error in document.errors)
    if errors:
        raise DocumentErrors(errors)
    return tuple(resource for document in documents for resource in document.resources)


def split_documents(text: str) -> Iterator[tuple[int, str]]:
    """(first line, text) of each document: they are separated by lines that begin with `---`."""
    start_line = 1
    lines: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.startswith("---") and number > 1:
            yield start_line, "\n".join(lines)
            start_line, lines = number + 1, []
        else:
            lines.append(line)
    yield start_line, "\n".join(lines)


def _failed(number: int, reason: str) -> Document:
    return Document(number, errors=(DocumentError(number, "", reason),))


def _read_document(number: int, line: int, text: str) -> Document | None:
    if not text.strip():
        return None
    if len(text.encode("utf-8", "surrogatepass")) > MAX_DOCUMENT_BYTES:
        return _failed(number, f"document is larger than {MAX_DOCUMENT_BYTES} bytes")
    try:
        value = _parse(text)
    except YamlError as err:
        reason = f"error converting YAML to JSON: yaml: line {err.line + line - 1}: {err.reason}"
        return _failed(number, reason)
    if value is None:
        return None
    return _resources_of(number, value)


def _parse(text: str) -> Any:
    """JSON by the fast parser; whatever that refuses, as YAML (which is a superset)."""
    if text.lstrip()[:1] in ("{", "["):
        value = _parse_json(text)
        if value is not _REFUSED:
            return value
    return load(text)


def _parse_json(text: str) -> Any:
    try:
        msgspec.json.decode(text)  # refuses what `json` lets pass: NaN, broken surrogates
        value = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return _REFUSED  # the YAML parser will say what is wrong, and where
    return _REFUSED if is_deeper_than(value, MAX_DEPTH) else value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("duplicate member")
    return members


def _resources_of(number: int, value: Any) -> Document:
    resources: list[Resource] = []
    errors: list[DocumentError] = []
    for path, info, item in _objects(value, "", number, errors):
        reader = Reader(path)
        resource = reader.resource(info, item)
        errors += [DocumentError(number, where, reason) for where, reason in reader.errors]
        if resource is not None:
            resources.append(resource)
    if errors:
        return Document(number, errors=tuple(errors[:MAX_ERRORS_PER_DOCUMENT]))
    return Document(number, resources=tuple(resources))


def resource_from(value: Any) -> Resource:
    """One resource from plain values, for patched objects. Errors: DocumentErrors."""
    document = _resources_of(1, value)
    if document.errors:
        raise DocumentErrors(document.errors)
    if len(document.resources) != 1:
        raise DocumentErrors((DocumentError(1, "", "expected exactly one resource"),))
    return document.resources[0]


def _objects(
    value: Any, path: str, number: int, errors: list[DocumentError]
) -> Iterator[tuple[str, KindInfo, dict[str, Any]]]:
    """The single objects of an object, a list object or an array."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _objects(item, f"{path}[{index}]", number, errors)
        return
    if not isinstance(value, dict):
        text = f"json: cannot unmarshal {go_kind(value)} into Go value"
        text += " of type map[string]interface {}"
        errors.append(DocumentError(number, path, DECODE_PREFIX + text))
        return
    kind, version = (_text(_member(value, name)) for name in ("kind", "apiVersion"))
    info = KIND_BY_NAME.get(kind)
    list_info = KIND_BY_NAME.get(kind.removesuffix("List")) if kind.endswith("List") else None
    if version != API_VERSION or (info is None and list_info is None):
        reason = f"unknown resource type ({kind}) and/or version ({version})"
        errors.append(DocumentError(number, path, reason))
    elif info is not None:
        yield path, info, value
    elif list_info is not None:
        yield from _list_items(list_info, value, path, number, errors)


def _list_items(
    info: KindInfo, value: dict[str, Any], path: str, number: int, errors: list[DocumentError]
) -> Iterator[tuple[str, KindInfo, dict[str, Any]]]:
    prefix = path + "." if path else ""
    known = {"kind", "apiversion", "metadata", "items"}
    for name in value:
        if name.lower() not in known:
            errors.append(
                DocumentError(number, prefix + name, f'{DECODE_PREFIX}json: unknown field "{name}"')
            )
    reader = Reader(prefix + "metadata")
    reader.record(record_of(ListMeta), _member(value, "metadata") or {}, prefix + "metadata")
    errors += [DocumentError(number, where, reason) for where, reason in reader.errors]
    items = _member(value, "items")
    if items is not None and not isinstance(items, list):
        text = f"json: cannot unmarshal {go_kind(items)} into Go struct field"
        text += f" {info.list_kind}.items of type []v3.{info.kind}"
        errors.append(DocumentError(number, prefix + "items", DECODE_PREFIX + text))
        return
    for index, item in enumerate(items or []):
        where = f"{prefix}items[{index}]"
        if isinstance(item, dict):
            yield where, info, item
        else:
            text = f"json: cannot unmarshal {go_kind(item)} into Go value of type v3.{info.kind}"
            errors.append(DocumentError(number, where, DECODE_PREFIX + text))


def _member(value: dict[str, Any], name: str) -> Any:
    """A member by its name in any case."""
    if name in value:
        return value[name]
    return next((item for key, item in value.items() if key.lower() == name.lower()), None)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)
