"""Files, directories and standard input to resources (datamodel 6.4).

Layer: edge (files). Used by calicoctl.commands. Everything wrong in a file is said at once, each
with its file, document and field.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from calicoctl.results import CommandFailed
from libcalico.errors import InvalidInput, SuiteError
from libcalico.model.defaults import with_defaults
from libcalico.model.documents import Document, DocumentError, read_documents
from libcalico.model.meta import Resource
from libcalico.model.validation import validate

EXTENSIONS = (".yaml", ".yml", ".json")
_UNKNOWN = "field in document is not recognized or is in the wrong location: "
MAX_FILE_BYTES = 256 << 20


class Given(NamedTuple):
    """A resource and where it stood; `place` is "" where there is only one place."""

    resource: Resource
    place: str = ""


def load(filename: str, *, is_recursive: bool, skip_empty: bool) -> list[Given]:
    """Resources in file order. Errors: CommandFailed naming every fault of every file."""
    documents = [
        (label, document)
        for label, text in _texts(filename, is_recursive)
        for document in read_documents(text)
    ]
    if any(document.errors for _, document in documents):
        faults = [fault for label, document in documents for fault in _faults(label, document)]
        prefix = "" if faults[0].startswith(_UNKNOWN) else "failed to execute command: "
        raise CommandFailed(prefix + "\n".join(faults))
    resources = [given for label, document in documents for given in _given(label, document)]
    if not resources and not skip_empty:
        where = "directory" if filename != "-" and Path(filename).is_dir() else "file"
        raise CommandFailed(f"no resources specified in {where} {filename}")
    if len({given.place for given in resources}) == 1:
        return [Given(given.resource) for given in resources]
    return resources


def _given(label: str, document: Document) -> list[Given]:
    place = f"{label}document {document.number}"
    return [Given(resource, place) for resource in document.resources]


def _faults(label: str, document: Document) -> list[str]:
    """What is wrong with a document, in its form or in its values: where one document has a fault
    nothing is done with any, so what the writing of the others would find is said as well."""
    found = [label + _worded(error) for error in document.errors]
    for given in _given(label, document):
        try:
            validate(with_defaults(given.resource))
        except InvalidInput as err:
            found.append(str(placed(err, given)))
    return found


def placed(error: SuiteError, given: Given) -> SuiteError:
    """The error with its object and document behind it, where there are several."""
    if not given.place:
        return error
    metadata: Any = given.resource.metadata
    named = f"{given.resource.kind}({metadata.name})"
    return CommandFailed(f"{str(error).rstrip()} ({named}, {given.place})")


def _worded(error: DocumentError) -> str:
    """Calico says an unknown field in its own words (6.1); the place stays named behind them."""
    match = re.search(r'unknown field "([^"]*)"', error.reason)
    if match is None:
        return str(error)
    return str(DocumentError(error.document, error.path, f"{_UNKNOWN}{match[1]}"))


def _texts(filename: str, is_recursive: bool) -> Iterator[tuple[str, bytes]]:
    """(prefix for messages, content) of each file."""
    if filename == "-":
        yield "", sys.stdin.buffer.read()
        return
    path = Path(filename)
    if not path.is_dir():
        yield "", _read(path)
        return
    found = path.rglob("*") if is_recursive else path.iterdir()
    for file in sorted(file for file in found if file.suffix in EXTENSIONS and file.is_file()):
        yield f"{file}: ", _read(file)


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise CommandFailed(
                f"failed to execute command: {path}: larger than {MAX_FILE_BYTES} bytes"
            )
        return path.read_bytes()
    except OSError as err:
        reason = (err.strerror or str(err)).lower()
        raise CommandFailed(f"failed to execute command: open {path}: {reason}") from err
