"""Reads hubs that speak the protocol of HuggingFace, through its own library (extra ``artifacts``).

A model has the name of its repository; a data set has the type PACKAGE and the name ``datasets/REPOSITORY``.

The requests of the library, like downloads, are sent by :class:`Fetcher`: see docs/decisions/0095.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import msgspec
from yarl import URL

from ai.backend.common.artifacts import ArtifactType
from ai.backend.common.errors import (
    ArtifactChanged,
    ArtifactNotFound,
    ArtifactRejected,
    BackendError,
    NotSupported,
    RegistryRefused,
    RegistryUnavailable,
)
from ai.backend.common.structs import replace
from ai.backend.common.wire.artifacts import (
    HubSource,
    Manifest,
    ReservoirSource,
    ScanAnswer,
    ScannedArtifact,
    ScannedRevision,
    ScanRequest,
)
from ai.backend.infra.http.outbound import parse_url
from ai.backend.storage.artifacts.fetcher import Fetcher, raise_for
from ai.backend.storage.artifacts.model import MAX_RECORD_BYTES, Plan, PlannedFile

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import DatasetInfo, ModelInfo

    RepositoryInfo: TypeAlias = ModelInfo | DatasetInfo

T = TypeVar("T")
_DATASET_PREFIX = "datasets/"
_MAX_RESPONSE_BYTES = 32 << 20
_MAX_README_BYTES = 1 << 20
_MAX_REFS = 100
_MAX_REQUESTS = 300
MAX_DIGEST_LENGTH = 128
"""The largest number of characters of a digest."""
_MAX_NAME_LENGTH = 256
_MAX_LIST_ITEMS = 200
_MAX_FILE_BYTES = 2**63 - 1
_FRAMING_HEADERS = ("transfer-encoding", "content-length")
_EXTRA_FIELDS = ("author", "downloads", "likes", "tags", "pipeline_tag", "library_name", "gated")


@dataclass(slots=True)
class _Outbound:
    """Sends the HTTP requests of one call of the hub's library, at most ``_MAX_REQUESTS`` of them.

    The number is bounded since a hub's pages may have no end.
    """

    fetcher: Fetcher
    loop: asyncio.AbstractEventLoop
    remaining_requests: int = _MAX_REQUESTS


_outbound_context: ContextVar[_Outbound] = ContextVar("outbound requests of the hub's library")


@cache
def install_transport() -> None:
    try:
        import httpx2
        from huggingface_hub import set_client_factory
    except ImportError:
        raise NotSupported("For hubs, install the extra of the storage proxy: backendai[artifacts].") from None

    class Transport(httpx2.BaseTransport):
        def handle_request(self, request: httpx2.Request) -> httpx2.Response:
            outbound = _outbound_context.get()
            outbound.remaining_requests -= 1
            if request.method != "GET" or outbound.remaining_requests < 0:
                raise RegistryUnavailable("The hub wants more than a few questions.")
            headers = {
                name: request.headers[name] for name in ("authorization", "user-agent") if name in request.headers
            }
            read_coroutine = outbound.fetcher.read(str(request.url), headers, limit=_MAX_RESPONSE_BYTES, follow=False)
            reply = asyncio.run_coroutine_threadsafe(read_coroutine, outbound.loop).result()
            kept_headers = {
                header: header_value
                for header, header_value in reply.headers.items()
                if header.lower() not in _FRAMING_HEADERS
            }
            return httpx2.Response(reply.status, headers=kept_headers, content=reply.body, request=request)

    set_client_factory(lambda: httpx2.Client(transport=Transport(), follow_redirects=True, max_redirects=5))


class Hub:
    """Reads models of one hub through the account of ``token``; without a token, public models only.

    The ``url`` of the hub has no path.
    """

    def __init__(self, fetcher: Fetcher, url: str, token: str | None) -> None:
        self._fetcher = fetcher
        self._url = url.rstrip("/")
        self._token = token

    async def _run(self, library_call: Callable[[HfApi], T]) -> T:
        """Calls a function with the client of the hub's library in a thread, and returns its result.

        Raises ArtifactNotFound, ArtifactRejected, RegistryRefused, RegistryUnavailable, AddressRefused, NotSupported.
        """
        install_transport()
        from huggingface_hub import HfApi

        api = HfApi(endpoint=self._url, token=self._token or False)
        context_token = _outbound_context.set(_Outbound(self._fetcher, asyncio.get_running_loop()))
        try:
            return await asyncio.to_thread(_call_with_own_errors, library_call, api)
        finally:
            _outbound_context.reset(context_token)

    async def scan(self, request: ScanRequest) -> ScanAnswer:
        """Lists models, or describes the named ones. Raises as :meth:`_run` does, except for missing names."""
        if not request.names:
            list_options: dict[str, Any] = {"search": request.search, "author": request.author, "limit": request.limit}
            is_model = request.type is ArtifactType.MODEL

            def read(api: HfApi) -> list[RepositoryInfo]:
                listing = api.list_models if is_model else api.list_datasets
                return list(listing(**list_options, sort="downloads", full=True))

            repositories = [info for info in await self._run(read) if _is_name(info.id)]
            prefix = "" if is_model else _DATASET_PREFIX
            listed_artifacts = [
                _to_artifact(prefix + info.id, info, (_to_revision("main", info),)) for info in repositories
            ]
            return ScanAnswer(artifacts=tuple(listed_artifacts))
        artifacts = await asyncio.gather(*(self._describe_artifact(name, request.version) for name in request.names))
        missing_names = tuple(name for name, artifact in zip(request.names, artifacts, strict=True) if artifact is None)
        return ScanAnswer(
            artifacts=tuple(artifact for artifact in artifacts if artifact is not None), missing=missing_names
        )

    async def _describe_artifact(self, name: str, version: str | None) -> ScannedArtifact | None:
        """Returns an artifact with its revisions and README, as the account of the hub's token sees it.

        Returns None if it is missing or not shown to this account.
        """

        def read(api: HfApi) -> list[tuple[str, RepositoryInfo]]:
            versions = [version] if version else _list_versions(api, name)
            return [(version_name, _read_info(api, name, version_name)) for version_name in versions]

        try:
            versions_with_info = await self._run(read)
        except (ArtifactNotFound, RegistryRefused):
            return None
        revisions = tuple(_to_revision(version, info) for version, info in versions_with_info)
        newest_info = versions_with_info[0][1]
        return _to_artifact(name, newest_info, revisions, readme=await self._read_readme(name, newest_info))

    async def _read_readme(self, name: str, info: RepositoryInfo) -> str | None:
        if not any(file.rfilename == "README.md" for file in info.siblings or ()):
            return None
        url = self._file_url(name, str(info.sha), "README.md")
        try:
            reply = await self._fetcher.read(url, self._headers(), limit=_MAX_README_BYTES)
        except BackendError:
            return None
        return reply.body.decode(errors="replace") if reply.status == 200 else None

    async def plan(self, source: HubSource) -> tuple[str, tuple[PlannedFile, ...]]:
        """Returns the commit id of a version of a model, and the version's files.

        Raises ArtifactChanged: it has another commit or size than the source says.
        """
        info = await self._run(lambda api: _read_info(api, source.name, source.version))
        commit = str(info.sha or "")[:MAX_DIGEST_LENGTH]
        if source.digest is not None and source.digest != commit:
            raise ArtifactChanged(f"{source.version[:64]} is at another commit by now.", data={"digest": commit[:64]})
        files = tuple(_to_planned_file(file) for file in info.siblings or ())
        size = sum(file.size for file in files)
        if source.size is not None and source.size != size:
            raise ArtifactChanged(f"{source.version[:64]} has {size} bytes by now.", data={"size": size})
        return commit, files

    def fetch(self, name: str, commit: str, file: PlannedFile, offset: int) -> AsyncGenerator[bytes, None]:
        """Yields the bytes of a file, see :meth:`Fetcher.file`."""
        url = self._file_url(name, commit, file.path)
        return self._fetcher.file(url, self._headers(), offset=offset, size=file.size)

    def _file_url(self, name: str, commit: str, path: str) -> str:
        from huggingface_hub import hf_hub_url

        repository, kind = _repository_and_kind(name)
        return hf_hub_url(repository, path, repo_type=kind, revision=commit, endpoint=self._url)

    def _headers(self) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}


def _call_with_own_errors(library_call: Callable[[HfApi], T], api: HfApi) -> T:
    from huggingface_hub import errors as hub

    try:
        return library_call(api)
    except BackendError:
        raise
    except hub.GatedRepoError:
        raise RegistryRefused("The hub shows this model only to accounts that it was granted to.") from None
    except (hub.RepositoryNotFoundError, hub.RevisionNotFoundError, hub.RemoteEntryNotFoundError) as e:
        if e.response.status_code in (401, 403):
            raise RegistryRefused("The hub has no such model, or does not show it to this account.") from None
        raise ArtifactNotFound from None
    except hub.HfHubHTTPError as e:
        status = e.response.status_code
        if status in (401, 403):
            raise RegistryRefused(f"The hub answers {status}.") from None
        if status == 404:
            raise ArtifactNotFound from None
        raise RegistryUnavailable(f"The hub answers {status}.") from None
    except hub.HFValidationError:
        raise ArtifactRejected("That is no name of a model on a hub.") from None
    except Exception as e:
        raise RegistryUnavailable(f"The hub does not answer sensibly: {type(e).__name__}.") from e


def _repository_and_kind(name: str) -> tuple[str, str]:
    """Returns the repository of an artifact and the hub's name of its type."""
    is_dataset = name.startswith(_DATASET_PREFIX)
    return name.removeprefix(_DATASET_PREFIX), "dataset" if is_dataset else "model"


