"""What a session mounts, of whatever kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ai.backend.manager.access.caller import Caller
from ai.backend.manager.artifacts.mounts import ArtifactMounts, is_artifact
from ai.backend.manager.folders.model import FolderMount
from ai.backend.manager.folders.mounts import MountResolver, check_apart


class SessionMounts:
    """Folders, and artifacts where they are kept."""

    def __init__(self, folders: MountResolver, artifacts: ArtifactMounts | None) -> None:
        self._folders = folders
        self._artifacts = artifacts

    async def resolve(
        self, owner: Caller, mounts: Sequence[str], mount_map: Mapping[str, str], options: Mapping[str, Any]
    ) -> tuple[FolderMount, ...]:
        """As :meth:`MountResolver.resolve`, for mounts of every kind."""
        if self._artifacts is None or not any(map(is_artifact, (*mounts, *mount_map, *options))):
            return await self._folders.resolve(owner, mounts, mount_map, options)
        mine = [mount for mount in mounts if is_artifact(mount)]
        found = await self._artifacts.resolve(owner, mine, mount_map, options)
        rest = await self._folders.resolve(
            owner,
            [mount for mount in mounts if not is_artifact(mount)],
            _without(mount_map, mine),
            _without(options, mine),
        )
        check_apart((*found, *rest))
        return (*found, *rest)


def _without(given: Mapping[str, Any], artifacts: Sequence[str]) -> dict[str, Any]:
    """What is said of other mounts than these: a target or option for what is not mounted must be noticed."""
    return {what: value for what, value in given.items() if not any(_means(what, mount) for mount in artifacts)}


def _means(what: str, mount: str) -> bool:
    return what == mount or (mount.startswith(what + ":") and is_artifact(what))
