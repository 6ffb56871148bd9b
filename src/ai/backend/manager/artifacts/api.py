"""REST routes of artifacts: registries, scans, imports, files (spec 03-17)."""

from __future__ import annotations

from collections.abc import Sequence

from ai.backend.common.wire.artifacts import UploadFile
from ai.backend.infra.http.routes import Call, Nothing, Reply, route
from ai.backend.manager.access.requests import caller_of
from ai.backend.manager.artifacts import schemas as schema
from ai.backend.manager.artifacts.facade import Artifacts
from ai.backend.manager.artifacts.gateway import ScanRequest
from ai.backend.manager.artifacts.model import ArtifactQuery, ArtifactStorage
from ai.backend.manager.artifacts.views import (
    artifact_info,
    artifact_item,
    file_list,
    registry_item,
    revision_info,
    revision_list,
)

_MAX_UPLOAD_BODY = 16 << 20
"""The largest body of an upload request, in bytes."""


def _scan_request(body: schema.ScanBody) -> ScanRequest:
    return ScanRequest(
        type=body.artifact_type,
        search=body.search,
        author=body.author,
        names=body.names,
        limit=body.limit,
        closely=body.closely,
    )


class ArtifactRegistriesApi:
    """Routes about registries. ``{r}`` is a name or an id. Superadmins manage them, monitors may read."""

    def __init__(self, artifacts: Artifacts) -> None:
        self._registries = artifacts.registries
        self._scans = artifacts.scans

    @route("GET", "/artifact-registries", reply=list[schema.RegistryItem])
    async def list_registries(self, call: Call) -> list[schema.RegistryItem]:
        """Lists the registries of artifacts."""
        return [registry_item(r) for r in await self._registries.list(caller_of(call))]

    @route("POST", "/artifact-registries", body=schema.AddRegistryBody, reply=schema.RegistryItem, status=201)
    async def add_registry(self, call: Call[schema.AddRegistryBody]) -> Reply:
        """Adds a registry of artifacts."""
        body = call.body
        registry = await self._registries.add(
            caller_of(call),
            name=body.name,
            kind=body.type,
            url=body.url,
            credentials=body.credentials,
            storages=body.storages,
        )
        return Reply(registry_item(registry), 201)

    @route("GET", "/artifact-registries/{r}", reply=schema.RegistryItem)
    async def get_registry(self, call: Call) -> schema.RegistryItem:
        """Returns a registry."""
        return registry_item(await self._registries.get(caller_of(call), call.params["r"]))

    @route("PATCH", "/artifact-registries/{r}", body=schema.ChangeRegistryBody, reply=schema.RegistryItem)
    async def change_registry(self, call: Call[schema.ChangeRegistryBody]) -> schema.RegistryItem:
        """Changes the URL, credentials or storages of a registry."""
        body = call.body
        changed = await self._registries.change(
            caller_of(call), call.params["r"], url=body.url, credentials=body.credentials, storages=body.storages
        )
        return registry_item(changed)

    @route("DELETE", "/artifact-registries/{r}")
    async def remove_registry(self, call: Call) -> None:
        """Removes a registry with its artifacts; refused while files of them are stored."""
        await self._registries.remove(caller_of(call), call.params["r"])

    @route("POST", "/artifact-registries/{r}/scan", body=schema.ScanBody, reply=schema.TaskStarted)
    async def scan(self, call: Call[schema.ScanBody]) -> schema.TaskStarted:
        """Scans a registry in the background."""
        task = await self._scans.scan(caller_of(call), call.params["r"], _scan_request(call.body))
        return schema.TaskStarted(bgtask_id=str(task))

    @route("POST", "/artifact-registries/{r}/delegate-scan", body=schema.DelegateScanBody, reply=schema.TaskStarted)
    async def delegate_scan(self, call: Call[schema.DelegateScanBody]) -> schema.TaskStarted:
        """Makes another installation scan one of its registries, then scans that installation."""
        body = call.body
        task = await self._scans.scan(
            caller_of(call), call.params["r"], _scan_request(body), delegate_to=body.remote_registry
        )
        return schema.TaskStarted(bgtask_id=str(task))

    @route("GET", "/artifact-storages", reply=list[ArtifactStorage])
    async def storages(self, call: Call) -> Sequence[ArtifactStorage]:
        """Lists the storages that stages of an import can use."""
        return await self._registries.storages(caller_of(call))


