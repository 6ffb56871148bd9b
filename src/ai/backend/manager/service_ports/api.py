"""Starting, stopping and listing the services of a session (spec 03-08, "Service Ports"; wire contract 2.1)."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ai.backend.common.wire.execution import ArgumentValue, ServiceState
from ai.backend.infra.http.decode import refuse
from ai.backend.infra.http.routes import Call, Schema, route
from ai.backend.manager.access.requests import caller_of
from ai.backend.manager.service_ports.service import OfferedService, ServicePorts, ServiceRequest

MAX_BODY = 65_536
_Name = Annotated[str, Meta(min_length=1, max_length=64)]
_Table = dict[str, Any] | str | None


class StartServiceBody(Schema, frozen=True):
    """``envs`` and ``arguments`` are objects, or JSON of such, as the published client sends them; an argument has one
    value, a list of them, or null. The token of a login at a web server (``login_session_token``) is ignored."""

    app: _Name
    port: Annotated[int, Meta(ge=1, le=65_535)] | None = None
    envs: _Table = None
    arguments: _Table = None
    login_session_token: str | None = None


class ShutdownServiceBody(Schema, frozen=True):
    """``app`` is another name of ``service_name``."""

    service_name: _Name | None = None
    app: _Name | None = None


class ServicePortsApi:
    """``{s}`` is a name or id, as in the other calls."""

    def __init__(self, services: ServicePorts) -> None:
        self._services = services

    @route("POST", "/session/{s}/start-service", body=StartServiceBody, max_body=MAX_BODY)
    async def start(self, call: Call[StartServiceBody]) -> dict[str, Any]:
        """Start a service of the session, or find it started; answers once it listens."""
        body = call.body
        request = ServiceRequest(
            app=body.app,
            port=body.port,
            envs=envs_of(body.envs),
            arguments=arguments_of(body.arguments),
        )
        state = await self._services.start(
            caller_of(call), call.params["s"], request, owner_access_key=call.owner_access_key
        )
        return {"name": state.name, "protocol": state.protocol, "status": state.status, **offer(state)}

    @route("POST", "/session/{s}/shutdown-service", body=ShutdownServiceBody, max_body=MAX_BODY)
    async def stop(self, call: Call[ShutdownServiceBody]) -> dict[str, Any]:
        """Stop a service of the session; one that does not run is left alone."""
        name = call.body.service_name or call.body.app
        if name is None:
            raise refuse({"service_name": "missing"})
        await self._services.stop(caller_of(call), call.params["s"], name, owner_access_key=call.owner_access_key)
        return {}

    @route("GET", "/stream/session/{s}/apps")
    async def apps(self, call: Call) -> list[dict[str, Any]]:
        """The services of a session; of one that runs with their state and what may be given at their start."""
        services = await self._services.list(caller_of(call), call.params["s"], owner_access_key=call.owner_access_key)
        return [app(service) for service in services]


def app(service: OfferedService) -> dict[str, Any]:
    view: dict[str, Any] = {"name": service.name, "protocol": service.protocol, "ports": list(service.ports)}
    if service.state is not None:
        view |= {"status": service.state.status, **offer(service.state)}
        if service.state.reason is not None:
            view["reason"] = service.state.reason
    return view


def offer(state: ServiceState) -> dict[str, Any]:
    """What clients look for by its presence (wire contract 2.1): absent rather than empty."""
    view = {
        "url_template": state.url_template,
        "allowed_arguments": state.allowed_arguments,
        "allowed_envs": state.allowed_envs,
    }
    return {name: value for name, value in view.items() if value}


def envs_of(values: _Table) -> dict[str, str]:
    """Raises InvalidInput, naming the field; so does :func:`arguments_of`."""
    return {name: _text(value, "envs") for name, value in _table(values, "envs").items()}


def arguments_of(values: _Table) -> dict[str, ArgumentValue]:
    """One value, a list of several, or none each."""
    return {name: _value(value) for name, value in _table(values, "arguments").items()}


def _value(value: Any) -> ArgumentValue:
    if value is None:
        return None
    return [_text(one, "arguments") for one in value] if isinstance(value, list) else _text(value, "arguments")


def _table(values: _Table, field: str) -> dict[str, Any]:
    if isinstance(values, str):
        try:
            values = msgspec.json.decode(values, type=dict[str, Any]) if values else {}
        except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
            raise refuse({field: "not a JSON object"}) from None
    return values or {}


def _text(value: object, field: str) -> str:
    """Numbers and booleans count as text: shells and forms send either."""
    if not isinstance(value, str | int | float):
        raise refuse({field: "values are texts" if field == "envs" else "values are texts, or lists of them"})
    return str(value)
