"""Builds the web server of the embedded cluster when the first browser comes."""

from __future__ import annotations

import asyncio
import logging
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ai.backend.common.errors import BackendError
from ai.backend.infra.loop import cancel_all
from ai.backend.standalone.instance import ClusterFile, listen
from ai.backend.standalone.layout import Layout

if TYPE_CHECKING:
    from ai.backend.web.composition import WebServer

log = logging.getLogger(__name__)
_FILE_NAME = "webserver.toml"


def make_web_server(layout: Layout, cluster: ClusterFile) -> WebServer:
    """Returns the web server; its settings are completed by a ``webserver.toml`` in the data directory.

    Imports what the other daemons do not need. Raises InvalidInput.
    """
    from ai.backend.infra.settings import load_settings
    from ai.backend.web.composition import WebServer
    from ai.backend.web.config.settings import WebSettings

    fixed_settings = {
        "service": {"ip": "127.0.0.1", "port": cluster.web_port},
        "api": {"endpoint": cluster.endpoint},
        "session": {"file": str(layout.root / "web" / "logins.db"), "cookie-name": f"backendai-{cluster.web_port}"},
        "security": {"connect-origins": [cluster.storage_url]},
    }
    settings_path = layout.root / _FILE_NAME
    if settings_path.exists():
        return WebServer(load_settings(WebSettings, name="webserver", path=settings_path, fixed_values=fixed_settings))
    return WebServer(WebSettings.model_validate(fixed_settings))


@dataclass(eq=False)
class WebDaemon:
    """Runs the web server on ``listener``, or on the port that the cluster file names.

    The first connection starts it and waits for it, so that clusters without browsers spend no time and memory on it.
    """

    layout: Layout
    cluster: ClusterFile
    listener: socket.socket | None = None

    def __post_init__(self) -> None:
        self._listener = self.listener or listen("127.0.0.1", self.cluster.web_port)
        self._server: WebServer | None = None
        self._starting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        asyncio.get_running_loop().add_reader(self._listener, self._on_connection)

    def _on_connection(self) -> None:
        asyncio.get_running_loop().remove_reader(self._listener)
        self._starting = asyncio.create_task(self._start_server())

    async def _start_server(self) -> None:
        try:
            (self.layout.root / "web").mkdir(mode=0o700, exist_ok=True)
            server = self._server = await asyncio.to_thread(make_web_server, self.layout, self.cluster)
            await server.start(self._listener)
        except (BackendError, OSError) as e:
            log.error("the web server does not start: %s", e)
            self._listener.close()

    async def stop(self) -> None:
        if self._listener.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._listener)
        if self._starting is not None:
            await cancel_all(self._starting)
        if self._server is not None:
            await self._server.stop()
        self._listener.close()
