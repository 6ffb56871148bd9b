"""Creates workloads as containers, in an order in which the agent finds the remains of a crash at any instruction.

Record, home and files; the container; its start. Its runner begins once the directory of its channel is closed to it.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from ai.backend.common.errors import CreationDenied, Unavailable, WorkloadError
from ai.backend.common.structs import replace
from ai.backend.node.linux import syscalls
from ai.backend.node.linux.open_beneath import BENEATH, open_source
from ai.backend.node.workload.channel import RelayConnection
from ai.backend.node.workload.file_trees import check_mount, give_home, place_files, remove_tree
from ai.backend.plugin.crash_points import crash_point
from ai.backend.plugin.runtime import WorkloadSpec
from ai.backend.runtime.docker.container_config import EngineFacts, HostPaths, compose, networks_of
from ai.backend.runtime.docker.engine import Engine
from ai.backend.runtime.docker.images import ImageFacts, etc_files
from ai.backend.runtime.docker.records import DockerFolder, DockerRecord, DockerState
from ai.backend.runtime.docker.settings import DockerRuntimeSettings
from ai.backend.runtime.docker.statistics import cgroups_of
from ai.backend.runtime.workload import record_values

_SOCKET_CHECK_S, _INSPECT_S = 0.004, 0.25
_OUTPUT_TAIL_BYTES = 500


class Creation(msgspec.Struct, frozen=True):
    """Creates one workload as a container of the engine."""

    spec: WorkloadSpec
    image: ImageFacts
    settings: DockerRuntimeSettings
    facts: EngineFacts
    engine: Engine
    state: DockerState
    interpreter: Path | None
    owner: tuple[int, int]

    @property
    def folder(self) -> DockerFolder:
        return self.state.workload(self.spec.key)

    async def run(self) -> DockerRecord:
        """Creates the workload and returns its record. Raises BackendError or OSError; the caller undoes it."""
        await self._check_networks()
        record, host_paths = await asyncio.to_thread(self._prepare_files)
        container_name = self.state.container_name(self.spec.key)
        try:
            create_body = compose(self.spec, self.image, self.settings, self.facts, host_paths)
            container_id = await self.engine.create(container_name, create_body)
            crash_point("create.made")
            for network in networks_of(self.spec, self.settings, self.facts)[1:]:
                await self.engine.connect(network, container_id, [self.spec.hostname])
            await self.engine.start(container_id)
            crash_point("create.started")
        finally:
            await asyncio.to_thread(unstage, self.folder.path)  # the container has them, or never will
        try:
            await begin(self.engine, container_id, self.folder, self.settings.start_timeout_s)
        except WorkloadError as error:
            if not self.spec.runtime_class:
                raise
            advice = f"the runtime class {self.spec.runtime_class} must let unix sockets through mounts"
            raise WorkloadError(f"{error.message}; {advice}") from error
        crash_point("create.begun")
        container = await self.engine.inspect(container_id)
        if container is None:
            raise WorkloadError("the container was removed while it started")
        pid = int(container["State"]["Pid"])
        layer_paths = (container.get("GraphDriver") or {}).get("Data") or {}
        record = replace(
            record,
            begun=True,
            container_id=container_id,
            pid=pid,
            cgroups=cgroups_of(pid, self.settings.cgroup_root, container_id),
            writable="" if self.settings.root_filesystem == "read-only" else str(layer_paths.get("UpperDir") or ""),
        )
        await asyncio.to_thread(self.folder.write_record, record)
        return record

    async def _check_networks(self) -> None:
        """Checks that the engine has every network that plugins attach.

        Raises CreationDenied naming the first that is missing.
        """
        plugin_networks = [name for name in self.spec.config.networks if name not in ("none", "host")]
        if not plugin_networks:
            return
        existing_networks = {
            str(network.get(field)) for network in await self.engine.networks() for field in ("Name", "Id")
        }
        for name in plugin_networks:
            if name not in existing_networks:
                message = f"this node's engine has no network {name!r}"
                raise CreationDenied(message, data={"field": "networks", "key": name})

    def _prepare_files(self) -> tuple[DockerRecord, HostPaths]:
        spec, folder = self.spec, self.folder
        for mount in spec.config.mounts:
            check_mount(mount, is_staged=os.geteuid() == 0)
        home = self.state.home(spec.key.kernel_id)
        network = spec.network.network_id if spec.network is not None else ""
        record = DockerRecord(**record_values(spec, self.settings, home), network=network)
        folder.path.mkdir(mode=0o700)
        crash_point("create.directory")
        folder.write_record(record)
        crash_point("create.record")
        owner = self.owner if os.geteuid() == 0 else None
        if not spec.keep_home:
            remove_tree(home)
        home.mkdir(mode=0o700, exist_ok=True)
        folder.channel.mkdir(mode=0o700)
        if owner is not None:
            give_home(home, owner)
            os.chown(folder.channel, *owner)
        crash_point("create.home")
        etc_contents = {target: etc_text.encode() for target, etc_text in etc_files(self.image, *self.owner).items()}
        mounted_files = place_files({**etc_contents, **spec.files}, folder.path, home, owner, spec.private_files)
        host_paths = HostPaths(
            home=home,
            channel=folder.channel,
            files=mounted_files,
            staged=stage(spec, folder.path),
            interpreter=self.interpreter,
            uid=self.owner[0],
            gid=self.owner[1],
            instance=self.state.instance,
        )
        return record, host_paths


def stage(spec: WorkloadSpec, folder: Path) -> Mapping[str, Path]:
    """Bind-mounts sources that lie in session folders at paths of the agent, and returns the paths by source.

    The engine would follow links in the sources. Raises OSError.
    """
    staged_paths: dict[str, Path] = {}
    for mount_number, mount in enumerate(spec.config.mounts):
        if BENEATH not in mount.source:
            continue
        source_fd = open_source(mount.source)
        try:
            staged_path = folder / "staged" / str(mount_number)
            staged_path.parent.mkdir(mode=0o700, exist_ok=True)
            if stat.S_ISDIR(os.fstat(source_fd).st_mode):
                staged_path.mkdir()
            else:
                staged_path.touch()
            syscalls.mount(f"/proc/self/fd/{source_fd}", str(staged_path), "", syscalls.MS_BIND | syscalls.MS_REC)
        finally:
            os.close(source_fd)
        staged_paths[mount.source] = staged_path
    return staged_paths


def unstage(folder: Path) -> None:
    """Unmounts the paths that :func:`stage` bound below the folder; a running container keeps its own mounts."""
    staged_folder = folder / "staged"
    if not staged_folder.is_dir():
        return
    for staged_path in staged_folder.iterdir():
        with suppress(OSError):
            syscalls.unmount(str(staged_path))


async def begin(engine: Engine, container_id: str, folder: DockerFolder, timeout_s: float) -> None:
    """Takes the channel's directory from the session (:func:`seal`), and starts the runner. Raises WorkloadError."""
    loop = asyncio.get_running_loop()
    deadline, next_inspection = loop.time() + timeout_s, loop.time() + _INSPECT_S
    while not (folder.channel / "shim.sock").exists():
        now = loop.time()
        if now > deadline:
            raise WorkloadError(f"the container's first process did not appear within {timeout_s:g} s")
        if now > next_inspection:
            next_inspection = now + _INSPECT_S
            await _require_running(engine, container_id)
        await asyncio.sleep(_SOCKET_CHECK_S)
    await asyncio.to_thread(seal, folder.channel)
    try:
        connection = await RelayConnection.open(folder.channel)
        try:
            async with asyncio.timeout(timeout_s):
                await connection.send({"t": "begin"})
                reply = await connection.receive()
        finally:
            await connection.close()
    except (Unavailable, TimeoutError) as error:
        await _require_running(engine, container_id)
        raise WorkloadError("the container's first process does not answer") from error
    if reply is None or reply.get("t") != "begun":
        raise WorkloadError("the container's first process could not start the runner")


