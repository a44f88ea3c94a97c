"""From text to a Selector: the tokenizer and the parser of the label language.

Layer: pure, above selector.ast. Users: `parse` is what everybody calls; model validation turns
its SelectorSyntaxError into a field error.

    selector := EMPTY | or
    or   := and ( "||" and )*
    and  := op  ( "&&" op  )*
    op   := "!"* prim                       # an even number of ! cancels
    prim := "has(" LABEL ")" | "all()" | "global()" | "(" or ")"
          | LABEL ( "==" | "!=" | "contains" | "starts with" | "ends with" ) STRING
          | LABEL ( "in" | "not in" ) "{" [ STRING ( "," STRING )* [","] ] "}"

Invariants:
  P1  any text either parses or raises SelectorSyntaxError; nothing else, whatever its length or
      nesting. Parentheses cost no recursion (an explicit stack), the tree is at most MAX_DEPTH;
  P2  the word operators are looked for only directly after a label, so that labels may be named
      `in`, `has` or `contains`; has( all( global( only where a label does not stand before;
  P3  as in Calico the whole text is tokenised first: a lexical error anywhere wins over a
      grammatical one further left.

Whitespace is space and tab only. Positions are 0-based character offsets.

Source: Calico libcalico-go/lib/selector/{tokenizer,parser} (error texts); reference 3.1, 3.2.
"""

from __future__ import annotations

import enum
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NoReturn

from msgspec import Struct

from libcalico.errors import SelectorSyntaxError
from libcalico.selector import ast
from libcalico.selector.selector import Selector

# Deeper than any selector of 1024 characters (the limit of the API) can be, with room for the
# scoping rewrites; shallow enough that evaluation never meets Python's recursion limit.
MAX_DEPTH = 256
MAX_LABEL_BYTES = 512
CACHE_SIZE = 16384


class Kind(enum.Enum):
    """Token kinds. The values are Calico's names, which appear in error texts."""

    LABEL = "TokLabel"
    STRING = "TokStringLiteral"
    LBRACE = "TokLBrace"
    RBRACE = "TokRBrace"
    COMMA = "TokComma"
    EQ = "TokEq"
    NE = "TokNe"
    IN = "TokIn"
    NOT = "TokNot"
    NOT_IN = "TokNotIn"
    CONTAINS = "TokContains"
    STARTS_WITH = "TokStartsWith"
    ENDS_WITH = "TokEndsWith"
    ALL = "TokAll"
    HAS = "TokHas"
    LPAREN = "TokLParen"
    RPAREN = "TokRParen"
    AND = "TokAnd"
    OR = "TokOr"
    GLOBAL = "TokGlobal"
    EOF = "TokEOF"


class Token(Struct, frozen=True, gc=False):
    kind: Kind
    value: str
    position: int

    def __str__(self) -> str:
        return f"{self.kind.value}({self.value})"


_SYMBOLS = {
    "(": Kind.LPAREN,
    ")": Kind.RPAREN,
    "{": Kind.LBRACE,
    "}": Kind.RBRACE,
    ",": Kind.COMMA,
    "!": Kind.NOT,
    "!=": Kind.NE,
    "==": Kind.EQ,
    "&&": Kind.AND,
    "||": Kind.OR,
}
_CALLS = {"has(": Kind.HAS, "all(": Kind.ALL, "global(": Kind.GLOBAL}
_COMPARISONS: dict[Kind, Callable[[str, str], ast.Node]] = {
    Kind.EQ: ast.Equal,
    Kind.NE: ast.NotEqual,
    Kind.CONTAINS: ast.Contains,
    Kind.STARTS_WITH: ast.StartsWith,
    Kind.ENDS_WITH: ast.EndsWith,
}

