"""The permissions of roles, as one table: which operation a role may perform, and on whose objects."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from ai.backend.common.states import UserRole


class Scope(StrEnum):
    """The objects on which a role may perform an operation; each scope includes the ones before it."""

    NONE = "no"
    OWN = "own"
    """The caller's own objects, or those of groups that the caller belongs to."""
    DOMAIN = "domain"
    """All objects of the caller's domain."""
    ALL = "all"


class Operation(StrEnum):
    """Operations that depend on the role of the caller; the values complete "Only superadmins ..."."""

    SEE_DOMAINS = "see domains"
    CHANGE_DOMAINS = "change domains"
    SEE_GROUPS = "see groups"
    CHANGE_GROUPS = "change groups"
    CHANGE_GROUP_LIMITS = "change the limits of groups"
    PURGE_GROUPS = "purge groups"
    SEE_KEYPAIR_POLICIES = "see the policies of keypairs"
    SEE_STORAGE_POLICIES = "see the policies of users and projects"
    CHANGE_POLICIES = "change policies"
    SEE_USERS = "see users"
    LIST_USERS = "list users"
    CHANGE_USERS = "change users"
    CHANGE_USER_LIMITS = "change the limits of users"
    PURGE_USERS = "purge users"
    SIGN_OUT = "deactivate their own user"
    SEE_KEYPAIRS = "see keypairs"
    CHANGE_KEYPAIRS = "change keypairs"
    CHANGE_KEYPAIR_LIMITS = "change the limits and rights of keypairs"
    ACT_FOR_KEYPAIRS = "act for other keypairs"
    SEE_RESOURCE_GROUPS = "see resource groups"
    SEE_SCHEDULER_OPTIONS = "see the options of resource groups"
    CHANGE_RESOURCE_GROUPS = "change resource groups"
    CHANGE_SHARED_DOTFILES = "change the dotfiles of a domain or of its groups"
    SEE_TEMPLATES = "see templates"
    CHANGE_TEMPLATES = "change templates"
    USE_GROUPS = "create sessions and templates in groups"
    CHOOSE_AGENTS = "choose the agents of sessions"
    EXCEED_PRIORITIES = "exceed the priority that a resource group allows"
    SEE_AGENTS = "see agents"
    CHANGE_AGENTS = "change agents and presets"
    CONTROL_AGENT_DAEMONS = "start and stop agents"
    OPERATE_DEVICES = "operate devices"
    RECOUNT_SLOTS = "recount occupied slots"
    SEE_ALL_HOSTS = "see all storage hosts"
    SEE_QUOTAS = "see limits of quota scopes"
    CHANGE_QUOTAS = "set limits of quota scopes"
    CHANGE_FOLDERS = "change folders"
    HAND_OVER_FOLDERS = "give folders to other users"
    USE_UNMANAGED_PATHS = "create folders of unmanaged paths"
    SEE_SESSIONS = "see sessions and their events"
    CHANGE_SESSIONS = "change sessions"
    END_ALL_SESSIONS = "end the sessions of all users"
    COMMIT_ALWAYS = "commit sessions where commits are forbidden"
    SEE_ALL_REGISTRIES = "see all registries of images"
    SEE_TASKS = "see background tasks"
    SEE_USAGE = "see reports of usage"
    SEE_ERRORS = "see reported errors"
    CLEAR_ERRORS = "clear reported errors"
    READ_AUDIT_TRAIL = "read the audit trail"
    SEE_SCHEMA = "query the GraphQL schema if it is for superadmins"
    CONFIGURE = "read or change the shared configuration"
    CHANGE_STATE = "change the state of the installation"


_ROLES = (UserRole.SUPERADMIN, UserRole.ADMIN, UserRole.MONITOR, UserRole.USER)
_NO, _OWN, _DOMAIN, _ALL = Scope.NONE, Scope.OWN, Scope.DOMAIN, Scope.ALL

