"""Defines the permissions of roles, as one table: which operation a role may perform, and on whose objects."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Self

from ai.backend.common.states import UserRole


class Scope(StrEnum):
    """Names the objects on which a role may perform an operation; each scope includes the scopes before it."""

    NONE = "no"
    OWN = "own"
    """The caller's own objects, or the objects of groups that the caller belongs to."""
    DOMAIN = "domain"
    """All objects of the caller's domain, except the objects of the roles in :data:`PROTECTED_ROLES`."""
    ALL = "all"


_NO, _OWN, _DOMAIN, _ALL = Scope.NONE, Scope.OWN, Scope.DOMAIN, Scope.ALL
_ROLES = (UserRole.SUPERADMIN, UserRole.ADMIN, UserRole.MONITOR, UserRole.USER)


class Operation(StrEnum):
    """The operations that need a permission, each with the scope that each role has for it.

    The value of an operation completes the sentence "Only superadmins ...".
    """

    _value_: str
    scopes: Mapping[UserRole, Scope]

    def __new__(cls, text: str, *scopes: Scope) -> Self:
        operation = str.__new__(cls, text)
        operation._value_ = text
        operation.scopes = dict(zip(_ROLES, scopes, strict=True))
        return operation

    # operation, superadmin, admin, monitor, user
    SEE_DOMAINS = "see domains", _ALL, _DOMAIN, _ALL, _DOMAIN
    CHANGE_DOMAINS = "change domains", _ALL, _NO, _NO, _NO
    SIGN_WITHOUT_DOMAIN = "sign requests while their domain is inactive", _ALL, _NO, _NO, _NO
    SEE_GROUPS = "see groups", _ALL, _DOMAIN, _ALL, _OWN
    CHANGE_GROUPS = "change groups", _ALL, _DOMAIN, _NO, _NO
    CHANGE_MEMBERS = "change the members of groups", _ALL, _DOMAIN, _NO, _NO
    CHANGE_GROUP_LIMITS = "change the limits of groups", _ALL, _NO, _NO, _NO
    PURGE_GROUPS = "purge groups", _ALL, _NO, _NO, _NO
    SEE_KEYPAIR_POLICIES = "see the policies of keypairs", _ALL, _ALL, _OWN, _OWN
    SEE_STORAGE_POLICIES = "see the policies of users and projects", _ALL, _ALL, _NO, _NO
    CHANGE_POLICIES = "change policies", _ALL, _NO, _NO, _NO
    SEE_USERS = "see users", _ALL, _DOMAIN, _ALL, _OWN
    LIST_USERS = "list users", _ALL, _DOMAIN, _ALL, _NO
    CHANGE_USERS = "change users", _ALL, _DOMAIN, _NO, _NO
    CHANGE_USER_LIMITS = "change the limits of users", _ALL, _NO, _NO, _NO
    PURGE_USERS = "purge users", _ALL, _NO, _NO, _NO
    # A superadmin is removed by another one.
    SIGN_OUT = "deactivate their own user", _NO, _OWN, _OWN, _OWN
    ROTATE_OWN_KEYPAIRS = "give their own keypairs new secrets", _ALL, _ALL, _ALL, _ALL
    SEE_KEYPAIRS = "see keypairs", _ALL, _DOMAIN, _ALL, _OWN
    CHANGE_KEYPAIRS = "change keypairs", _ALL, _DOMAIN, _NO, _NO
    CHANGE_KEYPAIR_LIMITS = "change the limits and rights of keypairs", _ALL, _NO, _NO, _NO
    ACT_FOR_KEYPAIRS = "act for other keypairs", _ALL, _DOMAIN, _OWN, _OWN
    SEE_RESOURCE_GROUPS = "see resource groups", _ALL, _OWN, _OWN, _OWN
    SEE_SCHEDULER_OPTIONS = "see the options of resource groups", _ALL, _ALL, _NO, _NO
    CHANGE_RESOURCE_GROUPS = "change resource groups", _ALL, _NO, _NO, _NO
    CHANGE_SHARED_DOTFILES = "change the dotfiles of a domain or of its groups", _ALL, _DOMAIN, _NO, _NO
    SEE_TEMPLATES = "see templates", _ALL, _DOMAIN, _ALL, _OWN
    CHANGE_TEMPLATES = "change templates", _ALL, _DOMAIN, _OWN, _OWN
    USE_GROUPS = "create sessions and templates in groups", _ALL, _DOMAIN, _OWN, _OWN
    SEE_AGENTS = "see agents", _ALL, _NO, _ALL, _NO
    CHANGE_AGENTS = "change agents and presets", _ALL, _NO, _NO, _NO
    CONTROL_AGENT_DAEMONS = "start and stop agents", _ALL, _NO, _NO, _NO
    OPERATE_DEVICES = "operate devices", _ALL, _NO, _NO, _NO
    DIAGNOSE_DEVICES = "see devices in a session that does not hold them", _ALL, _NO, _NO, _NO
    RECOUNT_SLOTS = "recount occupied slots", _ALL, _NO, _NO, _NO
    SEE_IMAGES = "see images outside of their registries and groups", _ALL, _NO, _ALL, _NO
    SEE_DOMAIN_IMAGES = "ask for the images of other domains", _ALL, _DOMAIN, _DOMAIN, _DOMAIN
    CHANGE_IMAGES = "change or forget images", _ALL, _NO, _NO, _NO
    PLACE_IMAGES = "bring images to agents and remove them", _ALL, _NO, _NO, _NO
    SEE_REGISTRIES = "see how registries are configured", _ALL, _NO, _NO, _NO
    CONFIGURE_REGISTRIES = "configure or scan registries", _ALL, _NO, _NO, _NO
    COMMIT_WHEN_DISABLED = "make images of sessions where that is disabled", _ALL, _NO, _NO, _NO
    USE_ARTIFACTS = "see, mount and download available artifacts", _ALL, _ALL, _ALL, _ALL
    SEE_ALL_ARTIFACTS = "see all artifacts and their registries", _ALL, _NO, _ALL, _NO
    CHANGE_ARTIFACTS = "scan, import and remove artifacts and manage their registries", _ALL, _NO, _NO, _NO
    SEE_ALL_HOSTS = "see all storage hosts", _ALL, _NO, _NO, _NO
    SEE_QUOTAS = "see limits of quota scopes", _ALL, _DOMAIN, _ALL, _NO
    CHANGE_QUOTAS = "set limits of quota scopes", _ALL, _NO, _NO, _NO
    SEE_FOLDERS = "see folders", _ALL, _DOMAIN, _ALL, _OWN
    LIST_ALL_FOLDERS = "list the folders of all users", _ALL, _NO, _NO, _NO
    CHANGE_FOLDERS = "change folders", _ALL, _DOMAIN, _OWN, _OWN
    CREATE_GROUP_FOLDERS = "make folders of a group", _ALL, _DOMAIN, _NO, _NO
    SHARE_FOLDERS = "share folders with users", _ALL, _DOMAIN, _DOMAIN, _DOMAIN
    HAND_OVER_FOLDERS = "give folders to other users", _ALL, _NO, _NO, _NO
    USE_UNMANAGED_PATHS = "create folders of unmanaged paths", _ALL, _NO, _NO, _NO
    SEE_SESSIONS = "see sessions and their events", _ALL, _DOMAIN, _ALL, _OWN
    CHANGE_SESSIONS = "change sessions", _ALL, _DOMAIN, _OWN, _OWN
    SEE_ENDPOINTS = "see model services", _ALL, _DOMAIN, _ALL, _OWN
    CHANGE_ENDPOINTS = "change model services", _ALL, _DOMAIN, _OWN, _OWN
    SEE_CLAIMS = "see device claims", _ALL, _DOMAIN, _ALL, _OWN
    CHANGE_CLAIMS = "change device claims", _ALL, _DOMAIN, _OWN, _OWN
    EXCEED_PRIORITY = "exceed the largest priority of a resource group", _ALL, _ALL, _NO, _NO
    CHOOSE_AGENTS = "choose the agents of sessions", _ALL, _ALL, _NO, _NO
    END_ALL_SESSIONS = "end the sessions of all users", _ALL, _NO, _NO, _NO
    SEE_TASKS = "see background tasks", _ALL, _OWN, _ALL, _OWN
    SEE_USAGE = "see reports of usage", _ALL, _DOMAIN, _ALL, _NO
    SEE_ERRORS = "see reported errors", _ALL, _DOMAIN, _ALL, _OWN
    CLEAR_ERRORS = "clear reported errors", _ALL, _DOMAIN, _OWN, _OWN
    READ_AUDIT_TRAIL = "read the audit trail", _ALL, _NO, _NO, _NO
    CONFIGURE = "read or change the shared configuration", _ALL, _NO, _NO, _NO
    CHANGE_STATE = "change the state of the installation", _ALL, _NO, _NO, _NO
    SEE_SCHEMA = "see the schema of GraphQL by default", _ALL, _NO, _NO, _NO


