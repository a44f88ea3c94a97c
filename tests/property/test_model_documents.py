"""Whatever a user types, the document reader answers with objects or with InvalidInput."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libcalico.errors import InvalidInput
from libcalico.model import codec
from libcalico.model.documents import read_documents, read_resources
from libcalico.model.kinds import KINDS
from libcalico.model.schema import record_of
from libcalico.model.yamltext import YamlError, load

quick = settings(
    derandomize=True, max_examples=300, deadline=None, suppress_health_check=list(HealthCheck)
)

# Text that gets past the tokenizer more often than random characters do.
_PIECES = [
    "apiVersion: projectcalico.org/v3\n",
    *(f"kind: {info.kind}\n" for info in KINDS),
    "kind: IPPoolList\n",
    "items:\n",
    "metadata: {name: a}\n",
    "metadata:\n",
    "spec:\n",
    "spec: {}\n",
    "---\n",
    "\n---",
    *(f"  {name}: " for info in KINDS for name in record_of(info.resource).members),
    *(
        f"  {name}: "
        for info in KINDS
        for name in record_of(info.resource).members["spec"].shape.members  # type: ignore[union-attr]
    ),
    *("5\n", "-1\n", "1.5\n", "x\n", "'80'\n", "yes\n", "null\n", "~\n", ".inf\n", "1e400\n"),
    *("[", "]", "{", "}", ",", ": ", "- ", "  ", "\n", "\t", "#", "|\n", ">-\n", '"', "'", "?"),
    *("&a ", "*a", "<<: ", "!!str ", "!!binary ", "!x ", "%YAML 1.1\n", "...\n", "\ufeff"),
    *("0x10", "0b2", "08", "9" * 400, "12:30", "2026-01-01", "\x00", "\ud800", "\u2028"),
]
nearly_yaml = st.lists(st.sampled_from(_PIECES), max_size=14).map("".join)


@quick
@given(st.text(max_size=80) | nearly_yaml)
def test_any_text_gives_resources_or_errors_and_never_both(text: str) -> None:
    for number, document in enumerate(read_documents(text), start=1):
        assert document.number == number
        assert not (document.resources and document.errors)
        for error in document.errors:
            assert error.document == number
            assert error.reason
        for resource in document.resources:
            assert codec.encode(resource)
    assert _outcome(text)


def _outcome(text: str | bytes) -> str:
    try:
        read_resources(text)
    except InvalidInput as err:
        return str(err)
    return "read"


@quick
@given(st.binary(max_size=80) | nearly_yaml.map(lambda t: t.encode("utf-8", "surrogatepass")))
def test_any_bytes_give_resources_or_errors(raw: bytes) -> None:
    assert _outcome(raw)


@quick
@given(st.text(max_size=80) | nearly_yaml)
def test_the_yaml_reader_raises_only_its_own_error(text: str) -> None:
    assert _yaml_outcome(text) >= 0


def _yaml_outcome(text: str) -> int:
    try:
        load(text)
    except YamlError as err:
        return err.line if err.reason else -1
    return 0
