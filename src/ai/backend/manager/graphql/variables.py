"""Adapts the types of variables that other clients declare to the types of our arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import graphql
from graphql import NamedTypeNode, NameNode, NonNullTypeNode

from ai.backend.common.structs import replace

_TEXT_TYPES = frozenset({"String", "ID", "UUID"})
_ACCEPTED_TYPES: Mapping[str, frozenset[str]] = {
    **{name: _TEXT_TYPES - {name} for name in _TEXT_TYPES},
    "JSONString": frozenset({"String"}),
    "VFolderHosts": frozenset({"String", "JSONString"}),
    "BigInt": frozenset({"Int"}),
    "CreateScalingGroupInput": frozenset({"ScalingGroupInput"}),
}
"""Maps the type of an argument to the other types that clients declare for its variable (spec 03-09:271, 389, 413, 485,
531).
"""


def adapt_variable_types(schema: graphql.GraphQLSchema, document: graphql.DocumentNode) -> graphql.DocumentNode:
    """Returns the document with each variable declared with the type of the argument that uses the variable.

    This is done only if the argument accepts the declared type. The values are then parsed as values of the argument's
    type.
    """
    type_info = graphql.TypeInfo(schema)
    argument_types: dict[str, str] = {}

    class ArgumentTypeCollector(graphql.Visitor):
        def enter_variable(self, node: graphql.VariableNode, _key: Any, parent: Any, *_: Any) -> None:
            input_type = type_info.get_input_type()
            if input_type is not None and not isinstance(parent, graphql.VariableDefinitionNode):
                argument_types.setdefault(node.name.value, graphql.get_named_type(input_type).name)

    class VariableTypeReplacer(graphql.Visitor):
        def enter_variable_definition(
            self, node: graphql.VariableDefinitionNode, *_: Any
        ) -> graphql.VariableDefinitionNode | None:
            argument_type = argument_types.get(node.variable.name.value, "")
            is_required = isinstance(node.type, NonNullTypeNode)
            if graphql.print_ast(node.type).strip("[]!") not in _ACCEPTED_TYPES.get(argument_type, ()):
                return None
            accepted_type = NamedTypeNode(name=NameNode(value=argument_type))
            return replace(node, type=NonNullTypeNode(type=accepted_type) if is_required else accepted_type)

    graphql.visit(document, graphql.TypeInfoVisitor(type_info, ArgumentTypeCollector()))
    adapted_document: graphql.DocumentNode = graphql.visit(document, VariableTypeReplacer())
    return adapted_document