async def _require_running(engine: Engine, container_id: str) -> None:
    container = await engine.inspect(container_id)
    if container is not None and container["State"]["Running"]:
        return
    output_tail = (await engine.logs(container_id))[-_OUTPUT_TAIL_BYTES:].decode(errors="replace").strip()
    engine_error = str(((container or {}).get("State") or {}).get("Error") or "")
    raise WorkloadError(f"the container ended at once: {engine_error or output_tail or 'it said nothing'}")


def seal(channel_folder: Path) -> None:
    """Makes root the owner of the channel's directory and files, so that the session cannot change them.

    Does nothing if the agent is not root. No link that the container may have made is followed. Raises WorkloadError
    for anything but a socket and a file.
    """
    if os.geteuid() != 0:
        return
    channel_fd = os.open(channel_folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchown(channel_fd, 0, 0)
        os.fchmod(channel_fd, 0o711)
        for file_name, is_expected_type in (("shim.sock", stat.S_ISSOCK), ("left", stat.S_ISREG)):
            status = os.stat(file_name, dir_fd=channel_fd, follow_symlinks=False)
            if not is_expected_type(status.st_mode) or status.st_nlink != 1:
                raise WorkloadError(f"the container has put something else in the place of {file_name}")
            os.chown(file_name, 0, 0, dir_fd=channel_fd, follow_symlinks=False)
    except OSError as error:
        raise WorkloadError(f"the channel's directory cannot be closed: {error.strerror}") from error
    finally:
        os.close(channel_fd)
