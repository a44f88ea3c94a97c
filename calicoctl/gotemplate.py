"""The parts of Go's text/template that printing objects needs.

Layer: pure. Used by calicoctl.output. Covered: {{ . }}, fields and chains (.Spec.CIDR), variables
($x := …, $), pipelines, {{if}} {{else if}} {{else}} {{with}} {{range}} {{range $i, $x := …}}
{{end}} {{break}} {{continue}}, comments, trim markers {{- -}}, literals ("…", `…`, numbers, true,
false, nil), parentheses, and the functions and or not eq ne lt le gt ge len index print printf
println slice join joinAndTruncate config. Not covered: {{define}}, {{template}},
{{block}} and method calls.

Objects are plain JSON values. A field name is looked up without case, because Go templates use Go's
field names (`.ObjectMeta.Name`, `.Spec.IPIPMode`) where the JSON says `metadata.name` and
`spec.ipipMode`; the embedded ObjectMeta, TypeMeta and ListMeta are found under their JSON places.
An absent field prints `<no value>` as in Go.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from calicoctl.cells import go
from libcalico.errors import SuiteError

Functions = Mapping[str, Callable[..., Any]]


class TemplateError(SuiteError):
    """The template does not parse, or cannot be executed on these objects."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return f"template: {self.message}"


class _Missing:
    """A field that is not there: false in conditions, `<no value>` in print."""

    def __bool__(self) -> bool:
        return False


MISSING = _Missing()
_ACTION = re.compile(r"\{\{(-\s)?(.*?)(\s-)?\}\}", re.DOTALL)
_TOKEN = re.compile(
    r"""\s*(?:(?P<string>"(?:\\.|[^"\\])*"|`[^`]*`)|(?P<number>-?\d+(?:\.\d+)?)
    |(?P<word>[A-Za-z_][A-Za-z0-9_]*)|(?P<variable>\$[A-Za-z0-9_]*)
    |(?P<field>\.[A-Za-z_][A-Za-z0-9_]*)|(?P<symbol>:=|[().|,=]))""",
    re.VERBOSE,
)
_EMBEDDED = {"objectmeta": "metadata", "listmeta": "metadata"}


# --- parsing --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Text:
    text: str


@dataclass(slots=True)
class Action:
    """`variable` is set for {{$x := pipeline}}, which prints nothing."""

    pipeline: list[list[Any]]
    variable: str = ""


@dataclass(slots=True)
class Branch:
    """if, with or range; `variables` are those a range (or with) declares."""

    word: str
    pipeline: list[list[Any]]
    variables: list[str]
    body: list[Any] = field(default_factory=list)
    otherwise: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class Jump:
    word: str


def _tokens(text: str) -> list[tuple[str, str]]:
    """(kind, text) of each token. A field with no space before it is a "chain": it belongs to the
    operand it follows (`$x.Name`), where ` .Name` begins an operand of its own."""
    found: list[tuple[str, str]] = []
    at = 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if not match:
            raise TemplateError(f"unexpected {text[at : at + 10]!r} in {{{{{text}}}}}")
        kind = match.lastgroup or ""
        is_chained = kind == "field" and found and match.start(kind) == at
        found.append(("chain" if is_chained else kind, match.group(kind)))
        at = match.end()
    return found


