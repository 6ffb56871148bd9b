"""The Docker runtime: each workload is a container, found by its labels and a record on disk."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import ClassVar

from ai.backend.common.errors import (
    BackendError,
    CreationDenied,
    ImageMissing,
    InvalidInput,
    NotFound,
    Unavailable,
    WorkloadError,
)
from ai.backend.common.ids import SessionId
from ai.backend.common.wire.link import ByteStream
from ai.backend.node.workload import connect, runner_files
from ai.backend.node.workload.channel import RelayChannel
from ai.backend.node.workload.file_trees import tree_size
from ai.backend.node.workload.statistics import Meter, process_views
from ai.backend.plugin.accelerator import Measurement
from ai.backend.plugin.crash_points import crash_point
from ai.backend.plugin.runtime import (
    AbstractRuntime,
    CommitRequest,
    CommittedImage,
    ImageRequest,
    NetworkView,
    Overlay,
    PortExposure,
    ProcessView,
    RunnerChannel,
    RuntimeImage,
    RuntimeInfo,
    TellProgress,
    WorkloadExit,
    WorkloadExited,
    WorkloadKey,
    WorkloadSpec,
    WorkloadView,
)
from ai.backend.runtime.disk_guard import DiskGuard, used_bytes
from ai.backend.runtime.docker import cleanup, statistics
from ai.backend.runtime.docker.capabilities import describe, engine_facts, why_unfit
from ai.backend.runtime.docker.channel import DockerChannel, is_relaying
from ai.backend.runtime.docker.commits import Commits
from ai.backend.runtime.docker.container_config import EngineFacts
from ai.backend.runtime.docker.creation import Creation
from ai.backend.runtime.docker.engine import Engine, EngineRefusal
from ai.backend.runtime.docker.images import ImageFacts, Images
from ai.backend.runtime.docker.loads import load_image
from ai.backend.runtime.docker.networks import SessionNetworks, why_no_multi_node_networks
from ai.backend.runtime.docker.pulls import Pulls
from ai.backend.runtime.docker.records import INSTANCE_LABEL, DockerRecord, DockerState
from ai.backend.runtime.docker.settings import DockerRuntimeSettings
from ai.backend.runtime.docker.workloads import Handle, Workloads
from ai.backend.runtime.workload import WorkloadRecord

log = logging.getLogger(__name__)
KILL_TIMEOUT_S = 25.0
FIRST_END_CHECK_S, MAX_END_CHECK_S = 0.05, 5.0
ENGINE_RETRY_S = 0.5


class DockerRuntime(AbstractRuntime):
    """Implements :class:`AbstractRuntime` over a Docker engine."""

    name: ClassVar[str] = "docker"

    def __init__(self, settings: DockerRuntimeSettings, state_dir: Path) -> None:
        self.settings = settings
        self._state = DockerState(Path(state_dir).absolute(), settings.homes)
        self._engine = Engine(settings.docker_host)
        self._workloads = Workloads(self._engine, self._state)
        is_root = os.geteuid() == 0
        self._owner = (settings.kernel_uid, settings.kernel_gid) if is_root else (os.geteuid(), os.getegid())
        self._images = Images(self._engine, self._state, settings, f"{self._owner[0]}:{self._owner[1]}")
        self._pulls = Pulls(self._engine)
        archives_directory = settings.commit_directory or self._state.path / "commits"
        self._commits = Commits(self._engine, self._state, archives_directory, settings.reserved_bytes)
        self._meter = Meter()
        self._guard = DiskGuard(
            settings, self._state.homes, self._running_records, self._used_bytes, self.pids, self._end_for_disk_usage
        )
        self._background_tasks: list[asyncio.Task[None]] = []
        self._facts: EngineFacts | None = None
        self._networks: SessionNetworks | None = None
        self._info: RuntimeInfo | None = None

    # -- lifetime

    async def setup(self) -> None:
        """Connects to the engine, starts background tasks. Raises Unavailable, or InvalidInput for an unfit engine."""
        await asyncio.to_thread(self._state.make)
        self._state.images.mkdir(mode=0o755, exist_ok=True)
        engine_info = await self._await_engine()
        if unfit_reason := why_unfit(self._engine.host, engine_info):
            await self._engine.close()
            raise InvalidInput(unfit_reason, data={"docker-host": self._engine.host})
        networks = await self._engine.networks()
        self._facts = engine_facts(engine_info, networks)
        no_overlay_reason = await asyncio.to_thread(why_no_multi_node_networks, self._engine.host, self._state.path)
        self._info = describe(self._facts, self.settings, no_overlays=no_overlay_reason)
        default_network = self.settings.network if self.settings.network != "auto" else self._facts.network
        address_pool = self.settings.session_networks
        self._networks = SessionNetworks(self._engine, self._state, address_pool, is_internal=default_network == "none")
        runner_source = self.settings.runner_directory or runner_files.find_runner()
        self._images.runner = await asyncio.to_thread(
            runner_files.copy_runner, runner_source, self._state.path, runner_files.find_relay()
        )
        await self._workloads.reconcile()
        await self._commits.clean()
        containers = await self._engine.list([f"{INSTANCE_LABEL}={self._state.instance}"])
        used_mount_sources = {
            str(mount.get("Source")) for container in containers for mount in container.get("Mounts") or ()
        }
        await asyncio.to_thread(self._images.clean, used_mount_sources)
        loops_by_name = {
            "follow": self._workloads.follow_events(),
            "guard": self._guard.run(),
            "compare": self._compare_loop(),
        }
        self._background_tasks = [
            asyncio.create_task(background_loop, name=f"docker-runtime-{loop_name}")
            for loop_name, background_loop in loops_by_name.items()
        ]

    async def _await_engine(self) -> Mapping[str, object]:
        """Returns the engine's information, after waiting for an engine that is starting. Raises Unavailable."""
        deadline = time.monotonic() + self.settings.engine_timeout_s
        while True:
            try:
                return await self._engine.info()
            except Unavailable as error:
                if time.monotonic() > deadline:
                    await self._engine.close()
                    raise
                log.warning("waiting for the Docker engine: %s", error)
            await asyncio.sleep(ENGINE_RETRY_S)

    async def shutdown(self) -> None:
        tasks, self._background_tasks = self._background_tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._pulls.close()
        self._workloads.handles.clear()
        await self._engine.close()

    def info(self) -> RuntimeInfo:
        if self._info is None:
            raise Unavailable("the Docker runtime is not set up")
        return self._info

    # -- images

    async def list_images(self) -> Sequence[RuntimeImage]:
        return await self._images.list()

    async def lacks_image(self, request: ImageRequest) -> bool:
        return await self._pulls.needs_pull(request)

    async def pull_image(self, request: ImageRequest, tell: TellProgress) -> None:
        await self._pulls.pull(request, tell)

    async def load_image(self, name: str, archive: Path) -> None:
        await load_image(self._engine, name, archive)

    async def remove_image(self, name: str) -> None:
        await self._pulls.remove(name)

    async def commit(self, key: WorkloadKey, request: CommitRequest, tell: TellProgress) -> CommittedImage:
        handle = self._workloads.handles.get(key)
        if handle is None or handle.exit is not None:
            raise NotFound("there is no such workload")
        container = await self._engine.inspect(handle.record.container_id)
        if container is None:
            raise NotFound("the container is gone")
        return await self._commits.commit(key, handle.record.container_id, str(container["Image"]), request, tell)

    # -- networks

    @property
    def networks(self) -> SessionNetworks:
        """The networks of sessions on this engine. Raises Unavailable before ``setup``."""
        if self._networks is None:
            raise Unavailable("the Docker runtime is not set up")
        return self._networks

    async def create_network(
        self, session_id: SessionId, hosts: Sequence[str], overlay: Overlay | None = None
    ) -> NetworkView:
        if overlay is not None and (reason := self.info().no_multi_node_networks):
            raise CreationDenied(reason)
        return await self.networks.create(session_id, hosts, overlay)

    async def remove_network(self, session_id: SessionId) -> None:
        await self.networks.remove(session_id)

    async def list_networks(self) -> Sequence[SessionId]:
        return await self.networks.sessions()

    async def broken_networks(self) -> Sequence[SessionId]:
        return tuple(await self._workloads.sessions_cut_off())

    # -- creation

    async def create(self, spec: WorkloadSpec) -> WorkloadView:
        async with self._workloads.lock(spec.key):
            existing_handle = self._workloads.handles.get(spec.key)
            if existing_handle is not None:
                await self._workloads.refresh(existing_handle)
                return existing_handle.view()
            image = await self._images.facts(spec.image)
            await asyncio.to_thread(self._guard.check_room)
            return (await self._create_container(spec, image)).view()

    async def _create_container(self, spec: WorkloadSpec, image: ImageFacts) -> Handle:
        assert self._facts is not None
        creation = Creation(
            spec=spec,
            image=image,
            settings=self.settings,
            facts=self._facts,
            engine=self._engine,
            state=self._state,
            interpreter=self._images.interpreter,
            owner=self._owner,
        )
        try:
            return self._workloads.remember(await creation.run())
        except BaseException as error:
            await asyncio.shield(self._undo_creation(creation))
            if isinstance(error, OSError):
                raise WorkloadError(f"the workload could not be prepared: {error}") from error
            if isinstance(error, EngineRefusal) and "no such image" in error.message.lower():
                raise ImageMissing(f"this node has no image {spec.image!r}") from error
            if isinstance(error, EngineRefusal) and error.status in (400, 404):
                raise CreationDenied(f"the engine refuses: {error.message}") from error
            raise

    async def _undo_creation(self, creation: Creation) -> None:
        """Removes the container and the files of a failed creation.

        Logs a failure of the removal; the next comparison with the engine tries again.
        """
        try:
            await cleanup.undo_creation(self._engine, self._state, creation.folder, creation.spec.key)
        except (BackendError, OSError) as error:
            log.warning("the creation of %s cannot be undone yet: %s", creation.spec.key, error)

    # -- end

    async def stop(self, key: WorkloadKey, *, grace_s: float) -> WorkloadExit | None:
        async with self._workloads.lock(key):
            handle = self._workloads.handles.get(key)
            if handle is None:
                return None
            return await self._end_workload(handle, grace_s, "stopped")

    async def _end_workload(self, handle: Handle, grace_s: float, reason: str) -> WorkloadExit:
        """Ends a workload by SIGTERM, then SIGKILL. Raises Unavailable if the engine does not end the container."""
        workload_exit = await self._workloads.refresh(handle)
        if workload_exit is not None:
            return workload_exit
        handle.reason = handle.reason or reason
        container_id = handle.record.container_id
        if grace_s > 0:
            await self._engine.kill(container_id, "SIGTERM")
            await self._engine.wait(container_id, grace_s)
        crash_point("stop.requested")
        workload_exit = await self._workloads.refresh(handle)
        if workload_exit is None:
            await self._engine.kill(container_id, "SIGKILL")
            await self._engine.wait(container_id, KILL_TIMEOUT_S)
            workload_exit = await self._workloads.refresh(handle)
        crash_point("stop.exited")
        if workload_exit is None:
            raise Unavailable(f"the engine does not end the container {container_id[:12]}")
        return workload_exit

    async def remove(self, key: WorkloadKey, *, keep_home: bool = False) -> None:
        async with self._workloads.lock(key):
            folder = self._state.workload(key)
            handle = self._workloads.handles.get(key)
            if handle is not None and handle.exit is None:
                await self._end_workload(handle, 0.0, "removed")
            if folder.path.exists():
                with suppress(OSError):  # a full disk; the agent asks again if this is cut off
                    await asyncio.to_thread(folder.mark_removing, keep_home=keep_home)
                crash_point("remove.marked")
            await cleanup.erase(self._engine, self._state, folder, key, keeps_home=keep_home)
            self._workloads.handles.pop(key, None)
            self._meter.forget(key)

    # -- knowledge

    async def inspect(self, key: WorkloadKey) -> WorkloadView | None:
        handle = self._workloads.handles.get(key)
        if handle is None:
            return None
        await self._workloads.refresh(handle)
        return handle.view()

    async def list_workloads(self) -> Sequence[WorkloadView]:
        """Lists the workloads from memory, which the engine's events and the comparisons update."""
        return [handle.view() for handle in list(self._workloads.handles.values())]

    async def open_channel(self, key: WorkloadKey, *, epoch: int, last_seq: int = 0) -> RunnerChannel:
        handle = self._workloads.handles.get(key)
        if handle is None:
            raise Unavailable("there is no such workload")
        channel_folder = handle.folder.channel
        relay_channel: RelayChannel | None = None
        if handle.exit is None:
            try:
                relay_channel = await RelayChannel.attach(channel_folder, epoch=epoch, last_seq=last_seq)
            except Unavailable:
                if await self._workloads.refresh(handle) is None:
                    raise
        left_messages_limit_bytes = self.settings.replay_bytes
        return DockerChannel(
            relay_channel,
            channel_folder,
            partial(self._await_exit, handle),
            last_seq=last_seq,
            left_messages_limit_bytes=left_messages_limit_bytes,
        )

    async def _await_exit(self, handle: Handle) -> WorkloadExit | None:
        """Waits after the end of a channel until the container has exited, and returns the exit.

        Returns None if the container's relay still runs and serves another agent.
        """
        delay_s, last_error = FIRST_END_CHECK_S, ""
        while True:
            try:
                if (workload_exit := await self._workloads.refresh(handle)) is not None:
                    return workload_exit
            except BackendError as error:
                if error.message != last_error:
                    log.warning("the engine cannot say how %s is: %s", handle.record.key, error)
                last_error = error.message
            if await is_relaying(handle.folder.channel):
                return None
            with suppress(TimeoutError):
                await asyncio.wait_for(handle.exit_recorded.wait(), delay_s)
            delay_s = min(2 * delay_s, MAX_END_CHECK_S)

    async def port_exposure(self, key: WorkloadKey) -> PortExposure:
        handle = self._require_living(key)
        if handle.exposure is None:
            container_description = await self._engine.inspect(handle.record.container_id)
            if container_description is None:
                raise Unavailable("there is no such workload")
            network_mode = container_description["HostConfig"]["NetworkMode"]
            handle.exposure = PortExposure.HOST if network_mode == "host" else PortExposure.PRIVATE
        return handle.exposure

    async def open_port(self, key: WorkloadKey, port: int) -> ByteStream:
        if await self.port_exposure(key) is PortExposure.HOST:
            handle = self._require_living(key)
            pids = await self.pids(key)
            return await connect.connect_on_host(handle.folder.channel, Path(handle.record.home), port, pids)
        return await connect.connect_inside(self._require_living(key).folder.channel, port)

    def _require_living(self, key: WorkloadKey) -> Handle:
        handle = self._workloads.handles.get(key)
        if handle is None or handle.exit is not None:
            raise Unavailable("there is no such workload")
        return handle

    async def events(self) -> AsyncIterator[WorkloadExited]:
        while True:
            yield await self._workloads.events.get()

    async def read_logs(self, key: WorkloadKey, *, max_bytes: int) -> bytes:
        handle = self._workloads.handles.get(key)
        if handle is None or max_bytes <= 0:
            return b""
        return (await self._engine.logs(handle.record.container_id))[-max_bytes:]

    async def measure(self, keys: Sequence[WorkloadKey]) -> Mapping[WorkloadKey, Sequence[Measurement]]:
        assert self._facts is not None
        handles = [handle for key in keys if (handle := self._workloads.handles.get(key)) is not None]
        records = [handle.record for handle in handles if handle.exit is None]
        if self.settings.stats_type == "docker":
            samples = await asyncio.gather(*(self._engine.stats(record.container_id) for record in records))
            records_with_samples = zip(records, samples, strict=True)
            return {
                record.key: statistics.measurements_from_api(sample, record)
                for record, sample in records_with_samples
                if sample is not None
            }
        measured_workloads = [(record.key, record, partial(statistics.pids_of, record)) for record in records]
        cgroup_driver = statistics.cgroup_driver_of(self._facts.cgroups, self.settings.cgroup_root)
        return await asyncio.to_thread(self._meter.measure_all, measured_workloads, cgroup_driver, time.monotonic())

    async def pids(self, key: WorkloadKey) -> tuple[int, ...]:
        handle = self._workloads.handles.get(key)
        return () if handle is None else await asyncio.to_thread(statistics.pids_of, handle.record)

    async def measure_processes(self, key: WorkloadKey) -> Sequence[ProcessView]:
        return await asyncio.to_thread(process_views, await self.pids(key))

    # -- inside

    async def _compare_loop(self) -> None:
        while True:
            await asyncio.sleep(self.settings.reconcile_interval_s)
            try:
                await self._workloads.reconcile()
            except (BackendError, OSError) as error:
                log.warning("containers and records cannot be compared: %s", error)

    def _running_records(self) -> list[DockerRecord]:
        return [handle.record for handle in self._workloads.handles.values() if handle.exit is None]

    async def _used_bytes(self, record: WorkloadRecord) -> int:
        total_bytes = await used_bytes(self._meter, record, await self.pids(record.key))
        if isinstance(record, DockerRecord) and record.writable:
            total_bytes += await asyncio.to_thread(tree_size, Path(record.writable))
        return total_bytes

    async def _end_for_disk_usage(self, key: WorkloadKey, reason: str, _: bool) -> None:
        handle = self._workloads.handles.get(key)
        if handle is None:
            return
        try:
            async with self._workloads.lock(key):
                await self._end_workload(handle, 2.0, reason)
        except BackendError as error:
            log.warning("the workload %s cannot be ended: %s", key, error)