class ArtifactsApi:
    """Routes about artifacts and revisions. ``{a}`` is the name or id of an artifact, ``{v}`` the id of a revision or
    ``ARTIFACT[@VERSION]``. Only superadmins and monitors see revisions that are not available."""

    def __init__(self, artifacts: Artifacts) -> None:
        self._artifacts = artifacts.service
        self._imports = artifacts.imports
        self._uploads = artifacts.uploads
        self._registries = artifacts.registries

    @route("GET", "/artifacts", query=schema.ListQuery, reply=schema.ArtifactPage)
    async def list_artifacts(self, call: Call[Nothing, schema.ListQuery]) -> schema.ArtifactPage:
        """Returns a page of artifacts, sorted by name."""
        query = call.query
        registry = await self._registries.find(query.registry) if query.registry is not None else None
        artifact_query = ArtifactQuery(
            limit=query.limit,
            offset=query.offset,
            type=query.artifact_type,
            registry_id=registry.id if registry is not None else None,
            status=query.status,
            search=query.search,
        )
        page = await self._artifacts.page(caller_of(call), artifact_query)
        items = [artifact_item(row, self._imports.progress) for row in page.items]
        return schema.ArtifactPage(items=items, total_count=page.total_count)

    @route("GET", "/artifacts/{a}", reply=schema.ArtifactInfo)
    async def get_artifact(self, call: Call) -> schema.ArtifactInfo:
        """Returns an artifact with its revisions and README."""
        return artifact_info(await self._artifacts.artifact(caller_of(call), call.params["a"]), self._imports.progress)

    @route("DELETE", "/artifacts/{a}")
    async def delete_artifact(self, call: Call) -> None:
        """Removes an artifact until the next scan; refused while files of it are stored."""
        await self._imports.delete(caller_of(call), call.params["a"])

    @route("POST", "/artifacts/import", body=schema.ImportBody, reply=schema.RevisionList, status=202)
    async def import_revisions(self, call: Call[schema.ImportBody]) -> Reply:
        """Imports revisions in the background; `/artifacts/revisions/{v}` has their progress."""
        rows = await self._imports.begin(caller_of(call), call.body.revisions, delegate=call.body.delegate)
        return Reply(revision_list(rows, self._imports.progress), 202)

    @route("POST", "/artifacts/upload", body=schema.UploadBody, reply=schema.UploadReply, max_body=_MAX_UPLOAD_BODY)
    async def upload(self, call: Call[schema.UploadBody]) -> schema.UploadReply:
        """Announces the files of an upload and returns their URLs; may be repeated for new URLs."""
        body = call.body
        row, urls = await self._uploads.begin(
            caller_of(call),
            body.registry,
            kind=body.artifact_type,
            name=body.name,
            version=body.version,
            description=body.description,
            files=[UploadFile(path=f.path, size=f.size, sha256=f.sha256) for f in body.files],
        )
        return schema.UploadReply(
            revision=revision_info(row, self._imports.progress),
            files=[schema.PutUrl(path=path, url=url) for path, url in urls],
        )

    @route("POST", "/artifacts/cancel", body=schema.RevisionsBody, reply=schema.RevisionList)
    async def cancel(self, call: Call[schema.RevisionsBody]) -> schema.RevisionList:
        """Cancels running imports and removes the fetched files."""
        return revision_list(await self._imports.cancel(caller_of(call), call.body.revisions), self._imports.progress)

    @route("POST", "/artifacts/cleanup", body=schema.RevisionsBody, reply=schema.RevisionList)
    async def clean_up(self, call: Call[schema.RevisionsBody]) -> schema.RevisionList:
        """Removes the files of revisions but keeps their rows; refused while a session mounts one."""
        return revision_list(await self._imports.clean_up(caller_of(call), call.body.revisions), self._imports.progress)

    @route("GET", "/artifacts/revisions/{v}", reply=schema.RevisionInfo)
    async def get_revision(self, call: Call) -> schema.RevisionInfo:
        """Returns a revision with the progress of its import."""
        return revision_info(await self._artifacts.revision(caller_of(call), call.params["v"]), self._imports.progress)

    @route("GET", "/artifacts/revisions/{v}/files", reply=schema.FileList)
    async def list_files(self, call: Call) -> schema.FileList:
        """Lists the files of an available revision."""
        row, files = await self._artifacts.files(caller_of(call), call.params["v"])
        return file_list(row, files, self._imports.progress)

    @route("POST", "/artifacts/revisions/{v}/presign", body=schema.PresignBody, reply=schema.FileList, audited=False)
    async def presign(self, call: Call[schema.PresignBody]) -> schema.FileList:
        """Returns temporary public URLs of files of an available revision."""
        row, files = await self._artifacts.presign(caller_of(call), call.params["v"], call.body.paths)
        return file_list(row, files, self._imports.progress)

    @route("POST", "/artifacts/revisions/{v}/ticket", reply=schema.TicketReply)
    async def ticket(self, call: Call) -> schema.TicketReply:
        """Returns a temporary URL by which another installation can fetch an available revision."""
        return schema.TicketReply(ticket=await self._artifacts.ticket(caller_of(call), call.params["v"]))
