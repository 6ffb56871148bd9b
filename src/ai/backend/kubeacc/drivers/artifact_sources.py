"""Fetches images for devices by https and from container registries. Both sources are untrusted.

Their addresses, redirects and token servers are judged by the one guard of outgoing requests, and their bytes are
counted. The store compares the digest.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
import tarfile
import tempfile
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from ssl import create_default_context
from typing import IO, Annotated, Any, BinaryIO, cast
from urllib.parse import unquote, urlsplit

import aiohttp
import msgspec

from ai.backend.common.errors import ArtifactRejected, InvalidInput, NotFound, RegistryRefused, RegistryUnavailable
from ai.backend.infra.http.outbound import (
    NOT_PUBLIC,
    READ_BYTES,
    CertificateRefused,
    OutboundClient,
    OutboundFailed,
    RedirectRefused,
    check_plain,
    parse_url,
)
from ai.backend.infra.http.registry import RegistryHttp
from ai.backend.kubeacc.crd.operations import Artifact
from ai.backend.kubeacc.drivers.artifact_settings import ArtifactSettings
from ai.backend.kubeacc.drivers.artifacts import local_image
from ai.backend.kubeacc.drivers.spi import ImageSource

MAX_REDIRECTS = 5
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=30.0)
_MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_MANIFEST_LIMIT = 1 << 20
_MAX_LAYERS, _MAX_MEMBERS = 128, 20_000
_MAX_READ_BYTES, _MAX_HEADER_BYTES = 4 << 20, 64 << 20
_GZIP_MAGIC = b"\x1f\x8b"
_REFERENCE = re.compile(r"/(?P<name>[a-z0-9]+(?:[._/-]{1,2}[a-z0-9]+)*)@(?P<digest>sha256:[0-9a-f]{64})")
_Digest = Annotated[str, msgspec.Meta(pattern=r"^sha256:[0-9a-f]{64}$")]


class _Layer(msgspec.Struct, frozen=True):
    digest: _Digest
    size: Annotated[int, msgspec.Meta(ge=0)]


class _Manifest(msgspec.Struct, frozen=True):
    layers: Annotated[list[_Layer], msgspec.Meta(max_length=_MAX_LAYERS)] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class _Registry:
    """Describes a registry for :class:`RegistryHttp`."""

    name: str
    username: str = ""
    password: str = field(default="", repr=False)
    ssl_verify: bool = True

    @property
    def url(self) -> str:
        return f"https://{self.name}"


class RemoteImages:
    """Fetches images for the schemes ``https`` and ``oci``. ``folder`` takes layers while they are read.

    Raises InvalidInput: a file that the settings name cannot be read.
    """

    def __init__(self, settings: ArtifactSettings, folder: Path, *, client: OutboundClient | None = None) -> None:
        self._folder = folder
        self._registries: dict[str, _Registry] = {}
        for host, account in settings.accounts.items():
            password = _read(account.password_file).strip()
            self._registries[host.lower()] = _Registry(name=host.lower(), username=account.username, password=password)
        context = create_default_context()
        if settings.ca_file is not None:
            context.load_verify_locations(cadata=_read(settings.ca_file))
        self._client = client or OutboundClient(
            refused=NOT_PUBLIC,
            timeout=_TIMEOUT,
            allowed_hosts=settings.allowed_hosts,
            only_allowed=bool(settings.allowed_hosts),
            ssl=context,
            user_agent="backendai-kube-acc",
        )

    @property
    def sources(self) -> Mapping[str, ImageSource]:
        return {"https": self.fetch_https, "oci": self.fetch_oci}

    async def close(self) -> None:
        await self._client.close()

    async def fetch_https(self, artifact: Artifact, target: BinaryIO, limit: int) -> None:
        """Fetches an image by https.

        Continues at the end of ``target`` if the server supports it. Raises AddressRefused, NotFound, RegistryRefused,
        RegistryUnavailable, ArtifactRejected: too large.
        """
        url = parse_url(artifact.uri)
        offset = target.tell()
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        try:
            request = self._client.request("GET", url, headers=headers, max_redirects=MAX_REDIRECTS)
            async with request as response:
                if offset and response.status == 416:  # the end was here already, or the file has become shorter
                    return
                _check_status(response)
                check_plain(response)
                if offset and not _is_continuation(response, offset):
                    _truncate(target)
                await _copy(response, target, limit)
        except (CertificateRefused, RedirectRefused) as e:
            raise RegistryRefused(str(e)) from None
        except OutboundFailed as e:
            raise RegistryUnavailable(str(e)) from None

    async def fetch_oci(self, artifact: Artifact, target: BinaryIO, limit: int) -> None:
        """Writes a layer of ``oci://HOST/NAME@sha256:DIGEST`` into the target file.

        The digest is that of the layer or of a manifest that has it. With ``...#PATH``, the file of that path in the
        image's layers is written. Raises as :meth:`fetch_https`; InvalidInput: the URI has another shape.
        """
        url_parts = urlsplit(artifact.uri)
        match = _REFERENCE.fullmatch(url_parts.path)
        if match is None or url_parts.query or parse_url(f"https://{url_parts.netloc}").host is None:
            raise InvalidInput("an image of a registry is oci://HOST/NAME@sha256:DIGEST, or that with #PATH")
        name, digest, host = match["name"], match["digest"], url_parts.netloc.lower()
        registry = self._registries.get(host, _Registry(name=host))
        async with RegistryHttp(registry, client=self._client) as http:
            repository = _Repository(http, name)
            layer = f"sha256:{artifact.sha256}"
            if url_parts.fragment:
                await self._extract(repository, digest, unquote(url_parts.fragment).strip("/"), target, limit)
                return
            if digest != layer and layer not in [image_layer.digest for image_layer in await repository.layers(digest)]:
                raise ArtifactRejected(f"the manifest {digest} has no layer of the digest that the operation names")
            await repository.copy(layer, target, limit)

    async def _extract(self, repository: _Repository, digest: str, name: str, target: BinaryIO, limit: int) -> None:
        """Writes one regular file of an image. As in a container, the last layer that has the file counts."""
        for layer in reversed(await repository.layers(digest)):
            async with repository.open_unpacked(layer, self._folder, limit) as tar:
                _truncate(target)
                if await asyncio.to_thread(_extract, tar, name, target, limit):
                    return
        raise NotFound(f"no layer of {digest} has a file {name[:200]!r}")


class _Repository(msgspec.Struct, frozen=True):
    http: RegistryHttp
    name: str

    @property
    def scope(self) -> str:
        return f"repository:{self.name}:pull"

    async def layers(self, digest: str) -> list[_Layer]:
        """Returns the layers of the manifest with the given digest.

        Raises ArtifactRejected: the registry has sent another.
        """
        reply = await self.http.get(
            f"/v2/{self.name}/manifests/{digest}",
            accept=", ".join(_MANIFEST_TYPES),
            scope=self.scope,
            limit=_MANIFEST_LIMIT,
        )
        if f"sha256:{sha256(reply.body).hexdigest()}" != digest:
            raise ArtifactRejected(f"the registry has sent another manifest than {digest}")
        try:
            return msgspec.json.decode(reply.body, type=_Manifest).layers
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
            raise ArtifactRejected(f"the manifest {digest} is none of an image: {str(e)[:200]}") from None

    async def copy(self, digest: str, target: BinaryIO, limit: int) -> None:
        offset = target.tell()
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        async with self.http.stream(f"/v2/{self.name}/blobs/{digest}", scope=self.scope, headers=headers) as response:
            if response.status == 416:  # the end was here already
                return
            if offset and not _is_continuation(response, offset):
                _truncate(target)
            await _copy(response, target, limit)

    @asynccontextmanager
    async def open_unpacked(self, layer: _Layer, folder: Path, limit: int) -> AsyncIterator[BinaryIO]:
        """Yields the tar archive of a layer in a file without a name. Raises ArtifactRejected if it is too large."""
        with tempfile.TemporaryFile(dir=folder) as file:
            unpacker = _Unpacker(file, limit)
            size = 0
            async with self.http.stream(f"/v2/{self.name}/blobs/{layer.digest}", scope=self.scope) as response:
                async for chunk in response.content.iter_chunked(READ_BYTES):
                    size += len(chunk)
                    if size > min(layer.size, limit):
                        raise ArtifactRejected(f"the layer {layer.digest} is too large, or not as long as announced")
                    await asyncio.to_thread(unpacker.write, chunk)
            file.flush()
            yield cast("BinaryIO", file)


def _make_gunzip() -> Any:
    return zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)


class _Unpacker:
    """Writes a stream to a file, up to ``limit`` bytes. A gzip stream is decompressed."""

    def __init__(self, file: IO[bytes], limit: int) -> None:
        self._file, self._left = file, limit
        self._is_begun = False
        self._gzip: Any = None

    def write(self, chunk: bytes) -> None:
        if not self._is_begun:
            self._is_begun = True
            if chunk.startswith(_GZIP_MAGIC):
                self._gzip = _make_gunzip()
        if self._gzip is None:
            self._put(chunk)
            return
        try:
            while chunk:
                self._put(self._gzip.decompress(chunk, READ_BYTES))
                chunk = self._gzip.unconsumed_tail
                if self._gzip.eof:  # a layer may be several streams, one after the other
                    chunk, self._gzip = self._gzip.unused_data, _make_gunzip()
        except zlib.error as e:
            raise ArtifactRejected(f"a layer of the image cannot be decompressed: {e}") from None

    def _put(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0:
            raise ArtifactRejected("a layer of the image is too large")
        self._file.write(data)


class _BoundedReads:
    """Limits the reads of tarfile, which would otherwise read headers of any length into memory or loop."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left: int = _MAX_HEADER_BYTES
        self.seek, self.tell = file.seek, file.tell

    def lift_limit(self) -> None:
        """Ends the limit of reads. The following data is the content of a file, which has its own limit."""
        self._left = sys.maxsize

    def read(self, size: int = -1) -> bytes:
        self._left -= size
        if not 0 <= size <= _MAX_READ_BYTES or self._left < 0:
            raise ArtifactRejected("a layer of the image has headers that are too long")
        return self._file.read(size)


