"""Serves the HTTP requests by which Traefik asks the gate about each client request (middleware ForwardAuth)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from aiohttp import web
from multidict import CIMultiDict

from ai.backend.appproxy.worker.access.gate import Admission, Gate
from ai.backend.appproxy.worker.access.replies import Response, error
from ai.backend.common.wire.appproxy import Circuit
from ai.backend.core.proxy.headers import BadRequest, Header, check_request

_AUTHORIZATION = b"authorization"
_OWN = frozenset((b"x-forwarded-method", b"x-forwarded-uri", b"x-forwarded-host", b"x-forwarded-for", b"host"))


@dataclass(slots=True)
class AskedRequest:
    """Holds the client's request about which Traefik asks the gate."""

    method: bytes
    target: bytes
    headers: Sequence[Header]
    host: bytes
    is_websocket: bool


class GateServer:
    """Serves Traefik's requests to the gate: permits each client request, or refuses it with a reply.

    A permitted request is answered with 200 and the header fields for the app, another one with the reply for the
    client.

    ``circuit_of`` returns the circuit of an id; ``on_admitted`` is called for each request that goes to an app.
    """

    def __init__(
        self,
        gate: Gate,
        circuit_of: Callable[[UUID], Circuit | None],
        on_admitted: Callable[[Circuit], None],
        on_refused: Callable[[str], None],
    ) -> None:
        self._gate = gate
        self._circuit_of, self._on_admitted, self._on_refused = circuit_of, on_admitted, on_refused
        self._runner: web.ServerRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Starts to listen for Traefik's requests, and returns the port. Raises OSError if it cannot listen."""
        runner = self._runner = web.ServerRunner(web.Server(self._answer, access_log=None))
        await runner.setup()
        await web.TCPSite(runner, host, port).start()
        return int(runner.addresses[0][1])

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            circuit = self._circuit_of(UUID(hex=request.path.rpartition("/")[2]))
        except ValueError:
            circuit = None
        if circuit is None:  # Traefik has a circuit that was just removed
            return self._refuse(error(404, "There is no such app."))
        try:
            asked_request = _read_asked_request(request)
        except BadRequest as e:
            return self._refuse(error(e.status, "The request cannot be understood."))
        peer = request.headers.getall("X-Forwarded-For", [""])[-1].rpartition(",")[2].strip()
        verdict = self._gate.check(circuit, asked_request, peer)
        if isinstance(verdict, Response):
            return self._refuse(verdict)
        if verdict.grant is not None and verdict.grant.limits is not None and not verdict.grant.limits.is_empty:
            return self._refuse(error(403, "Here nobody counts the limits of this token.", model_code="forbidden"))
        if not any(route.traffic_ratio > 0 for route in circuit.route_info):
            return self._refuse(error(503, "The app has no route now.", fields=b"Retry-After: 2\r\n"))
        self._on_admitted(circuit)
        return web.Response(status=200, headers=_replacement_fields(asked_request, verdict))

    def _refuse(self, response: Response) -> web.Response:
        self._on_refused(response.reason)
        field_lines = response.fields.decode("latin-1").splitlines()
        fields = [(name, value) for name, _, value in (line.partition(": ") for line in field_lines)]
        return web.Response(status=response.status, headers=CIMultiDict(fields), body=response.body)


def _read_asked_request(request: web.BaseRequest) -> AskedRequest:
    """Returns the client's request, read from the headers of Traefik's request to the gate. Raises BadRequest."""
    headers = [(name.lower(), value) for name, value in request.raw_headers if name.lower() not in _OWN]
    method = request.headers.get("X-Forwarded-Method", "GET").encode("latin-1")
    target = request.headers.get("X-Forwarded-Uri", "/").encode("latin-1")
    host = request.headers.get("X-Forwarded-Host", "").encode("latin-1")
    check_request(method, target, "1.1", [(b"host", host)])
    is_websocket = any(name == b"sec-websocket-key" for name, _ in headers)
    return AskedRequest(method, target, headers, host, is_websocket)


def _replacement_fields(request: AskedRequest, admission: Admission) -> CIMultiDict[str]:
    """Returns the header fields that Traefik puts in place of those fields of the client's request.

    Traefik removes the fields that the result lacks. ``Set-Cookie`` is for the response to the client.
    """
    fields: CIMultiDict[str] = CIMultiDict()
    if admission.cookies:
        fields["Cookie"] = admission.cookies
    if _AUTHORIZATION not in admission.hidden:
        for name, value in request.headers:
            if name == _AUTHORIZATION:
                fields.add("Authorization", value.decode("latin-1"))
    if admission.set_cookie is not None:
        fields["Set-Cookie"] = admission.set_cookie
    return fields
