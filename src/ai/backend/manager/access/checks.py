"""Checks whether a caller may perform an operation, by the table of permissions."""

from __future__ import annotations

from ai.backend.common.errors import Forbidden
from ai.backend.common.states import UserRole
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.permissions import PERMISSIONS, Operation, Scope


def scope_of(caller: Caller, operation: Operation) -> Scope:
    """Returns on which objects the caller may perform an operation."""
    return PERMISSIONS[caller.role, operation]


def is_permitted(caller: Caller, operation: Operation, *, domain_name: str | None = None, is_own: bool = False) -> bool:
    """Returns whether the caller may perform an operation on an object.

    Args:
        domain_name: the domain of the object; None if the operation has no object, or its object no domain.
        is_own: the object belongs to the caller.
    """
    scope = scope_of(caller, operation)
    is_in_domain = domain_name == caller.domain_name
    return scope is Scope.ALL or (scope is Scope.DOMAIN and is_in_domain) or (is_own and scope is not Scope.NONE)


def require(caller: Caller, operation: Operation, *, domain_name: str | None = None, is_own: bool = False) -> None:
    """Raises Forbidden unless the caller may perform an operation; the arguments are those of :func:`is_permitted`."""
    if not is_permitted(caller, operation, domain_name=domain_name, is_own=is_own):
        raise _refused(operation)


def require_any(caller: Caller, operation: Operation) -> None:
    """Raises Forbidden if the caller may perform an operation on no object at all."""
    if scope_of(caller, operation) is Scope.NONE:
        raise _refused(operation)


def _refused(operation: Operation) -> Forbidden:
    is_for_admins = PERMISSIONS[UserRole.ADMIN, operation] is not Scope.NONE
    return Forbidden(f"Only {'administrators' if is_for_admins else 'superadmins'} {operation.value}.")
