"""The process runtime: each workload is a process tree of this host, supervised by a shim of its own."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from ai.backend.common.errors import BackendError, CreationDenied, Unavailable, WorkloadError
from ai.backend.common.ids import SessionId
from ai.backend.common.wire.link import ByteStream
from ai.backend.node.workload import connect, processes, runner_files, statistics
from ai.backend.node.workload.channel import RelayChannel, RelayConnection
from ai.backend.node.workload.directory import exit_of
from ai.backend.node.workload.file_trees import remove_tree
from ai.backend.plugin.accelerator import Measurement
from ai.backend.plugin.crash_points import crash_point
from ai.backend.plugin.runtime import (
    AbstractRuntime,
    NetworkView,
    Overlay,
    PortExposure,
    ProcessView,
    RunnerChannel,
    RuntimeImage,
    RuntimeInfo,
    WorkloadExit,
    WorkloadExited,
    WorkloadKey,
    WorkloadSpec,
    WorkloadState,
    WorkloadView,
)
from ai.backend.runtime.process import cleanup, creation
from ai.backend.runtime.process.images import ProcessImage
from ai.backend.runtime.process.networks import SessionNetworks, make_namespace
from ai.backend.runtime.process.probe import ProbeResult, probe
from ai.backend.runtime.process.processes import pids_of, read_log_tail
from ai.backend.runtime.process.records import Record, StateDirectory, WorkloadDirectory
from ai.backend.runtime.process.settings import ProcessRuntimeSettings
from ai.backend.runtime.process.zygote_client import Zygote
from ai.backend.runtime.workload import WorkloadRecord, guard_homes, used_bytes

log = logging.getLogger(__name__)
VERSION = "1"
STOP_MARGIN_S = 25.0
EVENT_QUEUE_LIMIT = 10_000


@dataclass(slots=True)
class _Handle:
    """The state of a workload in this process; the disk takes precedence."""

    record: Record
    directory: WorkloadDirectory
    watcher: asyncio.Task[None] | None = None
    line: RelayConnection | None = None
    announced: bool = False
    exposure: PortExposure | None = None


def _close_result(made: asyncio.Future[int]) -> None:
    """Closes the created descriptor even if the waiting task was cancelled meanwhile."""
    if not made.cancelled() and made.exception() is None:
        os.close(made.result())


class ProcessRuntime(AbstractRuntime):
    """The :class:`AbstractRuntime` over process trees of this host."""

    name: ClassVar[str] = "process"

    def __init__(self, settings: ProcessRuntimeSettings, state_dir: Path) -> None:
        self.settings = settings
        self._state = StateDirectory(Path(state_dir).absolute())
        self._networks = SessionNetworks(self._state.path, settings.session_networks)
        self._zygote = Zygote(self._state.path / "supervisor.log")
        self._handles: dict[WorkloadKey, _Handle] = {}
        self._locks: dict[WorkloadKey, asyncio.Lock] = {}
        self._events: asyncio.Queue[WorkloadExited] = asyncio.Queue(EVENT_QUEUE_LIMIT)
        self._findings: ProbeResult | None = None
        self._images: dict[str, ProcessImage] = {}
        self._meter = statistics.Meter()
        self._guard: asyncio.Task[None] | None = None
        self._compiling: asyncio.Task[None] | None = None

    @property
    def state_dir(self) -> Path:
        return self._state.path

    @property
    def findings(self) -> ProbeResult:
        """The result of the probe. Raises Unavailable before ``setup``."""
        if self._findings is None:
            raise Unavailable("the process runtime is not set up")
        return self._findings

    @property
    def zygote_pid(self) -> int | None:
        """The number of the process from which shims are forked, if it lives."""
        return self._zygote.pid

    # -- lifetime

    async def setup(self) -> None:
        await asyncio.to_thread(self._state.make)
        try:
            findings, images, _ = await asyncio.gather(
                asyncio.to_thread(probe, self.settings, self._state.path),
                asyncio.to_thread(creation.find_images, self.settings, self._state.path),
                self._zygote.start(),
            )
        except BaseException:
            await self._zygote.close()
            raise
        self._findings = findings
        self._set_images(images)
        await asyncio.to_thread(cleanup.clean_all, self._state, findings.host.cgroups)
        for directory in self._state.all_workloads():
            record = directory.record()
            if record is not None:
                self._remember(record, directory)
        guard = guard_homes(self.settings, self._state.homes, self._living, self._used_bytes, self._end_for_its_home)
        self._guard = asyncio.create_task(guard, name="process-runtime-guard")
        if findings.host.runner.parent.parent == self._state.path:
            self._compiling = asyncio.create_task(self._compile_runner(findings.host.runner), name="compile-runner")

    async def _compile_runner(self, copy: Path) -> None:
        """Compiles the runner in the background; sessions that start meanwhile only start more slowly."""
        await asyncio.to_thread(lambda: runner_files.remove_other_copies(copy, self._state.plans()))
        pythons = {i.interpreter: i.version for i in self._images.values() if i.runtime == "python" and not i.rootfs}
        await runner_files.compile_runner(copy, pythons.items())

    async def shutdown(self) -> None:
        handles, self._handles = list(self._handles.values()), {}
        tasks = [task for task in (self._guard, self._compiling) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *map(self._unwatch, handles), return_exceptions=True)
        self._guard = self._compiling = None
        await self._zygote.close()
        if self._findings is not None:
            await asyncio.to_thread(self._findings.host.cgroups.let_go)

    def info(self) -> RuntimeInfo:
        findings = self.findings
        return RuntimeInfo(
            name=self.name,
            version=VERSION,
            workload_type="process_tree",
            tier=findings.tier,
            enforcement=findings.enforcement,
            capabilities=findings.capabilities,
            no_session_networks=findings.no_session_networks,
            no_multi_node_networks=findings.no_multi_node_networks,
        )

    async def list_images(self) -> Sequence[RuntimeImage]:
        self._set_images(
            await asyncio.to_thread(creation.refresh_rootfs, self._images, self.settings, self._state.path)
        )
        unique = {image.name: image for image in self._images.values()}
        return [image.public() for image in unique.values()]

    def _set_images(self, images: Sequence[ProcessImage]) -> None:
        self._images = {name: image for image in images for name in (*image.aliases, image.name)}

    # -- networks

    async def create_network(
        self, session_id: SessionId, hosts: Sequence[str], overlay: Overlay | None = None
    ) -> NetworkView:
        why_not = self.findings.no_session_networks if overlay is None else self.findings.no_multi_node_networks
        if why_not:
            raise CreationDenied(why_not)
        return await asyncio.to_thread(self._networks.create, session_id, hosts, overlay)

    async def remove_network(self, session_id: SessionId) -> None:
        if not self.findings.no_session_networks:
            await asyncio.to_thread(self._networks.remove, session_id)

    async def list_networks(self) -> Sequence[SessionId]:
        return await asyncio.to_thread(self._networks.sessions)

    async def broken_networks(self) -> Sequence[SessionId]:
        return await asyncio.to_thread(self._networks.broken)

    # -- creation

    async def create(self, spec: WorkloadSpec) -> WorkloadView:
        if spec.runtime_class:
            raise CreationDenied("process trees have no runtime classes")
        async with self._lock(spec.key):
            existing = await self._find(spec.key)
            if existing is not None:
                return await asyncio.to_thread(self._view, existing)
            image = self._images.get(spec.image)
            if image is None:
                await self.list_images()
                image = self._images.get(spec.image)
            if image is None:
                raise CreationDenied(f"this node has no image {spec.image!r}")
            return await self._create(spec, image)

    async def _create(self, spec: WorkloadSpec, image: ProcessImage) -> WorkloadView:
        directory = self._state.workload(spec.key)
        cookie = secrets.token_hex(16)
        job = creation.Creation(spec, image, self.settings, self.findings.host, self._state, cookie)
        try:
            record = await asyncio.to_thread(job.prepare)
            crash_point("create.plan")
            report = await self._spawn(spec, directory)
            crash_point("create.started")
            if not report.get("ok"):
                raise WorkloadError(f"the workload did not start: {report.get('error', '')}")
        except BaseException as error:
            await asyncio.shield(
                asyncio.to_thread(cleanup.undo_creation, self._state, directory, self.findings.host.cgroups)
            )
            if isinstance(error, OSError):
                raise WorkloadError(f"the workload could not be prepared: {error}") from error
            raise
        handle = self._remember(record, directory)
        return self._make_view(handle.record, WorkloadState.RUNNING, str(report["leader"][0]), None)

    async def _spawn(self, spec: WorkloadSpec, directory: WorkloadDirectory) -> dict[str, Any]:
        """Starts the shim of a prepared workload in the namespace of its network; returns the shim's report."""
        timeout_s = self.settings.start_timeout_s
        if spec.network is None:
            return await self._zygote.spawn(directory.path, timeout_s)
        making = asyncio.ensure_future(asyncio.to_thread(make_namespace, spec.network, spec.hostname))
        try:
            namespace = await asyncio.shield(making)
            return await self._zygote.spawn(directory.path, timeout_s, namespace)
        finally:
            making.add_done_callback(_close_result)

    # -- end

    async def stop(self, key: WorkloadKey, *, grace_s: float) -> WorkloadExit | None:
        async with self._lock(key):
            handle = await self._find(key)
            if handle is None:
                self._locks.pop(key, None)
                return None
            return await self._stop(handle, grace_s, "shim-stop")

    async def _stop(self, handle: _Handle, grace_s: float, frame: str) -> WorkloadExit:
        directory = handle.directory
        if await asyncio.to_thread(directory.is_locked) and (frame == "shim-dismiss" or directory.exit() is None):
            await self._ask_to_end(directory, grace_s, frame)
        crash_point("stop.exited")
        ended = await asyncio.to_thread(directory.exit)
        if ended is None:
            ended = await asyncio.to_thread(cleanup.record_exit, handle.record, directory)
        self._announce(handle, ended)
        return ended

    async def _ask_to_end(
        self, directory: WorkloadDirectory, grace_s: float, frame: str, reason: str = "stopped"
    ) -> None:
        """Sends a request to end to the shim; one that does not answer is killed, and its workload dies with it."""
        try:
            connection = await RelayConnection.open(directory.path)
            try:
                async with asyncio.timeout(grace_s + STOP_MARGIN_S):
                    await connection.send({"t": "watch"})
                    await connection.send({"t": frame, "grace": grace_s, "reason": reason})
                    crash_point("stop.requested")
                    while (message := await connection.receive()) is not None:
                        if message.get("t") == "exited" and frame != "shim-dismiss":
                            break
            finally:
                await connection.close()
        except (Unavailable, TimeoutError):
            log.warning("the shim of %s does not answer and is killed", directory.path.name)
            await asyncio.to_thread(cleanup.kill_shim, directory)

    async def remove(self, key: WorkloadKey, *, keep_home: bool = False) -> None:
        async with self._lock(key):
            directory = self._state.workload(key)
            handle = await self._find(key)
            if directory.path.exists():
                await asyncio.to_thread(directory.mark_removing, keep_home=keep_home)
                crash_point("remove.marked")
            if handle is not None:
                await self._stop(handle, 0.0, "shim-dismiss")
                await self._unwatch(handle)
            crash_point("remove.killed")
            await asyncio.to_thread(
                cleanup.erase, self._state, directory, key, keep_home=keep_home, cgroups=self.findings.host.cgroups
            )
            self._handles.pop(key, None)
            self._meter.forget(key)
        self._locks.pop(key, None)

    # -- knowledge

    async def inspect(self, key: WorkloadKey) -> WorkloadView | None:
        handle = await self._find(key)
        return None if handle is None else await asyncio.to_thread(self._view, handle)

    async def list_workloads(self) -> Sequence[WorkloadView]:
        return await asyncio.to_thread(lambda: [self._view(handle) for handle in list(self._handles.values())])

    async def open_channel(self, key: WorkloadKey, *, epoch: int, last_seq: int = 0) -> RunnerChannel:
        directory = self._state.workload(key)
        if not directory.path.exists():
            raise Unavailable("there is no such workload")
        return await RelayChannel.attach(directory.path, epoch=epoch, last_seq=last_seq)

    async def port_exposure(self, key: WorkloadKey) -> PortExposure:
        handle = await self._find(key)
        if handle is None:
            raise Unavailable("there is no such workload")
        if handle.exposure is None:
            handle.exposure = await connect.exposure_of(handle.directory.path)
        return handle.exposure

    async def open_port(self, key: WorkloadKey, port: int) -> ByteStream:
        if await self.port_exposure(key) is PortExposure.HOST:
            return await connect.connect_on_host(self._state.workload(key).path, port, await self.pids(key))
        return await connect.connect_inside(self._state.workload(key).path, port)

    async def events(self) -> AsyncIterator[WorkloadExited]:
        while True:
            yield await self._events.get()

    async def read_logs(self, key: WorkloadKey, *, max_bytes: int) -> bytes:
        return await asyncio.to_thread(read_log_tail, self._state.workload(key).path, max_bytes)

    async def measure(self, keys: Sequence[WorkloadKey]) -> Mapping[WorkloadKey, Sequence[Measurement]]:
        wanted = [
            (key, handle.record, partial(pids_of, handle.record, handle.directory))
            for key in keys
            if (handle := self._handles.get(key)) is not None
        ]
        return await asyncio.to_thread(self._meter.measure_all, wanted, self.findings.host.cgroups, time.monotonic())

    async def pids(self, key: WorkloadKey) -> tuple[int, ...]:
        handle = self._handles.get(key)
        if handle is None:
            return ()
        return await asyncio.to_thread(pids_of, handle.record, handle.directory)

    async def measure_processes(self, key: WorkloadKey) -> Sequence[ProcessView]:
        return await asyncio.to_thread(processes.views, await self.pids(key))

    # -- inside

    def _lock(self, key: WorkloadKey) -> asyncio.Lock:
        return self._locks.setdefault(key, asyncio.Lock())

    async def _find(self, key: WorkloadKey) -> _Handle | None:
        handle = self._handles.get(key)
        if handle is None:
            directory = self._state.workload(key)
            record = await asyncio.to_thread(directory.record)
            if record is None or directory.is_being_removed or directory.identity() is None:
                return None
            handle = self._remember(record, directory)
        return handle

    def _remember(self, record: Record, directory: WorkloadDirectory) -> _Handle:
        handle = self._handles[record.key] = _Handle(record, directory)
        self._start_watcher(handle)
        return handle

    def _start_watcher(self, handle: _Handle) -> None:
        handle.watcher = asyncio.create_task(self._watch(handle), name=f"watch-{handle.record.key}")

    async def _watch(self, handle: _Handle) -> None:
        try:
            ended = await self._end_or_line(handle)
        finally:
            handle.watcher = None
        if ended is not None:
            self._announce(handle, ended)

    async def _end_or_line(self, handle: _Handle) -> WorkloadExit | None:
        """Returns the workload's end; None with a connection on which its shim will report it."""
        while (ended := await asyncio.to_thread(handle.directory.exit)) is None:
            try:
                handle.line = await RelayConnection.open(handle.directory.path, partial(self._on_message, handle))
                await handle.line.send({"t": "watch"})
                return None
            except Unavailable:
                try:
                    if not await asyncio.to_thread(handle.directory.is_locked):
                        return await asyncio.to_thread(cleanup.record_exit, handle.record, handle.directory)
                except OSError as error:  # the disk is full; later it is not
                    log.warning("the end of %s cannot be noted yet: %s", handle.record.key, error)
                await asyncio.sleep(1.0)
        return ended

    def _on_message(self, handle: _Handle, message: dict[str, Any] | None) -> None:
        if message is None:
            is_current = self._handles.get(handle.record.key) is handle
            if is_current and not handle.announced and handle.watcher is None:
                self._start_watcher(handle)
        elif message.get("t") == "exited":
            self._announce(handle, exit_of(message))
            if handle.line is not None:
                handle.line.abandon()

    async def _unwatch(self, handle: _Handle) -> None:
        if (watcher := handle.watcher) is not None:
            watcher.cancel()
            await asyncio.wait({watcher})
        if handle.line is not None:
            await handle.line.close()

    def _announce(self, handle: _Handle, ended: WorkloadExit) -> None:
        if handle.announced:
            return
        handle.announced = True
        with suppress(asyncio.QueueFull):
            self._events.put_nowait(WorkloadExited(key=handle.record.key, exit=ended))

    def _living(self) -> list[Record]:
        return [handle.record for handle in self._handles.values() if not handle.announced]

    async def _used_bytes(self, record: WorkloadRecord) -> int:
        return await used_bytes(self._meter, record, await self.pids(record.key))

    async def _end_for_its_home(self, key: WorkloadKey, is_disk_full: bool) -> None:
        """Ends a workload; on a full disk removes its home first, as its shim could not even record the end."""
        handle = self._handles.get(key)
        if handle is None:
            return
        async with self._lock(key) if is_disk_full else nullcontext():
            if is_disk_full:
                await self._remove_home(handle)
            with suppress(BackendError):  # a shim that does not answer is looked after by the next check
                await self._ask_to_end(handle.directory, 2.0, "shim-stop", "home-limit")
            if is_disk_full:  # what it wrote meanwhile
                await self._remove_home(handle)

    async def _remove_home(self, handle: _Handle) -> None:
        with suppress(OSError):  # the next check tries again
            await asyncio.to_thread(remove_tree, Path(handle.record.home))

    def _view(self, handle: _Handle) -> WorkloadView:
        directory = handle.directory
        ended = directory.exit()
        leader = (directory.identity() or {}).get("leader")
        if ended is None and not directory.path.exists():
            return self._make_view(handle.record, WorkloadState.GONE, "", None)
        if ended is None and not directory.is_locked():
            ended = directory.exit() or cleanup.record_exit(handle.record, directory)
        state = WorkloadState.RUNNING if leader else WorkloadState.CREATED
        if ended is not None:
            state = WorkloadState.EXITED
        return self._make_view(handle.record, state, str((leader or [0])[0]), ended)

    @staticmethod
    def _make_view(record: Record, state: WorkloadState, workload_id: str, ended: WorkloadExit | None) -> WorkloadView:
        return WorkloadView(
            key=record.key,
            session_id=record.session_id,
            state=state,
            workload_id=workload_id,
            exit=ended,
            labels=record.labels,
        )
