"""Transfers large files to and from a storage proxy, by tus uploads and ranged downloads that resume after a break.

Source: tus 1.0.0 (https://tus.io), RFC 9110 14 (ranges), docs/reference/storage-proxy-api.md.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from ai.backend.client.exceptions import BackendAPIError, BackendClientError, EndpointUnreachable
from ai.backend.client.wire import api_error_of

if TYPE_CHECKING:
    import aiohttp
    from yarl import URL

CHUNK = 16 * 1024 * 1024
PARALLEL = 4
_READ_BYTES = 1024 * 1024
_BATCH_FILES, _BATCH_BYTES = 100, 64 * 1024 * 1024
_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
_TUS_HEADERS = {"Tus-Resumable": "1.0.0"}
_RETRIED = frozenset({423, 429, 500, 502, 503, 504})
_GONE_STATUSES = frozenset({401, 403, 404, 410})

Progress = Callable[[str, int, int], None]
"""Called with a path, the bytes done, and the bytes in total."""
TicketSource = Callable[[], Awaitable["Ticket"]]


@dataclass(frozen=True, slots=True)
class Ticket:
    """Holds the URL and the token that permit one transfer of a file at a storage proxy.

    A presigned URL needs no token.
    """

    url: str
    token: str = ""

    @property
    def target(self) -> URL:
        from yarl import URL

        if not self.token:
            return URL(self.url, encoded=True)  # every byte of it is signed
        return URL(self.url).update_query(token=self.token)


class TicketBatches:
    """Requests the tickets of many files in batches, each when the first of its files is transferred.

    A server limits how many requests a user may send, and a directory has many files. A batch has few bytes, so that
    none of its tickets expires before its file is sent.
    """

    def __init__(
        self, sizes: Mapping[str, int], request: Callable[[Sequence[tuple[str, int]]], Awaitable[Sequence[Ticket]]]
    ) -> None:
        """``sizes`` maps paths to bytes. ``request`` returns the tickets of such pairs in their order."""
        import asyncio

        self._request = request
        self._lock = asyncio.Lock()
        self._batch_of_path: dict[str, list[tuple[str, int]]] = {}
        self._tickets: dict[str, Ticket] = {}
        batch: list[tuple[str, int]] = []
        batch_bytes = 0
        for path, size in sizes.items():
            if len(batch) >= _BATCH_FILES or batch_bytes + size > _BATCH_BYTES:
                batch, batch_bytes = [], 0
            batch.append((path, size))
            batch_bytes += size
            self._batch_of_path[path] = batch

    async def take(self, path: str) -> Ticket | None:
        """Returns the ticket of a file. Returns None at a later call for the same file, and for a file that is alone in
        its batch, whose ticket is requested alone.
        """
        async with self._lock:
            batch = self._batch_of_path.pop(path, None)
            if batch is not None and len(batch) > 1 and path not in self._tickets:
                tickets = await self._request(batch)
                self._tickets |= {name: ticket for (name, _), ticket in zip(batch, tickets, strict=True)}
        return self._tickets.pop(path, None)


def state_directory() -> Path:
    """Returns the directory of the records of unfinished uploads."""
    cache_home = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache_home) if cache_home else Path.home() / ".cache") / "backend.ai" / "uploads"


class UploadRecord:
    """Stores the ticket of an upload on disk, so that the next run of a program can resume it.

    ``identity`` identifies the upload: cluster, folder, path, and the local file with its size and time.
    """

    def __init__(self, directory: Path, identity: Mapping[str, Any]) -> None:
        digest = sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        self._path = directory / f"{digest[:40]}.json"

    def read(self) -> Ticket | None:
        try:
            return Ticket(**json.loads(self._path.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, ticket: Ticket) -> None:
        """Saves the ticket if possible; without a record the next run starts from the beginning."""
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with os.fdopen(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                json.dump(asdict(ticket), file)

    def delete(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink()


async def _read_refusal(response: aiohttp.ClientResponse) -> BackendAPIError:
    return api_error_of(response.status, response.reason or "", await response.read())


class _Retries:
    """Waits between tries, longer after each failed try."""

    def __init__(self) -> None:
        self.failures = 0

    async def wait(self, error: Exception) -> None:
        """Waits before the next try. Raises EndpointUnreachable after the last."""

        import asyncio

        if self.failures >= len(_PAUSES_S):
            error_text = str(error) or type(error).__name__
            raise EndpointUnreachable(f"the storage proxy cannot be reached: {error_text}") from error
        await asyncio.sleep(_PAUSES_S[self.failures])
        self.failures += 1


class Transfers:
    """Uploads and downloads files over one HTTP session, and continues transfers that broke off."""

    def __init__(self, http: aiohttp.ClientSession, *, verify: bool = True) -> None:
        self._http = http
        self._verify = verify

    # ---- uploads ----

    async def upload(
        self,
        path: str,
        file: BinaryIO,
        size: int,
        tickets: TicketSource,
        *,
        record: UploadRecord | None = None,
        chunk_size: int = CHUNK,
        progress: Progress | None = None,
    ) -> None:
        """Sends ``size`` bytes of a file. Resumes the upload that ``record`` describes.

        Raises:
            BackendAPIError: the storage proxy refuses.
            EndpointUnreachable: it does not answer, also not after several tries.
            BackendClientError: the file is shorter than it was.
        """

        import asyncio

        ticket = record.read() if record is not None and size else None
        sent_bytes = await self._get_stored_bytes(ticket) if ticket is not None else None
        if ticket is None or sent_bytes is None:
            ticket, sent_bytes = await tickets(), 0
            if record is not None and size:
                record.write(ticket)
        while sent_bytes < size:
            if progress is not None:
                progress(path, sent_bytes, size)
            chunk = await asyncio.to_thread(_read_at, file, sent_bytes, min(chunk_size, size - sent_bytes))
            if not chunk:
                raise BackendClientError(f"{path} became shorter while it was sent")
            sent_bytes = await self._patch(ticket, sent_bytes, chunk)
        if progress is not None:
            progress(path, size, size)
        if record is not None:
            record.delete()

    async def _attempt(
        self,
        method: str,
        url: URL,
        expected_statuses: Collection[int],
        retried_statuses: Collection[int] = _RETRIED,
        **options: Any,
    ) -> aiohttp.ClientResponse | Exception:
        """Sends a request once. Returns the response, or the failure if another try may succeed.

        Raises BackendAPIError if the status is neither expected nor one that is retried.
        """

        import aiohttp

        try:
            async with self._http.request(method, url, ssl=self._verify, allow_redirects=False, **options) as response:
                if response.status in expected_statuses:
                    return response
                refusal = await _read_refusal(response)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return error
        if refusal.status not in retried_statuses:
            raise refusal
        return refusal

    async def _patch(self, ticket: Ticket, offset: int, chunk: bytes) -> int:
        """Sends a chunk, and returns the offset at which the upload continues."""
        headers = {**_TUS_HEADERS, "Upload-Offset": str(offset), "Content-Type": "application/offset+octet-stream"}
        retries = _Retries()
        while True:
            body = io.BytesIO(chunk)
            reply = await self._attempt("PATCH", ticket.target, {204}, _RETRIED | {409}, data=body, headers=headers)
            if not isinstance(reply, Exception):
                return int(reply.headers["Upload-Offset"])
            await retries.wait(reply)
            stored_bytes = await self._get_stored_bytes(ticket)  # a broken request may have arrived in part
            if stored_bytes is None:
                raise reply
            if stored_bytes != offset:
                return stored_bytes

    async def _get_stored_bytes(self, ticket: Ticket) -> int | None:
        """Returns the number of bytes that the proxy has stored. Returns None for an unknown upload."""
        retries = _Retries()
        while True:
            reply = await self._attempt("HEAD", ticket.target, {200, 204, *_GONE_STATUSES}, headers=_TUS_HEADERS)
            if not isinstance(reply, Exception):
                return None if reply.status in _GONE_STATUSES else int(reply.headers["Upload-Offset"])
            await retries.wait(reply)

    async def put(self, path: str, url: str, local: Path, size: int, *, progress: Progress | None = None) -> None:
        """Sends a whole file to a presigned URL, from the beginning at each try.

        Raises:
            BackendAPIError: it is refused.
            EndpointUnreachable: no answer came, also not after several tries.
        """

        from yarl import URL

        retries = _Retries()
        while True:
            body = _read_pieces(path, local, size, progress)
            headers = {"Content-Length": str(size)}
            reply = await self._attempt("PUT", URL(url, encoded=True), {200, 201, 204}, data=body, headers=headers)
            if not isinstance(reply, Exception):
                return
            await retries.wait(reply)

    # ---- downloads ----

    async def download(
        self, path: str, target: Path, tickets: TicketSource, *, progress: Progress | None = None
    ) -> None:
        """Downloads a file to ``target``, and replaces an existing ``target`` only after the whole file has arrived.

        A part is stored beside it and completed by the next call, if the file is still the same one.

        Raises:
            BackendAPIError: the storage proxy refuses.
            EndpointUnreachable: it does not answer, also not after several tries.
        """

        import aiohttp

        partial, retries = PartialDownload(target), _Retries()
        while True:
            ticket = await tickets()  # anew each time: the old one may have expired meanwhile
            old_size = partial.size
            try:
                await self._fetch(path, ticket, partial, progress)
                break
            except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
                if partial.size > old_size:
                    retries.failures = 0
                await retries.wait(error)
        partial.publish()

    async def _fetch(self, path: str, ticket: Ticket, partial: PartialDownload, progress: Progress | None) -> None:
        import asyncio

        import aiohttp

        offset, etag = partial.size, partial.version
        headers = {"Range": f"bytes={offset}-", "If-Range": etag} if offset and etag else {}
        async with self._http.get(ticket.target, headers=headers, ssl=self._verify) as response:
            if response.status == 416 and headers:
                partial.drop()
                raise aiohttp.ClientPayloadError("the file became shorter")
            if response.status in _RETRIED:
                raise aiohttp.ClientPayloadError(f"the storage proxy answers {response.status}")
            if response.status not in (200, 206):
                raise await _read_refusal(response)
            done_bytes = offset if response.status == 206 else 0
            total_bytes = done_bytes + int(response.headers.get("Content-Length") or 0)
            with partial.open_file(response.headers.get("ETag", ""), goes_on=response.status == 206) as file:
                async for chunk in response.content.iter_chunked(_READ_BYTES):
                    await asyncio.to_thread(file.write, chunk)
                    done_bytes += len(chunk)
                    if progress is not None:
                        progress(path, done_bytes, max(total_bytes, done_bytes))
                file.flush()
                await asyncio.to_thread(os.fsync, file.fileno())
        if progress is not None:
            progress(path, done_bytes, done_bytes)


class PartialDownload:
    """Represents a partial download: a hidden file beside its target, and the version (ETag) of the downloaded file."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._part = target.with_name(f".{target.name}.part")
        self._mark = target.with_name(f".{target.name}.part-of")

    @property
    def size(self) -> int:
        """Returns the number of bytes fetched so far."""
        try:
            return self._part.stat().st_size
        except OSError:
            return 0

    @property
    def version(self) -> str:
        """Returns the version of the file. Returns an empty text if the version is unknown."""
        try:
            return self._mark.read_text()
        except OSError:
            return ""

    def open_file(self, version: str, *, goes_on: bool) -> BinaryIO:
        """Opens the partial file for writing, at its end or from its beginning."""
        if not goes_on:
            self.drop()
        self._mark.write_text(version)
        return self._part.open("ab")

    def drop(self) -> None:
        """Discards the bytes fetched."""
        self._mark.unlink(missing_ok=True)
        self._part.unlink(missing_ok=True)

    def publish(self) -> None:
        """Renames the complete file to its target."""
        self._part.replace(self._target)
        self._mark.unlink(missing_ok=True)


