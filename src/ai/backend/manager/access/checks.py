"""Checks if a caller may perform an operation, by the table of permissions."""

from __future__ import annotations

from typing import Any

from ai.backend.common.errors import Forbidden, ProofRequired
from ai.backend.common.ids import GroupId
from ai.backend.common.states import UserRole
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.permissions import (
    PERMISSIONS,
    PROJECT_ADMIN_OPERATIONS,
    PROTECTED_ROLES,
    Operation,
    Scope,
)


def scope_of(caller: Caller, operation: Operation) -> Scope:
    """Returns the scope of the objects on which the caller may perform an operation."""
    return PERMISSIONS[caller.role, operation]


def is_permitted(
    caller: Caller,
    operation: Operation,
    *,
    domain_name: str | None = None,
    is_own: bool = False,
    owner_role: UserRole | None = None,
    group_id: GroupId | None = None,
) -> bool:
    """Returns True if the caller may perform an operation on an object.

    Args:
        domain_name: the domain of the object; None if the operation has no object, or its object no domain.
        is_own: the object belongs to the caller.
        owner_role: the role of the object's owner, for the operations of :data:`PROTECTED_ROLES`.
        group_id: the group that the object belongs to.
    """
    if operation in PROJECT_ADMIN_OPERATIONS and group_id is not None and group_id in caller.administered_groups:
        return True
    scope = scope_of(caller, operation)
    is_in_domain = domain_name == caller.domain_name and not is_protected(operation, owner_role)
    return scope is Scope.ALL or (scope is Scope.DOMAIN and is_in_domain) or (is_own and scope is not Scope.NONE)


def visibility_filter(caller: Caller, operation: Operation) -> dict[str, Any]:
    """Returns the store filter that selects the objects on which the caller may perform an operation."""
    match scope_of(caller, operation):
        case Scope.ALL:
            return {}
        case Scope.DOMAIN:
            return {"domain_name": caller.domain_name}
        case _:
            return {"user_id": caller.user_id}


def is_protected(operation: Operation, owner_role: UserRole | None) -> bool:
    """Returns True if domain admins may not perform an operation on the objects of users with the given role."""
    return owner_role in PROTECTED_ROLES.get(operation, ())


def require(
    caller: Caller,
    operation: Operation,
    *,
    domain_name: str | None = None,
    is_own: bool = False,
    group_id: GroupId | None = None,
) -> None:
    """Raises Forbidden if the caller may not perform an operation, or ProofRequired if it needs a recent proof. The
    arguments are those of :func:`is_permitted`.
    """
    if not is_permitted(caller, operation, domain_name=domain_name, is_own=is_own, group_id=group_id):
        raise _forbidden(operation)
    _require_proof(caller, operation)


def require_any(caller: Caller, operation: Operation) -> None:
    """Raises Forbidden if the caller may perform an operation on no object, or ProofRequired if it needs a recent
    proof.
    """
    if scope_of(caller, operation) is Scope.NONE:
        raise _forbidden(operation)
    _require_proof(caller, operation)


def _require_proof(caller: Caller, operation: Operation) -> None:
    if operation in caller.unproved:
        message = f"Whoever wants to {operation.value} proves again who asks, by a password or a one-time password."
        raise ProofRequired(message, data={"proof": "required"})


def _forbidden(operation: Operation) -> Forbidden:
    is_for_admins = PERMISSIONS[UserRole.ADMIN, operation] is not Scope.NONE
    return Forbidden(f"Only {'administrators' if is_for_admins else 'superadmins'} {operation.value}.")