class _Parser:
    def __init__(self, source: str) -> None:
        self._pieces = list(_split(source))
        self._at = 0

    def parse(self) -> list[Any]:
        body, ending = self._body()
        if ending:
            raise TemplateError(f"unexpected {{{{{ending}}}}}")
        return body

    def _body(self) -> tuple[list[Any], str]:
        """Up to {{end}}, {{else …}} or the end of the text; returns what ended it."""
        body: list[Any] = []
        while self._at < len(self._pieces):
            piece = self._pieces[self._at]
            self._at += 1
            if isinstance(piece, Text):
                body.append(piece)
                continue
            word, _, rest = piece.partition(" ")
            if word in ("end", "else"):
                return body, piece
            if word in ("if", "with", "range"):
                body.append(self._branch(word, rest))
            elif word in ("break", "continue"):
                body.append(Jump(word))
            elif word in ("define", "template", "block"):
                raise TemplateError(f"{{{{{word}}}}} is not supported")
            elif piece and not piece.startswith("/*"):
                variables, pipeline = _pipeline(piece)
                body.append(Action(pipeline, variables[0] if variables else ""))
        return body, ""

    def _branch(self, word: str, rest: str) -> Branch:
        variables, pipeline = _pipeline(rest)
        branch = Branch(word, pipeline, variables)
        branch.body, ending = self._body()
        if ending.startswith("else"):
            following = ending[4:].strip()
            if following:
                inner, _, condition = following.partition(" ")
                branch.otherwise = [self._branch(inner, condition)]
                return branch
            branch.otherwise, ending = self._body()
        if ending != "end":
            raise TemplateError(f"{{{{{word}}}}} is not closed by {{{{end}}}}")
        return branch


def _split(source: str) -> Iterator[Text | str]:
    at, trim = 0, False
    for match in _ACTION.finditer(source):
        text = source[at : match.start()]
        text = text.lstrip() if trim else text
        text = text.rstrip() if match[1] else text
        if text:
            yield Text(text)
        yield " ".join(match[2].split()) if not match[2].strip().startswith("/*") else ""
        at, trim = match.end(), bool(match[3])
    rest = source[at:].lstrip() if trim else source[at:]
    if "{{" in rest:
        raise TemplateError("unclosed action")
    if rest:
        yield Text(rest)


def _pipeline(text: str) -> tuple[list[str], list[list[Any]]]:
    """(declared variables, commands); a command is a list of operands."""
    tokens = _tokens(text)
    variables: list[str] = []
    symbols = [value for kind, value in tokens if kind == "symbol"]
    if ":=" in symbols or (tokens[:1] and tokens[0][0] == "variable" and "=" in symbols):
        at = next(i for i, token in enumerate(tokens) if token[1] in (":=", "="))
        variables = [value for kind, value in tokens[:at] if kind == "variable"]
        tokens = tokens[at + 1 :]
    operands = _Operands(tokens)
    commands = operands.commands()
    if operands.rest():
        raise TemplateError(f"unexpected ) in {{{{{text}}}}}")
    if not any(commands):
        raise TemplateError(f"missing value in {{{{{text}}}}}")
    return variables, commands


class _Operands:
    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._at = 0

    def rest(self) -> bool:
        return self._at < len(self._tokens)

    def commands(self) -> list[list[Any]]:
        commands: list[list[Any]] = [[]]
        while self._at < len(self._tokens):
            kind, value = self._tokens[self._at]
            if value == ")" and kind == "symbol":
                break
            self._at += 1
            if value == "|" and kind == "symbol":
                commands.append([])
            else:
                commands[-1].append(self._chained(self._operand(kind, value)))
        return commands

    def _operand(self, kind: str, value: str) -> tuple[str, Any]:
        if kind == "string":
            return "literal", _unquote(value)
        if kind == "number":
            return "literal", float(value) if "." in value else int(value)
        if kind == "word":
            literals = {"true": True, "false": False, "nil": None}
            return ("literal", literals[value]) if value in literals else ("function", value)
        if kind == "variable":
            return "variable", value
        if kind in ("field", "chain"):
            # A chain can come here only behind "(", "|" or "=", where it begins an operand.
            return "field", (("dot", None), value[1:])
        if value == "(":
            inner = self.commands()
            if not self.rest():
                raise TemplateError("unclosed left paren")
            self._at += 1
            return "pipeline", inner
        if value == ".":
            return "dot", None
        raise TemplateError(f"unexpected {value!r}")

    def _chained(self, operand: tuple[str, Any]) -> tuple[str, Any]:
        while self._at < len(self._tokens) and self._tokens[self._at][0] == "chain":
            operand = ("field", (operand, self._tokens[self._at][1][1:]))
            self._at += 1
            if operand[1][0][0] == "literal":
                raise TemplateError("a literal has no fields")
        return operand


