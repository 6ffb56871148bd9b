"""Creates a workload in an order in which a crash at any instruction leaves something that can be found.

Record, home and files; the container; its start. Its runner begins once the directory of its channel is closed to it.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ai.backend.common.errors import Unavailable, WorkloadError
from ai.backend.node.linux import syscalls
from ai.backend.node.linux.open_beneath import BENEATH, open_source
from ai.backend.node.workload.channel import RelayConnection
from ai.backend.node.workload.file_trees import place_files, remove_tree
from ai.backend.node.workload.mounts import check_mount
from ai.backend.plugin.crash_points import crash_point
from ai.backend.plugin.runtime import WorkloadSpec
from ai.backend.runtime.docker.container_config import EngineFacts, HostPaths, compose, networks_of
from ai.backend.runtime.docker.engine import Engine
from ai.backend.runtime.docker.images import ImageFacts, etc_files
from ai.backend.runtime.docker.records import DockerFolder, DockerRecord, DockerState
from ai.backend.runtime.docker.settings import DockerRuntimeSettings
from ai.backend.runtime.docker.statistics import groups_of

_LOOK_S, _INSPECT_S = 0.004, 0.25
_TAIL = 500


@dataclass(frozen=True, slots=True)
class Creation:
    """One attempt to create a workload."""

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
        """Creates it. Raises CreationDenied, WorkloadError, Unavailable or OSError; the caller undoes."""
        record, scene = await asyncio.to_thread(self._prepare)
        name = self.state.container_name(self.spec.key)
        try:
            body = compose(self.spec, self.image, self.settings, self.facts, scene)
            container_id = await self.engine.create(name, body)
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
            hint = f"the runtime class {self.spec.runtime_class} must let unix sockets through mounts"
            raise WorkloadError(f"{error.message}; {hint}") from error
        crash_point("create.begun")
        found = await self.engine.inspect(container_id)
        if found is None:
            raise WorkloadError("the container was removed while it started")
        pid = int(found["State"]["Pid"])
        writable = (found.get("GraphDriver") or {}).get("Data") or {}
        record = replace(
            record,
            begun=True,
            container_id=container_id,
            pid=pid,
            cgroups=groups_of(pid, self.settings.cgroup_root, container_id),
            writable="" if self.settings.root_filesystem == "read-only" else str(writable.get("UpperDir") or ""),
        )
        await asyncio.to_thread(self.folder.write_record, record)
        return record

    def _prepare(self) -> tuple[DockerRecord, HostPaths]:
        spec, folder = self.spec, self.folder
        for mount in spec.config.mounts:
            check_mount(mount, staged=os.geteuid() == 0)
        home = self.state.home(spec.key.kernel_id)
        record = DockerRecord(
            key=spec.key,
            session_id=spec.session_id,
            image=spec.image,
            home=str(home),
            memory_bytes=spec.config.memory_limit_bytes,
            cpu_limit=spec.config.cpu_limit,
            home_bytes=spec.home_bytes or self.settings.home_bytes,
            labels=dict(spec.labels),
            made_home=not home.exists(),
            network=spec.network.network_id if spec.network is not None else "",
        )
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
            os.chown(home, *owner)
            os.chown(folder.channel, *owner)
        crash_point("create.home")
        texts = {target: text.encode() for target, text in etc_files(self.image, *self.owner).items()}
        files = place_files({**texts, **spec.files}, folder.path, home, owner, spec.private_files)
        scene = HostPaths(
            home=home,
            channel=folder.channel,
            files=files,
            staged=stage(spec, folder.path),
            interpreter=self.interpreter,
            uid=self.owner[0],
            gid=self.owner[1],
            instance=self.state.instance,
        )
        return record, scene


def stage(spec: WorkloadSpec, folder: Path) -> Mapping[str, Path]:
    """Binds what lies beneath folders of sessions to places of ours, as the engine follows links. Raises OSError."""
    staged: dict[str, Path] = {}
    for number, mount in enumerate(spec.config.mounts):
        if BENEATH not in mount.source:
            continue
        fd = open_source(mount.source)
        try:
            place = folder / "staged" / str(number)
            place.parent.mkdir(mode=0o700, exist_ok=True)
            if stat.S_ISDIR(os.fstat(fd).st_mode):
                place.mkdir()
            else:
                place.touch()
            syscalls.mount(f"/proc/self/fd/{fd}", str(place), "", syscalls.MS_BIND | syscalls.MS_REC)
        finally:
            os.close(fd)
        staged[mount.source] = place
    return staged


def unstage(folder: Path) -> None:
    """Unmounts everything bound below the folder; a running container keeps its own mounts. Safe without any."""
    staged = folder / "staged"
    if not staged.is_dir():
        return
    for place in staged.iterdir():
        with suppress(OSError):
            syscalls.unmount(str(place))


async def begin(engine: Engine, container_id: str, folder: DockerFolder, timeout_s: float) -> None:
    """Closes the channel's directory to the session, and starts the runner. Raises WorkloadError."""
    loop = asyncio.get_running_loop()
    deadline, look_at = loop.time() + timeout_s, loop.time() + _INSPECT_S
    while not (folder.channel / "shim.sock").exists():
        now = loop.time()
        if now > deadline:
            raise WorkloadError(f"the container's first process did not appear within {timeout_s:g} s")
        if now > look_at:
            look_at = now + _INSPECT_S
            await _require_running(engine, container_id)
        await asyncio.sleep(_LOOK_S)
    await asyncio.to_thread(seal, folder.channel)
    try:
        connection = await RelayConnection.open(folder.channel)
        try:
            async with asyncio.timeout(timeout_s):
                await connection.send({"t": "begin"})
                answer = await connection.receive()
        finally:
            await connection.close()
    except (Unavailable, TimeoutError) as error:
        await _require_running(engine, container_id)
        raise WorkloadError("the container's first process does not answer") from error
    if answer is None or answer.get("t") != "begun":
        raise WorkloadError("the container's first process could not start the runner")


async def _require_running(engine: Engine, container_id: str) -> None:
    found = await engine.inspect(container_id)
    if found is not None and found["State"]["Running"]:
        return
    said = (await engine.logs(container_id))[-_TAIL:].decode(errors="replace").strip()
    error = str(((found or {}).get("State") or {}).get("Error") or "")
    raise WorkloadError(f"the container ended at once: {error or said or 'it said nothing'}")


def seal(channel: Path) -> None:
    """Takes the directory and the files in it from the session's user, if the agent is another one.

    No link that the container may have made is followed. Raises WorkloadError for anything but a socket and a file.
    """
    if os.geteuid() != 0:
        return
    fd = os.open(channel, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchown(fd, 0, 0)
        os.fchmod(fd, 0o711)
        for name, is_kind in (("shim.sock", stat.S_ISSOCK), ("left", stat.S_ISREG)):
            facts = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if not is_kind(facts.st_mode) or facts.st_nlink != 1:
                raise WorkloadError(f"the container has put something else in the place of {name}")
            os.chown(name, 0, 0, dir_fd=fd, follow_symlinks=False)
    except OSError as error:
        raise WorkloadError(f"the channel's directory cannot be closed: {error.strerror}") from error
    finally:
        os.close(fd)
