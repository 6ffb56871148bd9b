"""The process runtime: each workload is a process tree of this host, supervised by a shim of its own."""

from __future__ import annotations

import asyncio
import errno
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

from ai.backend.common.errors import BackendError, CreationDenied, InvalidInput, StorageFull, Unavailable, WorkloadError
from ai.backend.common.ids import SessionId
from ai.backend.common.wire.link import ByteStream
from ai.backend.node.workload import connect, runner_files, statistics
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
from ai.backend.runtime.disk_guard import DiskGuard, used_bytes
from ai.backend.runtime.process import cleanup, creation
from ai.backend.runtime.process.bundle import GVISOR
from ai.backend.runtime.process.images import ProcessImage
from ai.backend.runtime.process.networks import SessionNetworks, make_namespace
from ai.backend.runtime.process.probe import ProbeResult, probe
from ai.backend.runtime.process.processes import pids_of, read_log_tail
from ai.backend.runtime.process.records import Record, StateDirectory, WorkloadDirectory
from ai.backend.runtime.process.rootfs import import_image
from ai.backend.runtime.process.settings import ProcessRuntimeSettings
from ai.backend.runtime.process.zygote_client import Zygote
from ai.backend.runtime.workload import WorkloadRecord

log = logging.getLogger(__name__)
RUNTIME_VERSION = "1"
STOP_TIMEOUT_MARGIN_S = 25.0
EVENT_QUEUE_LIMIT = 10_000


@dataclass(slots=True)
class _Handle:
    """Holds the state of a workload in the agent's memory; the files on disk take precedence."""

    record: Record
    directory: WorkloadDirectory
    watcher: asyncio.Task[None] | None = None
    shim_connection: RelayConnection | None = None
    exit: WorkloadExit | None = None
    """The exit of the workload, once it has been announced."""
    exposure: PortExposure | None = None


def _begin_removal(directory: WorkloadDirectory, *, keep_home: bool) -> bool:
    """Records on disk that a workload is being removed, and returns True if the workload's shim lives."""
    if not directory.path.exists():
        return False
    directory.mark_removing(keep_home=keep_home)
    return directory.is_locked()


def _close_created_fd(creation_future: asyncio.Future[int]) -> None:
    """Closes the agent's descriptor of a created network namespace, even if the task that awaited it was cancelled."""
    if not creation_future.cancelled() and creation_future.exception() is None:
        os.close(creation_future.result())