def _unquote(text: str) -> str:
    if text.startswith("`"):
        return text[1:-1]
    return re.sub(r"\\(.)", lambda m: {"n": "\n", "t": "\t", "r": "\r"}.get(m[1], m[1]), text[1:-1])


# --- execution ------------------------------------------------------------------------------------


class _Jumped(Exception):
    def __init__(self, word: str) -> None:
        super().__init__(word)
        self.word = word


def execute(source: str, data: Any, functions: Functions | None = None) -> str:
    """Run a template on a value. Errors: TemplateError."""
    machine = _Machine({**BUILTINS, **(functions or {})})
    try:
        machine.run(_Parser(source).parse(), data, {"$": data})
    except _Jumped as jump:
        raise TemplateError(f"{{{{{jump.word}}}}} outside {{{{range}}}}") from None
    return "".join(machine.out)


class _Machine:
    def __init__(self, functions: Functions) -> None:
        self._functions = functions
        self.out: list[str] = []

    def run(self, body: Sequence[Any], dot: Any, scope: dict[str, Any]) -> None:
        for node in body:
            match node:
                case Text(text):
                    self.out.append(text)
                case Jump(word):
                    raise _Jumped(word)
                case Action(pipeline, variable):
                    value = self._evaluate(pipeline, dot, scope)
                    if variable:
                        scope[variable] = value
                    else:
                        self.out.append(_print(value))
                case Branch():
                    self._branch(node, dot, scope)

    def _branch(self, branch: Branch, dot: Any, scope: dict[str, Any]) -> None:
        value = self._evaluate(branch.pipeline, dot, scope)
        if branch.word == "range":
            self._range(branch, value, dot, scope)
            return
        inner = dict(scope)
        for variable in branch.variables:
            inner[variable] = value
        if _truth(value):
            self.run(branch.body, value if branch.word == "with" else dot, inner)
        else:
            self.run(branch.otherwise, dot, inner)

    def _range(self, branch: Branch, value: Any, dot: Any, scope: dict[str, Any]) -> None:
        entries = _entries(value)
        if not entries:
            self.run(branch.otherwise, dot, scope)
        for key, item in entries:
            inner = dict(scope)
            names = branch.variables
            if len(names) == 2:
                inner[names[0]], inner[names[1]] = key, item
            elif names:
                inner[names[0]] = item
            try:
                self.run(branch.body, item, inner)
            except _Jumped as jump:
                if jump.word == "break":
                    return

    def _evaluate(self, pipeline: list[list[Any]], dot: Any, scope: dict[str, Any]) -> Any:
        value: Any = MISSING
        for index, command in enumerate(pipeline):
            piped = [value] if index else []
            value = self._command(command, piped, dot, scope)
        return value

    def _command(
        self, command: list[Any], piped: list[Any], dot: Any, scope: dict[str, Any]
    ) -> Any:
        if not command:
            raise TemplateError("missing command in a pipeline")
        head, *rest = command
        if head[0] == "function":
            function = self._functions.get(head[1])
            if function is None:
                raise TemplateError(f'function "{head[1]}" not defined')
            arguments = [self._value(operand, dot, scope) for operand in rest]
            try:
                return function(*arguments, *piped)
            except (TypeError, ValueError, KeyError, IndexError) as err:
                raise TemplateError(f"error calling {head[1]}: {err}") from err
        if rest or piped:
            raise TemplateError("can't give arguments to what is no function")
        return self._value(head, dot, scope)

    def _value(self, operand: tuple[str, Any], dot: Any, scope: dict[str, Any]) -> Any:
        kind, what = operand
        match kind:
            case "literal":
                return what
            case "dot":
                return dot
            case "variable":
                if what not in scope:
                    raise TemplateError(f"undefined variable {what!r}")
                return scope[what]
            case "pipeline":
                return self._evaluate(what, dot, scope)
            case "field":
                return _field(self._value(what[0], dot, scope), what[1])
            case _:
                return self._command([operand], [], dot, scope)


