"""Blocking classes of compute sessions."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Unpack
from uuid import UUID

from ai.backend.client.func.creation import CreateOptions
from ai.backend.client.func.session import AsyncComputeSession, AsyncComputeSessions
from ai.backend.client.portal import Facade, blocking, iterating
from ai.backend.client.streams import BlockingExecuteStream, BlockingPtyStream, _BlockingEnter
from ai.backend.client.tunnels import ArgumentValue, BlockingAppStream, BlockingLocalPort, Report


class ComputeSession(Facade[AsyncComputeSession]):
    """The blocking handle of a compute session."""

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