def _extract(layer: BinaryIO, name: str, target: BinaryIO, limit: int) -> bool:
    """Writes the regular file ``name`` of a tar archive.

    Nothing else of the archive is written anywhere, so names, links and modes in it do no harm. Returns False if the
    tar does not have the file. Raises ArtifactRejected.
    """
    layer.seek(0)
    bounded_reads = _BoundedReads(layer)
    member: tarfile.TarInfo | None = None
    try:
        with tarfile.open(fileobj=cast("BinaryIO", bounded_reads), mode="r:") as tar:
            for member_index, entry in enumerate(tar):
                if member_index >= _MAX_MEMBERS or entry.size < 0:
                    raise ArtifactRejected(f"a layer of the image has more than {_MAX_MEMBERS} files, or is damaged")
                if entry.name.removeprefix("./").lstrip("/") == name:
                    member = entry
            if member is None:
                return False
            if not member.isreg() or member.sparse is not None:
                raise ArtifactRejected(f"{name[:200]!r} of the image is no regular file")
            if member.size > limit:
                raise ArtifactRejected(f"the image is larger than {limit} bytes")
            member_file = tar.extractfile(member)
            assert member_file is not None  # of a regular file
            bounded_reads.lift_limit()
            shutil.copyfileobj(member_file, target, READ_BYTES)
            return True
    except (tarfile.TarError, ValueError, OverflowError, EOFError, RecursionError, LookupError) as e:
        raise ArtifactRejected(f"a layer of the image is no tar: {str(e)[:200]}") from None


