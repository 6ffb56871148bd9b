"""Removes the containers, mounts and directories that workloads leave. Every step may be repeated."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from ai.backend.node.workload.file_trees import remove_tree
from ai.backend.plugin.crash_points import crash_point
from ai.backend.plugin.runtime import WorkloadKey
from ai.backend.runtime.docker.creation import unstage
from ai.backend.runtime.docker.engine import Container, Engine
from ai.backend.runtime.docker.records import (
    INSTANCE_LABEL,
    KEY_LABEL,
    PURPOSE_LABEL,
    DockerFolder,
    DockerRecord,
    DockerState,
    key_of,
)

log = logging.getLogger(__name__)
REMOVED_LAST_NAMES = frozenset({"record.json", "removing"})


async def undo_creation(engine: Engine, state: DockerState, folder: DockerFolder, key: WorkloadKey) -> None:
    """Removes everything that a failed or interrupted creation of a workload left, except an earlier home.

    An earlier home is one that the creation did not make.
    """
    record = await asyncio.to_thread(folder.record)
    keep_home = record is None or not record.made_home
    if record is not None:
        with suppress(OSError):  # a full disk
            await asyncio.to_thread(folder.mark_removing, keep_home=keep_home)
    await erase(engine, state, folder, key, keeps_home=keep_home)


async def erase(
    engine: Engine, state: DockerState, folder: DockerFolder, key: WorkloadKey, *, keeps_home: bool
) -> None:
    """Removes a workload's container and files, and its home unless ``keeps_home``.

    The record is removed last, as the removal starts from the record.
    """
    await engine.remove(state.container_name(key))
    crash_point("remove.container")
    await asyncio.to_thread(_erase_files, state, folder, key, keeps_home)


def _erase_files(state: DockerState, folder: DockerFolder, key: WorkloadKey, keeps_home: bool) -> None:
    unstage(folder.path)
    if not keeps_home:
        remove_tree(state.home(key.kernel_id))
        crash_point("remove.home")
    if folder.path.is_dir():
        for entry in list(folder.path.iterdir()):
            if entry.name not in REMOVED_LAST_NAMES:
                remove_tree(entry)
        crash_point("remove.emptied")
        remove_tree(folder.path)


async def reconcile(
    engine: Engine,
    state: DockerState,
    lock_of: Callable[[WorkloadKey], asyncio.Lock],
    on_begun: Callable[[DockerRecord, Container | None], Awaitable[None]],
    *,
    is_first: bool,
) -> None:
    """Completes started removals, undoes partial creations, and removes our containers without a record.

    A workload whose ``lock_of`` is taken is left alone. ``on_begun`` is called with the lock, for each begun workload
    and its container. ``is_first``: nothing was begun yet, so that probes of images are leftovers too.
    """
    containers_by_key: dict[WorkloadKey, Container | None] = {}
    stray_containers: list[Container] = []
    for container in await engine.list([f"{INSTANCE_LABEL}={state.instance}"]):
        labels = container.get("Labels") or {}
        key = key_of(labels)
        if key is not None:
            containers_by_key[key] = container
        elif is_first or labels.get(PURPOSE_LABEL) != "probe":
            stray_containers.append(container)
    for folder in await asyncio.to_thread(state.all_workloads):
        key = key_of({KEY_LABEL: folder.path.name})
        if key is None:
            await asyncio.to_thread(remove_tree, folder.path)
            continue
        own_container = containers_by_key.pop(key, None)
        workload_lock = lock_of(key)
        if workload_lock.locked():
            continue
        async with workload_lock:
            record = await asyncio.to_thread(folder.record)
            if record is not None and record.begun and not folder.is_being_removed:
                await on_begun(record, own_container)
            elif record is not None and folder.is_being_removed:
                await erase(engine, state, folder, key, keeps_home=folder.keeps_home)
            else:
                await undo_creation(engine, state, folder, key)
    stray_containers += [
        leftover for key, leftover in containers_by_key.items() if leftover is not None and not lock_of(key).locked()
    ]
    for container in stray_containers:
        log.warning("the container %s belongs to no workload of this agent and is removed", container["Id"][:12])
        await engine.remove(container["Id"])