async def _read_pieces(path: str, local_path: Path, size: int, progress: Progress | None) -> AsyncIterator[bytes]:
    """Yields exactly ``size`` bytes of a local file, in pieces."""

    import asyncio

    done_bytes = 0
    with local_path.open("rb") as file:
        while done_bytes < size:
            piece = await asyncio.to_thread(file.read, min(_READ_BYTES, size - done_bytes))
            if not piece:
                raise BackendClientError(f"{local_path} became shorter while it was sent")
            done_bytes += len(piece)
            if progress is not None:
                progress(path, done_bytes, size)
            yield piece


def _read_at(file: BinaryIO, offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)


async def run_in_parallel(awaitables: Iterable[Awaitable[Any]], parallel: int) -> list[Any]:
    """Awaits ``awaitables``, at most ``parallel`` at a time, and returns the results in order.

    The first failure ends the rest.
    """

    import asyncio

    running_limit = asyncio.Semaphore(max(1, parallel))
    pending_awaitables = list(awaitables)

    async def await_when_free(awaitable: Awaitable[Any]) -> Any:
        async with running_limit:
            return await awaitable

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(await_when_free(awaitable)) for awaitable in pending_awaitables]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    finally:
        for awaitable in pending_awaitables:
            if asyncio.iscoroutine(awaitable):
                awaitable.close()  # it may not have been started
    return [task.result() for task in tasks]