def file_source(folder: Path) -> ImageSource:
    """Returns the source of the images in a folder of this machine, by ``file:///``."""

    def copy(artifact: Artifact, target: BinaryIO, limit: int) -> None:
        _truncate(target)
        with local_image(artifact, folder).open("rb") as image:
            if os.fstat(image.fileno()).st_size > limit:
                raise ArtifactRejected(f"the image is larger than {limit} bytes")
            shutil.copyfileobj(image, target, READ_BYTES)

    async def fetch(artifact: Artifact, target: BinaryIO, limit: int) -> None:
        await asyncio.to_thread(copy, artifact, target, limit)

    return fetch


async def _copy(response: aiohttp.ClientResponse, target: BinaryIO, limit: int) -> None:
    size = target.tell()
    if size + (response.content_length or 0) > limit:
        raise ArtifactRejected(f"the image is larger than {limit} bytes")
    async for chunk in response.content.iter_chunked(READ_BYTES):
        size += len(chunk)
        if size > limit:
            raise ArtifactRejected(f"the image is larger than {limit} bytes")
        await asyncio.to_thread(target.write, chunk)


def _is_continuation(response: aiohttp.ClientResponse, offset: int) -> bool:
    """Returns True if the body is the requested rest of the file, and False if it is the whole file.

    Raises RegistryUnavailable.
    """
    if response.status != 206:
        return False
    if not response.headers.get("Content-Range", "").startswith(f"bytes {offset}-"):
        raise RegistryUnavailable(f"{response.url.host} sends another part than it was asked for")
    return True


def _check_status(response: aiohttp.ClientResponse) -> None:
    status, host = response.status, response.url.host
    if status in (200, 206):
        return
    if status in (404, 410):
        raise NotFound(f"{host} has no such image")
    if status in (408, 429) or status >= 500:
        raise RegistryUnavailable(f"{host} answers {status}")
    raise RegistryRefused(f"{host} answers {status}")


def _truncate(target: BinaryIO) -> None:
    target.seek(0)
    target.truncate()


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as e:
        raise InvalidInput(f"{path} cannot be read: {type(e).__name__}") from None
