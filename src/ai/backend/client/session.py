"""API sessions: the first object to make, meant to live as long as the program (spec 03-12).

    with Session() as api_session:                 async with AsyncSession() as api_session:
        api_session.ComputeSession.get_or_create(...)    await api_session.ComputeSession.get_or_create(...)

Both have the areas that :class:`AsyncSession` sets, and ``BackgroundTask``.
"""

from __future__ import annotations

from contextlib import suppress
from contextvars import ContextVar, Token
from typing import Self
from uuid import UUID

from ai.backend.client.config import APIConfig, get_config
from ai.backend.client.exceptions import BackendError
from ai.backend.client.func.admin import AsyncAdmin
from ai.backend.client.func.agent import AsyncAgent, AsyncAgentWatcher
from ai.backend.client.func.artifact import AsyncArtifacts
from ai.backend.client.func.bgtask import AsyncBackgroundTask
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
from ai.backend.client.func.session import AsyncComputeSessions
from ai.backend.client.func.session_template import AsyncDotfile, AsyncSessionTemplate
from ai.backend.client.func.storage import AsyncQuotaScope, AsyncStorage
from ai.backend.client.func.user import AsyncAuth, AsyncKeyPair, AsyncUser
from ai.backend.client.func.vfolder import AsyncVFolders
from ai.backend.client.portal import Blocking, Portal
from ai.backend.client.transport import Transport

api_session: ContextVar[Session | AsyncSession] = ContextVar("api_session")
"""The innermost open API session, for :class:`ai.backend.client.request.Request`."""


class AsyncSession:
    """The API for asyncio programs. Open it in the event loop that uses it."""

    def __init__(self, *, config: APIConfig | None = None) -> None:
        self.config = config or get_config()
        self.transport = transport = Transport(self.config)
        self.ComputeSession = AsyncComputeSessions(transport)
        self.System = AsyncSystem(transport)
        self.Auth = AsyncAuth(transport)
        self.Manager = AsyncManager(transport)
        self.ServerLog = AsyncServerLog(transport)
        self.EtcdConfig = AsyncEtcdConfig(transport)
        self.SessionTemplate = AsyncSessionTemplate(transport)
        self.Dotfile = AsyncDotfile(transport)
        self.VFolder = AsyncVFolders(transport)
        self.Artifact = AsyncArtifacts(transport)
        self.QuotaScope = AsyncQuotaScope(transport)
        self.Storage = AsyncStorage(transport)
        self.Domain = AsyncDomain(transport)
        self.Group = AsyncGroup(transport)
        self.KeypairResourcePolicy = AsyncKeypairResourcePolicy(transport)
        self.UserResourcePolicy = AsyncUserResourcePolicy(transport)
        self.ProjectResourcePolicy = AsyncProjectResourcePolicy(transport)
        self.ScalingGroup = AsyncScalingGroup(transport)
        self.User = AsyncUser(transport)
        self.ResourcePreset = AsyncResourcePreset(transport)
        self.Agent = AsyncAgent(transport)
        self.AgentWatcher = AsyncAgentWatcher(transport)
        self.KeyPair = AsyncKeyPair(transport)
        self.Image = AsyncImage(transport)
        self.Resource = AsyncResource(transport)
        self.Admin = AsyncAdmin(transport)
        self._entered: Token[Session | AsyncSession] | None = None

    def BackgroundTask(self, task_id: UUID | str) -> AsyncBackgroundTask:  # noqa: N802  # reads like the other areas
        return AsyncBackgroundTask(self.transport, task_id)

    async def open(self) -> None:
        await self.transport.open()
        handler = self.config.announcement_handler
        if handler is not None and self.config.has_credentials:
            with suppress(BackendError):  # an announcement never fails a program
                announcement = await self.Manager.get_announcement()
                if announcement.get("enabled") and announcement.get("message"):
                    handler(str(announcement["message"]))

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
    """The API for blocking programs, usable from several threads at once."""

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