def path_inside(base: Path, path: str) -> Path:
    """Returns the local path below ``base`` for a downloaded file. Raises BackendClientError for a path outside."""
    path_parts = PurePosixPath(path).parts
    if ".." in path_parts or path.startswith("/") or "\0" in path:
        raise BackendClientError(f"{path!r} would be written outside of {base}")
    return base.joinpath(*path_parts)


def collect(
    files: Sequence[str | os.PathLike[str]], basedir: str | os.PathLike[str] | None, recursive: bool
) -> tuple[list[tuple[str, Path]], list[str]]:
    """Returns the files to upload as pairs of a path in the folder and a local file, and the directories to create."""
    base_folder = Path(basedir or Path.cwd())
    root = base_folder.resolve()
    local_by_path: dict[str, Path] = {}
    directories: set[str] = set()
    for name in files:
        path = Path(name) if Path(name).is_absolute() else base_folder / name
        # The directory is resolved, the last part is not: a link is sent under its own name.
        local_path = path.parent.resolve() / path.name if path.name not in ("", "..") else path.resolve()
        if not local_path.is_relative_to(root):
            raise BackendClientError(f"{name} is outside of {base_folder}")
        if local_path.is_dir():
            if not recursive:
                raise BackendClientError(f"{name} is a directory: upload it with recursive")
            walked_files, walked_directories = _walk(local_path)
            directories |= {path.relative_to(root).as_posix() for path in walked_directories}
            local_by_path |= {path.relative_to(root).as_posix(): path for path in walked_files}
        elif local_path.is_file():
            local_by_path[local_path.relative_to(root).as_posix()] = local_path
        else:
            raise BackendClientError(f"{name} is no regular file")
    for remote_path in (*local_by_path, *directories):
        if not remote_path.isprintable() and any("\ud800" <= character <= "\udfff" for character in remote_path):
            raise BackendClientError(f"{os.fsencode(remote_path)!r} is no name in UTF-8")
    parent_directories = {PurePosixPath(path).parent.as_posix() for path in local_by_path}
    return sorted(local_by_path.items()), sorted((directories | parent_directories) - {"."})


def _walk(top: Path) -> tuple[list[Path], list[Path]]:
    """Returns the files below a directory, and the directories with ``top`` among them. Links are followed.

    Raises:
        BackendClientError: a file is not a regular one, such as a pipe, or a link leads to a directory above it.
        OSError: a directory cannot be read.
    """
    files: list[Path] = []
    directories = [top]
    for walked_name, directory_names, file_names in os.walk(top, onerror=_raise_error, followlinks=True):
        walked_directory = Path(walked_name)
        for directory in (walked_directory / name for name in directory_names):
            if directory.is_symlink() and any(map(directory.samefile, (walked_directory, *walked_directory.parents))):
                raise BackendClientError(f"{directory} is a link to a directory that contains it")
            directories.append(directory)
        for file in (walked_directory / name for name in file_names):
            if not file.is_file():
                raise BackendClientError(f"{file} is no regular file")
            files.append(file)
    return files, directories


def _raise_error(error: OSError) -> NoReturn:
    raise error
