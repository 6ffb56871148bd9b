"""Imports artifacts for users, from registries that a superadmin has opened for users (spec 03-18, "Model Store")."""

from __future__ import annotations

import msgspec

from ai.backend.common.artifacts import RegistryType, RevisionStatus
from ai.backend.common.errors import Conflict, Forbidden, InvalidInput, NotFound
from ai.backend.common.ids import TaskId
from ai.backend.infra.retry import Backoff
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import is_permitted
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.artifacts.gateway import ScanRequest
from ai.backend.manager.artifacts.imports import ImportService
from ai.backend.manager.artifacts.model import ArtifactRegistry, RevisionRow, viewers_of
from ai.backend.manager.artifacts.registries import ScanService
from ai.backend.manager.artifacts.service import viewer_of
from ai.backend.manager.artifacts.store import ArtifactStore
from ai.backend.manager.tasks.service import TaskProgress, TaskService

_FIRST_POLL_S, _LAST_POLL_S = 0.1, 2.0
_DEFAULT_VERSION = "main"


class UserImportService(msgspec.Struct, frozen=True, kw_only=True):
    """Finds one artifact in a registry and imports it in a background task of a user."""

    store: ArtifactStore
    scans: ScanService
    imports: ImportService
    tasks: TaskService

    async def begin(self, caller: Caller, registry: str, name: str, version: str | None) -> TaskId:
        """Starts a background task that imports one revision; each user has at most one such task at a time.

        Raises:
            NotFound: there is no such registry, or the caller may not import from it; the message names the others.
            InvalidInput: it is a local registry. Conflict: the caller has another import under way.
        """
        source_registry = await self._find_registry(caller, registry)
        if source_registry.type is RegistryType.LOCAL:
            raise InvalidInput(f"{source_registry.name!r} has what was uploaded; there is nothing to import.")

        async def run_import(progress: TaskProgress) -> str:
            await self.scans.record_scan(source_registry, ScanRequest(names=[name]), progress)
            row = await self._find_revision(source_registry, name, version or _DEFAULT_VERSION)
            if not is_permitted(caller, Operation.CHANGE_ARTIFACTS):
                _check_importable(row)
            [row] = await self.imports.begin_rows([row], caller.stimulus_id)
            return await self._wait_for_import(row, progress)

        task_subject = f"import of artifacts by {caller.user_id}"
        return await self.tasks.start(
            caller, f"import {name} from {source_registry.name}", run_import, subject=task_subject
        )

    async def _find_registry(self, caller: Caller, ref: str) -> ArtifactRegistry:
        may_import_all = is_permitted(caller, Operation.CHANGE_ARTIFACTS)
        registries = await self.store.registries(viewer=None if may_import_all else viewer_of(caller))
        usable_registries = [
            registry_ for registry_ in registries if may_import_all or registry_.user_import_bytes is not None
        ]
        for registry in usable_registries:
            if ref in (registry.name, str(registry.id)):
                return registry
        names = ", ".join(registry.name for registry in usable_registries) or "none"
        raise NotFound(
            f"There is no artifact registry {ref[:64]!r} that you may import from; there is {names}.",
            data={"registry": "unknown"},
        )

    async def _find_revision(self, registry: ArtifactRegistry, name: str, version: str) -> RevisionRow:
        rows = [row for row in await self.store.find(name) if row.registry.id == registry.id]
        for row in rows:
            for revision in row.revisions:
                if revision.version == version:
                    return RevisionRow(revision=revision, artifact=row.artifact, registry=registry)
        raise NotFound(f"{registry.name} has no {name[:256]}@{version[:64]}.", data={"revision": "unknown"})

    async def _wait_for_import(self, row: RevisionRow, progress: TaskProgress) -> str:
        backoff = Backoff(_FIRST_POLL_S, _LAST_POLL_S, factor=1.5)
        while row.revision.status in (RevisionStatus.PULLING, RevisionStatus.PULLED):
            await backoff.wait()
            row = await self.imports.artifacts.reload(row)
            if (state := self.imports.progress(row.revision)) is not None:
                await progress.update(state.current, state.total, f"{state.phase} {row.ref}")
        if row.revision.status is not RevisionStatus.AVAILABLE:
            raise Conflict(f"{row.ref} was not imported: {row.revision.status_info or row.revision.status}")
        return f"{row.ref} is AVAILABLE"


def _check_importable(row: RevisionRow) -> None:
    """Raises Forbidden if users may not see the artifact, or if its revision is too large. The size limit is that of
    the registry for imports by users. A revision whose files are here already has no limit.
    """
    limit, size = row.registry.user_import_bytes or 0, row.revision.size
    if not viewers_of(row.artifact, row.registry):
        raise Forbidden(f"{row.ref} is not public: ask an administrator to import it.")
    if row.revision.status is RevisionStatus.SCANNED and (size is None or size > limit):
        size_text = "of unknown size" if size is None else f"{size} bytes large"
        raise Forbidden(f"{row.ref} is {size_text}, and users import up to {limit} bytes from {row.registry.name}.")
