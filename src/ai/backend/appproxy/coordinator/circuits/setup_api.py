"""Routes of the way from a manager's token to a signed-in browser (spec 03-14; wire contract 2.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

import msgspec
from aiohttp import web

from ai.backend.appproxy.coordinator.circuits.model import AppRequest, Setup
from ai.backend.appproxy.coordinator.circuits.schemas import (
    AddQuery,
    AddReply,
    ConfBody,
    ProxyQuery,
    ProxyReply,
    Token,
)
from ai.backend.appproxy.coordinator.circuits.service import CircuitService
from ai.backend.appproxy.coordinator.workers.service import id_of
from ai.backend.infra.http.decode import refuse
from ai.backend.infra.http.routes import Call, route

_SECRET_HEADERS = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
_MAX_BODY_BYTES = 65_536


@dataclass(slots=True)
class SetupApi:
    """Routes of set-ups. ``public_url`` is where browsers reach the coordinator; None: the address of their request."""

    circuits: CircuitService
    public_url: str | None

    @route("POST", "/v2/conf", body=ConfBody, max_body=_MAX_BODY_BYTES)
    async def conf(self, call: Call[ConfBody]) -> Token:
        """Returns a token by which one browser may reach a service of a session, once."""
        body, session = call.body, call.body.session
        if session.id is None:
            raise refuse({"session.id": "required"})
        setup = Setup(
            session_id=session.id,
            user_id=session.user_uuid,
            group_id=session.group_id,
            domain_name=session.domain_name,
            access_key=session.access_key,
            kernel_host=body.kernel_host,
            kernel_port=body.kernel_port,
            gateway=body.gateway,
            app=body.app,
        )
        return Token(token=await self.circuits.permit(setup))

    @route("GET", "/v2/proxy/{token}/{session_id}/add", query=AddQuery, reply=AddReply, auth=False, also=(302,))
    async def add(self, call: Call[Any, AddQuery]) -> AddReply | web.Response:
        """Redirects a browser to the app; other clients get the URL that does so, once."""
        session_id, token = id_of(call.params["session_id"], "session"), call.params["token"]
        request = _request_of(call.query)
        headers = call.request.headers
        if "text/html" in headers.get("Accept", "") and "X-Requested-With" not in headers:
            return _redirect((await self.circuits.admit(token, session_id, request, call.address)).url)
        await self.circuits.check(token, session_id, request)
        return AddReply(url=self._auth_url(call, token, session_id))

    @route("GET", "/v2/proxy/auth", query=ProxyQuery, reply=ProxyReply, auth=False, also=(302,))
    async def auth(self, call: Call[Any, ProxyQuery]) -> ProxyReply | web.Response:
        """Gives the app a circuit and redirects the browser to it; with `Accept: application/json` returns the URL."""
        query = call.query
        admission = await self.circuits.admit(query.token, query.session_id, _request_of(query), call.address)
        if "application/json" in call.request.headers.get("Accept", ""):
            return ProxyReply(redirect_url=admission.url, reuse=admission.reused)
        return _redirect(admission.url)

    def _auth_url(self, call: Call[Any, AddQuery], token: str, session_id: UUID) -> str:
        query_fields = msgspec.to_builtins(call.query)
        parameters = {name: value for name, value in query_fields.items() if value not in (None, False, {})}
        if isinstance(parameters.get("envs"), dict):
            parameters["envs"] = msgspec.json.encode(parameters["envs"]).decode()
        parameters = {name: "true" if value is True else value for name, value in parameters.items()}
        base_url = self.public_url or f"{call.request.scheme}://{call.request.host}"
        return f"{base_url}/v2/proxy/auth?{urlencode({**parameters, 'token': token, 'session_id': str(session_id)})}"


def _redirect(url: str) -> web.Response:
    return web.Response(status=302, headers={"Location": url, **_SECRET_HEADERS})


def _request_of(query: AddQuery) -> AppRequest:
    """Returns the setup request of a browser. Raises InvalidInput."""
    envs = query.envs
    if isinstance(envs, str):
        try:
            envs = msgspec.json.decode(envs, type=dict[str, str | None]) if envs else {}
        except (msgspec.MsgspecError, UnicodeEncodeError):
            raise refuse({"envs": "not a JSON object of texts"}) from None
    return AppRequest(
        app=query.app,
        protocol=query.protocol,
        redirect=query.redirect,
        no_reuse=query.no_reuse,
        port=query.port,
        subdomain=query.subdomain,
        open_to_public=query.open_to_public,
        allowed_client_ips=query.allowed_client_ips,
        envs=envs,
        args=query.args,
    )


async def allow_set_ups_of_other_origins(request: web.Request, response: web.StreamResponse) -> None:
    """Adds the headers by which web pages of any origin may read the replies of set-ups.

    The replies carry no cookies. To be added to the signal ``on_response_prepare``.
    """
    if request.path.startswith("/v2/proxy/"):
        response.headers["Access-Control-Allow-Origin"] = "*"
        for name, value in _SECRET_HEADERS.items():
            response.headers.setdefault(name, value)
