"""REST routes of the services of sessions (spec 03-08, "Service Ports"; wire contract 2.1)."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired, TypedDict

import msgspec
from msgspec import Meta

from ai.backend.common.wire.execution import ArgumentValue, ServiceState
from ai.backend.infra.http.decode import refuse
from ai.backend.infra.http.fields import EmptyReply
from ai.backend.infra.http.routes import Call, OwnerKey, Schema, route
from ai.backend.manager.access.requests import SESSION_PROBLEMS, caller_of
from ai.backend.manager.service_ports.service import OfferedService, ServicePorts, ServiceRequest

MAX_BODY_BYTES = 65_536
_Name = Annotated[str, Meta(min_length=1, max_length=64)]
_JsonTable = dict[str, Any] | str | None


class StartServiceBody(Schema, frozen=True):
    """Names a service to start. ``envs`` and ``arguments`` are objects, or JSON of such; an argument has one value, a
    list of them, or null. ``login_session_token`` is ignored."""

    app: _Name
    port: Annotated[int, Meta(ge=1, le=65_535)] | None = None
    envs: _JsonTable = None
    arguments: _JsonTable = None
    login_session_token: str | None = None


class ShutdownServiceBody(Schema, frozen=True):
    """Names a service to stop; ``app`` is another name of ``service_name``."""

    service_name: _Name | None = None
    app: _Name | None = None


class StartedService(TypedDict):
    """A service that listens; ``url_template`` and lists of what it takes are absent if empty (wire contract 2.1)."""

    name: str
    protocol: str
    status: str
    url_template: NotRequired[str]
    allowed_arguments: NotRequired[list[str]]
    allowed_envs: NotRequired[list[str]]
    token: NotRequired[str]
    wsproxy_addr: NotRequired[str]
    wsproxy_error: NotRequired[str]


class ServiceItem(TypedDict):
    """A service of a session; only ``name``, ``protocol`` and ``ports`` are present if the session does not run."""

    name: str
    protocol: str
    ports: list[int]
    status: NotRequired[str]
    reason: NotRequired[str]
    url_template: NotRequired[str]
    allowed_arguments: NotRequired[list[str]]
    allowed_envs: NotRequired[list[str]]


class ServicePortsApi:
    """Routes of services; ``{s}`` is the name or id of a session."""

    owner_key = OwnerKey.NAMED
    problems = SESSION_PROBLEMS

    def __init__(self, services: ServicePorts) -> None:
        self._services = services

    @route("POST", "/session/{s}/start-service", body=StartServiceBody, max_body=MAX_BODY_BYTES, reply=StartedService)
    async def start(self, call: Call[StartServiceBody]) -> dict[str, Any]:
        """Starts a service of the session unless it runs; replies once it listens.

        ``token`` and ``wsproxy_addr`` lead one browser to it, once: ``{wsproxy_addr}/v2/proxy/{token}/{session}/add``.
        Without an app proxy both are missing; ``wsproxy_error`` is why the app proxy gave none.
        """
        body = call.body
        request = request_of(body.app, body.port, body.envs, body.arguments)
        started_service = await self._services.start(
            caller_of(call), call.params["s"], request, owner_access_key=call.owner_access_key
        )
        state, app_access = started_service.state, started_service.access
        reply = {"name": state.name, "protocol": state.protocol, "status": state.status, **_offered_fields(state)}
        if app_access is not None:
            access_fields = {
                "token": app_access.token,
                "wsproxy_addr": app_access.wsproxy_addr,
                "wsproxy_error": app_access.reason,
            }
            reply |= {name: text for name, text in access_fields.items() if text}
        return reply

    @route("POST", "/session/{s}/shutdown-service", body=ShutdownServiceBody, max_body=MAX_BODY_BYTES)
    async def stop(self, call: Call[ShutdownServiceBody]) -> EmptyReply:
        """Stops a service of the session; does nothing if it does not run."""
        name = call.body.service_name or call.body.app
        if name is None:
            raise refuse({"service_name": "missing"})
        await self._services.stop(caller_of(call), call.params["s"], name, owner_access_key=call.owner_access_key)
        return {}

    @route("GET", "/stream/session/{s}/apps", reply=list[ServiceItem])
    async def apps(self, call: Call) -> list[dict[str, Any]]:
        """Returns the services of a session; if it runs, with their states and the arguments that they take."""
        services = await self._services.list(caller_of(call), call.params["s"], owner_access_key=call.owner_access_key)
        return [_service_view(service) for service in services]


def _service_view(service: OfferedService) -> dict[str, Any]:
    view: dict[str, Any] = {"name": service.name, "protocol": service.protocol, "ports": list(service.ports)}
    if service.state is not None:
        view |= {"status": service.state.status, **_offered_fields(service.state)}
        if service.state.reason is not None:
            view["reason"] = service.state.reason
    return view


def _offered_fields(state: ServiceState) -> dict[str, Any]:
    """Returns the URL template and the allowed arguments and variables of a service, without empty ones.

    Clients check if these fields are present (wire contract 2.1).
    """
    view = {
        "url_template": state.url_template,
        "allowed_arguments": state.allowed_arguments,
        "allowed_envs": state.allowed_envs,
    }
    return {name: value for name, value in view.items() if value}


def request_of(app: str, port: int | None, envs: _JsonTable, arguments: _JsonTable) -> ServiceRequest:
    """Builds a service request from the name, port, variables and arguments that a client sent.

    Raises InvalidInput, which names the field.
    """
    return ServiceRequest(
        app=app,
        port=port,
        envs={name: _text(value, "envs") for name, value in _decode_table(envs, "envs").items()},
        arguments={name: _argument_value(value) for name, value in _decode_table(arguments, "arguments").items()},
    )


def _argument_value(value: Any) -> ArgumentValue:
    if value is None:
        return None
    return [_text(element, "arguments") for element in value] if isinstance(value, list) else _text(value, "arguments")


def _decode_table(values: _JsonTable, field: str) -> dict[str, Any]:
    if isinstance(values, str):
        try:
            values = msgspec.json.decode(values, type=dict[str, Any]) if values else {}
        except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
            raise refuse({field: "not a JSON object"}) from None
    return values or {}


def _text(value: object, field: str) -> str:
    """Returns a value as text; shells and forms send numbers and booleans as well."""
    if not isinstance(value, str | int | float):
        raise refuse({field: "values are texts" if field == "envs" else "values are texts, or lists of them"})
    return str(value)
