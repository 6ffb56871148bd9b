"""Tracks this agent's containers by the engine's events and, after failures, by comparisons."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from ai.backend.common.errors import BackendError
from ai.backend.common.ids import SessionId
from ai.backend.plugin.runtime import (
    PortExposure,
    WorkloadExit,
    WorkloadExited,
    WorkloadKey,
    WorkloadState,
    WorkloadView,
)
from ai.backend.runtime.docker import cleanup
from ai.backend.runtime.docker.engine import Container, Engine
from ai.backend.runtime.docker.records import INSTANCE_LABEL, DockerFolder, DockerRecord, DockerState, key_of

log = logging.getLogger(__name__)
EVENT_QUEUE_LIMIT = 10_000
EVENT_OVERLAP_S = 5.0
ENGINE_RETURN_S = 10.0
KILLED = "container-killed"
_RETRY_FIRST_S, _RETRY_MAX_S = 0.2, 5.0


@dataclass(slots=True)
class Handle:
    """One workload. ``reason`` is why the runtime ends it, if it does."""

    record: DockerRecord
    folder: DockerFolder
    exit: WorkloadExit | None = None
    reason: str = ""
    exposure: PortExposure | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def view(self) -> WorkloadView:
        return WorkloadView(
            key=self.record.key,
            session_id=self.record.session_id,
            state=WorkloadState.RUNNING if self.exit is None else WorkloadState.EXITED,
            workload_id=self.record.container_id,
            exit=self.exit,
            labels=self.record.labels,
        )


class Workloads:
    """Tracks the workloads and their ends."""

    def __init__(self, engine: Engine, state: DockerState) -> None:
        self._engine = engine
        self._state = state
        self.handles: dict[WorkloadKey, Handle] = {}
        self.events: asyncio.Queue[WorkloadExited] = asyncio.Queue(EVENT_QUEUE_LIMIT)
        self._locks: WeakValueDictionary[WorkloadKey, asyncio.Lock] = WeakValueDictionary()
        self._is_engine_lost = False
        self._engine_back_at = -ENGINE_RETURN_S
        self._is_first = True
        self._reconciling = asyncio.Lock()

    def lock(self, key: WorkloadKey) -> asyncio.Lock:
        """Returns the lock of a workload, the same for all who hold or wait for it."""
        return self._locks.setdefault(key, asyncio.Lock())

    def remember(self, record: DockerRecord) -> Handle:
        folder = self._state.workload(record.key)
        handle = self.handles[record.key] = Handle(record, folder, folder.exit())
        if handle.exit is not None:
            handle.ended.set()
        return handle

    async def reconcile(self) -> None:
        """Records ends by comparing records and containers; remove containers without one. Raises Unavailable."""
        async with self._reconciling:
            await cleanup.reconcile(self._engine, self._state, self.lock, self._begun, is_first=self._is_first)
            self._is_first = False

    async def _begun(self, record: DockerRecord, container: Container | None) -> None:
        handle = self.handles.get(record.key) or self.remember(record)
        if handle.exit is None and (container is None or container.get("State") != "running"):
            await self.refresh(handle)

    async def refresh(self, handle: Handle) -> WorkloadExit | None:
        """Returns how the workload has ended, as the engine reports now; None while it lives. Raises Unavailable."""
        if handle.exit is not None:
            return handle.exit
        container = await self._engine.inspect(handle.record.container_id)
        if container is not None and container["State"]["Running"]:
            return None
        ended = exit_of(container, handle.reason, engine_failed=self._engine_failed())
        if ended.signal is not None and not ended.reason and await self._engine.was_killed(handle.record.container_id):
            ended = exit_of(container, KILLED)
        if handle.exit is None:
            await self._record_exit(handle, ended)
        return handle.exit

    async def cut_off(self) -> frozenset[SessionId]:
        """Returns the sessions with a running container that has left their network. Raises Unavailable."""
        joined = {h.record.container_id: h.record for h in self.handles.values() if h.exit is None and h.record.network}
        if not joined:
            return frozenset()
        sessions: set[SessionId] = set()
        for container in await self._engine.list([f"{INSTANCE_LABEL}={self._state.instance}"]):
            record = joined.get(str(container.get("Id")))
            if record is None or container.get("State") != "running":
                continue
            endpoints = (container.get("NetworkSettings") or {}).get("Networks") or {}
            if record.network not in {str(endpoint.get("NetworkID")) for endpoint in endpoints.values()}:
                sessions.add(record.session_id)
        return frozenset(sessions)

    def _engine_failed(self) -> bool:
        """Returns True if the engine was lost lately: one that restarts ends the containers that still run."""
        return self._is_engine_lost or time.monotonic() < self._engine_back_at + ENGINE_RETURN_S

    async def _record_exit(self, handle: Handle, ended: WorkloadExit) -> None:
        handle.exit = ended
        handle.ended.set()
        with suppress(asyncio.QueueFull):
            self.events.put_nowait(WorkloadExited(key=handle.record.key, exit=ended))
        try:
            await asyncio.to_thread(handle.folder.write_exit, ended)
        except OSError as error:  # a full disk: the engine still knows, until the container is removed
            log.warning("the end of %s cannot be noted: %s", handle.record.key, error)

    async def follow(self) -> None:
        """Follows the ends that the engine reports, until cancelled; compare again when the engine is back."""
        since, delay_s = time.time() - EVENT_OVERLAP_S, _RETRY_FIRST_S
        label = f"{INSTANCE_LABEL}={self._state.instance}"
        while True:
            try:
                await self.reconcile()
                if self._is_engine_lost:
                    self._is_engine_lost, self._engine_back_at = False, time.monotonic()
                delay_s = _RETRY_FIRST_S
                async for event in self._engine.events(label, since):
                    since = time.time() - EVENT_OVERLAP_S
                    key = key_of((event.get("Actor") or {}).get("Attributes") or {})
                    handle = self.handles.get(key) if key is not None else None
                    if handle is not None and handle.exit is None:
                        await self.refresh(handle)
                self._is_engine_lost = True  # events end with their engine alone, which may answer again at once
            except BackendError as error:
                self._is_engine_lost = True
                log.warning("the Docker engine is not to be heard: %s", error)
            except Exception:
                log.exception("containers and records cannot be compared; trying again")
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _RETRY_MAX_S)


def exit_of(container: Container | None, reason: str, *, engine_failed: bool = False) -> WorkloadExit:
    """Returns how a container that does not run has ended; a removed container was killed.

    The relay and the engine report the death by signal n as code 128 + n.
    """
    if container is None:
        return WorkloadExit(signal=signal.SIGKILL, reason=reason or "container-removed")
    state = container["State"]
    code, oom = int(state.get("ExitCode") or 0), bool(state.get("OOMKilled"))
    number = code - 128 if 128 < code <= 128 + 64 else None
    if number is None and state.get("Error") and code == 0:
        number = int(signal.SIGKILL)
    oom = oom and number == signal.SIGKILL
    if not reason:
        reason = "out-of-memory" if oom else "engine-stopped" if engine_failed else ""
    return WorkloadExit(code=code if number is None else None, signal=number, oom=oom, reason=reason)
