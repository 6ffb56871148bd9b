"""Parses the mini-language of filters and orders (client wire contract 3.1).

expression := term ("|" term)*
term       := factor ("&" factor)*
factor     := "(" expression ")" | field operator value
value      := string | number | true | false | null | "[" value ("," value)* "]"
order      := ("+" | "-")? field ("," ("+" | "-")? field)*
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Final, Literal, cast, get_args

from ai.backend.common.errors import InvalidInput
from ai.backend.manager.query.model import Condition, Filter, Junction, Operator, OrderBy, Scalar

MAX_FILTER_LENGTH = 4_096
MAX_CONDITIONS = 64
MAX_DEPTH = 16
_OPERATORS: Final = frozenset(get_args(Operator))
_NAMED_VALUES: Final[dict[str, Scalar]] = {"true": True, "false": False, "null": None, "none": None}
_TOKEN_PATTERN = re.compile(
    r"""\s*(?:
      (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    | (?P<number>-?\d+(?:\.\d+)?(?![\w.]))
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<mark>==|!=|<=|>=|[<>&|()\[\],])
    )""",
    re.VERBOSE,
)
_ORDER_PATTERN = re.compile(r"([+-]?)\s*([A-Za-z_][A-Za-z0-9_]*)")


def parse_filter(text: str | None) -> Filter | None:
    """Parses a filter expression, or returns None for an empty one.

    >>> parse_filter('status == "RUNNING"')
    Condition(field='status', op='==', value='RUNNING')

    Raises InvalidInput if it is malformed, too long or too complex; ``data.filter`` has the reason.
    """
    if text is None or not text.strip():
        return None
    if len(text) > MAX_FILTER_LENGTH:
        raise _invalid("filter", f"longer than {MAX_FILTER_LENGTH} characters")
    return _Parser(text).parse()


def parse_order(text: str | None) -> tuple[OrderBy, ...]:
    """Parses a comma-separated list of ``col``, ``+col`` or ``-col``. Raises InvalidInput."""
    if text is None or not text.strip():
        return ()
    if len(text) > MAX_FILTER_LENGTH:
        raise _invalid("order", f"longer than {MAX_FILTER_LENGTH} characters")
    orders = []
    for column_text in text.split(","):
        match = _ORDER_PATTERN.fullmatch(column_text.strip())
        if match is None:
            raise _invalid("order", f"not a column: {column_text.strip()[:64]!r}")
        orders.append(OrderBy(field=match[2], descending=match[1] == "-"))
    return tuple(orders)


def _invalid(field: str, problem: str) -> InvalidInput:
    return InvalidInput(f"{field}: {problem}", data={field: problem})


class _Parser:
    """A recursive-descent parser of filter expressions."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_split_tokens(text))
        self._position = 0
        self._conditions = 0

    def parse(self) -> Filter:
        parsed_filter = self._parse_expression(0)
        if self._position < len(self._tokens):
            raise self._unexpected_token()
        return parsed_filter

    def _peek(self) -> str:
        return self._tokens[self._position][1] if self._position < len(self._tokens) else ""

    def _next(self) -> tuple[str, str]:
        if self._position >= len(self._tokens):
            raise _invalid("filter", "ends too early")
        self._position += 1
        return self._tokens[self._position - 1]

    def _unexpected_token(self) -> InvalidInput:
        return _invalid("filter", f"unexpected {self._peek()[:64]!r}" if self._peek() else "ends too early")

    def _expect(self, symbol: str) -> None:
        if self._peek() != symbol:
            raise self._unexpected_token()
        self._position += 1

    def _parse_expression(self, depth: int) -> Filter:
        return self._parse_junction("|", lambda: self._parse_junction("&", lambda: self._parse_factor(depth)))

    def _parse_junction(self, symbol: Literal["&", "|"], parse_term: Callable[[], Filter]) -> Filter:
        terms = [parse_term()]
        while self._peek() == symbol:
            self._position += 1
            terms.append(parse_term())
        return terms[0] if len(terms) == 1 else Junction(kind=symbol, terms=tuple(terms))

    def _parse_factor(self, depth: int) -> Filter:
        if self._peek() == "(":
            if depth == MAX_DEPTH:
                raise _invalid("filter", f"nested deeper than {MAX_DEPTH}")
            self._position += 1
            inner_filter = self._parse_expression(depth + 1)
            self._expect(")")
            return inner_filter
        return self._parse_condition()

    def _parse_condition(self) -> Condition:
        self._conditions += 1
        if self._conditions > MAX_CONDITIONS:
            raise _invalid("filter", f"more than {MAX_CONDITIONS} conditions")
        token_kind, field = self._next()
        if token_kind != "word":
            raise _invalid("filter", f"not a column: {field[:64]!r}")
        _, operator = self._next()
        operator = operator.lower()
        if operator not in _OPERATORS:
            raise _invalid("filter", f"not an operator: {operator[:64]!r}")
        value = self._parse_list() if self._peek() == "[" else self._parse_scalar()
        if (operator == "in") != isinstance(value, tuple):
            raise _invalid("filter", "a list goes with `in`, and only with it")
        if operator in ("like", "ilike") and not isinstance(value, str):
            raise _invalid("filter", f"`{operator}` needs a string")
        return Condition(field=field, op=cast(Operator, operator), value=value)

    def _parse_list(self) -> tuple[Scalar, ...]:
        self._expect("[")
        values: list[Scalar] = []
        while self._peek() != "]":
            values.append(self._parse_scalar())
            if len(values) > MAX_CONDITIONS * 16:
                raise _invalid("filter", "the list is too long")
            if self._peek() != "]":
                self._expect(",")
        self._expect("]")
        return tuple(values)

    def _parse_scalar(self) -> Scalar:
        token_kind, token_text = self._next()
        if token_kind == "string":
            return _unquote(token_text)
        if token_kind == "number":
            return float(token_text) if "." in token_text else int(token_text)
        if token_kind == "word" and token_text.lower() in _NAMED_VALUES:
            return _NAMED_VALUES[token_text.lower()]
        raise _invalid("filter", f"not a value: {token_text[:64]!r}; put text in double quotes")


def _split_tokens(text: str) -> Iterator[tuple[str, str]]:
    position = 0
    text_end = len(text.rstrip())
    while position < text_end:
        match = _TOKEN_PATTERN.match(text, position)
        if match is None:
            raise _invalid("filter", f"unexpected {text[position : position + 16].strip()!r}")
        yield str(match.lastgroup), match[str(match.lastgroup)]
        position = match.end()


def _unquote(text: str) -> str:
    if text[0] == "'":
        return re.sub(r"\\(.)", r"\1", text[1:-1])
    try:
        value = str(json.loads(text, strict=False))
    except ValueError:
        return re.sub(r"\\(.)", r"\1", text[1:-1])
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise _invalid("filter", "contains half of a surrogate pair")
    return value