def _read_info(api: HfApi, name: str, version: str) -> RepositoryInfo:
    repository, kind = _repository_and_kind(name)
    read_info = api.dataset_info if kind == "dataset" else api.model_info
    return read_info(repository, revision=version, files_metadata=True)


def _list_versions(api: HfApi, name: str) -> list[str]:
    repository, kind = _repository_and_kind(name)
    refs = api.list_repo_refs(repository, repo_type=kind)
    ref_names = [ref.name for ref in (*refs.branches, *refs.tags) if _is_name(ref.name)]
    return sorted(dict.fromkeys(ref_names), key=lambda ref_name: ref_name != "main")[:_MAX_REFS]


def _is_name(hub_name: object) -> bool:
    return isinstance(hub_name, str) and 0 < len(hub_name) <= _MAX_NAME_LENGTH and hub_name.isprintable()


def _bounded_value(value: object) -> object:
    """Returns a value if it is a text, number or list of texts within bounds, and otherwise None."""
    if isinstance(value, str):
        return value[:_MAX_NAME_LENGTH]
    if isinstance(value, list):
        return [list_item[:_MAX_NAME_LENGTH] for list_item in value[:_MAX_LIST_ITEMS] if isinstance(list_item, str)]
    return value if isinstance(value, bool) or (isinstance(value, int) and abs(value) <= _MAX_FILE_BYTES) else None


