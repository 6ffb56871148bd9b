"""Provides decorators that mark methods as resolvers of GraphQL fields, and binds these methods to the schema."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from ariadne import ObjectType

F = TypeVar("F", bound=Callable[..., Any])
_ROOT_TYPES = ("Query", "Mutation")
_MARK_ATTRIBUTE = "__graphql_fields__"


def field(type_name: str, name: str) -> Callable[[F], F]:
    """Marks a method ``(self, view, info, **arguments)`` as the resolver of a field of an object type."""

    def mark(method: F) -> F:
        setattr(method, _MARK_ATTRIBUTE, (*getattr(method, _MARK_ATTRIBUTE, ()), (type_name, name)))
        return method

    return mark


def query(name: str) -> Callable[[F], F]:
    """Marks a method ``(self, info, **arguments)`` as the resolver of a query."""
    return field("Query", name)


def mutation(name: str) -> Callable[[F], F]:
    """Marks a method ``(self, info, **arguments)`` as the resolver of a mutation."""
    return field("Mutation", name)


def bindables_of(features: Iterable[object]) -> list[ObjectType]:
    """Returns the marked methods of all resolvers by object type, for binding them to a schema."""
    object_types: dict[str, ObjectType] = {}
    for feature in features:
        for method in (getattr(feature, attribute) for attribute in dir(type(feature))):
            for type_name, name in getattr(method, _MARK_ATTRIBUTE, ()):
                resolver = _without_parent(method) if type_name in _ROOT_TYPES else method
                object_types.setdefault(type_name, ObjectType(type_name)).set_field(name, resolver)
    return list(object_types.values())


def _without_parent(method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a resolver for fields of the root, which calls ``method`` without the parent object.

    The parent is None for fields of the root.
    """

    def resolve(_parent: None, info: Any, **arguments: Any) -> Any:
        return method(info, **arguments)

    return resolve
