"""API sessions: the first thing to make, and meant to live as long as the program (spec 03-12).

    with Session() as api_session:                 async with AsyncSession() as api_session:
        api_session.ComputeSession.get_or_create(...)    await api_session.ComputeSession.get_or_create(...)

Both have the same areas: ComputeSession, VFolder, Artifact, System, Auth, Manager, Agent, KeyPair, Resource, ServerLog,
BackgroundTask, Admin; for administrators User, Domain, Group, ScalingGroup, ResourcePreset, QuotaScope, Storage,
KeypairResourcePolicy, UserResourcePolicy and ProjectResourcePolicy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Self, Unpack
from uuid import UUID

from ai.backend.client.config import APIConfig, get_config
from ai.backend.client.faces import (
    Agent,
    AgentWatcher,
    Auth,
    Domain,
    Dotfile,
    EtcdConfig,
    Group,
    KeyPair,
    KeypairResourcePolicy,
    Manager,
    QuotaScope,
    Resource,
    ResourcePreset,
    ScalingGroup,
    ServerLog,
    SessionTemplate,
    Storage,
    StoragePolicy,
    System,
    User,
)
from ai.backend.client.func.admin import AsyncAdmin
from ai.backend.client.func.artifact import AsyncArtifacts
from ai.backend.client.func.bgtask import AsyncBackgroundTask
from ai.backend.client.func.bounds import (
    AsyncDomain,
    AsyncGroup,
    AsyncKeypairResourcePolicy,
    AsyncResourcePreset,
    AsyncStoragePolicy,
)
from ai.backend.client.func.creation import CreateOptions
from ai.backend.client.func.image import AsyncImage
from ai.backend.client.func.people import AsyncKeyPair, AsyncUser
from ai.backend.client.func.resource_groups import AsyncScalingGroup
from ai.backend.client.func.session import AsyncComputeSession, AsyncComputeSessions
from ai.backend.client.func.session_defaults import AsyncDotfile, AsyncSessionTemplate
from ai.backend.client.func.storage import AsyncQuotaScope, AsyncStorage
from ai.backend.client.func.system import (
    AsyncAgent,
    AsyncAgentWatcher,
    AsyncAuth,
    AsyncEtcdConfig,
    AsyncManager,
    AsyncResource,
    AsyncServerLog,
    AsyncSystem,
)
from ai.backend.client.func.vfolder import AsyncVFolder, AsyncVFolders
from ai.backend.client.portal import Facade, Portal, blocking, iterating
from ai.backend.client.streams import ExecuteStream, PtyStream
from ai.backend.client.transport import Transport
from ai.backend.client.tunnels import AppStream, ArgumentValue, LocalPort, Report

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


class BlockingExecuteStream(Facade[ExecuteStream]):
    """The blocking face of :class:`~ai.backend.client.streams.ExecuteStream`."""

    results = iterating(ExecuteStream.results)
    send_text = blocking(ExecuteStream.send_text)
    close = blocking(ExecuteStream.close)


class BlockingPtyStream(Facade[PtyStream]):
    """The blocking face of :class:`~ai.backend.client.streams.PtyStream`."""

    output = iterating(PtyStream.output)
    send_stdin = blocking(PtyStream.send_stdin)
    resize = blocking(PtyStream.resize)
    ping = blocking(PtyStream.ping)
    restart = blocking(PtyStream.restart)
    close = blocking(PtyStream.close)


class BlockingAppStream(Facade[AppStream]):
    """The blocking face of :class:`~ai.backend.client.tunnels.AppStream`."""

    read = blocking(AppStream.read)
    write = blocking(AppStream.write)
    write_eof = blocking(AppStream.write_eof)
    close = blocking(AppStream.close)


class BlockingLocalPort(Facade[LocalPort]):
    """Where a local port listens."""

    @property
    def host(self) -> str:
        return self._inner.host

    @property
    def port(self) -> int:
        return self._inner.port


class _BlockingEnter(AbstractContextManager[Any]):
    """Enters an asynchronous context on the portal and gives what it yields a blocking face."""

    def __init__(self, portal: Portal, manager: Any, face: Any) -> None:
        self._portal = portal
        self._inner = portal.enter(manager)
        self._face = face

    def __enter__(self) -> Any:
        return self._face(self._portal, self._inner.__enter__())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._inner.__exit__(kind, error, trace)


class ComputeSession(Facade[AsyncComputeSession]):
    """The blocking face of a compute session's handle."""

    get_info = blocking(AsyncComputeSession.get_info)
    get_logs = blocking(AsyncComputeSession.get_logs)
    status_history = blocking(AsyncComputeSession.status_history)
    get_status_history = status_history
    detail = blocking(AsyncComputeSession.detail)
    resolve_id = blocking(AsyncComputeSession.resolve_id)
    destroy = blocking(AsyncComputeSession.destroy)
    restart = blocking(AsyncComputeSession.restart)
    rename = blocking(AsyncComputeSession.rename)
    interrupt = blocking(AsyncComputeSession.interrupt)
    commit = blocking(AsyncComputeSession.commit)
    imagify = blocking(AsyncComputeSession.imagify)
    complete = blocking(AsyncComputeSession.complete)
    execute = blocking(AsyncComputeSession.execute)
    events = iterating(AsyncComputeSession.events)
    listen_events = events
    list_files = blocking(AsyncComputeSession.list_files)
    upload = blocking(AsyncComputeSession.upload)
    upload_contents = blocking(AsyncComputeSession.upload_contents)
    download = blocking(AsyncComputeSession.download)
    stream_app_info = blocking(AsyncComputeSession.stream_app_info)
    list_apps = stream_app_info

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def id(self) -> UUID | None:
        return self._inner.id

    @property
    def created(self) -> bool:
        return self._inner.created

    @property
    def status(self) -> str | None:
        return self._inner.status

    @property
    def service_ports(self) -> list[dict[str, Any]]:
        return self._inner.service_ports

    def stream_execute(
        self, code: str = "", *, mode: str = "query", opts: Mapping[str, Any] | None = None
    ) -> AbstractContextManager[BlockingExecuteStream]:
        """As the asynchronous one; read :meth:`BlockingExecuteStream.results`."""
        return _BlockingEnter(
            self._portal, self._inner.stream_execute(code, mode=mode, opts=opts), BlockingExecuteStream
        )

    def connect_app(
        self,
        app: str,
        *,
        port: int | None = None,
        envs: Mapping[str, str] | None = None,
        arguments: Mapping[str, ArgumentValue] | None = None,
    ) -> AbstractContextManager[BlockingAppStream]:
        """As the asynchronous one."""
        connecting = self._inner.connect_app(app, port=port, envs=envs, arguments=arguments)
        return _BlockingEnter(self._portal, connecting, BlockingAppStream)

    def forward_app(
        self,
        app: str,
        bind: tuple[str, int] = ("127.0.0.1", 0),
        *,
        port: int | None = None,
        envs: Mapping[str, str] | None = None,
        arguments: Mapping[str, ArgumentValue] | None = None,
        report: Report = lambda _: None,
    ) -> AbstractContextManager[BlockingLocalPort]:
        """As the asynchronous one; ``report`` is called in the client's own thread."""
        local = self._inner.forward_app(app, bind, port=port, envs=envs, arguments=arguments, report=report)
        return _BlockingEnter(self._portal, local, BlockingLocalPort)

    def stream_pty(self) -> AbstractContextManager[BlockingPtyStream]:
        return _BlockingEnter(self._portal, self._inner.stream_pty(), BlockingPtyStream)


