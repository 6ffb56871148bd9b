"""Limits of a query: depth and cost, counted before anything is executed.

The cost of a field is one, times the page sizes of the lists around it. A list without a page counts as ten, or as the
page that it returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import graphql

from ai.backend.manager.graphql.settings import GraphQLSettings

MAX_TOKENS = 4_000
MAX_PAGE = 100
_UNPAGED_ITEMS = 10
_FULL_PAGE_FIELDS = frozenset({"compute_sessions", "keypairs", "users"})
"""Lists without a page argument that return a full page."""


def widths_of(schema: graphql.GraphQLSchema) -> dict[str, int]:
    """Returns field name -> the number of items as which the query cost counts a list without pages."""
    fields = [
        (name, field)
        for graphql_type in schema.type_map.values()
        if graphql.is_object_type(graphql_type) and not graphql_type.name.startswith("__")
        for name, field in graphql_type.fields.items()
    ]
    return {
        name: MAX_PAGE if name in _FULL_PAGE_FIELDS else _UNPAGED_ITEMS
        for name, field in fields
        if name != "items"  # of a page, which has counted
        and graphql.is_list_type(graphql.get_nullable_type(field.type))
        and graphql.is_object_type(graphql.get_named_type(field.type))
    }


def check_introspection(document: graphql.DocumentNode) -> None:
    """Raises GraphQLError for a query about the schema, wherever in the document it is."""

    class Finder(graphql.Visitor):
        def enter_field(self, node: graphql.FieldNode, *_: Any) -> None:
            if node.name.value in ("__schema", "__type"):
                raise graphql.GraphQLError("The schema is not told to you: it is in the documentation.")

    graphql.visit(document, Finder())


def check_limits(
    document: graphql.DocumentNode, variables: Mapping[str, Any], limits: GraphQLSettings, widths: Mapping[str, int]
) -> None:
    """Raises GraphQLError for a validated query that is too deep or too expensive; ``widths`` as :func:`widths_of`."""
    fragments = {
        node.name.value: node for node in document.definitions if isinstance(node, graphql.FragmentDefinitionNode)
    }
    counter = _CostCounter(fragments, variables, limits, widths)
    for definition in document.definitions:
        if isinstance(definition, graphql.OperationDefinitionNode):
            counter.walk(definition.selection_set, 1, 1)


@dataclass(eq=False, repr=False)
class _CostCounter:
    fragments: Mapping[str, graphql.FragmentDefinitionNode]
    variables: Mapping[str, Any]
    limits: GraphQLSettings
    widths: Mapping[str, int]
    _cost: int = field(default=0, init=False)

    def walk(self, selections: graphql.SelectionSetNode, depth: int, weight: int) -> None:
        if depth > self.limits.max_depth:
            raise graphql.GraphQLError(f"The query is nested deeper than {self.limits.max_depth}.")
        for node in selections.selections:
            if isinstance(node, graphql.FieldNode):
                self._cost += weight
                if self._cost > self.limits.max_cost:
                    message = f"The query costs more than {self.limits.max_cost}; ask for less at once."
                    raise graphql.GraphQLError(message)
                if node.selection_set is not None:
                    self.walk(node.selection_set, depth + 1, weight * self._item_count(node))
                continue
            inner_selections = (
                self.fragments[node.name.value].selection_set
                if isinstance(node, graphql.FragmentSpreadNode)
                else node.selection_set  # type: ignore[attr-defined]  # the third kind is an inline fragment
            )
            self._cost += weight
            self.walk(inner_selections, depth + 1, weight)

    def _item_count(self, node: graphql.FieldNode) -> int:
        for argument in node.arguments or ():
            if argument.name.value == "limit":
                value: Any = None
                if isinstance(argument.value, graphql.IntValueNode):
                    value = int(argument.value.value)
                elif isinstance(argument.value, graphql.VariableNode):
                    value = self.variables.get(argument.value.name.value)
                return min(max(value, 1), MAX_PAGE) if isinstance(value, int) else MAX_PAGE
        return self.widths.get(node.name.value, 1)