class ProcessRuntime(AbstractRuntime):
    """Implements :class:`AbstractRuntime` over process trees of this host."""

    name: ClassVar[str] = "process"

    def __init__(self, settings: ProcessRuntimeSettings, state_dir: Path) -> None:
        self.settings = settings
        self._state = StateDirectory(Path(state_dir).absolute(), settings.homes)
        self._networks = SessionNetworks(self._state.path, settings.session_networks)
        self._zygote = Zygote(self._state.path / "supervisor.log")
        self._handles: dict[WorkloadKey, _Handle] = {}
        self._locks: dict[WorkloadKey, asyncio.Lock] = {}
        self._events: asyncio.Queue[WorkloadExited] = asyncio.Queue(EVENT_QUEUE_LIMIT)
        self._probe_result: ProbeResult | None = None
        self._images: dict[str, ProcessImage] = {}
        self._meter = statistics.Meter()
        self._guard = DiskGuard(
            settings, self._state.homes, self._living_records, self._used_bytes, self.pids, self._end_for_disk_usage
        )
        self._guard_task: asyncio.Task[None] | None = None
        self._compiling: asyncio.Task[None] | None = None

    @property
    def state_dir(self) -> Path:
        return self._state.path

    @property
    def probe_result(self) -> ProbeResult:
        """The result of the host's probe. Raises Unavailable before ``setup``."""
        if self._probe_result is None:
            raise Unavailable("the process runtime is not set up")
        return self._probe_result

    @property
    def zygote_pid(self) -> int | None:
        """The pid of the zygote, from which shims are forked; None if the zygote does not live."""
        return self._zygote.pid

    # -- lifetime

    async def setup(self) -> None:
        await asyncio.to_thread(self._state.make)
        try:
            probe_result, images, _ = await asyncio.gather(
                asyncio.to_thread(probe, self.settings, self._state.path),
                asyncio.to_thread(creation.find_images, self.settings, self._state.path),
                self._zygote.start(),
            )
            if self.settings.default_runtime_class == GVISOR and probe_result.no_gvisor:
                raise InvalidInput(probe_result.no_gvisor, data={"default-runtime-class": GVISOR})
        except BaseException:
            await self._zygote.close()
            raise
        self._probe_result = probe_result
        self._set_images(images)
        await asyncio.to_thread(cleanup.clean_all, self._state, probe_result.host.cgroups)
        for directory in self._state.all_workloads():
            record = directory.record()
            if record is not None:
                self._remember(record, directory)
        self._guard_task = asyncio.create_task(self._guard.run(), name="process-runtime-guard")
        if probe_result.host.runner.parent.parent == self._state.path:
            self._compiling = asyncio.create_task(self._compile_runner(probe_result.host.runner), name="compile-runner")

    async def _compile_runner(self, runner_copy: Path) -> None:
        """Compiles the runner in the background; sessions that start meanwhile only start more slowly."""
        await asyncio.to_thread(self._remove_unused_copies, runner_copy)
        interpreters = {
            image.interpreter: image.version
            for image in self._images.values()
            if image.runtime == "python" and not image.rootfs
        }
        await runner_files.compile_runner(runner_copy, interpreters.items())

    def _remove_unused_copies(self, runner_copy: Path) -> None:
        plan_texts = self._state.plans()
        runner_files.remove_other_copies(runner_copy, plan_texts)
        self.probe_result.host.etc_copies.remove_unused(plan_texts)

    async def shutdown(self) -> None:
        handles, self._handles = list(self._handles.values()), {}
        tasks = [task for task in (self._guard_task, self._compiling) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *map(self._stop_watcher, handles), return_exceptions=True)
        self._guard_task = self._compiling = None
        await self._zygote.close()
        if self._probe_result is not None:
            await asyncio.to_thread(self._probe_result.host.cgroups.release)

    def info(self) -> RuntimeInfo:
        probe_result = self.probe_result
        return RuntimeInfo(
            name=self.name,
            version=RUNTIME_VERSION,
            workload_type="process_tree",
            tier=probe_result.tier,
            enforcement=probe_result.enforcement,
            capabilities=probe_result.capabilities,
            no_session_networks=probe_result.no_session_networks,
            no_private_ports=probe_result.no_private_ports,
            no_multi_node_networks=probe_result.no_multi_node_networks,
            cdi_directories=creation.cdi_directories(self._state.path),
            runtime_classes=(GVISOR,) if probe_result.host.runsc else (),
        )

    async def list_images(self) -> Sequence[RuntimeImage]:
        self._set_images(
            await asyncio.to_thread(creation.images_with_current_rootfs, self._images, self.settings, self._state.path)
        )
        images_by_name = {image.name: image for image in self._images.values()}
        return [image.to_runtime_image() for image in images_by_name.values()]

    async def load_image(self, name: str, archive: Path) -> None:
        images_directory = creation.images_directory(self.settings, self._state.path)
        try:
            await asyncio.to_thread(import_image, archive, name, images_directory)
        except OSError as e:
            error_class = StorageFull if e.errno in (errno.ENOSPC, errno.EDQUOT) else WorkloadError
            raise error_class(f"the image {name} cannot be made: {e.strerror}") from e
        await self.list_images()

    def _set_images(self, images: Sequence[ProcessImage]) -> None:
        self._images = {name: image for image in images for name in (*image.aliases, image.name)}

    # -- networks

    async def create_network(
        self, session_id: SessionId, hosts: Sequence[str], overlay: Overlay | None = None
    ) -> NetworkView:
        reason = self.probe_result.no_session_networks if overlay is None else self.probe_result.no_multi_node_networks
        if reason:
            raise CreationDenied(reason)
        return await asyncio.to_thread(self._networks.create, session_id, hosts, overlay)

    async def remove_network(self, session_id: SessionId) -> None:
        if not self.probe_result.no_session_networks:
            await asyncio.to_thread(self._networks.remove, session_id)

    async def list_networks(self) -> Sequence[SessionId]:
        return await asyncio.to_thread(self._networks.sessions)

    async def broken_networks(self) -> Sequence[SessionId]:
        return await asyncio.to_thread(self._networks.broken)

    # -- creation

    async def create(self, spec: WorkloadSpec) -> WorkloadView:
        if spec.runtime_class and (spec.runtime_class != GVISOR or not self.probe_result.host.runsc):
            reason = f": {self.probe_result.no_gvisor}" if spec.runtime_class == GVISOR else ""
            raise CreationDenied(f"this node has no runtime class {spec.runtime_class!r}{reason}")
        async with self._lock_of(spec.key):
            existing_handle = await self._find_handle(spec.key)
            if existing_handle is not None:
                return await asyncio.to_thread(self._view, existing_handle)
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
        host = self.probe_result.host
        if (spec.runtime_class or self.settings.default_runtime_class) == GVISOR:
            host = host.in_gvisor()
        preparation = creation.Creation(spec, image, self.settings, host, self._state, cookie)

        def prepare() -> Record:
            self._guard.check_room()
            return preparation.prepare()

        try:
            record = await asyncio.to_thread(prepare)
            crash_point("create.plan")
            shim_report = await self._spawn(spec, directory)
            crash_point("create.started")
            if not shim_report.get("ok"):
                raise WorkloadError(f"the workload did not start: {shim_report.get('error', '')}")
        except BaseException as error:
            await asyncio.shield(
                asyncio.to_thread(cleanup.undo_creation, self._state, directory, self.probe_result.host.cgroups)
            )
            if isinstance(error, OSError):
                raise WorkloadError(f"the workload could not be prepared: {error}") from error
            raise
        handle = self._remember(record, directory)
        return self._make_view(handle.record, WorkloadState.RUNNING, str(shim_report["leader"][0]), None)

    async def _spawn(self, spec: WorkloadSpec, directory: WorkloadDirectory) -> dict[str, Any]:
        """Has the zygote start the shim of a prepared workload, and returns the shim's report.

        The workload starts in the namespace of its network, if it has one.
        """
        timeout_s = self.settings.start_timeout_s
        if spec.network is None:
            return await self._zygote.spawn(directory.path, timeout_s)
        namespace_task = asyncio.ensure_future(asyncio.to_thread(make_namespace, spec.network, spec.hostname))
        try:
            namespace_fd = await asyncio.shield(namespace_task)
            return await self._zygote.spawn(directory.path, timeout_s, namespace_fd)
        finally:
            namespace_task.add_done_callback(_close_created_fd)

    # -- end

    async def stop(self, key: WorkloadKey, *, grace_s: float) -> WorkloadExit | None:
        async with self._lock_of(key):
            handle = await self._find_handle(key)
            if handle is None:
                self._locks.pop(key, None)
                return None
            if handle.exit is None and await asyncio.to_thread(handle.directory.needs_stop):
                await self._request_end(handle, grace_s, "shim-stop")
            return await self._end_workload(handle)

    async def _end_workload(self, handle: _Handle) -> WorkloadExit:
        """Returns and announces the exit of a workload whose shim has ended the workload on request.

        Announces the exit once. Kills what a dead shim has left.
        """
        directory = handle.directory
        crash_point("stop.exited")
        workload_exit = handle.exit
        if workload_exit is None:
            workload_exit = await asyncio.to_thread(cleanup.recorded_exit, handle.record, directory)
        self._announce_exit(handle, workload_exit)
        return workload_exit

    async def _request_end(self, handle: _Handle, grace_s: float, request_type: str, reason: str = "stopped") -> None:
        """Sends the shim a request to end its workload; kills a shim that does not answer, and its workload with it."""
        directory = handle.directory
        request = {"t": request_type, "grace": grace_s, "reason": reason}
        try:
            async with asyncio.timeout(grace_s + STOP_TIMEOUT_MARGIN_S):
                shim_connection = handle.shim_connection
                if shim_connection is not None and shim_connection.is_open:
                    await shim_connection.send(request)
                    crash_point("stop.requested")
                    while shim_connection.is_open and (handle.exit is None or request_type == "shim-dismiss"):
                        await shim_connection.wait()
                    return
                connection = await RelayConnection.open(directory.path)
                try:
                    await connection.send({"t": "watch"})
                    await connection.send(request)
                    crash_point("stop.requested")
                    while (message := await connection.receive()) is not None:
                        if message.get("t") == "exited" and request_type != "shim-dismiss":
                            break
                finally:
                    await connection.close()
        except (Unavailable, TimeoutError):
            log.warning("the shim of %s does not answer and is killed", directory.path.name)
            await asyncio.to_thread(cleanup.kill_shim, directory)

    async def remove(self, key: WorkloadKey, *, keep_home: bool = False) -> None:
        async with self._lock_of(key):
            directory = self._state.workload(key)
            handle = await self._find_handle(key)
            has_shim = await asyncio.to_thread(_begin_removal, directory, keep_home=keep_home)
            crash_point("remove.marked")
            if handle is not None:
                if has_shim:
                    await self._request_end(handle, 0.0, "shim-dismiss")
                await self._end_workload(handle)
                await self._stop_watcher(handle)
            crash_point("remove.killed")
            await asyncio.to_thread(
                cleanup.erase, self._state, directory, key, keep_home=keep_home, cgroups=self.probe_result.host.cgroups
            )
            self._handles.pop(key, None)
            self._meter.forget(key)
        self._locks.pop(key, None)

    # -- knowledge

    async def inspect(self, key: WorkloadKey) -> WorkloadView | None:
        handle = await self._find_handle(key)
        return None if handle is None else await asyncio.to_thread(self._view, handle)

    async def list_workloads(self) -> Sequence[WorkloadView]:
        return await asyncio.to_thread(lambda: [self._view(handle) for handle in list(self._handles.values())])

    async def open_channel(self, key: WorkloadKey, *, epoch: int, last_seq: int = 0) -> RunnerChannel:
        directory = self._state.workload(key)
        if not directory.path.exists():
            raise Unavailable("there is no such workload")
        return await RelayChannel.attach(directory.path, epoch=epoch, last_seq=last_seq)

    async def port_exposure(self, key: WorkloadKey) -> PortExposure:
        handle = await self._find_handle(key)
        if handle is None:
            raise Unavailable("there is no such workload")
        if handle.record.gvisor:
            return PortExposure.PRIVATE
        if handle.exposure is None:
            handle.exposure = await connect.exposure_of(handle.directory.path)
        return handle.exposure

    async def open_port(self, key: WorkloadKey, port: int) -> ByteStream:
        if await self.port_exposure(key) is PortExposure.HOST:
            directory, home = self._state.workload(key).path, self._state.home(key.kernel_id)
            return await connect.connect_on_host(directory, home, port, await self.pids(key))
        return await connect.connect_inside(self._state.workload(key).path, port)

    async def events(self) -> AsyncIterator[WorkloadExited]:
        while True:
            yield await self._events.get()

    async def read_logs(self, key: WorkloadKey, *, max_bytes: int) -> bytes:
        return await asyncio.to_thread(read_log_tail, self._state.workload(key).path, max_bytes)

    async def measure(self, keys: Sequence[WorkloadKey]) -> Mapping[WorkloadKey, Sequence[Measurement]]:
        measured_workloads = [
            (key, handle.record, partial(pids_of, handle.record, handle.directory))
            for key in keys
            if (handle := self._handles.get(key)) is not None
        ]
        return await asyncio.to_thread(
            self._meter.measure_all, measured_workloads, self.probe_result.host.cgroups, time.monotonic()
        )

    async def pids(self, key: WorkloadKey) -> tuple[int, ...]:
        handle = self._handles.get(key)
        if handle is None:
            return ()
        return await asyncio.to_thread(pids_of, handle.record, handle.directory)

    async def measure_processes(self, key: WorkloadKey) -> Sequence[ProcessView]:
        return await asyncio.to_thread(statistics.process_views, await self.pids(key))

    # -- inside

    def _lock_of(self, key: WorkloadKey) -> asyncio.Lock:
        return self._locks.setdefault(key, asyncio.Lock())

    async def _find_handle(self, key: WorkloadKey) -> _Handle | None:
        handle = self._handles.get(key)
        if handle is None:
            directory = self._state.workload(key)
            if not directory.path.exists():
                return None
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
            workload_exit = await self._exit_or_connection(handle)
        finally:
            handle.watcher = None
        if workload_exit is not None:
            self._announce_exit(handle, workload_exit)

    async def _exit_or_connection(self, handle: _Handle) -> WorkloadExit | None:
        """Returns the workload's exit; None after connecting to its shim, which will report the exit."""
        while True:
            try:
                handle.shim_connection = await RelayConnection.open(
                    handle.directory.path, partial(self._on_message, handle)
                )
                await handle.shim_connection.send({"t": "watch"})
                return None
            except Unavailable:
                try:
                    if not await asyncio.to_thread(handle.directory.needs_stop):
                        return await asyncio.to_thread(cleanup.recorded_exit, handle.record, handle.directory)
                except OSError as error:  # the disk is full; later it is not
                    log.warning("the end of %s cannot be noted yet: %s", handle.record.key, error)
                await asyncio.sleep(1.0)

    def _on_message(self, handle: _Handle, message: dict[str, Any] | None) -> None:
        if message is None:
            is_current = self._handles.get(handle.record.key) is handle
            if is_current and handle.exit is None and handle.watcher is None:
                self._start_watcher(handle)
        elif message.get("t") == "exited":
            self._announce_exit(handle, exit_of(message))  # the connection stays, to dismiss the shim

    async def _stop_watcher(self, handle: _Handle) -> None:
        if (watcher := handle.watcher) is not None:
            watcher.cancel()
            await asyncio.wait({watcher})
        if handle.shim_connection is not None:
            await handle.shim_connection.close()

    def _announce_exit(self, handle: _Handle, workload_exit: WorkloadExit) -> None:
        if handle.exit is not None:
            return
        handle.exit = workload_exit
        with suppress(asyncio.QueueFull):
            self._events.put_nowait(WorkloadExited(key=handle.record.key, exit=workload_exit))

    def _living_records(self) -> list[Record]:
        return [handle.record for handle in self._handles.values() if handle.exit is None]

    async def _used_bytes(self, record: WorkloadRecord) -> int:
        return await used_bytes(self._meter, record, await self.pids(record.key))

    async def _end_for_disk_usage(self, key: WorkloadKey, reason: str, removes_home: bool) -> None:
        """Ends a workload that exceeds its home's limit, or that fills the disk.

        Removes its home, if asked to, once its processes are dead: the shim waits for room to record the exit.
        """
        handle = self._handles.get(key)
        if handle is None:
            return
        async with self._lock_of(key) if removes_home else nullcontext():
            request = asyncio.create_task(self._request_end(handle, 2.0, "shim-stop", reason))
            if removes_home:
                with suppress(TimeoutError):
                    async with asyncio.timeout(STOP_TIMEOUT_MARGIN_S):
                        while not request.done() and await self.pids(key):  # noqa: ASYNC110  # processes send no event
                            await asyncio.sleep(0.05)
                        await self._remove_home(handle)
            with suppress(BackendError):  # a shim that does not answer is looked after by the next check
                await request

    async def _remove_home(self, handle: _Handle) -> None:
        with suppress(OSError):  # the removal of the workload tries again
            await asyncio.to_thread(remove_tree, Path(handle.record.home))

    def _view(self, handle: _Handle) -> WorkloadView:
        directory = handle.directory
        workload_exit = directory.exit()
        leader_identity = (directory.identity() or {}).get("leader")
        if workload_exit is None and not directory.path.exists():
            return self._make_view(handle.record, WorkloadState.GONE, "", None)
        if workload_exit is None and not directory.is_locked():
            workload_exit = directory.exit() or cleanup.record_exit(handle.record, directory)
        state = WorkloadState.RUNNING if leader_identity else WorkloadState.CREATED
        if workload_exit is not None:
            state = WorkloadState.EXITED
        return self._make_view(handle.record, state, str((leader_identity or [0])[0]), workload_exit)

    @staticmethod
    def _make_view(
        record: Record, state: WorkloadState, workload_id: str, workload_exit: WorkloadExit | None
    ) -> WorkloadView:
        return WorkloadView(
            key=record.key,
            session_id=record.session_id,
            state=state,
            workload_id=workload_id,
            exit=workload_exit,
            labels=record.labels,
        )
