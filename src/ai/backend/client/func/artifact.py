"""Artifacts: models, packages and images of registries (spec 03-17; docs/howto/import-models.md).

await api.Artifact.import_revisions(["google/gemma@main"])
await api.Artifact.wait(["google/gemma@main"])
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ai.backend.client.exceptions import BackendClientError, EndpointUnreachable
from ai.backend.client.func.base import Area
from ai.backend.client.transfer import PARALLEL, Progress, Ticket, collect, path_inside, run_in_parallel
from ai.backend.client.wire import encode_segment

_PAGE_SIZE = 100
_FIRST_POLL_S, _LAST_POLL_S = 0.1, 2.0
_MAX_WATCHED = 16
_MAX_SILENCE_S = 120.0
"""Maximal silence of the manager during a wait."""
_IMPORTING_STATUSES = frozenset({"PULLING", "PULLED"})

Step = Callable[[Mapping[str, Any]], None]
"""Called with a revision each time that its state was read."""


def _without_nones(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


class AsyncArtifacts(Area):
    """Manages artifacts and their registries (``api_session.Artifact``).

    ``ref`` is the id of a revision, or ``ARTIFACT[@VERSION]`` with the name or id of an artifact; without a version it
    means the only one, else ``main``, else ``latest``.
    """

    async def _post_query(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Sends a request by POST that changes nothing, and that may be repeated. Returns the object in the answer."""
        return await self._send("POST", path, body, repeatable=True)

    async def _revisions(self, path: str, body: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
        return list((await self._change("POST", path, body))["revisions"])

    # ---- artifacts ----

    async def list(
        self,
        *,
        artifact_type: str | None = None,
        registry: str | None = None,
        status: str | None = None,
        search: str | None = None,
        limit: int = 20,
        offset: int = 0,
    ) -> dict[str, Any]:
        """Returns a page of ``items``, by name, and the ``total_count``; most users see what is available only."""
        query = {"artifact_type": artifact_type, "registry": registry, "status": status, "search": search}
        return await self._get("/artifacts", **query, limit=limit, offset=offset)

    async def iterate(self, /, **query: Any) -> AsyncIterator[dict[str, Any]]:
        """Yields every artifact, page by page; takes what :meth:`list` takes."""
        offset = 0
        while True:
            page = await self.list(**query, limit=_PAGE_SIZE, offset=offset)
            for artifact_item in page["items"]:
                yield artifact_item
            offset += _PAGE_SIZE
            if offset >= page["total_count"]:
                return

    async def info(self, artifact: str) -> dict[str, Any]:
        """Returns an artifact, by name or id, with its revisions and its README."""
        return await self._get(f"/artifacts/{encode_segment(artifact)}")

    async def change(self, artifact: str, *, viewers: Sequence[str] | None) -> dict[str, Any]:
        """Sets the users who may use an artifact: ``everyone``, ``domain:NAME``, ``group:NAME``, ``user:EMAIL``.

        None stands for the viewers of its registry, or nobody if the registry shows it only to some accounts.
        """
        return await self._change("PATCH", f"/artifacts/{encode_segment(artifact)}", {"viewers": viewers})

    async def delete(self, artifact: str) -> None:
        """Removes an artifact until the next scan; refused while its files are stored."""
        await self._change("DELETE", f"/artifacts/{encode_segment(artifact)}")

    # ---- revisions ----

    async def revision(self, ref: str) -> dict[str, Any]:
        """Returns a revision, with the ``progress`` of its import."""
        return await self._get(f"/artifacts/revisions/{encode_segment(ref)}")

    async def import_revisions(self, refs: Sequence[str], *, delegate: bool = False) -> Sequence[dict[str, Any]]:
        """Starts imports, for superadmins, and returns the revisions at once.

        ``delegate``: the other installation that they come from first imports what it has not.
        """
        return await self._revisions("/artifacts/import", {"revisions": [*refs], "delegate": delegate})

    async def fetch(self, registry: str, name: str, version: str | None = None) -> str:
        """Looks for an artifact in a registry and imports it. Returns the id of the background task.

        It is for users, where a superadmin has allowed it for the registry.
        """
        body = {"registry": registry, "name": name, **_without_nones(version=version)}
        return str((await self._change("POST", "/artifacts/fetch", body))["bgtask_id"])

    async def install(self, ref: str, agents: str = "*", image: str | None = None) -> str:
        """Makes an image of an available IMAGE artifact on agents, for superadmins; returns the id of the task.

        Args:
            agents: an id, a pattern of ids, ``group:NAME``, or several of them with commas.
            image: the image's name; by default that of the artifact, with the version as its tag.
        """
        body = {"agents": agents, **_without_nones(image=image)}
        return str(
            (await self._change("POST", f"/artifacts/revisions/{encode_segment(ref)}/install", body))["bgtask_id"]
        )

    async def cancel(self, refs: Sequence[str]) -> Sequence[dict[str, Any]]:
        """Ends imports that are under way."""
        return await self._revisions("/artifacts/cancel", {"revisions": [*refs]})

    async def cleanup(self, refs: Sequence[str]) -> Sequence[dict[str, Any]]:
        """Removes the files of revisions and keeps the records; refused while a session mounts a revision."""
        return await self._revisions("/artifacts/cleanup", {"revisions": [*refs]})

    async def wait(self, refs: Sequence[str], *, progress: Step | None = None) -> Sequence[dict[str, Any]]:
        """Waits until imports are over, also through a restart of the manager.

        Raises BackendClientError if one of them did not become available; the message has the reasons.
        """
        revisions = await run_in_parallel((self._wait_for_import(ref, progress) for ref in refs), _MAX_WATCHED)
        failed_revisions = [revision for revision in revisions if revision["status"] != "AVAILABLE"]
        if failed_revisions:
            reasons = [
                f"{revision['artifact']}@{revision['version']}: {revision['status_info'] or revision['status']}"
                for revision in failed_revisions
            ]
            raise BackendClientError("; ".join(reasons))
        return revisions

    async def _wait_for_import(self, ref: str, progress: Step | None) -> dict[str, Any]:
        import asyncio

        pause_s, silent_since = _FIRST_POLL_S, None
        while True:
            try:
                revision = await self.revision(ref)
            except EndpointUnreachable:
                silent_since = silent_since or time.monotonic()
                if time.monotonic() - silent_since > _MAX_SILENCE_S:
                    raise
                await asyncio.sleep(_LAST_POLL_S)
                continue
            silent_since = None
            if progress is not None:
                progress(revision)
            if revision["status"] not in _IMPORTING_STATUSES:
                return revision
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _LAST_POLL_S)

    async def upload(
        self,
        registry: str,
        name: str,
        version: str,
        files: Sequence[str | os.PathLike[str]],
        *,
        artifact_type: str = "MODEL",
        description: str = "",
        basedir: str | os.PathLike[str] | None = None,
        parallel: int = PARALLEL,
        progress: Progress | None = None,
    ) -> dict[str, Any]:
        """Makes a revision of files and directories in a local registry; its import then goes on by itself.

        Each file has its path relative to ``basedir`` (the working directory). :meth:`wait` waits for the import.
        """

        import asyncio

        local_files, _ = await asyncio.to_thread(collect, files, basedir, True)
        local_paths = dict(local_files)
        announced_files = await asyncio.to_thread(lambda: [_describe_file(path, file) for path, file in local_files])
        body = {
            "registry": registry,
            "artifact_type": artifact_type,
            "name": name,
            "version": version,
            "description": description,
            "files": announced_files,
        }
        reply = await self._post_query("/artifacts/upload", body)
        sizes = {file["path"]: file["size"] for file in announced_files}
        transfers = self._transfers()
        await run_in_parallel(
            (
                transfers.put(
                    file["path"], file["url"], local_paths[file["path"]], sizes[file["path"]], progress=progress
                )
                for file in reply["files"]
            ),
            parallel,
        )
        return dict(reply["revision"])

    # ---- files ----

    async def files(self, ref: str) -> Sequence[dict[str, Any]]:
        """Returns ``path``, ``size`` and ``sha256`` of every file of an available revision."""
        return list((await self._get(f"/artifacts/revisions/{encode_segment(ref)}/files"))["files"])

    async def presign(self, ref: str, paths: Sequence[str] = ()) -> Sequence[dict[str, Any]]:
        """Returns files of an artifact's revision, each with a ``url`` by which anybody can fetch it for some time.

        The result is that of :meth:`files` otherwise; no paths mean all.
        """
        reply = await self._post_query(f"/artifacts/revisions/{encode_segment(ref)}/presign", {"paths": [*paths]})
        return list(reply["files"])

    async def ticket(self, ref: str) -> str:
        """Returns a URL by which another installation can fetch the revision."""
        return str((await self._post_query(f"/artifacts/revisions/{encode_segment(ref)}/ticket", {}))["ticket"])

    async def download(
        self,
        ref: str,
        paths: Sequence[str] = (),
        *,
        basedir: str | os.PathLike[str] | None = None,
        parallel: int = PARALLEL,
        progress: Progress | None = None,
    ) -> Sequence[Path]:
        """Fetches files of an available revision (no paths: all) into ``basedir``; returns the written paths.

        Raises BackendClientError if a file came, but it is not what the archive has.
        """

        import asyncio

        base_folder = Path(basedir or ".")
        files_by_path = {file["path"]: file for file in await self.files(ref)}
        missing_paths = [path for path in paths if path not in files_by_path]
        if missing_paths:
            raise BackendClientError(f"{ref} has no file {missing_paths[0]}")
        transfers = self._transfers()

        async def download_file(path: str) -> Path:
            async def request_ticket() -> Ticket:
                [file] = await self.presign(ref, [path])
                return Ticket(str(file["url"]))

            target = path_inside(base_folder, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            await transfers.download(path, target, request_ticket, progress=progress)
            if await asyncio.to_thread(_sha256_of, target) != files_by_path[path]["sha256"]:
                raise BackendClientError(f"{target} is not what the archive has: fetch it again")
            return target

        return await run_in_parallel((download_file(path) for path in paths or files_by_path), parallel)

    # ---- registries ----

    async def registries(self) -> Sequence[dict[str, Any]]:
        """Lists the registries of artifacts, for superadmins and monitors.

        The methods that follow are for superadmins; monitors may call those that only read.
        """
        return list((await self._get_reply("/artifact-registries")).json())

    async def registry(self, name: str) -> dict[str, Any]:
        return await self._get(f"/artifact-registries/{encode_segment(name)}")

    async def add_registry(
        self,
        name: str,
        type_: str,
        url: str = "",
        *,
        credentials: Mapping[str, str] | None = None,
        storages: Mapping[str, str] | None = None,
        viewers: Sequence[str] | None = None,
        user_import_bytes: int | None = None,
    ) -> dict[str, Any]:
        """Adds a registry of artifacts.

        Args:
            name: its name.
            type_: ``huggingface``, ``reservoir``, or ``local``, which has no URL and takes uploads.
            url: its address.
            credentials: ``token`` of a hub, or ``access_key`` and ``secret_key`` of a reservoir.
            storages: stage (``download``, ``verify``, ``archive``) -> ``proxy:storage``.
            viewers: who may use its artifacts, see :meth:`change`; by default everyone.
            user_import_bytes: the largest revision that viewers may import; by default none.
        """
        body = {"name": name, "type": type_, "url": url}
        body |= _without_nones(
            credentials=credentials, storages=storages, viewers=viewers, user_import_bytes=user_import_bytes
        )
        return await self._change("POST", "/artifact-registries", body)

    async def change_registry(
        self,
        name: str,
        *,
        url: str | None = None,
        credentials: Mapping[str, str] | None = None,
        storages: Mapping[str, str] | None = None,
        viewers: Sequence[str] | None = None,
        user_import_bytes: int | None = None,
    ) -> dict[str, Any]:
        """Changes the properties of a registry that are not None."""
        body = _without_nones(
            url=url, credentials=credentials, storages=storages, viewers=viewers, user_import_bytes=user_import_bytes
        )
        return await self._change("PATCH", f"/artifact-registries/{encode_segment(name)}", body)

    async def remove_registry(self, name: str) -> None:
        """Removes a registry with its artifacts; refused while files of them are stored."""
        await self._change("DELETE", f"/artifact-registries/{encode_segment(name)}")

    async def scan(
        self,
        registry: str,
        *,
        artifact_type: str | None = None,
        search: str | None = None,
        author: str | None = None,
        names: Sequence[str] = (),
        limit: int = 100,
        closely: bool = True,
        delegate_to: str | None = None,
    ) -> str:
        """Scans a registry; returns the id of the background task.

        Args:
            names: only these artifacts.
            closely: look for sizes, all versions and READMEs too, which takes a hub's time for each artifact.
            delegate_to: a registry of the other installation, which it is to scan first.
        """
        body = {"names": [*names], "limit": limit, "closely": closely}
        body |= _without_nones(artifact_type=artifact_type, search=search, author=author, remote_registry=delegate_to)
        operation = "delegate-scan" if delegate_to is not None else "scan"
        reply = await self._change("POST", f"/artifact-registries/{encode_segment(registry)}/{operation}", body)
        return str(reply["bgtask_id"])

    async def storages(self) -> Sequence[dict[str, Any]]:
        """Lists the storages in which the stages of an import (download, verify, archive) can keep files."""
        return list((await self._get_reply("/artifact-storages")).json())


def _describe_file(path: str, local: Path) -> dict[str, Any]:
    return {"path": path, "size": local.stat().st_size, "sha256": _sha256_of(local)}


def _sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
