"""Checks the depth, cost and repetitions of a query, before the query is validated and executed.

The cost of a field is one, times the page sizes of the lists around it. A list without a page counts as ten, or as the
page that it returns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import graphql

from ai.backend.manager.graphql.settings import GraphQLSettings

MAX_TOKENS = 2_000
MAX_REPETITIONS = 8
"""The maximum number of fields with one key in the reply, since validation compares each pair of them."""
MAX_DEFINITIONS = 64
"""The maximum number of operations and fragments of a document, since validation compares each pair of them."""
MAX_WIDTH = 64
"""The maximum number of arguments, directives, variables or fields of an input in one place. Error messages repeat
them.
"""
MAX_PAGE = 100
MAX_LIST_ITEMS = 1_000
"""The maximum length of a list that has no pages."""
_UNPAGED_ITEMS = 10
_FULL_PAGE_FIELDS = frozenset({"compute_sessions", "keypairs", "users"})
"""Lists that have no page argument but return as many items as a full page."""


def widths_of(schema: graphql.GraphQLSchema) -> dict[str, int]:
    """Returns, by field name, the number of items that the cost of a query assumes for a list field without pages."""
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
    """Raises GraphQLError if a document asks for the schema in any place."""

    class IntrospectionFinder(graphql.Visitor):
        def enter_field(self, node: graphql.FieldNode, *_: Any) -> None:
            if node.name.value in ("__schema", "__type"):
                raise graphql.GraphQLError("The schema is not told to you: it is in the documentation.")

    graphql.visit(document, IntrospectionFinder())


def check_limits(
    document: graphql.DocumentNode, variables: Mapping[str, Any], limits: GraphQLSettings, widths: Mapping[str, int]
) -> None:
    """Raises GraphQLError if a parsed query is too deep, too expensive or has too many repetitions. ``widths`` is the
    result of :func:`widths_of`.
    """
    if len(document.definitions) > MAX_DEFINITIONS:
        raise graphql.GraphQLError(f"The query has more than {MAX_DEFINITIONS} operations and fragments.")
    fragments = {
        node.name.value: node for node in document.definitions if isinstance(node, graphql.FragmentDefinitionNode)
    }
    cost_counter = _CostCounter(fragments, variables, limits, widths)
    for operation_index, definition in enumerate(document.definitions):
        if isinstance(definition, graphql.OperationDefinitionNode):
            _check_width(definition.variable_definitions)
            cost_counter.walk(definition.selection_set, (str(operation_index),), 1, 1)
    for name in {*fragments} - cost_counter.used_fragments:  # validation reads unused ones, too
        cost_counter.walk(fragments[name].selection_set, (name,), 1, 1)


def _check_width(nodes: Iterable[graphql.Node] | None) -> None:
    """Raises GraphQLError if a place of a query, such as a list, has more than MAX_WIDTH values.

    Places are the arguments, directives and variables of a query, the fields of an input, and the values of a list.
    """
    for width, node in enumerate(nodes or (), 1):
        if width > MAX_WIDTH:
            raise graphql.GraphQLError(f"The query has more than {MAX_WIDTH} values in one place.", node)
        value = getattr(node, "value", node)
        _check_width(getattr(value, "fields", None) or getattr(value, "values", None))


@dataclass(eq=False, repr=False)
class _CostCounter:
    fragments: Mapping[str, graphql.FragmentDefinitionNode]
    variables: Mapping[str, Any]
    limits: GraphQLSettings
    widths: Mapping[str, int]
    used_fragments: set[str] = field(default_factory=set, init=False)
    _cost: int = field(default=0, init=False)
    _repetitions: Counter[tuple[str, ...]] = field(default_factory=Counter, init=False)

    def walk(
        self, selections: graphql.SelectionSetNode, path: tuple[str, ...], depth: int, expected_count: int
    ) -> None:
        """Adds the cost of the selected fields at ``path``, and checks the limits of depth, cost and repetitions.

        ``path`` is a path of keys of the reply. A missing fragment is left to the validation.
        """
        if depth > self.limits.max_depth:
            raise graphql.GraphQLError(f"The query is nested deeper than {self.limits.max_depth}.")
        for node in selections.selections:
            self._cost += expected_count
            if self._cost > self.limits.max_cost:
                raise graphql.GraphQLError(f"The query costs more than {self.limits.max_cost}; ask for less at once.")
            _check_width(node.directives)
            if isinstance(node, graphql.FieldNode):
                _check_width(node.arguments)
                field_path = (*path, (node.alias or node.name).value)
                self._repetitions[field_path] += 1
                if self._repetitions[field_path] > MAX_REPETITIONS:
                    raise graphql.GraphQLError(
                        f"The query asks for {field_path[-1]!r} more than {MAX_REPETITIONS} times."
                    )
                if node.selection_set is not None:
                    self.walk(node.selection_set, field_path, depth + 1, expected_count * self._item_count(node))
            elif isinstance(node, graphql.InlineFragmentNode):
                self.walk(node.selection_set, path, depth + 1, expected_count)
            elif isinstance(node, graphql.FragmentSpreadNode) and node.name.value in self.fragments:
                self.used_fragments.add(node.name.value)
                self.walk(self.fragments[node.name.value].selection_set, path, depth + 1, expected_count)

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
