"""Makes and serves the remote calls that :mod:`ai.backend.common.wire.link` declares."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Protocol, cast

import msgspec

from ai.backend.common.errors import BackendError, Forbidden, InternalError
from ai.backend.common.wire.link import AgentCommands, ManagerReports
from ai.backend.common.wire.methods import Method, methods_of

log = logging.getLogger(__name__)
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""The maximum size of a message on every carrier."""
COMMANDS = methods_of(AgentCommands)
REPORTS = methods_of(ManagerReports)


class Caller(Protocol):
    """Sends calls to the peer of a connection.

    Both methods raise what the peer raised, DeadlineExceeded or Unavailable.
    """

    async def call(self, method: Method, request: object) -> Any: ...
    async def open_stream(self, method: Method, request: object) -> Any:
        """Opens a stream to the peer, and returns a PtyStream or a ByteStream as the method requires."""


Connect = Callable[[], Awaitable[Caller]]
"""Returns the present connection. Raises Unavailable if there is none."""


class _Proxy:
    """Sends each of ``methods`` to the peer. Each method is an attribute with the method's name."""

    def __init__(self, methods: Mapping[str, Method], connect: Connect) -> None:
        self._methods, self._connect = methods, connect

    def __getattr__(self, name: str) -> Callable[[Any], Awaitable[Any]]:
        # Not kept: a proxy is made for each call, and one that held its own methods would stay until a collection.
        if name not in self._methods:
            raise AttributeError(f"there is no remote call {name}")
        return partial(self._call, self._methods[name])

    async def _call(self, method: Method, request: object) -> Any:
        connection = await self._connect()
        return await (connection.call if method.stream is None else connection.open_stream)(method, request)


def commands_proxy(connect: Connect) -> AgentCommands:
    """Returns the commands of a remote agent."""
    return cast(AgentCommands, _Proxy(COMMANDS, connect))


def reports_proxy(connect: Connect) -> ManagerReports:
    """Returns the reports of a remote manager."""
    return cast(ManagerReports, _Proxy(REPORTS, connect))


class Service(msgspec.Struct, frozen=True):
    """Serves the calls of one peer. Raises Forbidden for a report about an agent for which the peer may not speak."""

    methods: Mapping[str, Method]
    target: object
    speaks_for: Callable[[str], bool] | None = None

    async def call(self, method: Method, request: Any) -> Any:
        """Executes a call, and returns the reply or the stream that the method opens.

        Raises BackendError or CancelledError only.
        """
        try:
            if self.speaks_for is not None:
                for agent_id in request.agent_ids:
                    if not self.speaks_for(agent_id):
                        raise Forbidden(f"this connection may not speak for the agent {agent_id[:64]}")
            return await getattr(self.target, method.name)(request)
        except (BackendError, asyncio.CancelledError):
            raise
        except Exception as e:
            log.exception("the handler of %s failed", method.name)
            raise InternalError(f"{method.name} failed: {type(e).__name__}") from e


def commands_service(commands: AgentCommands) -> Service:
    """Serves the manager's calls from ``commands``."""
    return Service(COMMANDS, commands)


def reports_service(reports: ManagerReports, speaks_for: Callable[[str], bool]) -> Service:
    """Serves the calls of a connection from ``reports``.

    The connection may speak for agents for which ``speaks_for`` is true.
    """
    return Service(REPORTS, reports, speaks_for)
