"""What one query may ask for: depth and cost, counted before anything is executed.

The cost of a field is one, times the page sizes of the lists around it. A list without a page counts as ten, or as the
page that it gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from graphql import (
    DocumentNode,
    FieldNode,
    FragmentDefinitionNode,
    FragmentSpreadNode,
    GraphQLError,
    GraphQLSchema,
    IntValueNode,
    OperationDefinitionNode,
    SelectionSetNode,
    VariableNode,
    Visitor,
    get_named_type,
    get_nullable_type,
    is_list_type,
    is_object_type,
    visit,
)

MAX_TOKENS = 4_000
MAX_PAGE = 100
_UNPAGED = 10
_FULL_PAGES = frozenset({"compute_sessions", "keypairs", "users"})
"""Lists without a page that give a whole one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryLimits:
    """``introspection``: who may ask for the schema: everybody, superadmins or nobody."""

    depth: int = 16
    cost: int = 50_000
    introspection: str = "everybody"


def widths_of(schema: GraphQLSchema) -> dict[str, int]:
    """For how many items each list of objects counts that has no page, by the name of its field."""
    fields = [
        (name, field)
        for kind in schema.type_map.values()
        if is_object_type(kind) and not kind.name.startswith("__")
        for name, field in kind.fields.items()
    ]
    return {
        name: MAX_PAGE if name in _FULL_PAGES else _UNPAGED
        for name, field in fields
        if name != "items"  # of a page, which has counted
        and is_list_type(get_nullable_type(field.type))
        and is_object_type(get_named_type(field.type))
    }


def check_introspection(document: DocumentNode) -> None:
    """Refuse a query about the schema, wherever in the document it is.

    Raises:
        GraphQLError: it is one.
    """

    class Finder(Visitor):
        def enter_field(self, node: FieldNode, *_: Any) -> None:
            if node.name.value in ("__schema", "__type"):
                raise GraphQLError("The schema is not told to you: it is in the documentation.")

    visit(document, Finder())


def check_limits(
    document: DocumentNode, variables: Mapping[str, Any], limits: QueryLimits, widths: Mapping[str, int]
) -> None:
    """Refuse a validated query that is too deep or too dear. ``widths`` are those of :func:`widths_of`.

    Raises:
        GraphQLError: it is.
    """
    fragments = {d.name.value: d for d in document.definitions if isinstance(d, FragmentDefinitionNode)}
    counter = _Counter(fragments, variables, limits, widths)
    for definition in document.definitions:
        if isinstance(definition, OperationDefinitionNode):
            counter.walk(definition.selection_set, 1, 1)


class _Counter:
    def __init__(
        self,
        fragments: Mapping[str, FragmentDefinitionNode],
        variables: Mapping[str, Any],
        limits: QueryLimits,
        widths: Mapping[str, int],
    ) -> None:
        self._widths = widths
        self._limits = limits
        self._fragments = fragments
        self._variables = variables
        self._cost = 0

    def walk(self, selections: SelectionSetNode, depth: int, weight: int) -> None:
        if depth > self._limits.depth:
            raise GraphQLError(f"The query is nested deeper than {self._limits.depth}.")
        for node in selections.selections:
            if isinstance(node, FieldNode):
                self._cost += weight
                if self._cost > self._limits.cost:
                    raise GraphQLError(f"The query costs more than {self._limits.cost}; ask for less at once.")
                if node.selection_set is not None:
                    self.walk(node.selection_set, depth + 1, weight * self._width(node))
                continue
            inner = (
                self._fragments[node.name.value].selection_set
                if isinstance(node, FragmentSpreadNode)
                else node.selection_set  # type: ignore[attr-defined]  # the third kind is an inline fragment
            )
            self._cost += weight
            self.walk(inner, depth + 1, weight)

    def _width(self, node: FieldNode) -> int:
        for argument in node.arguments or ():
            if argument.name.value == "limit":
                value: Any = None
                if isinstance(argument.value, IntValueNode):
                    value = int(argument.value.value)
                elif isinstance(argument.value, VariableNode):
                    value = self._variables.get(argument.value.name.value)
                return min(max(value, 1), MAX_PAGE) if isinstance(value, int) else MAX_PAGE
        return self._widths.get(node.name.value, 1)
