"""Finds the sources of the console, and its bundles in the installed package or in the user's cache."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

PACKAGED_FOLDER = Path(__file__).with_name("bundle")
"""The bundle that a wheel carries."""
CONSOLE_NAME, TERMINAL_NAME = "console", "terminal"
"""Folders of a bundle: the console, and xterm.js for the terminal page of sessions."""
INDEX_NAME = "index.html"
REFERENCE_NAMES = ("graphql.md", "openapi.json")
"""Documents of `docs/reference` from which the console's types are generated."""
_FORMAT = b"1"
"""Is raised when a change of this package changes what a bundle contains."""
_LEFT_OUT_NAMES = frozenset({"node_modules", "dist", "generated", "coverage", "e2e"})
_DIGEST_LENGTH = 20


def source_folder() -> Path | None:
    """Returns the folder `webui` of the checkout that this package runs from; None where there is none."""
    folder = Path(__file__).resolve().parents[5] / "webui"
    return folder if (folder / "package-lock.json").is_file() else None


def reference_folder(sources: Path) -> Path:
    """Returns the folder ``docs/reference`` of the checkout to which these console sources belong."""
    return sources.parent / "docs" / "reference"


def cache_folder() -> Path:
    """Returns ``$XDG_CACHE_HOME/backend.ai/console``, by default below ``~/.cache``."""
    cache_home = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache_home) if cache_home else Path.home() / ".cache") / "backend.ai" / "console"


def source_files(sources: Path) -> Iterator[Path]:
    """Yields the files that a build reads, in a stable order, without links and hidden files."""
    for folder, folder_names, file_names in os.walk(sources):
        folder_names[:] = sorted(
            folder_name
            for folder_name in folder_names
            if folder_name not in _LEFT_OUT_NAMES and not folder_name.startswith(".")
        )
        for name in sorted(file_names):
            path = Path(folder, name)
            if not name.startswith(".") and not path.is_symlink():
                yield path


def source_digest(sources: Path) -> str:
    """Returns the digest of all files from which a bundle of the console is built. Raises OSError."""
    digest = hashlib.sha256(_FORMAT)
    references = [reference_folder(sources) / name for name in REFERENCE_NAMES]
    for path in (*source_files(sources), *(path for path in references if path.is_file())):
        content = path.read_bytes()
        digest.update(f"{os.path.relpath(path, sources)}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:_DIGEST_LENGTH]


def bundle_place(cache: Path, digest: str) -> Path:
    """Returns the folder in a cache where the bundle of these sources is stored, or will be stored."""
    return cache / "bundles" / digest


def is_bundle(folder: Path) -> bool:
    """Returns True for the folder of a whole bundle."""
    return (folder / CONSOLE_NAME / INDEX_NAME).is_file()


def find_bundle(
    *, sources: Path | None = None, cache: Path | None = None, packaged: Path = PACKAGED_FOLDER
) -> Path | None:
    """Returns the folder of the built bundle.

    The bundle of a checkout's sources is used if sources exist, else the packaged bundle. None if it is not built.
    Reads all sources: call it in a thread.
    """
    sources = sources or source_folder()
    if sources is None:
        return packaged if is_bundle(packaged) else None
    try:
        folder = bundle_place(cache or cache_folder(), source_digest(sources))
    except OSError:  # a file vanished while the sources were read
        return None
    return folder if is_bundle(folder) else None
