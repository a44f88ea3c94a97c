"""Invalid becomes absent: nothing behind this filter has to doubt what it is handed.

Layer: syncer, pure. Used by felix.calc for every update, before the dispatcher, and by typha's
spans, which must believe in the same objects.

An object that does not decode, does not validate, or that a later node cannot use (a selector in a
rule that does not parse) does not exist for this node, whatever stood there before (reference/
datamodel.md 4, last paragraph). The others are not affected. What is wrong is kept for reporting:

  Y1  `problems` names exactly the keys whose latest value was refused, up to `limit`; the rest is
      counted in `unlisted`, so that a datastore full of rubbish cannot fill the memory.

Source: Calico felix/calc/validation_filter.go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from libcalico.errors import InvalidInput
from libcalico.model import Resource, WorkloadEndpoint
from libcalico.model.keys import Key, UnknownKind, path_of
from libcalico.syncer.api import Update

PROBLEM_LIMIT = 1000

# Raises InvalidInput; the daemon hands in libcalico.model.validation.
Validator = Callable[[Resource], object]


class ValidationFilter:
    def __init__(
        self,
        validate: Validator | None,
        *,
        allow_source_spoofing: bool = False,
        limit: int = PROBLEM_LIMIT,
    ) -> None:
        self._validate = validate
        self._allow_source_spoofing = allow_source_spoofing
        self._limit = limit
        self._problems: dict[Key, str] = {}
        self._unlisted = 0

    @property
    def problems(self) -> Mapping[Key, str]:
        """Key -> why its latest value counts as absent (Y1)."""
        return self._problems

    @property
    def unlisted(self) -> int:
        """How many refusals found no room; they stay counted."""
        return self._unlisted

    def valid_value(self, update: Update) -> object | None:
        """The value to believe; None when there is none, or when it is refused."""
        if self._problems:
            self._problems.pop(update.key, None)
        if update.error is not None:
            self.refuse(update.key, update.error)
            return None
        value = update.value
        if value is None:
            return None
        try:
            self._check(value)
        except InvalidInput as err:
            self.refuse(update.key, err)
            return None
        return value

    def refuse(self, key: Key, error: InvalidInput) -> None:
        """Record a refusal, also one that a later node found."""
        if key in self._problems or len(self._problems) < self._limit:
            self._problems[key] = str(error)
        else:
            self._unlisted += 1

    def dump(self) -> dict[str, object]:
        listed = {_shown(key): reason for key, reason in self._problems.items()}
        return {"problems": listed, "unlisted": self._unlisted}

    def _check(self, value: object) -> None:
        if isinstance(value, WorkloadEndpoint):
            self._check_workload(value)
        if self._validate is not None and isinstance(value, Resource):
            self._validate(value)

    def _check_workload(self, endpoint: WorkloadEndpoint) -> None:
        if not endpoint.spec.interface_name:
            raise InvalidInput("spec.interfaceName: must be set")
        if endpoint.spec.allow_spoofed_source_prefixes and not self._allow_source_spoofing:
            raise InvalidInput(
                "spec.allowSpoofedSourcePrefixes: needs WorkloadSourceSpoofing to be Any"
            )


def _shown(key: Key) -> str:
    try:
        return path_of(key)
    except UnknownKind:  # a Kubernetes object, which no path leads to
        return str(key)
