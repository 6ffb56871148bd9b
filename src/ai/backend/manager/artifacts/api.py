"""REST routes of artifacts and their replies: registries, scans, imports, files (spec 03-17)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from enum import Enum
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

import msgspec
from msgspec.structs import asdict

from ai.backend.common.artifacts import ArtifactType
from ai.backend.common.wire.artifacts import UploadFile
from ai.backend.infra.http.fields import iso
from ai.backend.infra.http.routes import Call, Nothing, Reply, route
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import is_permitted
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.access.requests import STORAGE_PROBLEMS, caller_of
from ai.backend.manager.artifacts import schemas as schema
from ai.backend.manager.artifacts.facade import Artifacts
from ai.backend.manager.artifacts.gateway import ScanRequest
from ai.backend.manager.artifacts.model import (
    EVERYONE,
    ArtifactFile,
    ArtifactQuery,
    ArtifactRegistry,
    ArtifactRow,
    ArtifactStorage,
    ImportProgress,
    Revision,
    RevisionRow,
    viewers_of,
)

T = TypeVar("T", bound=msgspec.Struct)
ProgressOf: TypeAlias = Callable[[Revision], ImportProgress | None]


def _wire_value(value: Any) -> Any:
    """Returns ids, words of an enumeration and times as text, and other values as they are."""
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, UUID) else value


def _reply_of(kind: type[T], value: Any, **others: Any) -> T:
    """Builds a reply of type ``kind``; a field that is not in ``others`` is copied from the value."""
    names = [name for name in kind.__struct_fields__ if name not in others]
    return kind(**{name: _wire_value(getattr(value, name)) for name in names}, **others)


def registry_item(registry: ArtifactRegistry) -> schema.RegistryItem:
    return _reply_of(schema.RegistryItem, registry, credentials=sorted(registry.credentials))


def _revision_reply(kind: type[T], revision: Revision, progress_of: ProgressOf, **others: Any) -> T:
    stages = revision.stages
    storage = f"{stages.proxy}:{stages.archive}" if stages is not None and stages.archive else None
    return _reply_of(kind, revision, storage=storage, progress=progress_of(revision), **others)


def artifact_item(
    caller: Caller, row: ArtifactRow, progress_of: ProgressOf, kind: type[schema.ArtifactItem] = schema.ArtifactItem
) -> schema.ArtifactItem:
    """Builds the reply that describes an artifact with its revisions.

    Only callers who see all artifacts get the viewers of the artifact.
    """
    sees_viewers = is_permitted(caller, Operation.SEE_ALL_ARTIFACTS)
    access = {
        "restricted": EVERYONE not in viewers_of(row.artifact, row.registry),
        "viewers": row.artifact.viewers if sees_viewers else None,
    }
    revisions = [_revision_reply(schema.RevisionItem, revision, progress_of) for revision in row.revisions]
    registry, registry_type = row.registry.name, row.registry.type.value
    return _reply_of(kind, row.artifact, registry=registry, registry_type=registry_type, revisions=revisions, **access)


def revision_info(row: RevisionRow, progress_of: ProgressOf) -> schema.RevisionInfo:
    names = {"artifact": row.artifact.name, "type": row.artifact.type.value, "registry": row.registry.name}
    return _revision_reply(schema.RevisionInfo, row.revision, progress_of, **names)


def revision_list(rows: Iterable[RevisionRow], progress_of: ProgressOf) -> schema.RevisionList:
    return schema.RevisionList(revisions=[revision_info(row, progress_of) for row in rows])


def file_list(row: RevisionRow, files: Sequence[ArtifactFile], progress_of: ProgressOf) -> schema.FileList:
    return schema.FileList(revision=revision_info(row, progress_of), files=files)


_MAX_UPLOAD_BODY = 16 << 20
"""The largest body of an upload request, in bytes."""


class ArtifactRegistriesApi(msgspec.Struct, frozen=True):
    """Routes about registries. ``{r}`` is a name or an id. Superadmins manage them, monitors may read."""

    problems = STORAGE_PROBLEMS

    artifacts: Artifacts

    @route("GET", "/artifact-registries", reply=list[schema.RegistryItem])
    async def list_registries(self, call: Call) -> list[schema.RegistryItem]:
        """Lists the registries of artifacts."""
        return [registry_item(registry) for registry in await self.artifacts.registries.list(caller_of(call))]

    @route("POST", "/artifact-registries", body=schema.AddRegistryBody, reply=schema.RegistryItem, status=201)
    async def add_registry(self, call: Call[schema.AddRegistryBody]) -> Reply:
        """Adds a registry of artifacts."""
        registry = await self.artifacts.registries.add(caller_of(call), **asdict(call.body))
        return Reply(registry_item(registry), 201)

    @route("GET", "/artifact-registries/{r}", reply=schema.RegistryItem)
    async def get_registry(self, call: Call) -> schema.RegistryItem:
        """Returns a registry."""
        return registry_item(await self.artifacts.registries.get(caller_of(call), call.params["r"]))

    @route("PATCH", "/artifact-registries/{r}", body=schema.ChangeRegistryBody, reply=schema.RegistryItem)
    async def change_registry(self, call: Call[schema.ChangeRegistryBody]) -> schema.RegistryItem:
        """Changes the URL, credentials or storages of a registry."""
        changed_registry = await self.artifacts.registries.change(
            caller_of(call), call.params["r"], **asdict(call.body)
        )
        return registry_item(changed_registry)

    @route("DELETE", "/artifact-registries/{r}")
    async def remove_registry(self, call: Call) -> None:
        """Removes a registry with its artifacts; refused while files of them are stored."""
        await self.artifacts.registries.remove(caller_of(call), call.params["r"])

    @route("POST", "/artifact-registries/{r}/scan", body=schema.ScanBody, reply=schema.TaskStarted)
    async def scan(self, call: Call[schema.ScanBody]) -> schema.TaskStarted:
        """Scans a registry in the background."""
        return await self._scan(call, **asdict(call.body))

    @route("POST", "/artifact-registries/{r}/delegate-scan", body=schema.DelegateScanBody, reply=schema.TaskStarted)
    async def delegate_scan(self, call: Call[schema.DelegateScanBody]) -> schema.TaskStarted:
        """Makes another installation scan one of its registries, then scans that installation."""
        return await self._scan(call, **asdict(call.body))

    async def _scan(
        self, call: Call[Any], artifact_type: ArtifactType | None, remote_registry: str | None = None, **selection: Any
    ) -> schema.TaskStarted:
        request = ScanRequest(type=artifact_type, **selection)
        scans, ref = self.artifacts.scans, call.params["r"]
        task_id = await scans.scan(caller_of(call), ref, request, delegate_to=remote_registry)
        return schema.TaskStarted(bgtask_id=str(task_id))

    @route("GET", "/artifact-storages", reply=list[ArtifactStorage])
    async def storages(self, call: Call) -> Sequence[ArtifactStorage]:
        """Lists the storages that stages of an import can use."""
        return await self.artifacts.registries.storages(caller_of(call))


class ArtifactsApi(msgspec.Struct, frozen=True):
    """Routes about artifacts and revisions. ``{a}`` is the name or id of an artifact, ``{v}`` the id of a revision or
    ``ARTIFACT[@VERSION]``. Only superadmins and monitors see revisions that are not available, and artifacts that are
    restricted to others."""

    problems = STORAGE_PROBLEMS

    artifacts: Artifacts

    @route("GET", "/artifacts", query=schema.ListQuery, reply=schema.ArtifactPage)
    async def list_artifacts(self, call: Call[Nothing, schema.ListQuery]) -> schema.ArtifactPage:
        """Returns a page of artifacts, sorted by name."""
        query = call.query
        registry = await self.artifacts.registries.find(query.registry) if query.registry is not None else None
        artifact_query = ArtifactQuery(
            limit=query.limit,
            offset=query.offset,
            type=query.artifact_type,
            registry_id=registry.id if registry is not None else None,
            status=query.status,
            search=query.search,
        )
        caller = caller_of(call)
        page = await self.artifacts.service.page(caller, artifact_query)
        items = [artifact_item(caller, row, self.artifacts.imports.progress) for row in page.items]
        return schema.ArtifactPage(items=items, total_count=page.total_count)

    @route("GET", "/artifacts/{a}", reply=schema.ArtifactInfo)
    async def get_artifact(self, call: Call) -> schema.ArtifactItem:
        """Returns an artifact with its revisions and README."""
        caller = caller_of(call)
        row = await self.artifacts.service.artifact(caller, call.params["a"])
        return artifact_item(caller, row, self.artifacts.imports.progress, schema.ArtifactInfo)

    @route("PATCH", "/artifacts/{a}", body=schema.ChangeArtifactBody, reply=schema.ArtifactInfo)
    async def change_artifact(self, call: Call[schema.ChangeArtifactBody]) -> schema.ArtifactItem:
        """Sets who may use an artifact; sessions that mount it keep it."""
        caller = caller_of(call)
        row = await self.artifacts.service.change(caller, call.params["a"], call.body.viewers)
        return artifact_item(caller, row, self.artifacts.imports.progress, schema.ArtifactInfo)

    @route("DELETE", "/artifacts/{a}")
    async def delete_artifact(self, call: Call) -> None:
        """Removes an artifact until the next scan; refused while files of it are stored."""
        await self.artifacts.imports.delete(caller_of(call), call.params["a"])

    @route("POST", "/artifacts/import", body=schema.ImportBody, reply=schema.RevisionList, status=202)
    async def import_revisions(self, call: Call[schema.ImportBody]) -> Reply:
        """Imports revisions in the background; `/artifacts/revisions/{v}` has their progress."""
        rows = await self.artifacts.imports.begin(caller_of(call), call.body.revisions, delegate=call.body.delegate)
        return Reply(revision_list(rows, self.artifacts.imports.progress), 202)

    @route("POST", "/artifacts/fetch", body=schema.FetchBody, reply=schema.TaskStarted, status=202)
    async def fetch(self, call: Call[schema.FetchBody]) -> Reply:
        """Scans and imports one revision in the background, for users where the registry allows it."""
        task_id = await self.artifacts.user_imports.begin(caller_of(call), **asdict(call.body))
        return Reply(schema.TaskStarted(bgtask_id=str(task_id)), 202)

    @route("POST", "/artifacts/upload", body=schema.UploadBody, reply=schema.UploadReply, max_body=_MAX_UPLOAD_BODY)
    async def upload(self, call: Call[schema.UploadBody]) -> schema.UploadReply:
        """Announces the files of an upload and returns their URLs; may be repeated for new URLs."""
        body = call.body
        row, urls = await self.artifacts.uploads.begin(
            caller_of(call),
            body.registry,
            kind=body.artifact_type,
            name=body.name,
            version=body.version,
            description=body.description,
            files=[UploadFile(path=file.path, size=file.size, sha256=file.sha256) for file in body.files],
        )
        return schema.UploadReply(
            revision=revision_info(row, self.artifacts.imports.progress),
            files=[schema.PutUrl(path=path, url=url) for path, url in urls],
        )

    @route("POST", "/artifacts/cancel", body=schema.RevisionsBody, reply=schema.RevisionList)
    async def cancel(self, call: Call[schema.RevisionsBody]) -> schema.RevisionList:
        """Cancels running imports and removes the fetched files."""
        rows = await self.artifacts.imports.cancel(caller_of(call), call.body.revisions)
        return revision_list(rows, self.artifacts.imports.progress)

    @route("POST", "/artifacts/cleanup", body=schema.RevisionsBody, reply=schema.RevisionList)
    async def clean_up(self, call: Call[schema.RevisionsBody]) -> schema.RevisionList:
        """Removes the files of revisions but keeps their rows; refused while a session mounts one."""
        rows = await self.artifacts.imports.clean_up(caller_of(call), call.body.revisions)
        return revision_list(rows, self.artifacts.imports.progress)

    @route("GET", "/artifacts/revisions/{v}", reply=schema.RevisionInfo)
    async def get_revision(self, call: Call) -> schema.RevisionInfo:
        """Returns a revision with the progress of its import."""
        row = await self.artifacts.service.revision(caller_of(call), call.params["v"])
        return revision_info(row, self.artifacts.imports.progress)

    @route("GET", "/artifacts/revisions/{v}/files", reply=schema.FileList)
    async def list_files(self, call: Call) -> schema.FileList:
        """Lists the files of an available revision."""
        row, files = await self.artifacts.service.files(caller_of(call), call.params["v"])
        return file_list(row, files, self.artifacts.imports.progress)

    @route("POST", "/artifacts/revisions/{v}/presign", body=schema.PresignBody, reply=schema.FileList, audited=False)
    async def presign(self, call: Call[schema.PresignBody]) -> schema.FileList:
        """Returns temporary public URLs of files of an available revision."""
        row, files = await self.artifacts.service.presign(caller_of(call), call.params["v"], call.body.paths)
        return file_list(row, files, self.artifacts.imports.progress)

    @route("POST", "/artifacts/revisions/{v}/ticket", reply=schema.TicketReply)
    async def ticket(self, call: Call) -> schema.TicketReply:
        """Returns a temporary URL by which another installation can fetch an available revision."""
        return schema.TicketReply(ticket=await self.artifacts.service.ticket(caller_of(call), call.params["v"]))