def _field(value: Any, name: str) -> Any:
    if value is MISSING or value is None:
        return MISSING
    if not isinstance(value, Mapping):
        raise TemplateError(f"can't evaluate field {name} in a value that has no fields")
    if name in value:
        return value[name]
    lowered = name.lower()
    if lowered == "typemeta":
        return value
    lowered = _EMBEDDED.get(lowered, lowered)
    for member, item in value.items():
        if member.lower() == lowered:
            return item
    metadata = value.get("metadata")
    # The embedded ObjectMeta lends its fields: .Name is .ObjectMeta.Name.
    if isinstance(metadata, Mapping) and lowered != "metadata":
        return _field(metadata, name)
    return MISSING


def _entries(value: Any) -> list[tuple[Any, Any]]:
    if value is MISSING or value is None:
        return []
    if isinstance(value, Mapping):
        return sorted(value.items())
    if isinstance(value, int) and not isinstance(value, bool):
        return [(i, i) for i in range(value)]
    if isinstance(value, list | tuple):
        return list(enumerate(value))
    raise TemplateError(f"range can't iterate over {go(value)}")


def _truth(value: Any) -> bool:
    return value is not MISSING and bool(value)


def _print(value: Any) -> str:
    return "<no value>" if value is MISSING else go(value)


# --- functions ------------------------------------------------------------------------------------


def _and(*values: Any) -> Any:
    return next((value for value in values if not _truth(value)), values[-1])


def _or(*values: Any) -> Any:
    return next((value for value in values if _truth(value)), values[-1])


def _eq(first: Any, *others: Any) -> bool:
    return any(first == other for other in others)


def _index(value: Any, *keys: Any) -> Any:
    for key in keys:
        value = value.get(key, MISSING) if isinstance(value, Mapping) else value[key]
    return value


def _slice(value: Any, *bounds: int) -> Any:
    return value[slice(*bounds)] if len(bounds) > 1 else value[bounds[0] if bounds else 0 :]


def _printf(pattern: str, *values: Any) -> str:
    """Go's verbs %s %v %d %q %t %f %g %x %% with flags and width."""
    rest = list(values)

    def one(match: re.Match[str]) -> str:
        flags, verb = match[1], match[2]
        if verb == "%":
            return "%"
        value = rest.pop(0) if rest else MISSING
        if verb in "dfgx":
            return f"%{flags}{verb}" % value
        text = f'"{_print(value)}"' if verb == "q" else _print(value)
        return f"%{flags}s" % text

    return re.sub(r"%([-+ 0#]*\d*(?:\.\d+)?)([svdqtfgx%])", one, pattern)


def _join(values: Any, separator: str) -> str:
    if values is MISSING or values is None:
        return ""
    if isinstance(values, Mapping):
        return separator.join(f"{key}={go(item)}" for key, item in sorted(values.items()))
    return separator.join(map(go, values))


def _join_and_truncate(values: Any, separator: str, limit: int) -> str:
    whole = _join(values, separator)
    return whole if len(whole) <= limit else whole[:limit] + "..."


BUILTINS: Functions = {
    "and": _and,
    "or": _or,
    "not": lambda value: not _truth(value),
    "eq": _eq,
    "ne": lambda one, other: one != other,
    "lt": lambda one, other: one < other,
    "le": lambda one, other: one <= other,
    "gt": lambda one, other: one > other,
    "ge": lambda one, other: one >= other,
    "len": lambda value: 0 if value is MISSING else len(value),
    "index": _index,
    "slice": _slice,
    "print": lambda *values: " ".join(map(_print, values)),
    "println": lambda *values: " ".join(map(_print, values)) + "\n",
    "printf": _printf,
    "join": _join,
    "joinAndTruncate": _join_and_truncate,
}
