"""Templates to text, with Jinja2 and nothing undefined.

Layer: pure but for reading template files. Used by confd.daemon.
An unknown name in a template is an error (StrictUndefined), never an empty string: a BGP
configuration with a hole in it is worse than the last good one.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path

import jinja2
import msgspec

from confd import bird
from libcalico.errors import InvalidInput
from libcalico.model.speaker import SpeakerConfig


class TemplateError(InvalidInput):
    """A template does not parse, or names something that is not there."""

    def __init__(self, template: str, line: int | None, reason: str) -> None:
        super().__init__(template, line, reason)
        self.template, self.line, self.reason = template, line, reason

    def __str__(self) -> str:
        where = self.template if self.line is None else f"{self.template}:{self.line}"
        return f"template {where}: {self.reason}"


class Renderer:
    """Renders templates of one folder. Templates are read again when they change on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(folder),
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            # Not HTML: escaping would corrupt a router's configuration.
            autoescape=False,
        )
        self._environment.filters["base64"] = _base64
        self._environment.filters["json"] = to_json
        self._environment.filters.update(bird.FILTERS)
        self._environment.globals["priority_base"] = bird.PRIORITY_BASE
        self._environment.filters["of_generation"] = of_generation

    def render(self, template: str, variables: Mapping[str, object]) -> str:
        """Errors: TemplateError with the template's name and line."""
        try:
            return self._environment.get_template(template).render(variables)
        except jinja2.TemplateSyntaxError as err:
            raise TemplateError(err.name or template, err.lineno, err.message or "") from err
        except jinja2.TemplateNotFound as err:
            raise TemplateError(template, None, f"{err.message} not found") from err
        except jinja2.TemplateError as err:
            raise TemplateError(template, None, err.message or str(err)) from err
        except ValueError as err:  # of a filter: what the language of the file cannot say
            raise TemplateError(template, None, str(err)) from err


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def to_json(value: object) -> str:
    """Indented JSON of any Struct, two spaces, members in declaration order, one final newline."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"


def of_generation(speaker: SpeakerConfig, exabgp_conf: str) -> SpeakerConfig:
    """Tie speaker.json to the exabgp.conf it was rendered with (libcalico.model.speaker)."""
    digest = hashlib.sha256(exabgp_conf.encode()).hexdigest()
    return msgspec.structs.replace(speaker, exabgp_sha256=digest)
