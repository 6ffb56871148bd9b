"""Who sees and who controls a session. Pure."""

from __future__ import annotations

from ai.backend.common.states import UserRole
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.sessions.model import Session


def sees(caller: Caller, session: Session) -> bool:
    """Superadmins and monitors see all, admins their domain, users their own."""
    return (
        caller.sees_all
        or session.user_id == caller.user_id
        or (caller.role is UserRole.ADMIN and session.domain_name == caller.domain_name)
    )


def controls(caller: Caller, session: Session) -> bool:
    """As :func:`sees`, but a monitor only looks."""
    return sees(caller, session) and (caller.role is not UserRole.MONITOR or session.user_id == caller.user_id)