_SPACE = re.compile(r"[ \t]*")
_IDENTIFIER = re.compile(r"[A-Za-z0-9_./-]+")
# One token with the blanks before it; which group took part says what it is.
_TOKEN = re.compile(
    r"""[ \t]*(?:(==|!=|&&|\|\||[(){},!])"""
    r"""|"([^"]*)"|'([^']*)'"""
    r"""|(has\(|all\(|global\()"""
    r"""|([A-Za-z0-9_./-]+))"""
)
_SYMBOL, _DOUBLE, _SINGLE, _CALL, _NAME = 1, 2, 3, 4, 5
# Possessive: after a two-word operator Calico skips the blanks before it looks for the boundary.
_OPERATORS = (
    (re.compile(r"contains(?![A-Za-z0-9_./-])"), Kind.CONTAINS),
    (re.compile(r"starts[ \t]*with[ \t]*+(?![A-Za-z0-9_./-])"), Kind.STARTS_WITH),
    (re.compile(r"ends[ \t]*with[ \t]*+(?![A-Za-z0-9_./-])"), Kind.ENDS_WITH),
    (re.compile(r"not[ \t]*in[ \t]*+(?![A-Za-z0-9_./-])"), Kind.NOT_IN),
    (re.compile(r"in(?![A-Za-z0-9_./-])"), Kind.IN),
)
_HALF_SYMBOLS = {"=": "expected ==", "&": "expected &&", "|": "expected ||"}


@lru_cache(maxsize=CACHE_SIZE)
def parse(text: str) -> Selector:
    """The selector that `text` denotes; "" selects everything.

    Errors: SelectorSyntaxError with the 0-based position of what is wrong.
    """
    return Selector(_Parser(text).parse())


def tokenize(text: str) -> list[Token]:
    """All tokens of `text`, ending with EOF."""
    tokens: list[Token] = []
    position, label = 0, None
    while True:
        found = _TOKEN.match(text, position)
        if found is None:
            _check_end(text, position, label)
            tokens.append(Token(Kind.EOF, "", len(text)))
            return tokens
        token, position = _token_of(text, found, label)
        tokens.append(token)
        label = token.value if token.kind is Kind.LABEL else None


def _token_of(text: str, found: re.Match[str], label: str | None) -> tuple[Token, int]:
    """The token found, and where it ends. `label`: the token before, if it is one."""
    group = found.lastindex or 0
    value, start = found[group], found.start(group)
    if group == _SYMBOL:
        return Token(_SYMBOLS[value], "", start), found.end()
    if group in (_DOUBLE, _SINGLE):
        return Token(Kind.STRING, sys.intern(value), start - 1), found.end()
    if label is not None:
        return _operator_token(text, start, label)
    if group == _CALL:
        return _call_token(text, start, value)
    return Token(Kind.LABEL, _checked_label(text, start, value), start), found.end()


def _check_end(text: str, position: int, label: str | None) -> None:
    """Nothing but blanks is left, or something that is no token."""
    position = _skip_space(text, position)
    if position == len(text):
        return
    if text[position] in "\"'":
        raise SelectorSyntaxError(text, position, "unterminated string")
    if text[position] in _HALF_SYMBOLS:
        raise SelectorSyntaxError(text, position, _HALF_SYMBOLS[text[position]])
    if label is not None:
        raise SelectorSyntaxError(text, position, f'expected operator after label "{label}"')
    raise SelectorSyntaxError(text, position, "expected identifier")


def _skip_space(text: str, position: int) -> int:
    found = _SPACE.match(text, position)
    return found.end() if found else position


def _operator_token(text: str, position: int, label: str) -> tuple[Token, int]:
    for pattern, kind in _OPERATORS:
        found = pattern.match(text, position)
        if found:
            return Token(kind, "", position), found.end()
    raise SelectorSyntaxError(text, position, f'expected operator after label "{label}"')


def _call_token(text: str, position: int, opening: str) -> tuple[Token, int]:
    """has( label ), all( ) or global( ): spaces may stand inside."""
    end, label = _skip_space(text, position + len(opening)), ""
    if opening == "has(":
        found = _IDENTIFIER.match(text, end)
        if found is None:
            raise SelectorSyntaxError(text, end, "expected identifier")
        label = _checked_label(text, end, found[0])
        end = _skip_space(text, found.end())
    if not text.startswith(")", end):
        raise SelectorSyntaxError(text, end, f"no closing ')' after {opening}")
    return Token(_CALLS[opening], label, position), end + 1


def _checked_label(text: str, position: int, label: str) -> str:
    if len(label) > MAX_LABEL_BYTES:
        raise SelectorSyntaxError(text, position, f"label too long: {label}")
    return sys.intern(label)


@dataclass(slots=True)
class _Level:
    """What is collected between one pair of parentheses, or at the top."""

    negated: bool = False
    ors: list[ast.Node] = field(default_factory=list)
    ands: list[ast.Node] = field(default_factory=list)
    depth: int = 0

    def close_and(self) -> None:
        if len(self.ands) > 1:
            self.depth += 1
        self.ors.append(self.ands[0] if len(self.ands) == 1 else ast.And(tuple(self.ands)))
        self.ands = []

    def close(self) -> ast.Node:
        self.close_and()
        if len(self.ors) > 1:
            self.depth += 1
        return self.ors[0] if len(self.ors) == 1 else ast.Or(tuple(self.ors))


