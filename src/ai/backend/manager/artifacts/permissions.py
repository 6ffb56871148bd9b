"""The operations on artifacts and the roles that may execute them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from ai.backend.common.errors import Forbidden
from ai.backend.common.states import UserRole
from ai.backend.manager.access.caller import Caller


class Operation(StrEnum):
    """An operation on artifacts; SEE_ALL includes unavailable ones and the registries."""

    SEE_AVAILABLE = "see available artifacts"
    MOUNT = "mount artifacts in sessions"
    DOWNLOAD = "download files of artifacts"
    SEE_ALL = "see all artifacts and their registries"
    MANAGE_REGISTRIES = "manage registries of artifacts"
    SCAN = "scan registries"
    IMPORT = "import artifacts"
    REMOVE = "clean up or delete artifacts"


_EVERYBODY = frozenset(UserRole)
_SUPERADMINS = frozenset({UserRole.SUPERADMIN})

ALLOWED: Mapping[Operation, frozenset[UserRole]] = {
    Operation.SEE_AVAILABLE: _EVERYBODY,
    Operation.MOUNT: _EVERYBODY,
    Operation.DOWNLOAD: _EVERYBODY,
    Operation.SEE_ALL: _SUPERADMINS | {UserRole.MONITOR},
    Operation.MANAGE_REGISTRIES: _SUPERADMINS,
    Operation.SCAN: _SUPERADMINS,
    Operation.IMPORT: _SUPERADMINS,
    Operation.REMOVE: _SUPERADMINS,
}


def may(caller: Caller, operation: Operation) -> bool:
    return caller.role in ALLOWED[operation]


def require(caller: Caller, operation: Operation) -> None:
    """Raises Forbidden unless the caller may execute the operation."""
    if not may(caller, operation):
        raise Forbidden(f"You may not {operation.value}.", data={"operation": operation.name.lower()})
