"""REST routes of the manager's status, the announcement and the shared configuration (client wire contract 2.9)."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

from msgspec import Meta

from ai.backend.infra.http.decode import refuse
from ai.backend.infra.http.routes import Call, Nothing, Schema, route
from ai.backend.manager.access.requests import OBJECT_PROBLEMS, caller_of
from ai.backend.manager.system.configuration import ConfigService
from ai.backend.manager.system.service import FROZEN, Announcement, LiveSessions, ManagerState


class StatusQuery(Schema, frozen=True):
    """Ignored; the published client sends a status with the query."""

    status: str | None = None


class StatusBody(Schema, frozen=True):
    """The new status; ``force_kill`` also ends the live sessions of a frozen installation."""

    status: Literal["running", "frozen"]
    force_kill: bool = False


class AnnouncementBody(Schema, frozen=True):
    """The new announcement."""

    enabled: bool
    message: Annotated[str, Meta(max_length=65_536)] | None = None


class StatusReply(TypedDict):
    """The status of the installation; ``nodes`` is empty, for the published client."""

    status: str
    active_sessions: int
    nodes: list[str]


class AnnouncementReply(TypedDict):
    enabled: bool
    message: str


class StateApi:
    """Routes of the installation's status and announcement: everybody reads them, superadmins change them."""

    def __init__(self, state: ManagerState, sessions: LiveSessions, *, announcement: str = "") -> None:
        self._state = state
        self._sessions = sessions
        self._announcement = announcement

    @route("GET", "/manager/status", query=StatusQuery)
    async def status(self, call: Call[Nothing, StatusQuery]) -> StatusReply:
        """Returns the status of the installation and the number of active sessions."""
        active_sessions, status = await self._sessions.count_active(), await self._state.status()
        return {"status": status, "active_sessions": active_sessions, "nodes": []}

    @route("PUT", "/manager/status", body=StatusBody)
    async def set_status(self, call: Call[StatusBody]) -> None:
        """Freezes or unfreezes: a frozen installation takes no new sessions. ``force_kill`` also ends the live ones."""
        caller, body = caller_of(call), call.body
        await self._state.set_status(caller, body.status)
        if body.force_kill and body.status == FROZEN:
            await self._sessions.destroy_all(caller)

    @route("GET", "/manager/announcement")
    async def announcement(self, call: Call) -> AnnouncementReply:
        """Returns the announcement of the administrators."""
        announcement = await self._state.announcement(self._announcement)
        return {"enabled": announcement.enabled, "message": announcement.message}

    @route("POST", "/manager/announcement", body=AnnouncementBody)
    async def set_announcement(self, call: Call[AnnouncementBody]) -> None:
        """Sets or disables the announcement."""
        message = call.body.message or ""
        if call.body.enabled and not message.strip():
            raise refuse({"message": "required"})
        await self._state.announce(caller_of(call), Announcement(call.body.enabled, message))


Key = Annotated[str, Meta(max_length=1024)]


class KeyBody(Schema, frozen=True):
    """Names a key, or with ``prefix`` all keys at and below it."""

    key: Key
    prefix: bool = False


class DeletedKey(Schema, frozen=True):
    """Names a key below the root, or with ``prefix`` all keys at and below it."""

    key: Annotated[Key, Meta(pattern="[^/]", description="a key below the root, which holds the whole configuration")]
    prefix: bool = False


class ValueBody(Schema, frozen=True):
    """A key with its new value."""

    key: Key
    value: Any


class ConfigValue(TypedDict):
    """The value of a key, or the keys below a prefix as nested objects; null if there is none."""

    result: Any


class ConfigChanged(TypedDict):
    result: Literal["ok"]


class ConfigApi:
    """Routes of the shared configuration, for superadmins; others get 403."""

    problems = OBJECT_PROBLEMS

    def __init__(self, config: ConfigService) -> None:
        self._config = config

    @route("POST", "/config/get", body=KeyBody, audited=False)
    async def get(self, call: Call[KeyBody]) -> ConfigValue:
        """Returns the value of a key, or with ``prefix`` the keys below it as nested objects."""
        return {"result": await self._config.get(caller_of(call), call.body.key, prefix=call.body.prefix)}

    @route("POST", "/config/set", body=ValueBody)
    async def set(self, call: Call[ValueBody]) -> ConfigChanged:
        """Sets a key; an object sets every key in it, all or nothing."""
        await self._config.set(caller_of(call), call.body.key, call.body.value)
        return {"result": "ok"}

    @route("POST", "/config/delete", body=DeletedKey)
    async def delete(self, call: Call[DeletedKey]) -> ConfigChanged:
        """Removes a key, or with ``prefix`` all at and below it."""
        await self._config.delete(caller_of(call), call.body.key, prefix=call.body.prefix)
        return {"result": "ok"}