class ComputeSessions(Facade[AsyncComputeSessions]):
    """``api_session.ComputeSession`` of a blocking session."""

    paginated_list = blocking(AsyncComputeSessions.paginated_list)

    def __call__(self, name: str, owner_access_key: str | None = None) -> ComputeSession:
        return ComputeSession(self._portal, self._inner(name, owner_access_key))

    def from_session_id(self, session_id: UUID | str) -> ComputeSession:
        return ComputeSession(self._portal, self._inner.from_session_id(session_id))

    def get_or_create(self, image: str, **options: Unpack[CreateOptions]) -> ComputeSession:
        """As :meth:`AsyncComputeSessions.get_or_create`."""
        return ComputeSession(self._portal, self._portal.run(self._inner.get_or_create(image, **options)))


class VFolder(Facade[AsyncVFolder]):
    """The blocking face of a folder's handle."""

    info = blocking(AsyncVFolder.info)
    rename = blocking(AsyncVFolder.rename)
    update_options = blocking(AsyncVFolder.update_options)
    delete = blocking(AsyncVFolder.delete)
    get_id = blocking(AsyncVFolder.get_id)
    restore = blocking(AsyncVFolder.restore)
    purge = blocking(AsyncVFolder.purge)
    clone = blocking(AsyncVFolder.clone)
    invite = blocking(AsyncVFolder.invite)
    share = blocking(AsyncVFolder.share)
    unshare = blocking(AsyncVFolder.unshare)
    leave = blocking(AsyncVFolder.leave)
    list_files = blocking(AsyncVFolder.list_files)
    iterate_files = iterating(AsyncVFolder.iterate_files)
    mkdir = blocking(AsyncVFolder.mkdir)
    rename_file = blocking(AsyncVFolder.rename_file)
    move_file = blocking(AsyncVFolder.move_file)
    delete_files = blocking(AsyncVFolder.delete_files)
    request_upload = blocking(AsyncVFolder.request_upload)
    request_download = blocking(AsyncVFolder.request_download)
    upload = blocking(AsyncVFolder.upload)
    download = blocking(AsyncVFolder.download)
    download_archive = blocking(AsyncVFolder.download_archive)

    @property
    def name(self) -> str:
        return self._inner.name


