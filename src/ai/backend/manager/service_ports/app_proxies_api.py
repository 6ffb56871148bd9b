"""REST routes of the app proxies of an installation, for operators."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

from msgspec import Meta

from ai.backend.common.errors import Forbidden, NotFound, PeerRefused, Unavailable
from ai.backend.infra.http.fields import EmptyReply, Name
from ai.backend.infra.http.routes import Call, Nothing, Schema, route
from ai.backend.manager.access.requests import caller_of
from ai.backend.manager.service_ports.app_proxy_overview import AppProxyOverview


class CircuitsQuery(Schema, frozen=True):
    """The query of circuits: a resource group, and the id of a worker of its app proxy."""

    scaling_group: Name
    worker: Annotated[str, Meta(min_length=1, max_length=64)]


class CircuitQuery(Schema, frozen=True):
    scaling_group: Name


class Worker(TypedDict):
    """A worker of an app proxy; ``place`` is its ports as ``FIRST-LAST``, or its wildcard domain.

    Times are in ISO 8601.
    """

    id: str
    authority: str
    protocol: str
    place: str
    accepted_traffics: list[str]
    filtered_apps_only: bool
    nodes: int
    available_slots: int
    occupied_slots: int
    updated_at: str


class AppProxy(TypedDict):
    """An app proxy with its workers and the resource groups that use it.

    ``problem`` says why its workers are unknown, and is empty if they are known.
    """

    url: str
    resource_groups: list[str]
    workers: list[Worker]
    problem: str


class AppProxiesReply(TypedDict):
    items: list[AppProxy]


class CircuitItem(TypedDict):
    """A circuit of a worker; ``place`` is its port or subdomain, and ``user_id`` is null if everybody may use it."""

    id: str
    app: str
    app_mode: str
    protocol: str
    place: str
    open_to_public: bool
    user_id: str | None
    session_ids: list[str]
    routes: int
    created_at: str


class CircuitsReply(TypedDict):
    items: list[CircuitItem]


class AppProxiesApi:
    """Routes of app proxies."""

    problems = (Forbidden, NotFound, PeerRefused, Unavailable)

    def __init__(self, app_proxies: AppProxyOverview) -> None:
        self._app_proxies = app_proxies

    @route("GET", "/resource/app-proxies")
    async def all(self, call: Call) -> AppProxiesReply:
        """Returns the app proxies of all resource groups with their workers, for superadmins and monitors."""
        states = await self._app_proxies.all(caller_of(call))
        items: list[AppProxy] = [
            {
                "url": state.url,
                "resource_groups": list(state.resource_groups),
                "workers": [_worker(worker) for worker in state.workers],
                "problem": state.problem,
            }
            for state in states
        ]
        return {"items": items}

    @route("GET", "/resource/app-proxies/circuits", query=CircuitsQuery)
    async def circuits(self, call: Call[Nothing, CircuitsQuery]) -> CircuitsReply:
        """Returns the circuits of a worker."""
        query = call.query
        circuits = await self._app_proxies.circuits(caller_of(call), query.scaling_group, query.worker)
        return {"items": [_circuit(each) for each in circuits]}

    @route("DELETE", "/resource/app-proxies/circuits/{circuit_id}", query=CircuitQuery)
    async def remove(self, call: Call[Nothing, CircuitQuery]) -> EmptyReply:
        """Removes a circuit and disconnects its users, who may open the app again."""
        circuit_id = call.params["circuit_id"]
        await self._app_proxies.remove_circuit(caller_of(call), call.query.scaling_group, circuit_id)
        return {}


def _worker(worker: Any) -> Worker:
    ports = worker.get("port_range")
    return {
        "id": str(worker["id"]),
        "authority": worker["authority"],
        "protocol": worker["protocol"],
        "place": f"{ports[0]}-{ports[1]}" if ports else str(worker.get("wildcard_domain") or ""),
        "accepted_traffics": list(worker["accepted_traffics"]),
        "filtered_apps_only": worker["filtered_apps_only"],
        "nodes": worker["nodes"],
        "available_slots": worker["available_slots"],
        "occupied_slots": worker["occupied_slots"],
        "updated_at": worker["updated_at"],
    }


def _circuit(circuit: Any) -> CircuitItem:
    port = circuit.get("port")
    return {
        "id": str(circuit["id"]),
        "app": circuit["app"],
        "app_mode": circuit["app_mode"],
        "protocol": circuit["protocol"],
        "place": str(port) if port is not None else str(circuit.get("subdomain") or ""),
        "open_to_public": circuit.get("open_to_public", False),
        "user_id": circuit.get("user_id"),
        "session_ids": list(circuit.get("session_ids", ())),
        "routes": len(circuit.get("route_info", ())),
        "created_at": circuit["created_at"],
    }