class _Parser:
    """One pass over the tokens; `_levels` is the stack of open parentheses."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokenize(text)
        self._next = 0
        self._levels = [_Level()]

    def parse(self) -> ast.Node:
        if self._peek().kind is Kind.EOF:
            return ast.All()
        while True:
            self._operand()
            done = self._after_operand()
            if done is not None:
                return done

    def _peek(self) -> Token:
        return self._tokens[self._next]

    def _take(self) -> Token:
        token = self._tokens[self._next]
        self._next += 1
        return token

    def _fail(self, token: Token, reason: str) -> NoReturn:
        raise SelectorSyntaxError(self._text, token.position, reason)

    def _operand(self) -> None:
        """Read negations, opening parentheses and one primary, onto the innermost level."""
        while True:
            negated = False
            while self._peek().kind is Kind.NOT:
                self._next += 1
                negated = not negated
            if self._peek().kind is not Kind.LPAREN:
                break
            self._next += 1
            self._levels.append(_Level(negated))
        node = self._primary()
        level = self._levels[-1]
        level.ands.append(ast.negate(node) if negated else node)
        level.depth = max(level.depth, 1 + negated)

    def _after_operand(self) -> ast.Node | None:
        """Read what may follow an operand; the whole tree at the end, else None."""
        while True:
            token = self._peek()
            if token.kind is Kind.AND:
                self._next += 1
                return None
            if token.kind is Kind.OR:
                self._next += 1
                self._levels[-1].close_and()
                return None
            if len(self._levels) == 1:
                return self._finish(token)
            if token.kind is not Kind.RPAREN:
                self._fail(token, "expected )")
            self._next += 1
            self._close_parenthesis(token)

    def _finish(self, token: Token) -> ast.Node:
        if token.kind is not Kind.EOF:
            rest = " ".join(map(str, self._tokens[self._next :]))
            self._fail(token, f"unexpected content at end of selector [{rest}]")
        root = self._levels[0].close()
        self._check_depth(self._levels[0].depth, token)
        return root

    def _close_parenthesis(self, token: Token) -> None:
        inner = self._levels.pop()
        node = inner.close()
        depth = inner.depth
        if inner.negated:
            depth += -1 if isinstance(node, ast.Not) else 1
            node = ast.negate(node)
        self._check_depth(depth, token)
        outer = self._levels[-1]
        outer.ands.append(node)
        outer.depth = max(outer.depth, depth)

    def _check_depth(self, depth: int, token: Token) -> None:
        if depth > MAX_DEPTH:
            self._fail(token, "selector is nested too deeply")

    def _primary(self) -> ast.Node:
        token = self._take()
        match token.kind:
            case Kind.HAS:
                return ast.Has(token.value)
            case Kind.ALL:
                return ast.All()
            case Kind.GLOBAL:
                return ast.Global()
            case Kind.LABEL:
                return self._comparison(token)
            case _:
                self._fail(token, f"unexpected token: {token}")

    def _comparison(self, label: Token) -> ast.Node:
        if len(self._tokens) - self._next < 2:
            # The label is the last token: Calico looks for three at once, EOF included.
            self._fail(self._peek(), "unexpected end of string looking for op")
        operator = self._take()
        if operator.kind in _COMPARISONS:
            literal = self._take()
            if literal.kind is not Kind.STRING:
                self._fail(literal, "expected string")
            return _COMPARISONS[operator.kind](label.value, literal.value)
        if operator.kind is Kind.IN:
            return ast.In(label.value, self._set_literal())
        if operator.kind is Kind.NOT_IN:
            return ast.NotIn(label.value, self._set_literal())
        self._fail(operator, f"expected == or != not: {operator}")

    def _set_literal(self) -> frozenset[str]:
        opening = self._take()
        if opening.kind is not Kind.LBRACE:
            self._fail(opening, "expected set literal")
        values = []
        while self._peek().kind is Kind.STRING:
            values.append(self._take().value)
            if self._peek().kind is not Kind.COMMA:
                break
            self._next += 1
        closing = self._take()
        if closing.kind is not Kind.RBRACE:
            self._fail(closing, "expected }")
        return frozenset(values)
