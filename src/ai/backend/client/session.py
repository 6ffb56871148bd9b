"""API sessions: the first thing to make, and meant to live as long as the program (spec 03-12).

    with Session() as api_session:                 async with AsyncSession() as api_session:
        api_session.ComputeSession.get_or_create(...)    await api_session.ComputeSession.get_or_create(...)

Both have the same areas: ComputeSession, System, Auth, Manager, Agent, KeyPair, Resource, BackgroundTask, Admin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Self, Unpack
from uuid import UUID

from ai.backend.client.config import APIConfig, get_config
from ai.backend.client.func.admin import AsyncAdmin
from ai.backend.client.func.bgtask import AsyncBackgroundTask
from ai.backend.client.func.creation import CreateOptions
from ai.backend.client.func.session import AsyncComputeSession, AsyncComputeSessions
from ai.backend.client.func.system import (
    AsyncAgent,
    AsyncAuth,
    AsyncEtcdConfig,
    AsyncKeyPair,
    AsyncManager,
    AsyncResource,
    AsyncSystem,
)
from ai.backend.client.portal import Facade, Portal, blocking, iterating
from ai.backend.client.streams import ExecuteStream, PtyStream
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
        self.EtcdConfig = AsyncEtcdConfig(self.transport)
        self.Agent = AsyncAgent(self.transport)
        self.KeyPair = AsyncKeyPair(self.transport)
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
    complete = blocking(AsyncComputeSession.complete)
    execute = blocking(AsyncComputeSession.execute)
    events = iterating(AsyncComputeSession.events)
    listen_events = events
    list_files = blocking(AsyncComputeSession.list_files)
    upload = blocking(AsyncComputeSession.upload)
    upload_contents = blocking(AsyncComputeSession.upload_contents)
    download = blocking(AsyncComputeSession.download)

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


class System(Facade[AsyncSystem]):
    get_versions = blocking(AsyncSystem.get_versions)
    get_api_version = blocking(AsyncSystem.get_api_version)
    get_manager_version = blocking(AsyncSystem.get_manager_version)


class Auth(Facade[AsyncAuth]):
    authorize = blocking(AsyncAuth.authorize)
    check = blocking(AsyncAuth.check)


class Manager(Facade[AsyncManager]):
    status = blocking(AsyncManager.status)
    freeze = blocking(AsyncManager.freeze)
    unfreeze = blocking(AsyncManager.unfreeze)
    get_announcement = blocking(AsyncManager.get_announcement)


class EtcdConfig(Facade[AsyncEtcdConfig]):
    get = blocking(AsyncEtcdConfig.get)
    set = blocking(AsyncEtcdConfig.set)
    delete = blocking(AsyncEtcdConfig.delete)


class Agent(Facade[AsyncAgent]):
    paginated_list = blocking(AsyncAgent.paginated_list)
    detail = blocking(AsyncAgent.detail)


class KeyPair(Facade[AsyncKeyPair]):
    info = blocking(AsyncKeyPair.info)
    paginated_list = blocking(AsyncKeyPair.paginated_list)


class Resource(Facade[AsyncResource]):
    list_slots = blocking(AsyncResource.list_slots)
    list_presets = blocking(AsyncResource.list_presets)
    check_presets = blocking(AsyncResource.check_presets)


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
        self.EtcdConfig = EtcdConfig(self.portal, inner.EtcdConfig)
        self.Agent = Agent(self.portal, inner.Agent)
        self.KeyPair = KeyPair(self.portal, inner.KeyPair)
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
