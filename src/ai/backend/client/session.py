"""API sessions: the first object to make, meant to live as long as the program (spec 03-12).

    with Session() as api_session:                 async with AsyncSession() as api_session:
        api_session.ComputeSession.get_or_create(...)    await api_session.ComputeSession.get_or_create(...)

Both have the areas that :class:`AsyncSession` sets, and ``BackgroundTask``.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from contextvars import ContextVar, Token
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from ai.backend.client.config import APIConfig, get_config
from ai.backend.client.exceptions import BackendError
from ai.backend.client.portal import Blocking, Portal
from ai.backend.client.transport import Transport

if TYPE_CHECKING:
    from ai.backend.client.func.admin import AsyncAdmin
    from ai.backend.client.func.agent import AsyncAgent, AsyncAgentWatcher
    from ai.backend.client.func.array import AsyncSessionArrays
    from ai.backend.client.func.artifact import AsyncArtifacts
    from ai.backend.client.func.bgtask import AsyncBackgroundTask
    from ai.backend.client.func.claim import AsyncDeviceClaims
    from ai.backend.client.func.group import AsyncDomain, AsyncGroup
    from ai.backend.client.func.image import AsyncImage
    from ai.backend.client.func.manager import AsyncEtcdConfig, AsyncManager, AsyncServerLog, AsyncSystem
    from ai.backend.client.func.resource import AsyncResource
    from ai.backend.client.func.resource_policy import (
        AsyncKeypairResourcePolicy,
        AsyncProjectResourcePolicy,
        AsyncResourcePreset,
        AsyncUserResourcePolicy,
    )
    from ai.backend.client.func.scaling_group import AsyncScalingGroup
    from ai.backend.client.func.service import AsyncServices
    from ai.backend.client.func.session import AsyncComputeSessions
    from ai.backend.client.func.session_template import AsyncDotfile, AsyncSessionTemplate
    from ai.backend.client.func.storage import AsyncQuotaScope, AsyncStorage
    from ai.backend.client.func.user import AsyncAuth, AsyncKeyPair, AsyncUser
    from ai.backend.client.func.vfolder import AsyncVFolders


api_session: ContextVar[Session | AsyncSession] = ContextVar("api_session")
"""The innermost open API session, for :class:`ai.backend.client.request.Request`."""


_AREAS = {
    "ComputeSession": "session:AsyncComputeSessions",
    "SessionArray": "array:AsyncSessionArrays",
    "DeviceClaim": "claim:AsyncDeviceClaims",
    "Service": "service:AsyncServices",
    "System": "manager:AsyncSystem",
    "Auth": "user:AsyncAuth",
    "Manager": "manager:AsyncManager",
    "ServerLog": "manager:AsyncServerLog",
    "EtcdConfig": "manager:AsyncEtcdConfig",
    "SessionTemplate": "session_template:AsyncSessionTemplate",
    "Dotfile": "session_template:AsyncDotfile",
    "VFolder": "vfolder:AsyncVFolders",
    "Artifact": "artifact:AsyncArtifacts",
    "QuotaScope": "storage:AsyncQuotaScope",
    "Storage": "storage:AsyncStorage",
    "Domain": "group:AsyncDomain",
    "Group": "group:AsyncGroup",
    "KeypairResourcePolicy": "resource_policy:AsyncKeypairResourcePolicy",
    "UserResourcePolicy": "resource_policy:AsyncUserResourcePolicy",
    "ProjectResourcePolicy": "resource_policy:AsyncProjectResourcePolicy",
    "ScalingGroup": "scaling_group:AsyncScalingGroup",
    "User": "user:AsyncUser",
    "ResourcePreset": "resource_policy:AsyncResourcePreset",
    "Agent": "agent:AsyncAgent",
    "AgentWatcher": "agent:AsyncAgentWatcher",
    "KeyPair": "user:AsyncKeyPair",
    "Image": "image:AsyncImage",
    "Resource": "resource:AsyncResource",
    "Admin": "admin:AsyncAdmin",
}
"""Name of an area -> its module in ``client.func``, which is imported at its first use, and its class."""


class AsyncSession:
    """Gives asyncio programs access to all calls of the API. Open it in the event loop that uses it.

    Over a plain transport, :func:`ai.backend.client.plain_transport.run_plain` completes its coroutines instead.
    """

    ComputeSession: AsyncComputeSessions
    SessionArray: AsyncSessionArrays
    DeviceClaim: AsyncDeviceClaims
    Service: AsyncServices
    System: AsyncSystem
    Auth: AsyncAuth
    Manager: AsyncManager
    ServerLog: AsyncServerLog
    EtcdConfig: AsyncEtcdConfig
    SessionTemplate: AsyncSessionTemplate
    Dotfile: AsyncDotfile
    VFolder: AsyncVFolders
    Artifact: AsyncArtifacts
    QuotaScope: AsyncQuotaScope
    Storage: AsyncStorage
    Domain: AsyncDomain
    Group: AsyncGroup
    KeypairResourcePolicy: AsyncKeypairResourcePolicy
    UserResourcePolicy: AsyncUserResourcePolicy
    ProjectResourcePolicy: AsyncProjectResourcePolicy
    ScalingGroup: AsyncScalingGroup
    User: AsyncUser
    ResourcePreset: AsyncResourcePreset
    Agent: AsyncAgent
    AgentWatcher: AsyncAgentWatcher
    KeyPair: AsyncKeyPair
    Image: AsyncImage
    Resource: AsyncResource
    Admin: AsyncAdmin

    def __init__(self, *, config: APIConfig | None = None, transport: Transport | None = None) -> None:
        self.config = config or get_config()
        if transport is None:
            from ai.backend.client.aiohttp_transport import AiohttpTransport

            transport = AiohttpTransport(self.config)
        self.transport = transport
        self._entered: Token[Session | AsyncSession] | None = None

    def __getattr__(self, name: str) -> Any:
        if name not in _AREAS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        module_name, _, class_name = _AREAS[name].partition(":")
        area = getattr(import_module(f"ai.backend.client.func.{module_name}"), class_name)(self.transport)
        setattr(self, name, area)
        return area

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *_AREAS]

    def BackgroundTask(self, task_id: UUID | str) -> AsyncBackgroundTask:  # noqa: N802  # reads like the other areas
        from ai.backend.client.func.bgtask import AsyncBackgroundTask

        return AsyncBackgroundTask(self.transport, task_id)

    async def open(self) -> None:
        await self.transport.open()
        show_announcement = self.config.announcement_handler
        if show_announcement is not None and self.config.has_credentials:
            with suppress(BackendError):  # an announcement never fails a program
                announcement = await self.Manager.get_announcement()
                if announcement.get("enabled") and announcement.get("message"):
                    show_announcement(str(announcement["message"]))

    async def close(self) -> None:
        await self.transport.close()

    async def __aenter__(self) -> Self:
        await self.open()
        self._entered = api_session.set(self)
        return self

    async def __aexit__(self, *_error: object) -> None:
        if self._entered is not None:
            api_session.reset(self._entered)
            self._entered = None
        await self.close()


class Session(Blocking[AsyncSession]):
    """Gives blocking programs access to all calls of the API. Several threads may use it at once."""

    def __init__(self, *, config: APIConfig | None = None) -> None:
        super().__init__(Portal(), AsyncSession(config=config))
        self._entered: Token[Session | AsyncSession] | None = None

    def open(self) -> None:
        self._portal.run(self._inner.open())

    def close(self) -> None:
        self._portal.run(self._inner.close())
        self._portal.close()

    def __enter__(self) -> Self:
        self.open()
        self._entered = api_session.set(self)
        return self

    def __exit__(self, *_error: object) -> None:
        if self._entered is not None:
            api_session.reset(self._entered)
            self._entered = None
        self.close()
