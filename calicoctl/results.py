"""What create, apply, replace, delete and validate say about what they did (datamodel 6.5).

Layer: pure. Used by calicoctl.commands.crud. `Outcome` collects what happened to each object in
order; `messages` gives the lines for stdout and the error, if any, for stderr.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from libcalico.errors import SuiteError

PAST = {
    "create": "created",
    "apply": "applied",
    "replace": "replaced",
    "delete": "deleted",
    "validate": "validated",
}


class CommandFailed(SuiteError):
    """The error of a whole command; the text is what is shown on stderr."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return self.message


@dataclass(slots=True)
class Outcome:
    """`kinds` of all objects given; `handled` objects without error; `errors` in order."""

    verb: str
    kinds: Sequence[str]
    handled: int = 0
    errors: list[SuiteError] = field(default_factory=list)

    @property
    def _kind(self) -> str:
        """The kind all objects share, in quotes, or nothing."""
        return f"'{self.kinds[0]}' " if len(set(self.kinds)) == 1 else ""

    def stdout(self) -> str:
        past = PAST[self.verb]
        if self.errors:
            if self.handled and self.verb != "delete":
                return (
                    f"Partial success: {past} the first {self.handled} out of {len(self.kinds)} "
                    f"{self._kind}resources:"
                )
            if not (self.handled and self.verb == "delete"):
                return ""
        return f"Successfully {past} {self.handled} {self._kind}resource(s)"

    def error(self) -> CommandFailed | None:
        if not self.errors:
            return None
        if self.verb == "delete":
            kind = self._kind
            lines = [f"Failed to delete {kind}resource: {err}" for err in self.errors]
            return CommandFailed("\n".join(lines))
        listed = " ".join(map(str, self.errors))
        if self.verb == "replace":
            return CommandFailed(f"hit error: {self.errors[-1]}")
        if self.handled:
            return CommandFailed(f"hit error: [{listed}]")
        if len(self.kinds) == 1:
            return CommandFailed(f"failed to {self.verb} {self._kind}resource: [{listed}]")
        return CommandFailed(f"failed to {self.verb} any {self._kind}resources: [{listed}]")