_ABOVE_DOMAINS = frozenset({UserRole.SUPERADMIN, UserRole.MONITOR})
PROTECTED_ROLES: Mapping[Operation, frozenset[UserRole]] = {
    # Admins of a domain must not gain the rights of those who see other domains, nor change what they run.
    Operation.ACT_FOR_KEYPAIRS: _ABOVE_DOMAINS,
    Operation.CHANGE_SHARED_DOTFILES: _ABOVE_DOMAINS,
    Operation.SEE_FOLDERS: _ABOVE_DOMAINS,
    Operation.CHANGE_FOLDERS: _ABOVE_DOMAINS,
    Operation.CHANGE_TEMPLATES: frozenset({UserRole.SUPERADMIN}),
    Operation.CHANGE_USERS: _ABOVE_DOMAINS | {UserRole.ADMIN},
}
"""Roles whose objects do not belong to the scope ``domain`` of an operation."""

PROJECT_ADMIN_OPERATIONS = frozenset(
    {
        Operation.CHANGE_MEMBERS,
        Operation.CHANGE_SHARED_DOTFILES,
        Operation.CREATE_GROUP_FOLDERS,
        Operation.CHANGE_FOLDERS,
    }
)
"""The operations that a project administrator may perform on the project's objects, with any role (spec 03-01:582)."""

