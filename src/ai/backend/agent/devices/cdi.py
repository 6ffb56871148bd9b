"""Writes the CDI specifications of plugins into the directory where the runtime looks device names up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from ai.backend.agent.devices.plugins import PluginSet
from ai.backend.common.errors import BackendError, InvalidInput
from ai.backend.node.cdi.registry import CdiRegistry
from ai.backend.node.cdi.writing import file_prefix, remove_others, write_specification
from ai.backend.plugin.accelerator import CdiProvider
from ai.backend.pluginhost.handle import PluginHandle

log = logging.getLogger(__name__)


class CdiSpecifications:
    """Keeps one file for each plugin with the capability :class:`CdiProvider`, and removes files of other plugins.

    ``directories`` returns those of the runtime; files are written into the last one. Devices that a file of somebody
    else describes are left out: a name in two files of one directory is in neither.
    """

    def __init__(self, plugins: PluginSet, directories: Callable[[], Sequence[str]], *, agent_id: str) -> None:
        self._plugins = plugins
        self._directories = directories
        self._agent_id = agent_id
        self._names_of_plugin: dict[str, frozenset[str]] = {}
        self._refreshing = asyncio.Lock()
        self._problem = ""

    async def refresh(self) -> None:
        """Asks every provider for its specification, and writes those that differ. A failed plugin keeps its file."""
        directories = self._directories()
        if not directories:
            return
        async with self._refreshing:
            providers = [handle for handle in self._plugins.started() if handle.plugin.capabilities.cdi_provider]
            await asyncio.gather(*(self._refresh_plugin(handle, directories) for handle in providers))
            if all(handle.version for handle in self._plugins.handles):  # else not every device name is known
                kept_keys = {
                    handle.key for handle in self._plugins.handles if not handle.started or handle in providers
                }
                await asyncio.to_thread(remove_others, Path(directories[-1]), self._agent_id, kept_keys)

    async def ensure(self, names: Collection[str]) -> None:
        """Refreshes the files if one of these device names is described by no file, such as that of a new device."""
        described_names = frozenset(name for names in self._names_of_plugin.values() for name in names)
        if not described_names.issuperset(names):
            await self.refresh()

    async def _refresh_plugin(self, handle: PluginHandle, directories: Sequence[str]) -> None:
        try:
            content = await handle.call("cdi_spec", lambda plugin: cast("CdiProvider", plugin).cdi_spec())
            self._names_of_plugin[handle.key] = await asyncio.to_thread(self._write, handle.key, content, directories)
        except InvalidInput as e:
            handle.complain("cdi_spec", f"cdi_spec: {e.message}")
        except BackendError as e:
            log.debug("the CDI specification of %s is not renewed: %s", handle.key, e)
        except OSError as e:
            self._report(f"no CDI specifications are written to {directories[-1]}: {e.strerror or e}")
        else:
            self._report("")

    def _report(self, problem: str) -> None:
        if problem and problem != self._problem:
            log.warning("%s", problem)
        self._problem = problem

    def _write(self, plugin_key: str, content: Mapping[str, Any], directories: Sequence[str]) -> frozenset[str]:
        devices_of_others = CdiRegistry(directories, without_prefix=file_prefix(self._agent_id)).devices()
        cdi_kind, devices = content.get("kind"), content.get("devices")
        if isinstance(devices, list | tuple):
            own_devices = [
                device
                for device in devices
                if not isinstance(device, Mapping) or f"{cdi_kind}={device.get('name')}" not in devices_of_others
            ]
            content = {**content, "devices": own_devices}
        return write_specification(Path(directories[-1]), self._agent_id, plugin_key, content)
