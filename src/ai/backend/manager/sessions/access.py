"""Rules of access to sessions. Pure."""

from __future__ import annotations

from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import is_permitted
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.sessions.model import Session


def sees(caller: Caller, session: Session) -> bool:
    """Return True if the caller sees it: superadmins and monitors see all, admins their domain, users their own."""
    return _permits(caller, Operation.SEE_SESSIONS, session)


def controls(caller: Caller, session: Session) -> bool:
    """Return True if the caller may change the session: as :func:`sees`, but not for monitors."""
    return _permits(caller, Operation.CHANGE_SESSIONS, session)


def _permits(caller: Caller, operation: Operation, session: Session) -> bool:
    is_own = session.user_id == caller.user_id
    return is_permitted(caller, operation, domain_name=session.domain_name, is_own=is_own)
