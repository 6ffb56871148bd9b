"""Parses device requests: a subset of CEL, with sizes (``40g``) and versions (``8.0.1``) as literals beside it.

Bounds: the text is at most :data:`MAX_LENGTH` characters, its terms are at most :data:`MAX_TERMS` and nest at most
:data:`MAX_DEPTH` deep, so that any text is parsed in milliseconds and evaluated without recursion that could fail.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from ai.backend.common.devices import LinkKind
from ai.backend.common.errors import InvalidInput, InvalidName, InvalidQuantity
from ai.backend.common.names import check_slot_name
from ai.backend.common.slots import BinarySize, parse_quantity
from ai.backend.core.allocation.requests.attributes import (
    ATTRIBUTES,
    HOST_SLOTS,
    LINK,
    LINK_BANDWIDTH,
    AttributeKind,
)
from ai.backend.core.allocation.requests.terms import (
    ORDERS,
    TEXT_TESTS,
    Alike,
    AllOf,
    Amount,
    AnyOf,
    Comparison,
    Constraint,
    Has,
    LinkBandwidth,
    LinkKinds,
    Literal,
    Not,
    Term,
    Tolerates,
    version_key,
)

if TYPE_CHECKING:
    from lark import Token

MAX_LENGTH = 2048
MAX_TERMS = 64
MAX_DEPTH = 16
_GRAMMAR = r"""
start: any_of
any_of: all_of ("||" all_of)*
all_of: test ("&&" test)*
test: NOT test -> negation
    | "(" any_of ")" -> group
    | NAME "(" [argument ("," argument)*] ")" -> call
    | NAME COMPARE literal -> comparison
    | literal COMPARE NAME -> flipped
    | NAME "in" "[" [literal ("," literal)*] "]" -> membership
    | literal "in" NAME -> containment
