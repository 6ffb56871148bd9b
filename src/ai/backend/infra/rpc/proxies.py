"""Proxies and dispatch of the link's interfaces, derived from their declarations."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, cast

from ai.backend.common.errors import BackendError, Forbidden, InternalError
from ai.backend.common.wire.link import AgentCommands, ManagerReports
from ai.backend.common.wire.methods import Method
from ai.backend.infra.rpc.methods import COMMANDS, REPORTS

log = logging.getLogger(__name__)


class Caller(Protocol):
    """A connection to the peer. Both methods raise what the peer raised, DeadlineExceeded or Unavailable."""

    async def call(self, method: Method, request: object) -> Any: ...
    async def open_stream(self, method: Method, request: object) -> Any:
        """Returns a PtyStream or a ByteStream, by the method."""


Connect = Callable[[], Awaitable[Caller]]
"""Returns the present connection. Raises Unavailable if there is none."""


class _Proxy:
    def __init__(self, connect: Connect) -> None:
        self.connect = connect


def _function(method: Method) -> Callable[[_Proxy, object], Awaitable[Any]]:
    async def call(self: _Proxy, request: object) -> Any:
        return await (await self.connect()).call(method, request)

    async def open_stream(self: _Proxy, request: object) -> Any:
        return await (await self.connect()).open_stream(method, request)

    return call if method.stream is None else open_stream


def _proxy_class(name: str, methods: Mapping[str, Method]) -> type[_Proxy]:
    return type(name, (_Proxy,), {method.name: _function(method) for method in methods.values()})


_CommandsProxy = _proxy_class("CommandsProxy", COMMANDS)
_ReportsProxy = _proxy_class("ReportsProxy", REPORTS)


def commands_proxy(connect: Connect) -> AgentCommands:
    """Returns the commands of a remote agent."""
    return cast(AgentCommands, _CommandsProxy(connect))


def reports_proxy(connect: Connect) -> ManagerReports:
    """Returns the reports of a remote manager."""
    return cast(ManagerReports, _ReportsProxy(connect))


class Service:
    """Serves the calls of one peer: ``methods`` are the permitted ones, by name."""

    def __init__(self, methods: Mapping[str, Method], target: object, *, agent_id: str | None = None) -> None:
        self.methods = methods
        self._target = target
        self._agent_id = agent_id

    async def call(self, method: Method, request: Any) -> Any:
        """Returns the reply, or the stream that the method opens. Raises BackendError or CancelledError only."""
        try:
            if self._agent_id is not None and request.agent_id != self._agent_id:
                raise Forbidden(f"agent {self._agent_id} may not speak for {request.agent_id[:64]}")
            return await getattr(self._target, method.name)(request)
        except (BackendError, asyncio.CancelledError):
            raise
        except Exception as e:
            log.exception("the handler of %s failed", method.name)
            raise InternalError(f"{method.name} failed: {type(e).__name__}") from e


def commands_service(commands: AgentCommands) -> Service:
    """Serves the manager's calls from ``commands``."""
    return Service(COMMANDS, commands)


def reports_service(reports: ManagerReports, agent_id: str) -> Service:
    """Serves the calls of one agent from ``reports``; a report for another agent is Forbidden."""
    return Service(REPORTS, reports, agent_id=agent_id)
