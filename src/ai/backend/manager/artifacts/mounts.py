"""Resolves the artifact mounts of a session: ``artifact:NAME[@VERSION]``, read-only (decision 0087)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from ai.backend.common.artifacts import REFERENCE_PREFIX, ArtifactType
from ai.backend.common.errors import BackendError, Conflict, InvalidInput, NotFound, Unavailable
from ai.backend.common.ids import FolderId
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import require
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.artifacts.gateway import ArtifactGateway
from ai.backend.manager.artifacts.model import EVERYONE, RevisionRow, viewers_of
from ai.backend.manager.artifacts.service import ArtifactService
from ai.backend.manager.folders.model import FolderMount, MountKind
from ai.backend.manager.folders.mounts import check_target

_POLL_PAUSE_S = 0.2


def is_artifact(mount: str) -> bool:
    return mount.startswith(REFERENCE_PREFIX)


@contextmanager
def _with_artifact_name(ref: str) -> Iterator[None]:
    """Adds the name of an artifact to the message of an error that the block raises.

    A missing or unavailable artifact becomes InvalidInput.
    """
    try:
        yield
    except BackendError as e:
        error_class = InvalidInput if isinstance(e, NotFound | Conflict | InvalidInput) else type(e)
        message = f"The artifact {ref[:256]!r} cannot be mounted: {e.message}"
        raise error_class(message, data={"config.mounts": f"{REFERENCE_PREFIX}{ref[:256]}: {e.code}"}) from None


class ArtifactMounts(msgspec.Struct, frozen=True, kw_only=True):
    """Finds the revisions that a session's mounts name, and the directories of the revisions on the nodes.

    ``wait_s``: seconds that the creation of a session waits for a mountable copy.
    """

    gateway: ArtifactGateway
    artifacts: ArtifactService
    wait_s: float

    async def resolve(
        self, owner: Caller, mounts: Sequence[str], mount_map: Mapping[str, str], options: Mapping[str, Any]
    ) -> list[FolderMount]:
        """Returns the mounts of a session for references of the form ``artifact:NAME[@VERSION][:TARGET]``.
        ``mount_map`` may have the target, keyed by the text before the last colon. The default target is the last part
        of the name, in the session's home.

        Raises:
            InvalidInput, Forbidden, Unavailable: the message names the artifact.
        """
        resolved_mounts: dict[str, FolderMount] = {}
        for mount in mounts:
            ref, _, alias = mount.removeprefix(REFERENCE_PREFIX).partition(":")
            mount_key = REFERENCE_PREFIX + ref
            target = mount_map.get(mount) or mount_map.get(mount_key) or alias
            permission = (options.get(mount_key) or options.get(mount) or {}).get("permission")
            with _with_artifact_name(ref):
                require(owner, Operation.USE_ARTIFACTS)
                if mount_key in resolved_mounts:
                    raise InvalidInput("it is named twice")
                if permission not in (None, "ro"):
                    raise InvalidInput("artifacts are for reading only, so mount it with permission ro")
                row = await self.artifacts.revision(owner, ref, usable=True)
                default_target = row.artifact.name.rpartition("/")[2]
                resolved_mounts[mount_key] = FolderMount(
                    folder_id=FolderId(row.revision.id),
                    name=REFERENCE_PREFIX + row.ref,
                    source=await self._directory(row),
                    target=check_target(ref, target or default_target),
                    read_only=True,
                    kind=MountKind.ARTIFACT,
                )
        return list(resolved_mounts.values())

    async def check(self, owner: Caller, mount: FolderMount) -> None:
        """Checks that the owner may still mount a revision as an earlier session did. Raises as :meth:`resolve`."""
        with _with_artifact_name(mount.name.removeprefix(REFERENCE_PREFIX)):
            require(owner, Operation.USE_ARTIFACTS)
            await self.artifacts.revision(owner, str(mount.folder_id), usable=True)

    async def image_file(self, caller: Caller, ref: str) -> tuple[str, str]:
        """Returns the ``NAME:VERSION`` of an IMAGE artifact, and the path of its only file or of its directory on the
        nodes.

        Raises:
            NotFound; Conflict: it is not available, or not open to everyone. InvalidInput: it is no IMAGE. Unavailable.
        """
        row, files = await self.artifacts.files(caller, ref)
        kind = row.artifact.type
        if kind is not ArtifactType.IMAGE:
            raise InvalidInput(f"{row.ref} is a {kind.value}, and no IMAGE.", data={"artifact": "no image"})
        if EVERYONE not in viewers_of(row.artifact, row.registry):
            raise Conflict(f"{row.ref} is not open to everyone, as an image of agents is: share it first.")
        directory = await self._directory(row)
        path = f"{directory}/{files[0].path}" if len(files) == 1 else directory
        return f"{row.artifact.name}:{row.revision.version}", path

    async def _directory(self, row: RevisionRow) -> str:
        deadline = time.monotonic() + self.wait_s
        while True:
            state = await self.gateway.mount(row)
            if state.path is not None:
                return state.path
            if time.monotonic() > deadline:
                progress_text = f", {state.current / state.total:.0%} of it" if state.total else ""
                raise Unavailable(f"it is still being brought to where nodes can mount it{progress_text}; try again.")
            await asyncio.sleep(_POLL_PAUSE_S)
