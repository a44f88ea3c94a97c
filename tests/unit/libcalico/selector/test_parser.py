"""libcalico.selector.parser: rows of datamodel 3.1 to 3.3, and every error with its position."""

from __future__ import annotations

import pytest

from libcalico.errors import SelectorSyntaxError
from libcalico.selector import parse
from libcalico.selector.parser import MAX_DEPTH, tokenize

CANONICAL = [
    ("", "all()"),
    (" \t", "all()"),
    ("all()", "all()"),
    ("all( \t)", "all()"),
    ("global()", "global()"),
    ("has( a )", "has(a)"),
    ("a=='b'", 'a == "b"'),
    ("a\t!=\t'b'", 'a != "b"'),
    ("""a == 'say "hi"'""", """a == 'say "hi"'"""),
    ('''a == "it's"''', '''a == "it's"'''),
    ("a == ''", 'a == ""'),
    ("a contains 'b'", 'a contains "b"'),
    ("a starts with 'b'", 'a starts with "b"'),
    ("a startswith 'b'", 'a starts with "b"'),
    ("a starts\t with'b'", 'a starts with "b"'),
    ("a ends with 'b'", 'a ends with "b"'),
    ("a endswith 'b'", 'a ends with "b"'),
    ("a in {}", "a in {}"),
    ("a in{'c','b','c',}", 'a in {"b", "c"}'),
    ("a not in { 'b' }", 'a not in {"b"}'),
    ("a notin{'b'}", 'a not in {"b"}'),
    ("!has(a)", "!has(a)"),
    ("!!has(a)", "has(a)"),
    ("! ! ! has(a)", "!has(a)"),
    ("!(!has(a))", "has(a)"),
    ("!(!(!has(a)))", "!has(a)"),
    ("has(a) && has(b)", "(has(a) && has(b))"),
    ("has(a)&&has(b)&&has(c)", "(has(a) && has(b) && has(c))"),
    ("has(a) && (has(b) && has(c))", "(has(a) && (has(b) && has(c)))"),
    ("has(a) || has(b) && !has(c)", "(has(a) || (has(b) && !has(c)))"),
    ("!(has(a) || has(b)) && has(c)", "(!(has(a) || has(b)) && has(c))"),
    ("((has(a)))", "has(a)"),
    # Labels may be called like the words of the language, and begin with digits or dashes.
    ("in == 'x' && has == 'y'", '(in == "x" && has == "y")'),
    ("all == 'x'", 'all == "x"'),
    ("not not in {'x'}", 'not not in {"x"}'),
    ("contains contains 'x'", 'contains contains "x"'),
    ("in in {'in'}", 'in in {"in"}'),
    ("0-9/_. == 'x'", '0-9/_. == "x"'),
    ("-a == 'x'", '-a == "x"'),
    ("has(has)", "has(has)"),
    # Literals have no escapes and may span lines.
    ("a == 'b\\'", 'a == "b\\"'),
    ("a == 'b\nc'", 'a == "b\nc"'),
    ("a == 'ü'", 'a == "ü"'),
]


@pytest.mark.parametrize(("text", "canonical"), CANONICAL)
def test_canonical_text(text, canonical):
    selector = parse(text)
    assert selector.canonical == canonical
    assert str(selector) == canonical
    assert parse(canonical) == selector
    assert hash(parse(canonical)) == hash(selector)


