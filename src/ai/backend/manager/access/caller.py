"""Describes the authenticated caller of a request."""

from __future__ import annotations

import msgspec

from ai.backend.common.ids import AccessKey, DomainName, GroupId, UserId
from ai.backend.common.states import UserRole
from ai.backend.manager.access.permissions import Operation

ADMIN_ROLES = frozenset({UserRole.SUPERADMIN, UserRole.ADMIN})


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Represents the keypair that signed a request, and the user of the keypair.

    ``role`` is the role of the user, who is an administrator of the ``administered_groups``. Sessions of a user with
    ``sudo_session_enabled`` are told so. ``unproved`` are operations that take a recent proof of who asks, which this
    request has not.
    """

    user_id: UserId
    email: str
    username: str
    role: UserRole
    domain_name: DomainName
    access_key: AccessKey
    is_admin: bool
    resource_policy: str
    rate_limit: int
    concurrency_limit: int = 0
    allowed_client_ip: tuple[str, ...] = ()
    sudo_session_enabled: bool = False
    administered_groups: frozenset[GroupId] = frozenset()
    unproved: frozenset[Operation] = frozenset()

    @property
    def stimulus_id(self) -> str:
        """Returns the text ``request of ACCESS_KEY``, by which recent transitions name the caller as their cause."""
        return f"request of {self.access_key}"

    @property
    def sees_all(self) -> bool:
        """Returns True if the caller may see the objects of every domain."""
        return self.role in (UserRole.SUPERADMIN, UserRole.MONITOR)

    @property
    def is_any_admin(self) -> bool:
        return self.role in ADMIN_ROLES