def _to_artifact(
    name: str, info: RepositoryInfo, revisions: tuple[ScannedRevision, ...], readme: str | None = None
) -> ScannedArtifact:
    extra_fields: dict[str, Any] = {
        key: value for key in _EXTRA_FIELDS if (value := _bounded_value(getattr(info, key, None)))
    }
    artifact_type = ArtifactType.PACKAGE if name.startswith(_DATASET_PREFIX) else ArtifactType.MODEL
    is_restricted = bool(getattr(info, "gated", False) or getattr(info, "private", False))
    return ScannedArtifact(
        type=artifact_type, name=name, readme=readme, extra=extra_fields, restricted=is_restricted, revisions=revisions
    )


def _to_revision(version: str, info: RepositoryInfo) -> ScannedRevision:
    sizes = [file.size for file in info.siblings or ()]
    has_sizes = bool(sizes) and all(isinstance(size, int) and 0 <= size <= _MAX_FILE_BYTES for size in sizes)
    size = sum(size or 0 for size in sizes) if has_sizes else _MAX_FILE_BYTES + 1
    return ScannedRevision(
        version=version,
        digest=str(info.sha)[:MAX_DIGEST_LENGTH] if info.sha else None,
        size=size if size <= _MAX_FILE_BYTES else None,
        file_count=len(sizes) if has_sizes else None,
        modified=info.last_modified.timestamp() if info.last_modified else None,
    )