ERRORS = [
    # Lexical.
    ("a == 'b", 5, "unterminated string"),
    ('a == "b', 5, "unterminated string"),
    ("a = 'b'", 2, "expected =="),
    ("has(a) & has(b)", 7, "expected &&"),
    ("has(a) | has(b)", 7, "expected ||"),
    ("#", 0, "expected identifier"),
    ("\nhas(a)", 0, "expected identifier"),
    ("has(a) &&\r has(b)", 9, "expected identifier"),
    ("has()", 4, "expected identifier"),
    ("has( 'a')", 5, "expected identifier"),
    ("has(a", 5, "no closing ')' after has("),
    ("has(a b)", 6, "no closing ')' after has("),
    ("all(", 4, "no closing ')' after all("),
    ("all(x)", 4, "no closing ')' after all("),
    ("global( ", 8, "no closing ')' after global("),
    ("a b", 2, 'expected operator after label "a"'),
    ("a\n== 'b'", 1, 'expected operator after label "a"'),
    ("a contain 'b'", 2, 'expected operator after label "a"'),
    ("a containsb", 2, 'expected operator after label "a"'),
    ("a starts 'b'", 2, 'expected operator after label "a"'),
    ("a starts with b", 2, 'expected operator after label "a"'),
    ("a not 'b'", 2, 'expected operator after label "a"'),
    ("a inside {'b'}", 2, 'expected operator after label "a"'),
    ("a has(b)", 2, 'expected operator after label "a"'),
    ("has (a)", 4, "expected == or != not: TokLParen()"),
    ("x" * 513 + " == 'a'", 0, "label too long: " + "x" * 513),
    # Grammatical.
    ("a", 1, "unexpected end of string looking for op"),
    ("has(a) && a", 11, "unexpected end of string looking for op"),
    ("(a)", 2, "expected == or != not: TokRParen()"),
    ("a {'b'}", 2, "expected == or != not: TokLBrace()"),
    ("a == b", 5, "expected string"),
    ("a ==", 4, "expected string"),
    ("a contains b", 11, "expected string"),
    ("a == {'b'}", 5, "expected string"),
    ("a in 'b'", 5, "expected set literal"),
    ("a not in 'b'", 9, "expected set literal"),
    ("a in {'b'", 9, "expected }"),
    ("a in {'b' 'c'}", 10, "expected }"),
    ("a in {,}", 6, "expected }"),
    ("(has(a)", 7, "expected )"),
    ("(has(a) has(b))", 8, "expected )"),
    ("!", 1, "unexpected token: TokEOF()"),
    ("()", 1, "unexpected token: TokRParen()"),
    ("has(a) &&", 9, "unexpected token: TokEOF()"),
    ("has(a) && || has(b)", 10, "unexpected token: TokOr()"),
    ("'b' == a", 0, "unexpected token: TokStringLiteral(b)"),
    ("has(a) !has(b)", 7, "unexpected content at end of selector [TokNot() TokHas(b) TokEOF()]"),
    ("has(a))", 6, "unexpected content at end of selector [TokRParen() TokEOF()]"),
    ("all() a", 6, "unexpected content at end of selector [TokLabel(a) TokEOF()]"),
    # A lexical error further right wins over a grammatical one.
    ("has(a) has(b) '", 14, "unterminated string"),
]


@pytest.mark.parametrize(("text", "position", "reason"), ERRORS)
def test_an_error_says_what_and_where(text, position, reason):
    with pytest.raises(SelectorSyntaxError) as err:
        parse(text)
    assert (err.value.position, err.value.reason) == (position, reason)
    assert err.value.text == text


def test_a_label_of_512_characters_is_legal():
    assert parse("x" * 512 + " == 'a'").evaluate({"x" * 512: "a"})


def test_parentheses_and_negations_cost_no_depth():
    many = 100_000
    assert parse("(" * many + "has(a)" + ")" * many).canonical == "has(a)"
    assert parse("!" * many + "has(a)").canonical == "has(a)"
    assert parse("!(" * many + "has(a)" + ")" * many).canonical == "has(a)"


def test_a_tree_deeper_than_the_limit_is_refused():
    def nested(levels: int) -> str:
        return "has(a)&&(" * levels + "has(a)" + ")" * levels

    deepest = parse(nested(MAX_DEPTH - 1))
    assert deepest.evaluate({"a": ""})
    assert parse(deepest.canonical) == deepest
    assert deepest.prefixed("p.").evaluate({"p.a": ""})
    assert deepest.restrictions()
    with pytest.raises(SelectorSyntaxError, match="nested too deeply"):
        parse(nested(MAX_DEPTH))


def test_any_selector_of_the_permitted_length_is_shallow_enough():
    levels = 1024 // 10
    parse("!(all()||" * levels + "all()" + ")" * levels)


def test_a_wide_selector_is_no_problem():
    wide = parse(" || ".join(f"a == '{n}'" for n in range(20_000)))
    assert wide.evaluate({"a": "19999"})
    assert not wide.evaluate({"a": "20000"})


def test_parsing_twice_gives_the_same_object():
    assert parse("has(cached)") is parse("has(cached)")


def test_tokens_end_with_eof():
    assert [str(token) for token in tokenize("a in {'b'}")] == [
        "TokLabel(a)",
        "TokIn()",
        "TokLBrace()",
        "TokStringLiteral(b)",
        "TokRBrace()",
        "TokEOF()",
    ]
