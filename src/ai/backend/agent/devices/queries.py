"""Asks the plugins of a node for the devices that they offer, and applies late answers when they arrive."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from functools import partial
from typing import Any

from ai.backend.agent.devices.kinds import DeviceKind
from ai.backend.agent.devices.network_cards import needs_cards, with_network_cards
from ai.backend.agent.devices.partition_profiles import list_uncut_partitions
from ai.backend.common.devices import AllocMapSpec
from ai.backend.common.errors import BackendError
from ai.backend.plugin.accelerator import AbstractComputePlugin, responses
from ai.backend.plugin.sysfs.tree import Tree
from ai.backend.pluginhost.handle import PluginHandle

log = logging.getLogger(__name__)
ANSWER_PATIENCE_S = 3.0
"""How long :meth:`PluginQueries.ask` waits for slow plugins."""
OtherOwnerOf = Callable[[str, str], str | None]
"""Returns the plugin that owns a slot, if it is another plugin than the first argument, and otherwise None."""


async def _alloc_map_spec_of(plugin: AbstractComputePlugin) -> AllocMapSpec | None:
    return plugin.alloc_map_spec()


async def query_devices(
    handle: PluginHandle, *, other_owner_of: OtherOwnerOf, cut_on_demand: Collection[str], tree: Tree
) -> DeviceKind:
    """Returns the devices and slots that a plugin offers now. Raises BackendError."""
    other_owner_of_slot = partial(other_owner_of, handle.key)
    queried_at = asyncio.get_running_loop().time()
    displays = await handle.call(
        "configurable_slots",
        lambda plugin: plugin.configurable_slots(),
        check=partial(responses.validate_displays, owner_of=other_owner_of_slot),
    )
    listed_devices = await handle.call(
        "list_devices",
        lambda plugin: plugin.list_devices(),
        check=partial(
            responses.validate_devices, key=handle.key, displays=tuple(displays), owner_of=other_owner_of_slot
        ),
    )
    slots = await handle.call(
        "available_slots",
        lambda plugin: plugin.available_slots(),
        check=partial(responses.validate_slots, listed_devices=listed_devices, displays=tuple(displays)),
    )
    namespaces = await handle.call(
        "variant_namespaces", lambda plugin: plugin.variant_namespaces(), check=responses.validate_namespaces
    )
    alloc_map_spec = await handle.call(
        "alloc_map_spec", _alloc_map_spec_of, check=partial(responses.validate_alloc_map, listed_devices=listed_devices)
    )
    if needs_cards(listed_devices):
        listed_devices = await asyncio.to_thread(with_network_cards, listed_devices, tree)
    if handle.key in cut_on_demand and alloc_map_spec is not None:
        listed_devices = await list_uncut_partitions(handle, listed_devices, displays)
    return DeviceKind(
        devices=tuple(listed_devices),
        listed_devices=tuple(listed_devices),
        queried_at=queried_at,
        displays=tuple(displays),
        slots=dict(slots),
        alloc_map_spec=alloc_map_spec,
        namespaces=tuple(namespaces),
    )


async def query_info(handle: PluginHandle) -> dict[str, str]:
    """Returns the versions of the software on the node that a plugin reports, such as its driver.

    Raises BackendError.
    """
    node_info = await handle.call(
        "get_node_info", lambda plugin: plugin.get_node_info(), check=responses.validate_node_info
    )
    versions = {"driver_version": node_info.driver_version, "runtime_version": node_info.runtime_version}
    return {**node_info.extra, **{component: version for component, version in versions.items() if version}}


class PluginQueries:
    """Asks plugins for their devices and versions, with at most one query of each kind to a plugin at a time.

    Answers are applied under ``lock``, because the older of two must not win.
    """

    def __init__(
        self,
        query: Callable[[PluginHandle], Coroutine[Any, Any, DeviceKind]],
        *,
        apply: Callable[[PluginHandle, asyncio.Task[DeviceKind]], bool],
        apply_info: Callable[[PluginHandle, dict[str, str]], None],
        finish: Callable[[bool], Awaitable[None]],
        report: Callable[[], None],
    ) -> None:
        """Stores the functions that query a plugin and that process its answers.

        ``apply`` takes over an answer and returns True if devices or slots have changed. After a late answer ``finish``
        is awaited under the lock, and ``report`` is called if the answer has changed something.
        """
        self.lock = asyncio.Lock()
        self._query = query
        self._apply = apply
        self._apply_info = apply_info
        self._finish = finish
        self._report = report
        self._queries: dict[PluginHandle, asyncio.Task[DeviceKind]] = {}
        self._late: dict[PluginHandle, asyncio.Task[None]] = {}
        self._info_queries: dict[PluginHandle, asyncio.Task[None]] = {}

    async def ask_devices(self, handles: Sequence[PluginHandle], order: Callable[[], Sequence[PluginHandle]]) -> bool:
        """Asks plugins for their devices and applies the answers. Returns True if an answer changed something. Answers
        are applied in the order that ``order`` returns.

        A slow plugin is waited for ``ANSWER_PATIENCE_S``; its answer is applied when it comes. The caller has the lock.
        """
        for handle in handles:
            if handle not in self._queries:
                self._queries[handle] = asyncio.create_task(self._query(handle), name=f"agent-query-{handle.key}")
        if self._queries:
            await asyncio.wait(self._queries.values(), timeout=ANSWER_PATIENCE_S)
        is_changed = False
        for handle in [handle for handle in order() if handle in self._queries]:
            if self._queries[handle].done():
                is_changed |= self._apply(handle, self._queries.pop(handle))
            elif handle not in self._late:
                self._late[handle] = asyncio.create_task(self._apply_late(handle), name=f"agent-late-{handle.key}")
        return is_changed

    async def ask_devices_again(self, handle: PluginHandle) -> bool:
        """Asks one plugin for its present devices, and cancels an older query that has no answer yet. The caller has
        the lock.
        """
        if (older_query := self._queries.pop(handle, None)) is not None:
            older_query.cancel()
        query = asyncio.create_task(self._query(handle), name=f"agent-query-{handle.key}")
        await asyncio.wait([query])
        return self._apply(handle, query)

    async def _apply_late(self, handle: PluginHandle) -> None:
        """Applies the answer of a slow plugin as soon as it is there."""
        query = self._queries[handle]
        try:
            await asyncio.wait([query])
            async with self.lock:
                if self._queries.get(handle) is not query:
                    return  # a refresh has applied it meanwhile
                is_changed = self._apply(handle, self._queries.pop(handle))
                await self._finish(is_changed)
        finally:
            self._late.pop(handle, None)
        if is_changed:
            self._report()

    async def ask_info(self, handles: Sequence[PluginHandle]) -> None:
        """Asks plugins for the versions of their node. A plugin that still owes an answer is not asked again."""
        asked_handles = [handle for handle in handles if handle not in self._info_queries]
        for handle in asked_handles:
            query = asyncio.create_task(self._ask_info(handle), name=f"agent-info-{handle.key}")
            self._info_queries[handle] = query
        if asked_handles:
            await asyncio.wait([self._info_queries[handle] for handle in asked_handles], timeout=ANSWER_PATIENCE_S)
        for handle in [handle for handle, query in self._info_queries.items() if query.done()]:
            del self._info_queries[handle]

    async def _ask_info(self, handle: PluginHandle) -> None:
        """Asks a plugin for the versions of its node, and stores them. A failed plugin keeps its last versions."""
        try:
            self._apply_info(handle, await query_info(handle))
        except BackendError as e:
            log.debug("the versions of %s are not renewed: %s", handle.key, e)

    async def close(self) -> None:
        """Cancels queries that have not been answered."""
        tasks = [*self._queries.values(), *self._late.values(), *self._info_queries.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._queries.clear()
        self._info_queries.clear()