argument: NAME | literal
literal: NUMBER | STRING
NOT: "!"
COMPARE: "==" | "!=" | "<=" | ">=" | "<" | ">"
NAME: /[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_-]*)*/
NUMBER: /[0-9]+([.][0-9]+)*([kmgtpe](i?b)?)?/i
STRING: /"([^"\\]|\\.)*"|'([^'\\]|\\.)*'/
%ignore /[ \t]+/
"""
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}


class _Part(msgspec.Struct, frozen=True):
    """Holds a parsed part of a request: conditions on each single device, and constraints between the devices."""

    term: Term | None
    constraints: tuple[Constraint, ...] = ()
    depth: int = 1
    term_count: int = 1
    column: int = 1


class RequestParser:
    """Parses device requests. Building one costs 30 ms, and the first one in a process 80 ms more."""

    def __init__(self) -> None:
        import lark  # only programs that read requests pay for it

        self._lark = lark
        rules = type("_Parts", (lark.Transformer,), {name: staticmethod(rule) for name, rule in _RULES.items()})
        self._parser = lark.Lark(_GRAMMAR, parser="lalr", transformer=rules())

    def parse(self, text: str) -> tuple[Term | None, tuple[Constraint, ...]]:
        """Parses a request into conditions on each single device and constraints between the devices.

        Raises InvalidInput with the column (from 1) in message and ``data``.
        """
        if len(text) > MAX_LENGTH:
            _fail(f"a device request has at most {MAX_LENGTH} characters", MAX_LENGTH + 1)
        if not text.isprintable():
            _fail(
                "a character that does not print",
                next(position for position, character in enumerate(text, 1) if not character.isprintable()),
            )
        if not text.strip():
            _fail("an empty device request", 1)
        try:
            part: Any = self._parser.parse(text)
        except self._lark.UnexpectedCharacters as e:
            _fail(f"unexpected {text[e.column - 1 : e.column]!r}", e.column)
        except self._lark.UnexpectedInput as e:
            token = getattr(e, "token", None)
            if token is None or token.type == "$END":
                _fail("the expression ends too early", len(text) + 1)
            _fail(f"unexpected {str(token)[:32]!r}", e.column)
        return part.term, part.constraints


def _fail(problem: str, column: int) -> NoReturn:
    raise InvalidInput(f"{problem} at column {column} of the device request", data={"column": column})


def _column_of(token: Token | Literal) -> int:
    return int(getattr(token, "column", None) or 1)


def _combine(parts: list[_Part], *, is_all: bool) -> _Part:
    if len(parts) == 1:
        return parts[0]
    depth = 1 + max(part.depth for part in parts)
    term_count = sum(part.term_count for part in parts)
    column = parts[0].column
    if depth > MAX_DEPTH:
        _fail(f"parentheses nest deeper than {MAX_DEPTH}", column)
    if term_count > MAX_TERMS:
        _fail(f"more than {MAX_TERMS} terms", parts[-1].column)
    if not is_all:
        for part in parts:
            _refuse_constraints(part)
    terms: list[Term] = []
    for part in parts:
        if part.term is not None:
            terms += part.term.terms if is_all and isinstance(part.term, AllOf) else (part.term,)
    combined_term: Term | None = None
    if terms:
        combined_term = terms[0] if len(terms) == 1 else AllOf(tuple(terms)) if is_all else AnyOf(tuple(terms))
    constraints = tuple(dict.fromkeys(constraint for part in parts for constraint in part.constraints))
    return _Part(combined_term, constraints, depth, term_count, column)


def _refuse_constraints(part: _Part) -> None:
    if part.constraints:
        _fail(f"{part.constraints[0]} concerns all devices and is joined by && alone, outside of || and !", part.column)


def _negation_part(children: list[Any]) -> _Part:
    sign, part = children
    _refuse_constraints(part)
    if part.depth >= MAX_DEPTH:
        _fail(f"parentheses nest deeper than {MAX_DEPTH}", _column_of(sign))
    return _Part(Not(part.term), (), part.depth + 1, part.term_count, _column_of(sign))


def _group_part(group_children: list[Any]) -> _Part:
    (part,) = group_children
    if part.depth >= MAX_DEPTH:
        _fail(f"parentheses nest deeper than {MAX_DEPTH}", part.column)
    return _Part(part.term, part.constraints, part.depth + 1, part.term_count, part.column)


def _literal_value(children: list[Any]) -> tuple[Literal, int]:
    (token,) = children
    text, column = str(token), _column_of(token)
    if token.type == "STRING":
        return Literal(_unescape(text[1:-1]), is_quoted=True), column
    if text.count(".") > 1:
        if version_key(text) is None:
            _fail(f"{text[:32]!r} is no number and no version", column)
        return Literal(text), column
    if len(text) > 24:
        _fail("a number of more than 24 characters", column)
    if text[-1].isdigit():
        return Literal(text, Decimal(text)), column
    try:
        return Literal(text, Decimal(int(BinarySize.parse(text)))), column
    except InvalidQuantity as e:
        _fail(e.message, column)


def _unescape(text: str) -> str:
    characters = iter(text)
    return "".join(next(characters) if character == "\\" else character for character in characters)


def _comparison_part(
    name: Token, operator: str, literals: list[tuple[Literal, int]], *, is_flipped: bool = False
) -> _Part:
    """Checks that the kinds of a comparison's operands fit together."""
    column, kind = _column_of(name), ATTRIBUTES.get(name)
    if name in (LINK, LINK_BANDWIDTH):
        return _link_part(str(name), operator, literals, column)
    if not literals:
        _fail("an empty list matches no device", column)
    if len(literals) > MAX_TERMS:
        _fail(f"a list of more than {MAX_TERMS} values", literals[MAX_TERMS][1])
    for literal, literal_column in literals:
        if kind is AttributeKind.TEXT and not literal.is_quoted:
            _fail(f"{name} is compared with {kind}", literal_column)
        if kind in (AttributeKind.SIZE, AttributeKind.NUMBER) and literal.number is None:
            _fail(f"{name} is compared with {kind}", literal_column)
        if operator in ORDERS and literal.is_quoted and version_key(literal.text) is None:
            _fail(f"{literal} has no order; compare with a number, a size or a version", literal_column)
    if operator in ORDERS and kind is AttributeKind.TEXT:
        _fail(f"{name} is text and has no order", column)
    if operator in TEXT_TESTS and kind in (AttributeKind.SIZE, AttributeKind.NUMBER):
        _fail(f"{name} is no text", column)
    term = Comparison(str(name), operator, tuple(literal for literal, _ in literals), is_flipped)
    return _Part(term, term_count=len(literals), column=column)


