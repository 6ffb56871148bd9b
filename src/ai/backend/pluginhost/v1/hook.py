"""Adapts the actions of a v1 plugin before a workload's creation to a lifecycle hook."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import stat
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, NoReturn

from ai.backend.common.errors import CreationDenied, PluginError, ResourceError
from ai.backend.plugin.accelerator import Mount, WorkloadConfig
from ai.backend.plugin.accelerator.plugin import PluginHook
from ai.backend.plugin.accelerator.shapes import InvalidResponse
from ai.backend.pluginhost.v1.api.alloc_maps import refuse_combination
from ai.backend.pluginhost.v1.api.types import MountInfo, MountTypes
from ai.backend.pluginhost.v1.docker_args import DockerArguments, Untranslatable, denial_of, translate
from ai.backend.pluginhost.v1.values import ask, require_collection, texts_of

if TYPE_CHECKING:
    from ai.backend.pluginhost.v1.adapter import LegacyPluginAdapter

LIBRARY_HOOKS = PurePath("/opt/kernel")
"""The folder in which v1 shows the files of ``get_hooks``."""
_OS_RELEASE = Path("/etc/os-release")
_FILES_FOLDER = "backendai-v1"


class NoDocker:
    """Passed to ``generate_docker_args`` of v1 plugins as the Docker client. Every access raises CreationDenied.

    There is no container engine.
    """

    def __init__(self, plugin: str) -> None:
        self._plugin = plugin

    def __getattr__(self, name: str) -> NoReturn:
        raise CreationDenied(
            f"the v1 plugin {self._plugin} asks the Docker engine (docker.{name}), which there is not here",
            data={"plugin": self._plugin, "argument": f"docker.{name}"},
        )


class LegacyHook(PluginHook):
    """Runs ``pre_create``, the only hook that v1 plugins have. Removes the files of that call after the workload."""

    _plugin: LegacyPluginAdapter

    @property
    def _files_folder(self) -> Path:
        folder_name = f"{self._plugin.key}-{self.workload.kernel_id}"
        return Path(tempfile.gettempdir(), f"{_FILES_FOLDER}-{os.geteuid()}", folder_name)

    async def pre_create(self) -> WorkloadConfig:
        if not self.device_alloc.slots:
            return WorkloadConfig()
        plugin_key, plugin = self._plugin.key, self._plugin.v1
        held_amounts = {slot: dict(amount_of_device) for slot, amount_of_device in self.device_alloc.slots.items()}
        try:
            refuse_combination(held_amounts, plugin.exclusive_slot_types or ())
        except ResourceError as e:
            raise CreationDenied(f"the v1 plugin {plugin_key}: {e.message}") from None
        try:
            arguments = translate(
                await ask(plugin, "generate_docker_args", NoDocker(plugin_key), held_amounts),
                runtime=self.workload.type,
            )
            arguments.mounts += [
                _mount_of(mount_info) for mount_info in await self._generated_mounts(plugin, held_amounts)
            ]
        except Untranslatable as e:
            raise denial_of(plugin_key, e) from None
        self._take_library_hooks(arguments, await self._ask_for_list("get_hooks", _distro(), platform.machine()))
        return WorkloadConfig(
            mounts=_without_repeats(arguments.mounts),
            devices=_without_repeats(arguments.devices),
            env_vars=arguments.env_vars,
            resource_data=texts_of("generate_resource_data", await ask(plugin, "generate_resource_data", held_amounts)),
            networks=_without_repeats(await self._ask_for_list("get_docker_networks", held_amounts)),
            extra_gids=_without_repeats([*arguments.gids, *await self._ask_for_list("get_additional_gids")]),
            extra_syscalls=_without_repeats(await self._ask_for_list("get_additional_allowed_syscalls")),
            cpuset=arguments.cpuset,
            memory_nodes=arguments.memory_nodes,
            cpu_limit=arguments.cpu_limit,
            memory_limit_bytes=arguments.memory_limit_bytes,
        )

    async def post_terminate(self) -> None:
        await asyncio.to_thread(shutil.rmtree, self._files_folder, ignore_errors=True)

    async def _ask_for_list(self, method: str, *arguments: Any) -> Sequence[Any]:
        return require_collection(method, await ask(self._plugin.v1, method, *arguments))

    async def _generated_mounts(self, plugin: object, held_amounts: Any) -> Sequence[MountInfo]:
        """Returns the mounts that the v1 plugin generates for this kernel.

        The plugin may write into a directory of this kernel.
        """
        await asyncio.to_thread(_make_own_directory, self._files_folder)
        mounts = require_collection(
            "generate_mounts", await ask(plugin, "generate_mounts", self._files_folder, held_amounts)
        )
        for mount_number, mount_info in enumerate(mounts):
            if not isinstance(mount_info, MountInfo):
                raise InvalidResponse(f"generate_mounts: [{mount_number}] is {mount_info!r:.60} instead of a MountInfo")
        return mounts

    def _take_library_hooks(self, arguments: DockerArguments, paths: Sequence[Any]) -> None:
        preloaded_paths = [arguments.env_vars["LD_PRELOAD"]] if arguments.env_vars.get("LD_PRELOAD") else []
        for path in paths:
            target = str(LIBRARY_HOOKS / PurePath(path).name)
            arguments.mounts.append(Mount(source=str(path), target=target))
            preloaded_paths.append(target)
        if preloaded_paths:
            arguments.env_vars["LD_PRELOAD"] = ":".join(preloaded_paths)


def _make_own_directory(directory: Path) -> None:
    """Makes a directory that other users may read. Raises PluginError if another user could have made it."""
    for path in (directory.parent, directory):
        path.mkdir(mode=0o755, exist_ok=True)
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise PluginError(f"{path} is not a directory that this user alone can write to")


def _without_repeats(items: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(items))


def _mount_of(mount_info: MountInfo) -> Mount:
    """Returns a read-only mount, as v1 makes them. Raises Untranslatable unless it is a bind mount."""
    if str(getattr(mount_info.mode, "value", mount_info.mode)) != MountTypes.BIND.value:
        raise Untranslatable("MountInfo.mode", f"is {mount_info.mode!s:.40}: only bind is known")
    return Mount(source=str(mount_info.src_path), target=str(mount_info.dst_path))


def _distro() -> str:
    """Returns the Linux distribution of the host (not of the image) in the form of v1, such as ``ubuntu22.04``."""
    try:
        release_lines = _OS_RELEASE.read_text().splitlines()
    except OSError:
        return "unknown"
    release_fields = {
        name: value.strip("\"'")
        for name, separator, value in (line.partition("=") for line in release_lines)
        if separator
    }
    return f"{release_fields.get('ID', 'unknown')}{release_fields.get('VERSION_ID', '')}"
