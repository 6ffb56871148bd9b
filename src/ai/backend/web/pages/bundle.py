"""Loads all files of a built console into memory, compressed, for serving.

The bundle is named by the digest of its files and compressed once.
"""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
import os
from pathlib import Path

import msgspec

INDEX_NAME = "index.html"
ASSETS_NAME = "assets"
PREFIX_MARK, NONCE_MARK, BOOT_MARK = "__BACKENDAI_PREFIX__", "__BACKENDAI_NONCE__", "__BACKENDAI_BOOT__"
"""What the page of the console contains where the server fills something in."""
_COMPRESSED_TYPES = ("text/", "application/javascript", "application/json", "image/svg+xml", "application/manifest")
_MAX_BUNDLE_BYTES = 64 << 20
_DIGEST_LENGTH = 16


class Asset(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a file of the console.

    ``content`` is a gzip stream if ``is_compressed``, to hold it in memory only once.
    """

    content_type: str
    content: bytes
    is_compressed: bool

    def plain(self) -> bytes:
        """Returns the file's uncompressed content, for clients that do not accept gzip."""
        return gzip.decompress(self.content) if self.is_compressed else self.content


class Bundle(msgspec.Struct, frozen=True, kw_only=True):
    """Holds all files of a console.

    Attributes:
        digest: of names and contents; a part of the assets' URLs, which never change.
        page: the text of `index.html`; its links to assets contain the mark of the prefix and the digest.
        assets: by their path below ``assets/``. files: by their path beside the page.
    """

    digest: str
    page: str
    assets: dict[str, Asset]
    files: dict[str, Asset]


class BundleDamaged(Exception):
    """Raised when a folder holds no console of this project. The text says why."""


def is_our_console(folder: Path) -> bool:
    """Returns True if a folder holds a built console of this project, and not a published console of Backend.AI."""
    try:
        return BOOT_MARK in (folder / INDEX_NAME).read_text(errors="replace")
    except OSError:
        return False


def load_bundle(folder: Path) -> Bundle:
    """Reads and compresses all files of a folder, which takes some tenths of a second.

    Leaves links out. Raises BundleDamaged.
    """
    contents: dict[str, bytes] = {}
    try:
        for folder_path, folder_names, file_names in os.walk(folder):
            folder_names.sort()
            for name in sorted(file_names):
                path = Path(folder_path, name)
                if path.is_file() and not path.is_symlink() and path.suffix != ".map":
                    contents[path.relative_to(folder).as_posix()] = path.read_bytes()
    except OSError as e:
        raise BundleDamaged(f"{folder} cannot be read: {e.strerror}.") from None
    page = contents.pop(INDEX_NAME, b"").decode(errors="replace")
    if BOOT_MARK not in page:
        raise BundleDamaged(f"{folder}/{INDEX_NAME} is no page of this console: it lacks {BOOT_MARK}.")
    if sum(map(len, contents.values())) > _MAX_BUNDLE_BYTES:
        raise BundleDamaged(f"{folder} has more than {_MAX_BUNDLE_BYTES >> 20} MiB.")
    digest = _digest_of({INDEX_NAME: page.encode(), **contents})
    for quote_mark in "\"'":
        page = page.replace(f"{quote_mark}./{ASSETS_NAME}/", f"{quote_mark}{PREFIX_MARK}{ASSETS_NAME}/{digest}/")
    assets: dict[str, Asset] = {}
    files: dict[str, Asset] = {}
    for name, content in contents.items():
        first_part, _, asset_path = name.partition("/")
        (assets if first_part == ASSETS_NAME and asset_path else files)[
            asset_path if first_part == ASSETS_NAME and asset_path else name
        ] = _asset(name, content)
    return Bundle(digest=digest, page=page, assets=assets, files=files)


def _digest_of(contents: dict[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name, content in sorted(contents.items()):
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:_DIGEST_LENGTH]


def _asset(name: str, content: bytes) -> Asset:
    content_type = "text/javascript" if name.endswith((".js", ".mjs")) else mimetypes.guess_type(name)[0]
    content_type = content_type or "application/octet-stream"
    if content_type.startswith(_COMPRESSED_TYPES):
        compressed_content = gzip.compress(content, 9, mtime=0)
        if len(compressed_content) < len(content):
            return Asset(content_type=content_type, content=compressed_content, is_compressed=True)
    return Asset(content_type=content_type, content=content, is_compressed=False)
