"""Serves the base URL of all models: passes each request to the endpoint of the model that the request names.

Only endpoints that the token of the request permits are considered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, Protocol
from urllib.parse import unquote

from ai.backend.appproxy.worker.access.replies import Response, error, json_response
from ai.backend.appproxy.worker.access.tokens import Grant
from ai.backend.appproxy.worker.planes.embedded.circuits import CircuitState
from ai.backend.appproxy.worker.planes.embedded.exchange import ClientRequest
from ai.backend.appproxy.worker.planes.embedded.server import Shared
from ai.backend.common.wire.appproxy import Circuit, ProxyProtocol
from ai.backend.core.proxy.routing import RouteKey
from ai.backend.core.serving.answers import read_request

_MODELS_PATH = b"/v1/models"


def _usable_models(table: Iterable[CircuitState], grant: Grant | None) -> Iterator[tuple[str, CircuitState]]:
    """Yields the model names that a token may use, each with the circuit of its endpoint.

    The models of the token's own endpoints come first, then public models.
    """
    endpoint_ids = grant.audience if grant is not None else frozenset()
    served_states = (s for s in table if s.endpoint is not None and s.circuit.protocol is ProxyProtocol.HTTP)
    states = sorted(served_states, key=lambda s: (s.circuit.created_at, s.circuit.id))
    for wants_own in (True, False):
        for state in states:
            is_own = str(state.circuit.endpoint_id) in endpoint_ids
            if state.endpoint is not None and is_own is wants_own and (is_own or state.circuit.open_to_public):
                for model_name in state.endpoint.models:
                    yield model_name, state


def _describe_model(model_name: str, circuit: Circuit) -> dict[str, Any]:
    owner = circuit.serving.name if circuit.serving is not None else "backendai"
    try:
        created_at = int(datetime.fromisoformat(circuit.created_at).timestamp())
    except ValueError:
        created_at = 0
    return {"id": model_name, "object": "model", "created": created_at, "owned_by": owner}


def describe_models(circuit: Circuit, models: Iterable[str]) -> Response:
    """Returns the list of the models of one endpoint, in the format of OpenAI's interface."""
    return json_response({"object": "list", "data": [_describe_model(model_name, circuit) for model_name in models]})


def answer_about_models(
    table: Iterable[CircuitState], method: bytes, target: bytes, grant: Grant | None
) -> Response | None:
    """Returns the reply to a query about models. Returns None if the request is for a model itself."""
    path = target.partition(b"?")[0]
    if method == b"POST" and path.startswith(b"/v1/"):
        return None
    if method not in (b"GET", b"HEAD") or not (path + b"/").startswith(_MODELS_PATH + b"/"):
        return error(404, "There is nothing at this address.", model_code="not_found")
    models_by_name: dict[str, dict[str, Any]] = {}
    for name, state in _usable_models(table, grant):
        models_by_name.setdefault(name, _describe_model(name, state.circuit))
    if path == _MODELS_PATH:
        return json_response({"object": "list", "data": list(models_by_name.values())})
    model = models_by_name.get(unquote(path[len(_MODELS_PATH) + 1 :].decode("ascii", "replace")))
    return json_response(model) if model is not None else missing_model_reply()


def missing_model_reply() -> Response:
    """Returns the reply for a model that does not exist, or that the token may not use."""
    return error(404, "There is no such model, or the token is not good for it.", model_code="model_not_found")


class SearchClient(Protocol):
    """Represents the connection of a request whose model is searched."""

    def reply(self, response: Response) -> None: ...

    def pass_to_endpoint(self, state: CircuitState, request: ClientRequest, grant: Grant, body: bytes) -> None: ...


class ModelSearch:
    """Receives the body of a request to the base URL of all models until the name of its model is known."""

    route: RouteKey | None = None
    has_responded = False

    def __init__(self, shared: Shared, client: SearchClient, request: ClientRequest, grant: Grant) -> None:
        self._shared = shared
        self._client = client
        self._request = request
        self._grant = grant
        self._pieces: list[bytes] = []
        self._size = 0
        self._is_over = False

    def on_request_data(self, data: bytes) -> None:
        if self._is_over:
            return
        self._pieces.append(data)
        self._size += len(data)
        self._shared.model_bytes += len(data)
        limits = self._shared.limits
        if self._size > limits.model_body_bytes:
            self._reply(error(413, "The request is too large.", model_code="request_too_large"))
        elif self._shared.model_bytes > limits.model_bodies_bytes:
            self._reply(error(503, "Too much is requested at once.", model_code="overloaded"))

    def on_request_end(self) -> None:
        if self._is_over:
            return
        body = b"".join(self._pieces)
        try:
            model_request = read_request(body)
        except ValueError as e:
            self._reply(error(400, str(e), model_code="invalid_json"))
            return
        for model_name, state in _usable_models(self._shared.table, self._grant):
            if model_name == model_request.model:
                self._end()
                self._client.pass_to_endpoint(state, self._request, self._grant, body)
                return
        self._reply(missing_model_reply())

    def _reply(self, response: Response) -> None:
        self._shared.counts.refused[response.reason] += 1
        self._end()
        self._client.reply(response)

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._shared.model_bytes -= self._size
            self._pieces.clear()

    def on_client_lost(self) -> None:
        self._end()

    def expire(self) -> None:
        self._reply(error(408, "The request did not come in time.", model_code="timeout"))

    def pause_response(self) -> None: ...

    def resume_response(self) -> None: ...
