"""What one query may ask for: depth and cost, counted before anything is executed.

The cost of a field is one, times the page sizes of the lists around it; a list without a page counts as ten.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphql import (
    DocumentNode,
    FieldNode,
    FragmentDefinitionNode,
    FragmentSpreadNode,
    GraphQLError,
    IntValueNode,
    OperationDefinitionNode,
    SelectionSetNode,
    VariableNode,
)

MAX_TOKENS = 4_000
MAX_DEPTH = 16
MAX_COST = 50_000
MAX_PAGE = 100
_LISTS = frozenset({"containers", "compute_containers", "dependencies", "compute_sessions", "groups", "labels"})
_UNPAGED = 10


def check_limits(document: DocumentNode, variables: Mapping[str, Any]) -> None:
    """Refuse a validated query that is too deep or too dear.

    Raises:
        GraphQLError: it is.
    """
    fragments = {d.name.value: d for d in document.definitions if isinstance(d, FragmentDefinitionNode)}
    counter = _Counter(fragments, variables)
    for definition in document.definitions:
        if isinstance(definition, OperationDefinitionNode):
            counter.walk(definition.selection_set, 1, 1)


class _Counter:
    def __init__(self, fragments: Mapping[str, FragmentDefinitionNode], variables: Mapping[str, Any]) -> None:
        self._fragments = fragments
        self._variables = variables
        self._cost = 0

    def walk(self, selections: SelectionSetNode, depth: int, weight: int) -> None:
        if depth > MAX_DEPTH:
            raise GraphQLError(f"The query is nested deeper than {MAX_DEPTH}.")
        for node in selections.selections:
            if isinstance(node, FieldNode):
                self._cost += weight
                if self._cost > MAX_COST:
                    raise GraphQLError(f"The query costs more than {MAX_COST}; ask for less at once.")
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
        return _UNPAGED if node.name.value in _LISTS else 1