def _link_part(name: str, operator: str, literals: list[tuple[Literal, int]], column: int) -> _Part:
    if name == LINK_BANDWIDTH:
        literal, literal_column = literals[0] if literals else (Literal(""), column)
        if operator != ">=" or literal.number is None or not literal.text[-1].isdigit():
            _fail(f"write {LINK_BANDWIDTH} >= NUMBER, in GiB/s", literal_column)
        return _Part(None, (LinkBandwidth(literal.number, literal.text),), column=column)
    kinds = {kind.value for kind in LinkKind}
    for literal, literal_column in literals:
        if operator not in ("==", "in") or literal.text not in kinds:
            _fail(f"write {LINK} == KIND, one of {', '.join(sorted(kinds))}", literal_column)
    if not literals:
        _fail("an empty list matches no device", column)
    return _Part(None, (LinkKinds(tuple(dict.fromkeys(literal.text for literal, _ in literals))),), column=column)


def _call_part(children: list[Any]) -> _Part:
    name, *arguments = children
    column = _column_of(name)
    attribute, _, function = name.rpartition(".")
    arguments = [attribute_name for attribute_name in arguments if attribute_name is not None]
    if attribute and function in TEXT_TESTS:
        if len(arguments) != 1 or not isinstance(arguments[0], tuple) or not arguments[0][0].is_quoted:
            _fail(f"{function} takes one quoted text", column)
        return _comparison_part(name.update(value=attribute), function, arguments)
    if name == "tolerates":
        if len(arguments) != 1 or not isinstance(arguments[0], tuple) or not arguments[0][0].is_quoted:
            _fail('tolerates takes the quoted key of a taint, or "*"', column)
        return _Part(None, (Tolerates(arguments[0][0].text),), column=column)
    if name == "amount":
        return _amount_part(arguments, column)
    if name not in ("has", "same", "distinct"):
        names = ", ".join(("has", "same", "distinct", "tolerates", "amount", *TEXT_TESTS))
        _fail(f"there is no function {str(name)[:32]}; there are {names}", column)
    if len(arguments) != 1 or isinstance(arguments[0], tuple):
        _fail(f"{name} takes the name of one attribute", column)
    attribute_name = str(arguments[0])
    if name == "has":
        return _Part(Has(attribute_name), column=column)
    return _Part(None, (Alike(attribute_name, is_distinct=name == "distinct"),), column=column)


def _amount_part(arguments: list[Any], column: int) -> _Part:
    """Checks the slot and the quantity of an expression such as ``amount("cuda.device", 2)``."""
    if len(arguments) != 2 or not all(isinstance(argument, tuple) for argument in arguments):
        _fail('amount takes a quoted slot and a quantity, such as amount("cuda.device", 2)', column)
    (slot, slot_column), (quantity, quantity_column) = arguments
    if not slot.is_quoted or quantity.number is None:
        _fail('amount takes a quoted slot and a quantity, such as amount("cuda.device", 2)', column)
    try:
        check_slot_name(slot.text)
        parsed_quantity = parse_quantity(quantity.number)
    except InvalidName:
        _fail(f"{slot.text[:32]!r} is no name of a slot", slot_column)
    except InvalidQuantity as e:
        _fail(e.message, quantity_column)
    if slot.text in HOST_SLOTS:
        _fail(f"amount is of an accelerator's slot, and {slot.text} is none", slot_column)
    if not parsed_quantity:
        _fail("an amount is more than zero", quantity_column)
    return _Part(None, (Amount(slot.text, parsed_quantity, quantity.text),), column=column)


_RULES: dict[str, Any] = {
    "start": lambda children: children[0],
    "any_of": lambda children: _combine(children, is_all=False),
    "all_of": lambda children: _combine(children, is_all=True),
    "negation": _negation_part,
    "group": _group_part,
    "call": _call_part,
    "comparison": lambda children: _comparison_part(children[0], str(children[1]), [children[2]]),
    "flipped": lambda children: _comparison_part(children[2], _FLIPPED[children[1]], [children[0]]),
    "membership": lambda children: _comparison_part(children[0], "in", [c for c in children[1:] if c is not None]),
    "containment": lambda children: _comparison_part(children[1], "in", [children[0]], is_flipped=True),
    "argument": lambda children: children[0],
    "literal": _literal_value,
}