class VFolders(Facade[AsyncVFolders]):
    """``api_session.VFolder`` of a blocking session."""

    create = blocking(AsyncVFolders.create)
    list = blocking(AsyncVFolders.list)
    paginated_list = blocking(AsyncVFolders.paginated_list)
    list_hosts = blocking(AsyncVFolders.list_hosts)
    list_all_hosts = blocking(AsyncVFolders.list_all_hosts)
    list_allowed_types = blocking(AsyncVFolders.list_allowed_types)
    delete_by_id = blocking(AsyncVFolders.delete_by_id)
    invitations = blocking(AsyncVFolders.invitations)
    sent_invitations = blocking(AsyncVFolders.sent_invitations)
    accept_invitation = blocking(AsyncVFolders.accept_invitation)
    delete_invitation = blocking(AsyncVFolders.delete_invitation)
    update_invitation = blocking(AsyncVFolders.update_invitation)
    list_shared = blocking(AsyncVFolders.list_shared)
    update_shared = blocking(AsyncVFolders.update_shared)
    change_ownership = blocking(AsyncVFolders.change_ownership)

    def __call__(self, name: str | UUID) -> VFolder:
        return VFolder(self._portal, self._inner(name))


class Artifacts(Facade[AsyncArtifacts]):
    """``api_session.Artifact`` of a blocking session."""

    list = blocking(AsyncArtifacts.list)
    iterate = iterating(AsyncArtifacts.iterate)
    info = blocking(AsyncArtifacts.info)
    delete = blocking(AsyncArtifacts.delete)
    revision = blocking(AsyncArtifacts.revision)
    import_revisions = blocking(AsyncArtifacts.import_revisions)
    upload = blocking(AsyncArtifacts.upload)
    cancel = blocking(AsyncArtifacts.cancel)
    cleanup = blocking(AsyncArtifacts.cleanup)
    wait = blocking(AsyncArtifacts.wait)
    files = blocking(AsyncArtifacts.files)
    presign = blocking(AsyncArtifacts.presign)
    ticket = blocking(AsyncArtifacts.ticket)
    download = blocking(AsyncArtifacts.download)
    registries = blocking(AsyncArtifacts.registries)
    registry = blocking(AsyncArtifacts.registry)
    add_registry = blocking(AsyncArtifacts.add_registry)
    change_registry = blocking(AsyncArtifacts.change_registry)
    remove_registry = blocking(AsyncArtifacts.remove_registry)
    scan = blocking(AsyncArtifacts.scan)
    storages = blocking(AsyncArtifacts.storages)


class Image(Facade[AsyncImage]):
    list = blocking(AsyncImage.list)
    rescan_images = blocking(AsyncImage.rescan_images)
    preload = blocking(AsyncImage.preload)
    unload = blocking(AsyncImage.unload)
    alias_image = blocking(AsyncImage.alias_image)
    dealias_image = blocking(AsyncImage.dealias_image)
    forget_image = blocking(AsyncImage.forget_image)
    clear_images = blocking(AsyncImage.clear_images)
    list_registries = blocking(AsyncImage.list_registries)


class BackgroundTask(Facade[AsyncBackgroundTask]):
    progress = iterating(AsyncBackgroundTask.progress)
    wait = blocking(AsyncBackgroundTask.wait)


class Admin(Facade[AsyncAdmin]):
    query = blocking(AsyncAdmin.query)
    fetch_page = blocking(AsyncAdmin.fetch_page)


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