def _to_planned_file(file: Any) -> PlannedFile:
    path, size = str(file.rfilename), file.size
    if not isinstance(size, int):
        raise ArtifactRejected("The hub does not tell how large a file is.", data={"path": path[:256]})
    sha256 = file.lfs.sha256 if file.lfs else None
    return PlannedFile(
        path=path,
        size=size,
        sha256=str(sha256).lower() if sha256 else None,
        git_sha1=str(file.blob_id).lower() if file.blob_id and not sha256 else None,
    )


class FileSource(Protocol):
    """Reads one revision from a registry. Calls raise the errors of :class:`Fetcher` and :class:`Hub`."""

    async def plan(self, attempt: int, begun_digest: str | None) -> Plan:
        """Returns the files of the revision as the registry announces them.

        A begun import keeps its ``begun_digest`` if the branch moves.
        """

    def fetch(self, plan: Plan, file: PlannedFile, offset: int) -> AsyncGenerator[bytes, None]:
        """Yields the bytes from ``offset`` on. Raises RangeIgnored if the source only sends whole files."""


class FromHub:
    """Reads the files of one version of a model from a hub."""

    def __init__(self, fetcher: Fetcher, source: HubSource) -> None:
        self._source = source
        self._hub = Hub(fetcher, source.url, source.token)

    async def plan(self, attempt: int, begun_digest: str | None) -> Plan:
        source = self._source
        if begun_digest is not None and begun_digest == source.digest:
            source = replace(source, version=begun_digest)
        digest, files = await self._hub.plan(source)
        return Plan(attempt=attempt, digest=digest, origin=f"{self._source.url}/{self._source.name}", files=files)

    def fetch(self, plan: Plan, file: PlannedFile, offset: int) -> AsyncGenerator[bytes, None]:
        return self._hub.fetch(self._source.name, plan.digest, file, offset)


class FromReservoir:
    """Reads the files of a revision from another installation, with a ticket that may be renewed at any time."""

    def __init__(self, fetcher: Fetcher, source: ReservoirSource) -> None:
        self._fetcher = fetcher
        self.ticket = source.ticket

    def _ticket_url(self) -> URL:
        url = parse_url(self.ticket)
        if url.name != "manifest":
            raise ArtifactRejected("That is no ticket of a revision.")
        return url

    async def plan(self, attempt: int, begun_digest: str | None) -> Plan:
        url = self._ticket_url()
        response = await self._fetcher.read(url, {}, limit=MAX_RECORD_BYTES)
        raise_for(response.status, url.host)
        try:
            manifest = msgspec.json.decode(response.body, type=Manifest)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise RegistryUnavailable(f"{url.host} answers something that is no manifest.") from None
        files = tuple(
            PlannedFile(path=file.path, size=file.size, sha256=file.sha256 or None) for file in manifest.files
        )
        origin = f"{url.origin()}/{manifest.revision_id}"
        return Plan(attempt=attempt, digest=manifest.digest[:MAX_DIGEST_LENGTH], origin=origin, files=files)

    def fetch(self, plan: Plan, file: PlannedFile, offset: int) -> AsyncGenerator[bytes, None]:
        ticket = self._ticket_url()
        url = ticket.with_name("file").with_query({**ticket.query, "path": file.path})
        return self._fetcher.file(url, {}, offset=offset, size=file.size)
