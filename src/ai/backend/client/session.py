"""API sessions: the first thing to make, and meant to live as long as the program (spec 03-12).

    with Session() as api_session:                 async with AsyncSession() as api_session:
        api_session.ComputeSession.get_or_create(...)    await api_session.ComputeSession.get_or_create(...)

Both have the same areas: ComputeSession, VFolder, Artifact, System, Auth, Manager, Agent, KeyPair, Resource, ServerLog,
BackgroundTask, Admin; for administrators User, Domain, Group, ScalingGroup, ResourcePreset, QuotaScope, Storage,
KeypairResourcePolicy, UserResourcePolicy and ProjectResourcePolicy.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Self
from uuid import UUID

from ai.backend.client.config import APIConfig, get_config
from ai.backend.client.func.admin import Admin, AsyncAdmin
from ai.backend.client.func.agent import Agent, AgentWatcher, AsyncAgent, AsyncAgentWatcher
from ai.backend.client.func.artifact import Artifacts, AsyncArtifacts
from ai.backend.client.func.auth import AsyncAuth, Auth
from ai.backend.client.func.bgtask import AsyncBackgroundTask, BackgroundTask
from ai.backend.client.func.domain import AsyncDomain, Domain
from ai.backend.client.func.dotfile import AsyncDotfile, Dotfile
from ai.backend.client.func.etcd import AsyncEtcdConfig, EtcdConfig
from ai.backend.client.func.group import AsyncGroup, Group
from ai.backend.client.func.image import AsyncImage, Image
from ai.backend.client.func.keypair import AsyncKeyPair, KeyPair
from ai.backend.client.func.keypair_resource_policy import AsyncKeypairResourcePolicy, KeypairResourcePolicy
from ai.backend.client.func.manager import AsyncManager, Manager
from ai.backend.client.func.quota_scope import AsyncQuotaScope, QuotaScope
from ai.backend.client.func.resource import AsyncResource, Resource
from ai.backend.client.func.resource_preset import AsyncResourcePreset, ResourcePreset
from ai.backend.client.func.scaling_group import AsyncScalingGroup, ScalingGroup
from ai.backend.client.func.server_log import AsyncServerLog, ServerLog
from ai.backend.client.func.session import AsyncComputeSessions
from ai.backend.client.func.session_blocking import ComputeSessions
from ai.backend.client.func.session_template import AsyncSessionTemplate, SessionTemplate
from ai.backend.client.func.storage import AsyncStorage, Storage
from ai.backend.client.func.storage_policy import AsyncStoragePolicy, StoragePolicy
from ai.backend.client.func.system import AsyncSystem, System
from ai.backend.client.func.user import AsyncUser, User
from ai.backend.client.func.vfolder import AsyncVFolders
from ai.backend.client.func.vfolder_blocking import VFolders
from ai.backend.client.portal import Portal
from ai.backend.client.transport import Transport

api_session: ContextVar[Session | AsyncSession] = ContextVar("api_session")
"""The innermost open API session, for :class:`ai.backend.client.request.Request`."""


class AsyncSession:
    """The API for asyncio programs. Open it in the event loop that uses it."""

    def __init__(self, *, config: APIConfig | None = None) -> None:
        self.config = config or get_config()
        self.transport = Transport(self.config)
        self.ComputeSession = AsyncComputeSessions(self.transport)
        self.System = AsyncSystem(self.transport)
        self.Auth = AsyncAuth(self.transport)
        self.Manager = AsyncManager(self.transport)
        self.ServerLog = AsyncServerLog(self.transport)
        self.EtcdConfig = AsyncEtcdConfig(self.transport)
        self.SessionTemplate = AsyncSessionTemplate(self.transport)
        self.Dotfile = AsyncDotfile(self.transport)
        self.VFolder = AsyncVFolders(self.transport)
        self.Artifact = AsyncArtifacts(self.transport)
        self.QuotaScope = AsyncQuotaScope(self.transport)
        self.Storage = AsyncStorage(self.transport)
        self.Domain = AsyncDomain(self.transport)
        self.Group = AsyncGroup(self.transport)
        self.KeypairResourcePolicy = AsyncKeypairResourcePolicy(self.transport)
        self.UserResourcePolicy = AsyncStoragePolicy(self.transport, "user")
        self.ProjectResourcePolicy = AsyncStoragePolicy(self.transport, "project")
        self.ScalingGroup = AsyncScalingGroup(self.transport)
        self.User = AsyncUser(self.transport)
        self.ResourcePreset = AsyncResourcePreset(self.transport)
        self.Agent = AsyncAgent(self.transport)
        self.AgentWatcher = AsyncAgentWatcher(self.transport)
        self.KeyPair = AsyncKeyPair(self.transport)
        self.Image = AsyncImage(self.transport)
        self.Resource = AsyncResource(self.transport)
        self.Admin = AsyncAdmin(self.transport)
        self._entered: Token[Session | AsyncSession] | None = None

    def BackgroundTask(self, task_id: UUID | str) -> AsyncBackgroundTask:  # noqa: N802  # reads like the other areas
        return AsyncBackgroundTask(self.transport, task_id)

    async def open(self) -> None:
        await self.transport.open()

    async def close(self) -> None:
        await self.transport.close()

    async def __aenter__(self) -> Self:
        await self.open()
        self._entered = api_session.set(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._entered is not None:
            api_session.reset(self._entered)
            self._entered = None
        await self.close()


class Session:
    """The API for blocking programs, usable from several threads at once."""

    def __init__(self, *, config: APIConfig | None = None) -> None:
        self.config = config or get_config()
        self.portal = Portal()
        self.inner = inner = AsyncSession(config=self.config)
        self.ComputeSession = ComputeSessions(self.portal, inner.ComputeSession)
        self.System = System(self.portal, inner.System)
        self.Auth = Auth(self.portal, inner.Auth)
        self.Manager = Manager(self.portal, inner.Manager)
        self.ServerLog = ServerLog(self.portal, inner.ServerLog)
        self.EtcdConfig = EtcdConfig(self.portal, inner.EtcdConfig)
        self.SessionTemplate = SessionTemplate(self.portal, inner.SessionTemplate)
        self.Dotfile = Dotfile(self.portal, inner.Dotfile)
        self.VFolder = VFolders(self.portal, inner.VFolder)
        self.Artifact = Artifacts(self.portal, inner.Artifact)
        self.QuotaScope = QuotaScope(self.portal, inner.QuotaScope)
        self.Storage = Storage(self.portal, inner.Storage)
        self.Domain = Domain(self.portal, inner.Domain)
        self.Group = Group(self.portal, inner.Group)
        self.KeypairResourcePolicy = KeypairResourcePolicy(self.portal, inner.KeypairResourcePolicy)
        self.UserResourcePolicy = StoragePolicy(self.portal, inner.UserResourcePolicy)
        self.ProjectResourcePolicy = StoragePolicy(self.portal, inner.ProjectResourcePolicy)
        self.ScalingGroup = ScalingGroup(self.portal, inner.ScalingGroup)
        self.User = User(self.portal, inner.User)
        self.ResourcePreset = ResourcePreset(self.portal, inner.ResourcePreset)
        self.Agent = Agent(self.portal, inner.Agent)
        self.AgentWatcher = AgentWatcher(self.portal, inner.AgentWatcher)
        self.KeyPair = KeyPair(self.portal, inner.KeyPair)
        self.Image = Image(self.portal, inner.Image)
        self.Resource = Resource(self.portal, inner.Resource)
        self.Admin = Admin(self.portal, inner.Admin)
        self._entered: Token[Session | AsyncSession] | None = None

    def BackgroundTask(self, task_id: UUID | str) -> BackgroundTask:  # noqa: N802  # reads like the other areas
        return BackgroundTask(self.portal, self.inner.BackgroundTask(task_id))

    def open(self) -> None:
        self.portal.run(self.inner.open())

    def close(self) -> None:
        self.portal.run(self.inner.close())
        self.portal.close()

    def __enter__(self) -> Self:
        self.open()
        self._entered = api_session.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._entered is not None:
            api_session.reset(self._entered)
            self._entered = None
        self.close()


__all__: Sequence[str] = ("AsyncSession", "Session", "api_session")