GRAVE_OPERATIONS = frozenset(
    {
        Operation.PURGE_USERS,
        Operation.PURGE_GROUPS,
        Operation.CHANGE_DOMAINS,
        Operation.CHANGE_USERS,
        Operation.CHANGE_USER_LIMITS,
        Operation.CHANGE_KEYPAIRS,
        Operation.CHANGE_KEYPAIR_LIMITS,
        Operation.ROTATE_OWN_KEYPAIRS,
        Operation.CHANGE_POLICIES,
        Operation.CONTROL_AGENT_DAEMONS,
        Operation.OPERATE_DEVICES,
        Operation.CONFIGURE_REGISTRIES,
        Operation.HAND_OVER_FOLDERS,
        Operation.END_ALL_SESSIONS,
        Operation.CONFIGURE,
        Operation.CHANGE_STATE,
    }
)
"""The operations for which a site may require a recent proof of the caller's identity. Each is checked by
:func:`checks.require` or :func:`checks.require_any` before anything is done.
"""

PERMISSIONS: Mapping[tuple[UserRole, Operation], Scope] = {
    (role, operation): scope for operation in Operation for role, scope in operation.scopes.items()
}


def page() -> str:
    """Returns the table of permissions as a page of the reference."""
    roles = [*(role.value for role in _ROLES), "administrator of a project"]
    table_head = f"| Operation | {' | '.join(roles)} |\n| --- |{' --- |' * len(roles)}"
    table_rows = [
        f"| {operation.value} | {' | '.join(operation.scopes.values())} | "
        f"{'project' if operation in PROJECT_ADMIN_OPERATIONS else ''} |"
        for operation in Operation
    ]
    protected_lines = [
        f"- {operation.value}: {', '.join(role.value for role in _ROLES if role in roles)}"
        for operation, roles in PROTECTED_ROLES.items()
    ]
    return "\n".join([_PAGE_HEAD, table_head, *table_rows, _PROTECTED_ROLES_HEAD, *protected_lines, ""])


_PAGE_HEAD = """<!-- Generated from manager/access/permissions.py; do not edit. -->

# Permissions

What each role may do, and on which objects.

- `all`: on every object.
- `domain`: on the objects of the caller's domain.
- `own`: on the caller's own objects, or those of groups that the caller belongs to.
- `no`: on none.

Members whom an administrator of the domain has made administrators of a project may do what the last column says on the
objects of that `project`, beside what their role allows.

Rights on storage hosts and on single virtual folders are granted per domain, group, policy and folder, not by role.
"""
_PROTECTED_ROLES_HEAD = """
The scope `domain` leaves out the objects of these roles:
"""