_TABLE: Mapping[Operation, tuple[Scope, Scope, Scope, Scope]] = {
    # operation                       superadmin, admin, monitor, user
    Operation.SEE_DOMAINS: (_ALL, _DOMAIN, _ALL, _DOMAIN),
    Operation.CHANGE_DOMAINS: (_ALL, _NO, _NO, _NO),
    Operation.SEE_GROUPS: (_ALL, _DOMAIN, _ALL, _OWN),
    Operation.CHANGE_GROUPS: (_ALL, _DOMAIN, _NO, _NO),
    Operation.CHANGE_GROUP_LIMITS: (_ALL, _NO, _NO, _NO),
    Operation.PURGE_GROUPS: (_ALL, _NO, _NO, _NO),
    Operation.SEE_KEYPAIR_POLICIES: (_ALL, _ALL, _OWN, _OWN),
    Operation.SEE_STORAGE_POLICIES: (_ALL, _ALL, _NO, _NO),
    Operation.CHANGE_POLICIES: (_ALL, _NO, _NO, _NO),
    Operation.SEE_USERS: (_ALL, _DOMAIN, _ALL, _OWN),
    Operation.LIST_USERS: (_ALL, _DOMAIN, _ALL, _NO),
    # Of their domain's users, admins change the ordinary ones: see identity.users.
    Operation.CHANGE_USERS: (_ALL, _DOMAIN, _NO, _NO),
    Operation.CHANGE_USER_LIMITS: (_ALL, _NO, _NO, _NO),
    Operation.PURGE_USERS: (_ALL, _NO, _NO, _NO),
    # A superadmin is removed by another one.
    Operation.SIGN_OUT: (_NO, _OWN, _OWN, _OWN),
    Operation.SEE_KEYPAIRS: (_ALL, _DOMAIN, _ALL, _OWN),
    Operation.CHANGE_KEYPAIRS: (_ALL, _DOMAIN, _NO, _NO),
    Operation.CHANGE_KEYPAIR_LIMITS: (_ALL, _NO, _NO, _NO),
    # Admins do not act for superadmins and monitors of their domain.
    Operation.ACT_FOR_KEYPAIRS: (_ALL, _DOMAIN, _OWN, _OWN),
    Operation.SEE_RESOURCE_GROUPS: (_ALL, _OWN, _OWN, _OWN),
    Operation.SEE_SCHEDULER_OPTIONS: (_ALL, _ALL, _NO, _NO),
    Operation.CHANGE_RESOURCE_GROUPS: (_ALL, _NO, _NO, _NO),
    Operation.CHANGE_SHARED_DOTFILES: (_ALL, _DOMAIN, _NO, _NO),
    Operation.SEE_TEMPLATES: (_ALL, _DOMAIN, _ALL, _OWN),
    # Admins do not change the templates of superadmins.
    Operation.CHANGE_TEMPLATES: (_ALL, _DOMAIN, _OWN, _OWN),
    Operation.USE_GROUPS: (_ALL, _DOMAIN, _OWN, _OWN),
    Operation.CHOOSE_AGENTS: (_ALL, _ALL, _NO, _NO),
    Operation.EXCEED_PRIORITIES: (_ALL, _ALL, _NO, _NO),
    Operation.SEE_AGENTS: (_ALL, _NO, _ALL, _NO),
    Operation.CHANGE_AGENTS: (_ALL, _NO, _NO, _NO),
    Operation.CONTROL_AGENT_DAEMONS: (_ALL, _NO, _NO, _NO),
    Operation.OPERATE_DEVICES: (_ALL, _NO, _NO, _NO),
    Operation.RECOUNT_SLOTS: (_ALL, _NO, _NO, _NO),
    Operation.SEE_ALL_HOSTS: (_ALL, _NO, _NO, _NO),
    Operation.SEE_QUOTAS: (_ALL, _DOMAIN, _ALL, _NO),
    Operation.CHANGE_QUOTAS: (_ALL, _NO, _NO, _NO),
    Operation.CHANGE_FOLDERS: (_ALL, _DOMAIN, _OWN, _OWN),
    Operation.HAND_OVER_FOLDERS: (_ALL, _NO, _NO, _NO),
    Operation.USE_UNMANAGED_PATHS: (_ALL, _NO, _NO, _NO),
    Operation.SEE_SESSIONS: (_ALL, _DOMAIN, _ALL, _OWN),
    Operation.CHANGE_SESSIONS: (_ALL, _DOMAIN, _OWN, _OWN),
    Operation.END_ALL_SESSIONS: (_ALL, _NO, _NO, _NO),
    Operation.COMMIT_ALWAYS: (_ALL, _NO, _NO, _NO),
    Operation.SEE_ALL_REGISTRIES: (_ALL, _NO, _NO, _NO),
    Operation.SEE_TASKS: (_ALL, _OWN, _ALL, _OWN),
    Operation.SEE_USAGE: (_ALL, _DOMAIN, _ALL, _NO),
    Operation.SEE_ERRORS: (_ALL, _DOMAIN, _ALL, _OWN),
    Operation.CLEAR_ERRORS: (_ALL, _DOMAIN, _OWN, _OWN),
    Operation.READ_AUDIT_TRAIL: (_ALL, _NO, _NO, _NO),
    Operation.SEE_SCHEMA: (_ALL, _NO, _NO, _NO),
    Operation.CONFIGURE: (_ALL, _NO, _NO, _NO),
    Operation.CHANGE_STATE: (_ALL, _NO, _NO, _NO),
}

PERMISSIONS: Mapping[tuple[UserRole, Operation], Scope] = {
    (role, operation): scope for operation, scopes in _TABLE.items() for role, scope in zip(_ROLES, scopes, strict=True)
}


def page() -> str:
    """Returns the table as a page of the reference."""
    head = f"| Operation | {' | '.join(role.value for role in _ROLES)} |\n| --- |{' --- |' * len(_ROLES)}"
    rows = [
        f"| {operation.value} | {' | '.join(PERMISSIONS[role, operation].value for role in _ROLES)} |"
        for operation in Operation
    ]
    return "\n".join([_HEAD, head, *rows])


_HEAD = """<!-- Generated from manager/access/permissions.py; do not edit. -->

# Permissions

What each role may do, and on which objects.

- `all`: on every object.
- `domain`: on the objects of the caller's domain.
- `own`: on the caller's own objects, or those of groups that the caller belongs to.
- `no`: on none.

Rights on storage hosts and on single virtual folders are granted per domain, group, policy and folder, not by role.
"""
