"""Links a worker with its coordinator: registration, circuits, acknowledgements, usage, heartbeats.

Everything is tried again for ever: the data plane serves the circuits that it has meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from datetime import UTC, datetime
from uuid import UUID, uuid4

import aiohttp
import msgspec

from ai.backend.appproxy.worker.link.state_file import StateFile
from ai.backend.appproxy.worker.link.usage import UsageReports
from ai.backend.appproxy.worker.planes.plane import DataPlane
from ai.backend.appproxy.worker.upstreams import RouteDialer
from ai.backend.common.appproxy_errors import RegistrationFailed
from ai.backend.common.errors import BackendError
from ai.backend.common.structs import replace
from ai.backend.common.wire.appproxy import (
    HEARTBEAT_S,
    TOKEN_HEADER,
    Ack,
    Change,
    Counted,
    State,
    ToWorker,
    WorkerInfo,
    WorkerRegistration,
)
from ai.backend.core.proxy.changes import changes_of
from ai.backend.infra.http.client_traces import client_traces
from ai.backend.infra.loop import PeriodicCall, cancel_all
from ai.backend.infra.retry import Backoff
from ai.backend.infra.tls.certificates import TlsIdentity, create_request, renewal_time

log = logging.getLogger(__name__)
USAGE_S = 2.0
_REQUEST_TIMEOUT = aiohttp.ClientTimeout(total=15.0)
_MAX_FRAME_BYTES = 256 << 20
_decode = msgspec.json.Decoder(ToWorker).decode


class GapInVersions(Exception):
    """Raised when the coordinator's next message does not follow the version of the circuits that the worker has.

    The worker then opens a new link, which begins with all circuits.
    """


class CoordinatorLink:
    """Connects a worker to the coordinator, and applies the coordinator's circuits to the worker's data plane."""

    def __init__(
        self,
        endpoint: str,
        secret: str,
        registration: Callable[[], WorkerRegistration],
        plane: DataPlane,
        dialer: RouteDialer,
        state_file: StateFile,
    ) -> None:
        self._endpoint = endpoint.rstrip("/")
        self._headers = {TOKEN_HEADER: secret}
        self._registration = registration
        self._plane = plane
        self._dialer = dialer
        self._state_file = state_file
        self._usage = UsageReports()
        self._node = uuid4().hex
        self._renewal = datetime.min.replace(tzinfo=UTC)
        self._backoff = Backoff(0.2, 10.0, jitter=0.3)
        self._saving = PeriodicCall("state file", USAGE_S, lambda: asyncio.to_thread(state_file.save))
        self.version = -1
        self.is_linked = False
        self.synchronized = asyncio.Event()
        """Set once the first state of the coordinator is served."""

    async def restore(self) -> None:
        """Serves the circuits that the state file contains."""
        stored_state = self._state_file.load()
        if stored_state.key is not None and stored_state.certificate is not None:
            self._dialer.identity = TlsIdentity(stored_state.key, stored_state.certificate)
        if stored_state.circuits:
            await self._plane.apply(changes_of(State(version=stored_state.version, circuits=stored_state.circuits)))
            log.info("serving %d circuits of the last run until the coordinator answers", len(stored_state.circuits))

    async def run(self) -> None:
        """Keeps the worker connected to the coordinator until the task is cancelled.

        Changes of circuits are written as they come, while others are applied.
        """
        saving_task = asyncio.create_task(self._saving.run())
        try:
            await self._keep_linked()
        finally:
            await cancel_all(saving_task)

    async def _keep_linked(self) -> None:
        async with aiohttp.ClientSession(
            headers=self._headers, timeout=_REQUEST_TIMEOUT, trace_configs=client_traces()
        ) as http_session:
            while True:
                try:
                    await self._link_once(http_session)
                except (BackendError, aiohttp.ClientError, OSError, TimeoutError, ssl.SSLError) as e:
                    log.warning("no link with the coordinator at %s: %s", self._endpoint, str(e) or type(e).__name__)
                except (msgspec.MsgspecError, GapInVersions) as e:
                    log.warning("the link with the coordinator is made anew: %s", e)
                finally:
                    self.is_linked = False
                await self._backoff.wait()

    async def _link_once(self, http: aiohttp.ClientSession) -> None:
        worker_info = await self._register(http)
        url = f"{self._endpoint}/api/worker/{worker_info.id}/link"
        timeout = aiohttp.ClientWSTimeout(ws_close=5.0)
        async with http.ws_connect(
            url,
            params={"node": self._node},
            heartbeat=2 * HEARTBEAT_S,
            max_msg_size=_MAX_FRAME_BYTES,
            timeout=timeout,
        ) as socket:
            self.is_linked = True
            self._backoff.reset()
            log.info("linked with the coordinator as %s (%s)", worker_info.authority, worker_info.id)
            usage_calls = PeriodicCall("usage", USAGE_S, lambda: self._report_usage(socket))
            self._plane.set_waiting_callback(usage_calls.wake)
            heartbeat_calls = PeriodicCall("heartbeat", HEARTBEAT_S, lambda: self._send_heartbeat(http, worker_info.id))
            tasks = [asyncio.create_task(calls.run()) for calls in (usage_calls, heartbeat_calls)]
            try:
                await self._receive_frames(socket)
            finally:
                await cancel_all(*tasks)

    async def _register(self, http: aiohttp.ClientSession) -> WorkerInfo:
        """Registers the worker, and gets a certificate for service gateways. Raises RegistrationFailed."""
        private_key, certificate_request = create_request("appproxy-worker")
        registration = replace(self._registration(), node=self._node, certificate_request=certificate_request)
        url = f"{self._endpoint}/api/worker"
        body, headers = msgspec.json.encode(registration), {"Content-Type": "application/json"}
        async with http.put(url, data=body, headers=headers) as response:
            content = await response.read()
            if response.status != 200:
                raise RegistrationFailed(f"{RegistrationFailed.title}: {response.status} {_reason_of(content)}")
        worker_info = msgspec.json.decode(content, type=WorkerInfo)
        if worker_info.certificate is not None:
            self._dialer.identity = TlsIdentity(private_key, worker_info.certificate)
            self._renewal = renewal_time(worker_info.certificate)
            self._state_file.set_identity(private_key, worker_info.certificate)
            self._saving.wake()
        return worker_info

    async def _receive_frames(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.version = -1
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.TEXT:
                continue
            frame = _decode(message.data)
            if isinstance(frame, Counted):
                self._usage.confirm_report(frame.sequence)
                if self._usage.has_new_waits(self._plane.observe()):
                    await self._report_usage(socket)
                continue
            if isinstance(frame, Change) and (self.version < 0 or frame.version <= self.version):
                raise GapInVersions(f"version {frame.version} does not follow {self.version}")
            await self._apply_frame(socket, frame)

    async def _apply_frame(self, socket: aiohttp.ClientWebSocketResponse, frame: State | Change) -> None:
        apply_result = await self._plane.apply(changes_of(frame))
        self.version = apply_result.version
        circuits = {} if isinstance(frame, State) else dict(self._state_file.circuits)
        changed_circuits, removed_ids = (frame.circuits, []) if isinstance(frame, State) else (frame.set, frame.removed)
        circuits |= {circuit.id: circuit for circuit in changed_circuits}
        for circuit_id in removed_ids:
            circuits.pop(circuit_id, None)
        self._state_file.replace(frame.version, circuits)
        self._saving.wake()
        for circuit_id, reason in apply_result.failed.items():
            log.warning("circuit %s cannot be served: %s", circuit_id, reason)
        await _send_frame(socket, Ack(version=apply_result.version, failed=dict(apply_result.failed)))
        self.synchronized.set()

    async def _report_usage(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        await self._plane.refresh()
        report = self._usage.next_report(self._plane.observe(), time.time(), self._plane.take_usage)
        if report is not None and not socket.closed:
            await _send_frame(socket, report)

    async def _send_heartbeat(self, http: aiohttp.ClientSession, worker_id: UUID) -> None:
        if datetime.now(UTC) >= self._renewal:
            await self._register(http)
        async with http.patch(f"{self._endpoint}/api/worker/{worker_id}", json={"node": self._node}) as response:
            if response.status != 200:
                log.warning("the coordinator does not take the heartbeat: %d", response.status)


async def _send_frame(socket: aiohttp.ClientWebSocketResponse, frame: msgspec.Struct) -> None:
    await socket.send_str(msgspec.json.encode(frame).decode())


def _reason_of(content: bytes) -> str:
    """Returns the message of a problem document, shortened."""
    try:
        problem = msgspec.json.decode(content, type=dict[str, msgspec.Raw | str | int | None])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""
    return str(problem.get("msg") or problem.get("detail") or problem.get("title") or "")[:300]
