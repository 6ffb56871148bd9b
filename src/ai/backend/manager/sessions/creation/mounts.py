"""Resolves the mounts of a session: folders and artifacts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ai.backend.manager.access.caller import Caller
from ai.backend.manager.artifacts.mounts import ArtifactMounts, is_artifact
from ai.backend.manager.folders.model import FolderMount, MountKind
from ai.backend.manager.folders.mounts import MountResolver, check_mounts_are_apart


class SessionMounts:
    """Resolves mounts of virtual folders, and mounts of artifacts if the manager has artifacts."""

    def __init__(self, folders: MountResolver, artifacts: ArtifactMounts | None) -> None:
        self._folders = folders
        self._artifacts = artifacts

    async def resolve(
        self, owner: Caller, mounts: Sequence[str], mount_map: Mapping[str, str], options: Mapping[str, Any]
    ) -> tuple[FolderMount, ...]:
        """Resolves the mounts of folders and artifacts, with arguments and errors of :meth:`MountResolver.resolve`."""
        if self._artifacts is None or not any(map(is_artifact, (*mounts, *mount_map, *options))):
            return await self._folders.resolve(owner, mounts, mount_map, options)
        references = [mount for mount in mounts if is_artifact(mount)]
        artifacts = await self._artifacts.resolve(owner, references, mount_map, options)
        folders = await self._folders.resolve(
            owner,
            [mount for mount in mounts if not is_artifact(mount)],
            _without_mounts(mount_map, references),
            _without_mounts(options, references),
        )
        check_mounts_are_apart((*artifacts, *folders))
        return (*artifacts, *folders)

    async def check(self, owner: Caller, mounts: Sequence[FolderMount]) -> None:
        """Checks that the owner may still mount what an earlier session has mounted. Raises as :meth:`resolve`."""
        for mount in mounts:
            if mount.kind is MountKind.FOLDER:
                await self._folders.check(owner, mount)
            elif self._artifacts is not None:
                await self._artifacts.check(owner, mount)


def _without_mounts(values: Mapping[str, Any], mounts: Sequence[str]) -> dict[str, Any]:
    """Returns ``values`` without the entries that belong to the given mounts.

    Folders refuse entries of unknown mounts.
    """
    return {
        name: value for name, value in values.items() if not any(_belongs_to_mount(name, mount) for mount in mounts)
    }


def _belongs_to_mount(option_key: str, mount: str) -> bool:
    return option_key == mount or (mount.startswith(option_key + ":") and is_artifact(option_key))
