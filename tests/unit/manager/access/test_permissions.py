"""The table of permissions is total, and the checks follow its scopes."""

from __future__ import annotations

from uuid import uuid4

import pytest

from ai.backend.common.errors import Forbidden
from ai.backend.common.ids import AccessKey, DomainName, UserId
from ai.backend.common.states import UserRole
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import is_permitted, require, require_any, visibility_filter
from ai.backend.manager.access.permissions import PERMISSIONS, Operation, Scope


def caller(role: UserRole) -> Caller:
    return Caller(
        user_id=UserId(uuid4()),
        email="a@b.example",
        username="a",
        role=role,
        domain_name=DomainName("home"),
        access_key=AccessKey("AKIAA"),
        is_admin=role in (UserRole.SUPERADMIN, UserRole.ADMIN),
        resource_policy="default",
        rate_limit=1,
    )


def test_every_role_has_a_scope_for_every_operation() -> None:
    assert set(PERMISSIONS) == {(role, operation) for role in UserRole for operation in Operation}


@pytest.mark.parametrize("operation", list(Operation))
@pytest.mark.parametrize("role", list(UserRole))
def test_a_scope_decides_on_objects(role: UserRole, operation: Operation) -> None:
    scope, user = PERMISSIONS[role, operation], caller(role)
    others = is_permitted(user, operation), is_permitted(user, operation, domain_name="away")
    assert others == (scope is Scope.ALL,) * 2
    assert is_permitted(user, operation, domain_name="home") == (scope in (Scope.DOMAIN, Scope.ALL))
    assert is_permitted(user, operation, domain_name="away", is_own=True) == (scope is not Scope.NONE)


def test_only_superadmins_change_limits_and_see_no_less_than_others() -> None:
    order = list(Scope)
    for operation in set(Operation) - {Operation.SIGN_OUT}:
        widest = max(order.index(PERMISSIONS[role, operation]) for role in UserRole)
        assert order.index(PERMISSIONS[UserRole.SUPERADMIN, operation]) == widest
    for operation in (Operation.CHANGE_GROUP_LIMITS, Operation.CHANGE_USER_LIMITS, Operation.CHANGE_KEYPAIR_LIMITS):
        assert PERMISSIONS[UserRole.ADMIN, operation] is Scope.NONE


def test_refusals_name_the_roles_that_are_permitted() -> None:
    with pytest.raises(Forbidden, match="Only administrators change users"):
        require_any(caller(UserRole.USER), Operation.CHANGE_USERS)
    with pytest.raises(Forbidden, match="Only superadmins purge users"):
        require(caller(UserRole.ADMIN), Operation.PURGE_USERS)
    require_any(caller(UserRole.ADMIN), Operation.CHANGE_USERS)


def test_lists_are_bounded_by_the_scope() -> None:
    bounds = [
        visibility_filter(caller(role), Operation.SEE_ERRORS).keys() for role in (UserRole.SUPERADMIN, UserRole.ADMIN)
    ]
    assert bounds == [set(), {"domain_name"}]
    user = caller(UserRole.USER)
    assert visibility_filter(user, Operation.SEE_ERRORS) == {"user_id": user.user_id}


def test_admins_of_a_domain_spare_the_objects_of_some_roles() -> None:
    for role in UserRole:
        is_allowed = is_permitted(caller(UserRole.ADMIN), Operation.CHANGE_USERS, domain_name="home", owner_role=role)
        assert is_allowed is (role is UserRole.USER)
        assert is_permitted(caller(UserRole.SUPERADMIN), Operation.CHANGE_USERS, domain_name="home", owner_role=role)
