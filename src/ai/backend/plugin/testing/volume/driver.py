"""Operates a volume in tests, and models the effect of each operation on the volume's tree of files."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ai.backend.common.errors import (
    BackendError,
    FileAlreadyExists,
    InvalidInput,
    InvalidPath,
    NoSuchFile,
    WrongKindOfFile,
)
from ai.backend.common.volume_paths import FolderPath, QuotaScopeId, QuotaScopeKind, VFolderId
from ai.backend.plugin.volume import AbstractVolume, Upload, UploadRecord

AWKWARD_NAMES = ("-rf", "a b", 'q"uote', "new\nline", "é", "e\u0301", "CASE", "case", "*", "~", "한글", "\t", "x" * 255)
TOP = FolderPath()


def parse_path(path_text: str) -> FolderPath:
    return FolderPath.parse(path_text)


def random_folder_id() -> VFolderId:
    return VFolderId(QuotaScopeId(QuotaScopeKind.USER, uuid4()), uuid4())


async def assert_refused(
    error_class: type[Exception] | tuple[type[Exception], ...], volume_call: Awaitable[object]
) -> None:
    """Awaits a call and asserts that it raises the error."""
    with pytest.raises(error_class):
        await volume_call


async def eventually(condition: Any, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not (await result if isinstance(result := condition(), Awaitable) else result):
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)


def has_no_entry_named(name: str, top_path: Path) -> bool:
    """True if no entry at any depth below ``top_path`` has the name.

    False also if find(1) fails, as it does where a tree changes under it.
    """
    search = subprocess.run(["find", top_path, "-name", name, "-print", "-quit"], capture_output=True, check=False)
    return search.returncode == 0 and not search.stdout


def remove_deep_tree(path: Path) -> None:
    """Removes a tree, even a tree that is too deep for pytest."""
    subprocess.run(["rm", "-rf", path], check=False)


async def begin_upload(volume: AbstractVolume, folder: VFolderId, path: str, size: int) -> tuple[UploadRecord, Upload]:
    record = UploadRecord(session=uuid4().hex, folder=folder, path=parse_path(path), size=size)
    await volume.create_upload(record)
    return record, volume.open_upload(folder, record.session)


async def put(volume: AbstractVolume, folder: VFolderId, path: str, content: bytes) -> None:
    """Writes a file by an upload."""
    _, upload = await begin_upload(volume, folder, path, len(content))
    try:
        await asyncio.to_thread(upload.write, content)
        await asyncio.to_thread(upload.publish, parse_path(path))
    finally:
        upload.close()


async def read(volume: AbstractVolume, folder: VFolderId, path: str) -> bytes:
    file = await volume.open_file(folder, parse_path(path))
    try:
        return os.pread(file.fd, file.size, 0)
    finally:
        file.close()


async def names(volume: AbstractVolume, folder: VFolderId, path: str = ".", *, limit: int = 1000) -> list[str]:
    """Lists the names in a directory of a folder, from all pages of the listing."""
    listed_names: list[str] = []
    cursor: str | None = None
    while True:
        page = await volume.list_directory(folder, parse_path(path), limit=limit, cursor=cursor)
        listed_names += [entry.name for entry in page.entries]
        if (cursor := page.cursor) is None:
            return listed_names


_OPERATIONS = ("put", "put", "mkdir", "mkdir", "delete", "rename", "move", "read", "list", "clone", "archive")


@dataclass
class TreeModel:
    """Models a folder's files in memory. ``tree`` maps paths to contents, and directories to None."""

    tree: dict[str, bytes | None] = field(default_factory=dict)

    def choose(self, rng: random.Random) -> tuple[str, tuple[Any, ...]]:
        def random_path() -> str:
            if self.tree and rng.random() < 0.5:
                return rng.choice(sorted(self.tree))
            return "/".join(rng.choice(("a", "b", "-c", "é")) for _ in range(rng.randint(1, 3)))

        operation = rng.choice(_OPERATIONS)
        match operation:
            case "put":
                return operation, (random_path(), rng.randbytes(rng.randint(0, 5000)))
            case "delete":
                return operation, (random_path(), rng.random() < 0.5)
            case "rename":
                return operation, (random_path(), rng.choice(("a", "b", "new\n", "..", "x/y")))
            case "move":
                return operation, (random_path(), random_path())
            case "clone":
                return operation, ()
            case "archive":
                directories = [path_of_entry for path_of_entry, content in self.tree.items() if content is None]
                return operation, (rng.choice(sorted(directories)) if directories else ".",)
        return operation, (random_path(),)

    def _is_directory(self, path: str) -> bool:
        return path in ("", ".") or self.tree.get(path, b"") is None

    def _parent_error(self, path: str) -> type[BackendError] | None:
        """Returns the error that a missing or wrong parent directory causes. Returns None if the parent is right."""
        parent_names = path.split("/")[:-1]
        for depth in range(1, len(parent_names) + 1):
            parent_path = "/".join(parent_names[:depth])
            if parent_path not in self.tree:
                return NoSuchFile
            if not self._is_directory(parent_path):
                return WrongKindOfFile
        return None

    def _missing_error(self, path: str) -> type[BackendError] | None:
        return self._parent_error(path) or (None if path in self.tree else NoSuchFile)

    def _moved_path(self, source: str, target: str) -> str:
        return f"{target}/{source.rpartition('/')[2]}" if self._is_directory(target) else target

    def refusal(self, operation: str, path: str = "", *other_arguments: Any) -> type[BackendError] | None:
        """Returns the error that the volume must raise for an operation; None if the operation must succeed."""
        if operation in ("clone", "archive"):
            return None
        if operation == "put":
            parent_error = self._parent_error(path)
            return (
                WrongKindOfFile
                if parent_error is WrongKindOfFile
                or (parent_error is None and path in self.tree and self._is_directory(path))
                else None
            )
        if operation == "mkdir":
            return self._parent_error(path) or (FileAlreadyExists if path in self.tree else None)
        if operation == "list":
            return self._missing_error(path) or (None if self._is_directory(path) else WrongKindOfFile)
        if operation == "read":
            return self._missing_error(path) or (WrongKindOfFile if self._is_directory(path) else None)
        if operation == "delete":
            if self._missing_error(path):
                return NoSuchFile
            return WrongKindOfFile if self._is_directory(path) and not other_arguments[0] else None
        if operation == "rename":
            if other_arguments[0] in ("..", "x/y"):
                return InvalidPath
            return self._rename_error(path, (path.rpartition("/")[0] + "/" + other_arguments[0]).lstrip("/"))
        return self._rename_error(path, self._moved_path(path, other_arguments[0]))

    def _rename_error(self, source: str, target: str) -> type[BackendError] | None:
        parent_error = self._parent_error(source) or self._parent_error(target)
        if parent_error:
            return parent_error
        if source not in self.tree:
            return NoSuchFile
        if target in self.tree:
            return FileAlreadyExists
        return InvalidInput if target.startswith(source + "/") else None

    def apply(self, operation: str, path: str = "", *other_arguments: Any) -> None:
        """Applies an operation on files to the model."""
        if operation == "put":
            path_parts = path.split("/")
            for depth in range(1, len(path_parts)):
                self.tree["/".join(path_parts[:depth])] = None
            self.tree[path] = other_arguments[0]
        elif operation == "mkdir":
            self.tree[path] = None
        elif operation == "delete":
            for removed_path in [name for name in self.tree if name == path or name.startswith(path + "/")]:
                del self.tree[removed_path]
        elif operation in ("rename", "move"):
            target_path = (
                (path.rpartition("/")[0] + "/" + other_arguments[0]).lstrip("/")
                if operation == "rename"
                else self._moved_path(path, other_arguments[0])
            )
            for old_path in [name for name in self.tree if name == path or name.startswith(path + "/")]:
                self.tree[target_path + old_path[len(path) :]] = self.tree.pop(old_path)
