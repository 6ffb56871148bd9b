"""Encodes and decodes multipart uploads and downloads of tar archives (client wire contract 2.1.4)."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import IO
from urllib.parse import quote

import aiohttp
from aiohttp import multipart

from ai.backend.client.exceptions import BackendClientError, UnusableReply


def collect(files: Iterable[str | os.PathLike[str]], basedir: str | os.PathLike[str] | None = None) -> dict[str, bytes]:
    """Returns the contents of files by their paths relative to ``basedir`` (the working directory).

    Raises BackendClientError if a file is missing, no regular file, or outside of ``basedir``.
    """
    folder = Path(basedir or ".").resolve()
    contents: dict[str, bytes] = {}
    for file in files:
        path = folder / file
        path = path.parent.resolve() / path.name  # a link keeps its own name
        if not path.is_file():
            raise BackendClientError(f"{file}: no such file")
        if not path.is_relative_to(folder):
            raise BackendClientError(f"{file} is not inside {folder}: change into a directory that contains it")
        contents[path.relative_to(folder).as_posix()] = path.read_bytes()
    return contents


def upload_form(files: Iterable[tuple[str, bytes]]) -> aiohttp.MultipartWriter:
    """Builds a form with a part ``src`` for each file; the file name is the path, percent-encoded with its slashes."""
    form = aiohttp.MultipartWriter("form-data")
    for name, content in files:
        form_part = form.append(content, {"Content-Type": "application/octet-stream"})
        form_part.headers["Content-Disposition"] = f'form-data; name="src"; filename="{quote(name, safe="")}"'
    return form


async def tar_parts(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yields the content of each part of a multipart answer. Raises UnusableReply if the answer is not multipart."""
    if not response.content_type.startswith("multipart/"):
        raise UnusableReply(f"a download is {response.content_type}, not multipart")
    reader = multipart.MultipartReader.from_response(response)
    while (body_part := await reader.next()) is not None:
        if isinstance(body_part, multipart.BodyPartReader):
            yield bytes(await body_part.read())


def extract(archive: IO[bytes], dest: Path) -> list[Path]:
    """Unpacks an archive below ``dest``. No member can be written outside of ``dest``.

    Raises BackendClientError if it tries, or it is not a tar archive.
    """
    dest.mkdir(parents=True, exist_ok=True)
    written_paths: list[Path] = []
    try:
        with tarfile.open(fileobj=archive, mode="r:*") as tar:
            for member in tar:
                path = _unpack_member(tar, member, dest)
                written_paths += [] if member.isdir() else [path]
    except tarfile.TarError as error:
        raise BackendClientError(f"the downloaded archive is unusable: {error}") from error
    return written_paths


def _unpack_member(tar: tarfile.TarFile, member: tarfile.TarInfo, dest: Path) -> Path:
    """Unpacks one member below ``dest``, without tarfile's ``filter``, which Python 3.11.2 of Debian 12 lacks."""
    top_folder, path = dest.resolve(), dest / member.name
    if not path.parent.resolve().is_relative_to(top_folder) or ".." in Path(member.name).parts:
        raise BackendClientError(f"the downloaded archive is unusable: {member.name!r} leads outside")
    if member.isdir():
        if path.is_symlink():
            path.unlink()
        path.mkdir(parents=True, exist_ok=True)
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() or path.is_file():
        path.unlink()
    if member.issym():
        if not (path.parent / member.linkname).resolve().is_relative_to(top_folder):
            raise BackendClientError(f"the downloaded archive is unusable: the link {member.name!r} leads outside")
        path.symlink_to(member.linkname)
        return path
    content_file = tar.extractfile(member) if member.isreg() else None
    if content_file is None:
        raise BackendClientError(f"the downloaded archive is unusable: {member.name!r} is no file")
    with path.open("xb") as file:
        shutil.copyfileobj(content_file, file)
    path.chmod(member.mode & 0o755 | 0o600)
    os.utime(path, (member.mtime, member.mtime))
    return path
