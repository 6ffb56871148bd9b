"""REST routes of the settings in force and of the permissions of roles."""

from __future__ import annotations

from typing import Any, TypedDict

from pydantic import BaseModel

from ai.backend.common.errors import Forbidden
from ai.backend.infra.http.routes import Call, route
from ai.backend.manager.access.checks import require
from ai.backend.manager.access.permissions import PROJECT_ADMIN_OPERATIONS, PROTECTED_ROLES, Operation
from ai.backend.manager.access.requests import caller_of
from ai.backend.manager.system.installation import settings_in_force


class Setting(TypedDict):
    """``key`` is a path in the file of the manager; secrets are hidden. ``without_effect``: why nothing reads it."""

    key: str
    value: Any
    default: Any
    is_set: bool
    description: str
    without_effect: str


class SettingsReply(TypedDict):
    items: list[Setting]


class Permission(TypedDict):
    """``scopes``: role to ``all``, ``domain``, ``own`` or ``no``. ``spared``: the roles of owners whose objects the
    scope ``domain`` leaves out. ``project_admin``: whether administrators of projects have it there."""

    operation: str
    scopes: dict[str, str]
    spared: list[str]
    project_admin: bool


class PermissionsReply(TypedDict):
    items: list[Permission]


class InstallationApi:
    """Routes by which operators read the settings in force and the permissions of roles."""

    problems = (Forbidden,)

    def __init__(self, settings: BaseModel) -> None:
        self._settings = settings

    @route("GET", "/manager/settings")
    async def settings(self, call: Call) -> SettingsReply:
        """Returns the settings of the manager that answers, with those that have no effect, for superadmins."""
        require(caller_of(call), Operation.CONFIGURE)
        items: list[Setting] = [
            {
                "key": setting.key,
                "value": setting.value,
                "default": setting.default,
                "is_set": setting.is_set,
                "description": setting.description,
                "without_effect": setting.without_effect,
            }
            for setting in settings_in_force(self._settings)
        ]
        return {"items": items}

    @route("GET", "/auth/permissions")
    async def permissions(self, call: Call) -> PermissionsReply:
        """Returns what each role may do, and on whose objects."""
        caller_of(call)
        items: list[Permission] = [
            {
                "operation": operation.value,
                "scopes": {role.value: scope.value for role, scope in operation.scopes.items()},
                "spared": sorted(role.value for role in PROTECTED_ROLES.get(operation, ())),
                "project_admin": operation in PROJECT_ADMIN_OPERATIONS,
            }
            for operation in Operation
        ]
        return {"items": items}
