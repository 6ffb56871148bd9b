"""The route of the link of workers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from aiohttp import WSMsgType, web

from ai.backend.appproxy.coordinator.circuits.links import Links
from ai.backend.appproxy.coordinator.workers.service import WorkerService, id_of
from ai.backend.common.wire.appproxy import HEARTBEAT_S, ToWorker
from ai.backend.infra.http.routes import Call, Schema, route
from ai.backend.infra.http.streams import open_socket

_PING_S = 2 * HEARTBEAT_S


class LinkQuery(Schema, frozen=True, kw_only=True):
    node: Annotated[str, msgspec.Meta(max_length=64)] = ""


@dataclass(slots=True)
class LinkApi:
    """The link by which a worker learns of its circuits."""

    links: Links
    workers: WorkerService

    @route("GET", "/api/worker/{worker_id}/link", query=LinkQuery, kind="socket")
    async def link(self, call: Call[Any, LinkQuery]) -> web.StreamResponse:
        """Opens the link of a worker: frames as in `common/wire/appproxy.py`."""
        worker_id = id_of(call.params["worker_id"], "worker")
        await self.workers.get(worker_id)
        async with open_socket(call.request, heartbeat_s=_PING_S) as socket:

            async def send(frame: ToWorker) -> None:
                await socket.send_str(msgspec.json.encode(frame).decode())

            await self.links.serve(worker_id, call.query.node, send, _texts(socket))
        return socket


async def _texts(socket: web.WebSocketResponse) -> AsyncIterator[str]:
    async for message in socket:
        if message.type is WSMsgType.TEXT:
            yield message.data
