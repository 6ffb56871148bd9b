"""Finds artifacts, revisions and files by the references that callers name."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from ai.backend.common.artifacts import RevisionStatus
from ai.backend.common.errors import Conflict, InvalidInput, NoSuchFile, NotFound
from ai.backend.common.ids import RevisionId
from ai.backend.common.structs import replace
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import is_permitted, require
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.artifacts.gateway import ArtifactGateway
from ai.backend.manager.artifacts.model import ArtifactFile, ArtifactQuery, ArtifactRow, RevisionRow, Viewer
from ai.backend.manager.artifacts.registries import RegistryService
from ai.backend.manager.artifacts.store import ArtifactStore
from ai.backend.manager.query.model import Page

MAX_PRESIGNED = 1_000
_DEFAULT_VERSIONS = ("main", "latest")


def split_reference(ref: str) -> tuple[str, str | None]:
    """Splits ``NAME[@VERSION]`` into name and version; an at sign at the start belongs to the name."""
    name, at_sign, version = ref.rpartition("@")
    return (name, version) if at_sign and name and version else (ref, None)


def viewer_of(caller: Caller) -> Viewer | None:
    """Returns the caller as a :class:`Viewer`, or None for a caller who sees all artifacts.

    Raises Forbidden if the caller may not use artifacts.
    """
    require(caller, Operation.USE_ARTIFACTS)
    if is_permitted(caller, Operation.SEE_ALL_ARTIFACTS):
        return None
    return Viewer(user_id=caller.user_id, domain_name=caller.domain_name)


class ArtifactService(msgspec.Struct, frozen=True, kw_only=True):
    """Finds artifacts for callers; most callers see only available revisions of artifacts that are open to them."""

    store: ArtifactStore
    gateway: ArtifactGateway
    registries: RegistryService

    async def page(self, caller: Caller, query: ArtifactQuery) -> Page[ArtifactRow]:
        return await self.store.page(replace(query, viewer=viewer_of(caller)))

    async def artifact(self, caller: Caller, ref: str) -> ArtifactRow:
        """Returns the artifact of a name or id. Raises NotFound; Conflict: several artifacts have the name;
        ``data.matches`` has their ids.
        """
        return await self._find_artifact(ref, viewer_of(caller))

    async def change(self, caller: Caller, ref: str, viewers: Sequence[str] | None) -> ArtifactRow:
        """Sets the viewers who may use an artifact. If ``viewers`` is None, the viewers of its registry may use it.
        Raises InvalidInput, NotFound, Conflict.
        """
        require(caller, Operation.CHANGE_ARTIFACTS)
        row = await self.artifact(caller, ref)
        ids = await self.registries.resolve_viewers(viewers) if viewers is not None else None
        await self.store.change_artifact(row.artifact.id, viewers=ids)
        return await self.artifact(caller, str(row.artifact.id))

    async def _find_artifact(self, ref: str, viewer: Viewer | None) -> ArtifactRow:
        rows = await self.store.find(ref, viewer=viewer)
        if not rows:
            raise NotFound(f"There is no artifact {ref[:256]!r}.", data={"artifact": "unknown"})
        if len(rows) > 1:
            matches = [
                {"id": str(row.artifact.id), "registry": row.registry.name, "type": row.artifact.type.value}
                for row in rows
            ]
            raise Conflict(f"Several artifacts are called {ref[:256]!r}: use an id.", data={"matches": matches})
        return rows[0]

    async def revision(self, caller: Caller, ref: str, *, usable: bool = False) -> RevisionRow:
        """Returns the revision of an id or of ``ARTIFACT[@VERSION]``. Without a version, the only revision is chosen,
        or ``main``, or ``latest``.

        Args:
            usable: the revision must be available.

        Raises:
            NotFound
            Conflict: the reference is ambiguous, or the revision is not available.
        """
        viewer = viewer_of(caller)
        row = await self._revision_by_id(ref, viewer)
        row = row or await self._revision_by_name(ref, viewer, usable=usable)
        if usable and row.revision.status is not RevisionStatus.AVAILABLE:
            status = row.revision.status.value
            raise Conflict(f"{row.ref} is {status}, and not AVAILABLE.", data={"status": status})
        return row

    async def reload(self, row: RevisionRow) -> RevisionRow:
        """Returns the row of a revision as it is stored now. Raises NotFound."""
        rows = await self.store.revisions([row.revision.id])
        if not rows:
            raise NotFound(f"{row.ref} is gone.", data={"revision": "gone"})
        return rows[0]

    async def _revision_by_id(self, ref: str, viewer: Viewer | None) -> RevisionRow | None:
        try:
            revision_id = RevisionId(UUID(ref))
        except ValueError:
            return None
        rows = await self.store.revisions([revision_id], viewer=viewer)
        return rows[0] if rows else None

    async def _revision_by_name(self, ref: str, viewer: Viewer | None, *, usable: bool) -> RevisionRow:
        name, version = split_reference(ref)
        row = await self._find_artifact(name, viewer)
        revisions = row.revisions
        if version is not None:
            revisions = [revision for revision in revisions if revision.version == version]
        else:
            available_revisions = [revision for revision in revisions if revision.status is RevisionStatus.AVAILABLE]
            # The result is the same for callers that see more.
            revisions = available_revisions if usable and available_revisions else revisions
        if len(revisions) > 1:
            default_revisions = [
                revision
                for default_version in _DEFAULT_VERSIONS
                for revision in revisions
                if revision.version == default_version
            ]
            revisions = default_revisions[:1] or revisions
        if not revisions:
            raise NotFound(f"The artifact {name[:256]!r} has no revision {version!r}.", data={"revision": "unknown"})
        if len(revisions) > 1:
            versions = [revision.version for revision in revisions[:20]]
            raise Conflict(f"Say which revision of {name[:256]!r}: {', '.join(versions)}.", data={"matches": versions})
        return RevisionRow(revision=revisions[0], artifact=row.artifact, registry=row.registry)

    async def files(self, caller: Caller, ref: str) -> tuple[RevisionRow, Sequence[ArtifactFile]]:
        """Returns the files of an available revision."""
        row = await self.revision(caller, ref, usable=True)
        return row, await self.gateway.files(row)

    async def ticket(self, caller: Caller, ref: str) -> str:
        """Returns a URL, valid for some time, with which another installation can fetch an available revision."""
        return await self.gateway.ticket(await self.revision(caller, ref, usable=True))

    async def presign(
        self, caller: Caller, ref: str, paths: Sequence[str]
    ) -> tuple[RevisionRow, Sequence[ArtifactFile]]:
        """Returns files of an available revision with temporary public URLs; without paths, all files. Raises
        NoSuchFile.
        """
        row, files = await self.files(caller, ref)
        file_by_path = {file.path: file for file in files}
        for path in paths:
            if path not in file_by_path:
                raise NoSuchFile(f"{row.ref} has no file {path[:256]!r}.", data={"paths": path[:256]})
        selected_files = [file_by_path[path] for path in dict.fromkeys(paths)] if paths else list(files)
        if len(selected_files) > MAX_PRESIGNED:
            raise InvalidInput(
                f"At most {MAX_PRESIGNED} files in one request; {row.ref} has {len(files)}.", data={"paths": "too many"}
            )
        return row, [replace(file, url=await self.gateway.presign(row, file.path)) for file in selected_files]
