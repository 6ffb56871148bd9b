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
EVENTS_OVERLAP_S = 5.0
ENGINE_RETURN_GRACE_S = 10.0
CONTAINER_KILLED_REASON = "container-killed"
_FIRST_RETRY_S, _MAX_RETRY_DELAY_S = 0.2, 5.0


@dataclass(slots=True)
class Handle:
    """Holds the state of one workload in the agent's memory, beside its record and directory.

    ``reason`` is the runtime's reason to end the workload; empty if there is none.
    """

    record: DockerRecord
    folder: DockerFolder
    exit: WorkloadExit | None = None
    reason: str = ""
    exposure: PortExposure | None = None
    exit_recorded: asyncio.Event = field(default_factory=asyncio.Event)

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
    """Tracks this agent's workloads, their locks and their exits."""

    def __init__(self, engine: Engine, state: DockerState) -> None:
        self._engine = engine
        self._state = state
        self.handles: dict[WorkloadKey, Handle] = {}
        self.events: asyncio.Queue[WorkloadExited] = asyncio.Queue(EVENT_QUEUE_LIMIT)
        self._locks: WeakValueDictionary[WorkloadKey, asyncio.Lock] = WeakValueDictionary()
        self._is_engine_lost = False
        self._engine_back_at = -ENGINE_RETURN_GRACE_S
        self._is_first = True
        self._reconcile_lock = asyncio.Lock()

    def lock(self, key: WorkloadKey) -> asyncio.Lock:
        """Returns the lock that serializes operations on a workload; all its present users get the same lock."""
        return self._locks.setdefault(key, asyncio.Lock())

    def remember(self, record: DockerRecord) -> Handle:
        folder = self._state.workload(record.key)
        handle = self.handles[record.key] = Handle(record, folder, folder.exit())
        if handle.exit is not None:
            handle.exit_recorded.set()
        return handle

    async def reconcile(self) -> None:
        """Records the exits of ended containers; removes containers without a record. Raises Unavailable."""
        async with self._reconcile_lock:
            await cleanup.reconcile(
                self._engine, self._state, self.lock, self._refresh_if_ended, is_first=self._is_first
            )
            self._is_first = False

    async def _refresh_if_ended(self, record: DockerRecord, container: Container | None) -> None:
        handle = self.handles.get(record.key) or self.remember(record)
        if handle.exit is None and (container is None or container.get("State") != "running"):
            await self.refresh(handle)

    async def refresh(self, handle: Handle) -> WorkloadExit | None:
        """Returns the workload's exit as the engine reports it now; None while the workload lives."""
        if handle.exit is not None:
            return handle.exit
        container = await self._engine.inspect(handle.record.container_id)
        if container is not None and container["State"]["Running"]:
            return None
        workload_exit = exit_of(container, handle.reason, engine_failed=self._engine_failed_lately())
        if (
            workload_exit.signal is not None
            and not workload_exit.reason
            and await self._engine.was_killed(handle.record.container_id)
        ):
            workload_exit = exit_of(container, CONTAINER_KILLED_REASON)
        if handle.exit is None:
            await self._record_exit(handle, workload_exit)
        return handle.exit

    async def sessions_cut_off(self) -> frozenset[SessionId]:
        """Returns the sessions that have a running container that is no longer connected to the session's network.

        Raises Unavailable.
        """
        records_by_container = {
            handle.record.container_id: handle.record
            for handle in self.handles.values()
            if handle.exit is None and handle.record.network
        }
        if not records_by_container:
            return frozenset()
        sessions: set[SessionId] = set()
        for container in await self._engine.list([f"{INSTANCE_LABEL}={self._state.instance}"]):
            record = records_by_container.get(str(container.get("Id")))
            if record is None or container.get("State") != "running":
                continue
            endpoints = (container.get("NetworkSettings") or {}).get("Networks") or {}
            if record.network not in {str(endpoint.get("NetworkID")) for endpoint in endpoints.values()}:
                sessions.add(record.session_id)
        return frozenset(sessions)

    def _engine_failed_lately(self) -> bool:
        """Returns True while the connection to the engine is lost, and for a short time afterwards.

        An engine that restarts ends its running containers.
        """
        return self._is_engine_lost or time.monotonic() < self._engine_back_at + ENGINE_RETURN_GRACE_S

    async def _record_exit(self, handle: Handle, workload_exit: WorkloadExit) -> None:
        handle.exit = workload_exit
        handle.exit_recorded.set()
        with suppress(asyncio.QueueFull):
            self.events.put_nowait(WorkloadExited(key=handle.record.key, exit=workload_exit))
        try:
            await asyncio.to_thread(handle.folder.write_exit, workload_exit)
        except OSError as error:  # a full disk: the engine still knows, until the container is removed
            log.warning("the end of %s cannot be noted: %s", handle.record.key, error)

    async def follow_events(self) -> None:
        """Records the container ends that the engine reports, until cancelled; reconciles when the engine is back."""
        since_time, delay_s = time.time() - EVENTS_OVERLAP_S, _FIRST_RETRY_S
        instance_label = f"{INSTANCE_LABEL}={self._state.instance}"
        while True:
            try:
                await self.reconcile()
                if self._is_engine_lost:
                    self._is_engine_lost, self._engine_back_at = False, time.monotonic()
                delay_s = _FIRST_RETRY_S
                async for event in self._engine.events(instance_label, since_time):
                    since_time = time.time() - EVENTS_OVERLAP_S
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
            delay_s = min(2 * delay_s, _MAX_RETRY_DELAY_S)


def exit_of(container: Container | None, reason: str, *, engine_failed: bool = False) -> WorkloadExit:
    """Returns the exit of a container that does not run; a removed container counts as killed.

    The relay and the engine report the death by signal n as code 128 + n.
    """
    if container is None:
        return WorkloadExit(signal=signal.SIGKILL, reason=reason or "container-removed")
    state = container["State"]
    exit_code, out_of_memory = int(state.get("ExitCode") or 0), bool(state.get("OOMKilled"))
    signal_number = exit_code - 128 if 128 < exit_code <= 128 + 64 else None
    if signal_number is None and state.get("Error") and exit_code == 0:
        signal_number = int(signal.SIGKILL)
    out_of_memory = out_of_memory and signal_number == signal.SIGKILL
    if not reason:
        reason = "out-of-memory" if out_of_memory else "engine-stopped" if engine_failed else ""
    return WorkloadExit(
        code=exit_code if signal_number is None else None, signal=signal_number, oom=out_of_memory, reason=reason
    )
