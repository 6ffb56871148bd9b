"""Removes what workloads leave: containers, mounts, directories. Every step may be repeated."""

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
LAST = frozenset({"record.json", "removing"})


async def undo_creation(engine: Engine, state: DockerState, folder: DockerFolder, key: WorkloadKey) -> None:
    """Removes everything of a creation that failed or was interrupted; an earlier home stays."""
    record = await asyncio.to_thread(folder.record)
    keep_home = record is None or not record.made_home
    if record is not None:
        with suppress(OSError):  # a full disk
            await asyncio.to_thread(folder.mark_removing, keep_home=keep_home)
    await erase(engine, state, folder, key, keep_home=keep_home)


async def erase(engine: Engine, state: DockerState, folder: DockerFolder, key: WorkloadKey, *, keep_home: bool) -> None:
    """Removes every trace of a workload. The record is removed last, because it leads to all else."""
    await engine.remove(state.container_name(key))
    crash_point("remove.container")
    await asyncio.to_thread(_erase_files, state, folder, key, keep_home)


def _erase_files(state: DockerState, folder: DockerFolder, key: WorkloadKey, keep_home: bool) -> None:
    unstage(folder.path)
    if not keep_home:
        remove_tree(state.home(key.kernel_id))
        crash_point("remove.home")
    if folder.path.is_dir():
        for entry in list(folder.path.iterdir()):
            if entry.name not in LAST:
                remove_tree(entry)
        crash_point("remove.emptied")
        remove_tree(folder.path)


async def reconcile(
    engine: Engine,
    state: DockerState,
    lock: Callable[[WorkloadKey], asyncio.Lock],
    begun: Callable[[DockerRecord, Container | None], Awaitable[None]],
    *,
    is_first: bool,
) -> None:
    """Completes started removals, undoes partial creations, and removes our containers without a record.

    A workload whose ``lock`` is taken is left alone. ``begun`` is called with the lock, for each begun workload and its
    container. ``is_first``: nothing was begun yet, so that probes of images are leftovers too.
    """
    containers: dict[WorkloadKey, Container | None] = {}
    strangers: list[Container] = []
    for container in await engine.list([f"{INSTANCE_LABEL}={state.instance}"]):
        labels = container.get("Labels") or {}
        key = key_of(labels)
        if key is not None:
            containers[key] = container
        elif is_first or labels.get(PURPOSE_LABEL) != "probe":
            strangers.append(container)
    for folder in await asyncio.to_thread(state.all_workloads):
        key = key_of({KEY_LABEL: folder.path.name})
        if key is None:
            await asyncio.to_thread(remove_tree, folder.path)
            continue
        mine = containers.pop(key, None)
        own = lock(key)
        if own.locked():
            continue
        async with own:
            record = await asyncio.to_thread(folder.record)
            if record is not None and record.begun and not folder.is_being_removed:
                await begun(record, mine)
            elif record is not None and folder.is_being_removed:
                await erase(engine, state, folder, key, keep_home=folder.keeps_home)
            else:
                await undo_creation(engine, state, folder, key)
    strangers += [left for key, left in containers.items() if left is not None and not lock(key).locked()]
    for container in strangers:
        log.warning("the container %s belongs to no workload of this agent and is removed", container["Id"][:12])
        await engine.remove(container["Id"])
