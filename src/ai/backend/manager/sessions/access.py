"""Rules of access to sessions. Pure."""

from __future__ import annotations

from ai.backend.common.states import UserRole
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.sessions.model import Session


def sees(caller: Caller, session: Session) -> bool:
    """Return True if the caller sees it: superadmins and monitors see all, admins their domain, users their own."""
    return (
        caller.sees_all
        or session.user_id == caller.user_id
        or (caller.role is UserRole.ADMIN and session.domain_name == caller.domain_name)
    )


def controls(caller: Caller, session: Session) -> bool:
    """Return True if the caller may change the session: as :func:`sees`, but not for monitors."""
    return sees(caller, session) and (caller.role is not UserRole.MONITOR or session.user_id == caller.user_id)
