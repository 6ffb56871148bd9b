"""Writes, lists and reads files of the home directory for the client, without ever leaving the home.

A path is resolved once as text, and then walked from a descriptor of the home, one component at a time and never
through a symbolic link: what the user's threads swap in the meantime fails with `denied`.
"""

from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Tuple

MAX_PATH_BYTES = 4096
MAX_DEPTH = 64
MAX_WRITE_OFFSET = 1 << 40
MAX_UPLOADS = 32
MAX_LISTED_ENTRIES = 10_000
MAX_READ_PATHS = 64
MAX_TAR_ENTRIES = 100_000
CHUNK_BYTES = 512 * 1024
_OPEN_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_KIND_BY_ERRNO = {
    errno.ENOENT: "not-found",
    errno.ENOTDIR: "invalid",
    errno.EISDIR: "invalid",
    errno.ENAMETOOLONG: "invalid",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
    errno.ELOOP: "denied",
    errno.EROFS: "denied",
    errno.EFBIG: "too-large",
    errno.ENOSPC: "failed",
}


class FileError(Exception):
    """Reports a failed file request: `kind` is one of not-found, denied, too-large, invalid, failed."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


#: What a request raises that is refused; :func:`as_file_error` makes the answer of it.
REFUSALS = (FileError, OSError, KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)


def as_file_error(error: Exception) -> FileError:
    """Converts an OSError, or the error of an invalid request, into a FileError."""
    if isinstance(error, FileError):
        return error
    if not isinstance(error, OSError):
        return FileError("invalid", f"{type(error).__name__}: {error}"[:500])
    reason = error.strerror or str(error)
    reason_with_path = f"{error.filename}: {reason}" if isinstance(error.filename, str) and error.strerror else reason
    return FileError(_KIND_BY_ERRNO.get(error.errno or 0, "failed"), reason_with_path)


class Home:
    """Accesses the directory tree of the user's home."""

    def __init__(self, home_path: str) -> None:
        self._home = os.path.realpath(home_path)
        self._uploads: Dict[str, _Upload] = {}

    def write(
        self, path: str, content: bytes, offset_bytes: int, is_last: bool, permissions: Optional[int] = None
    ) -> Dict[str, Any]:
        """Writes a piece of an upload, whose last piece replaces the file at `path`. Raises FileError.

        Pieces must follow each other; `offset_bytes` 0 begins anew. Without `permissions` a file's present ones stay.
        """
        if permissions is not None and (not isinstance(permissions, int) or not 0 <= permissions <= 0o777):
            raise FileError("invalid", "mode out of range")
        parent_names, name = self._resolve(path)
        if not isinstance(offset_bytes, int) or not 0 <= offset_bytes <= MAX_WRITE_OFFSET:
            raise FileError("invalid", "offset out of range")
        upload = self._uploads.get(path)
        if offset_bytes == 0:
            self._discard_upload(path)
            while len(self._uploads) >= MAX_UPLOADS:
                self._discard_upload(next(iter(self._uploads)))
            upload = self._uploads[path] = _Upload(self._open_parents(parent_names, is_created=True), name)
        if upload is None or upload.size != offset_bytes:
            raise FileError("invalid", f"the next piece starts at {upload.size if upload else 0}")
        try:
            upload.append(content)
            if is_last:
                upload.publish(permissions)
        except OSError:
            self._discard_upload(path)
            raise
        if is_last:
            self._uploads.pop(path).close()
        return {"size": upload.size}

    def list(self, path: str) -> Dict[str, Any]:
        """Returns the entries of a directory (or the one file that `path` names), sorted by name. Raises FileError."""
        parent_names, name = self._resolve(path, allow_home=True)
        parent_fd = self._open_parents(parent_names)
        try:
            status = os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                return {
                    "path": self._absolute_path(parent_names, name),
                    "entries": [_describe_entry(name, status)],
                    "truncated": False,
                }
            folder_fd = os.open(name, _OPEN_DIRECTORY_FLAGS, dir_fd=parent_fd)
        finally:
            os.close(parent_fd)
        entries: List[Dict[str, Any]] = []
        is_truncated = False
        try:
            with os.scandir(folder_fd) as directory_scan:
                for dir_entry in directory_scan:
                    if len(entries) >= MAX_LISTED_ENTRIES:
                        is_truncated = True
                        break
                    try:
                        entries.append(_describe_entry(dir_entry.name, dir_entry.stat(follow_symlinks=False)))
                    except FileNotFoundError:
                        continue
        finally:
            os.close(folder_fd)
        entries.sort(key=lambda described: str(described["name"]))
        return {"path": self._absolute_path(parent_names, name), "entries": entries, "truncated": is_truncated}

    def read(self, path: str, max_bytes: int) -> Iterator[bytes]:
        """Yields a tar archive of a file or a directory tree. Raises FileError, also in the middle if the tree grows.

        Only regular files, directories and symbolic links that stay inside the archive are packed.
        """
        import tarfile

        parent_names, name = self._resolve(path, allow_home=True)
        parent_fd = self._open_parents(parent_names)
        try:
            status = os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
            yield from _join_chunks(
                _pack_tree(parent_fd, name, name if name != "." else "home", status, _ArchiveBudget(max_bytes))
            )
            yield tarfile.NUL * (tarfile.BLOCKSIZE * 2)
        finally:
            os.close(parent_fd)

    def close(self) -> None:
        """Drops unfinished uploads and removes their temporary files."""
        for path in list(self._uploads):
            self._discard_upload(path)

    def _discard_upload(self, path: str) -> None:
        upload = self._uploads.pop(path, None)
        if upload is not None:
            upload.discard()

    def _absolute_path(self, parent_names: List[str], name: str) -> str:
        return os.path.normpath(os.path.join(self._home, *parent_names, name))

    def _resolve(self, path: str, allow_home: bool = False) -> Tuple[List[str], str]:
        """Returns (folder names from the home to the file's parent, file name), with the parent's links resolved."""
        if not isinstance(path, str) or "\0" in path or (not path and not allow_home):
            raise FileError("invalid", "a path is text without NUL")
        if len(os.fsencode(path)) > MAX_PATH_BYTES:
            raise FileError("invalid", "the path is too long")
        resolved_path = os.path.normpath(os.path.join(self._home, path))
        if allow_home:
            resolved_path = os.path.realpath(resolved_path)
        else:
            if path.endswith("/"):
                raise FileError("invalid", "a file name must not end with a slash")
            # Not normpath alone: `link/../x` means the parent of where the link leads.
            folder_path, _, last_name = path.rpartition("/")
            if last_name in ("", ".", ".."):
                raise FileError("invalid", "the path names no file")
            folder_path = folder_path or ("/" if path.startswith("/") else "")
            resolved_path = os.path.join(os.path.realpath(os.path.join(self._home, folder_path)), last_name)
        if resolved_path == self._home:
            if allow_home:
                return [], "."
            raise FileError("invalid", "the path names the home itself")
        home_prefix = self._home.rstrip("/") + "/"
        if not resolved_path.startswith(home_prefix):
            raise FileError("denied", "the path leads out of the home directory")
        path_names = resolved_path[len(home_prefix) :].split("/")
        if len(path_names) > MAX_DEPTH:
            raise FileError("invalid", "the path is too deep")
        return path_names[:-1], path_names[-1]

    def _open_parents(self, folder_names: List[str], is_created: bool = False) -> int:
        folder_fd = os.open(self._home, _OPEN_DIRECTORY_FLAGS)
        for folder_name in folder_names:
            try:
                if is_created:
                    try:
                        os.mkdir(folder_name, 0o755, dir_fd=folder_fd)
                    except FileExistsError:
                        pass  # also when it is something else: opening it as a directory says so
                child_fd = os.open(folder_name, _OPEN_DIRECTORY_FLAGS, dir_fd=folder_fd)
            finally:
                os.close(folder_fd)
            folder_fd = child_fd
        return folder_fd


class _Upload:
    """Writes an uploaded file under a temporary name next to its final name."""

    def __init__(self, folder_fd: int, name: str) -> None:
        self._folder = folder_fd
        self._name = name
        self._temporary = f".upload-{os.urandom(8).hex()}"
        self.size = 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._fd = os.open(self._temporary, flags, 0o644, dir_fd=folder_fd)
        except OSError:
            os.close(folder_fd)
            raise

    def append(self, content: bytes) -> None:
        unwritten = memoryview(content)
        while unwritten:
            written_bytes = os.write(self._fd, unwritten)
            self.size += written_bytes
            unwritten = unwritten[written_bytes:]

    def publish(self, permissions: Optional[int] = None) -> None:
        if permissions is not None:
            os.fchmod(self._fd, permissions)
        else:
            try:
                status = os.stat(self._name, dir_fd=self._folder, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    os.fchmod(self._fd, stat.S_IMODE(status.st_mode) & 0o777)
            except (FileNotFoundError, PermissionError):
                pass  # a new file, or a mount without modes
        os.rename(self._temporary, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)

    def discard(self) -> None:
        try:
            os.unlink(self._temporary, dir_fd=self._folder)
        except OSError:
            pass  # the user was quicker
        self.close()

    def close(self) -> None:
        os.close(self._fd)
        os.close(self._folder)


class _ArchiveBudget:
    """Counts the remaining bytes and entries of one tar archive."""

    def __init__(self, max_bytes: int) -> None:
        if not isinstance(max_bytes, int) or max_bytes <= 0:
            raise FileError("invalid", "max_bytes must be positive")
        self._bytes = max_bytes
        self._entries = MAX_TAR_ENTRIES

    def take(self, file_bytes: int) -> None:
        self._bytes -= file_bytes
        self._entries -= 1
        if self._bytes < 0 or self._entries < 0:
            raise FileError("too-large", "the files are larger than one download may be")


def _describe_entry(name: str, status: os.stat_result) -> Dict[str, Any]:
    type_by_format = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}
    return {
        "name": name,
        "type": type_by_format.get(stat.S_IFMT(status.st_mode), "other"),
        "size": status.st_size,
        "mode": stat.filemode(status.st_mode),
        "mtime": status.st_mtime,
        "ctime": status.st_ctime,
        "atime": status.st_atime,
    }


def _join_chunks(pieces: Iterator[bytes]) -> Iterator[bytes]:
    buffer = bytearray()
    for piece in pieces:
        buffer += piece
        while len(buffer) >= CHUNK_BYTES:
            yield bytes(buffer[:CHUNK_BYTES])
            del buffer[:CHUNK_BYTES]
    if buffer:
        yield bytes(buffer)


def _pack_tree(
    parent_fd: int, name: str, archive_name: str, status: os.stat_result, budget: _ArchiveBudget, depth: int = 0
) -> Iterator[bytes]:
    import tarfile

    tar_info = tarfile.TarInfo(archive_name)
    tar_info.mode, tar_info.mtime = stat.S_IMODE(status.st_mode) & 0o777, int(status.st_mtime)
    if stat.S_ISREG(status.st_mode):
        # Not blocking: between stat and open a pipe may have taken the place of the file.
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent_fd)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise FileError("denied", "the file was replaced while it was read")
            tar_info.size = status.st_size
            budget.take(tar_info.size)
            yield _encode_header(tar_info)
            yield from _read_content(fd, tar_info.size)
        finally:
            os.close(fd)
    elif stat.S_ISLNK(status.st_mode):
        link_target = os.readlink(name, dir_fd=parent_fd)
        if not link_target.startswith("/") and ".." not in link_target.split("/"):
            tar_info.type, tar_info.linkname = tarfile.SYMTYPE, link_target
            budget.take(0)
            yield _encode_header(tar_info)
    elif stat.S_ISDIR(status.st_mode) and depth < MAX_DEPTH:
        tar_info.type = tarfile.DIRTYPE
        budget.take(0)
        yield _encode_header(tar_info)
        fd = os.open(name, _OPEN_DIRECTORY_FLAGS, dir_fd=parent_fd)
        try:
            for child_name in sorted(os.listdir(fd)):
                try:
                    child_status = os.stat(child_name, dir_fd=fd, follow_symlinks=False)
                except FileNotFoundError:
                    continue
                yield from _pack_tree(fd, child_name, f"{archive_name}/{child_name}", child_status, budget, depth + 1)
        finally:
            os.close(fd)


def _encode_header(tar_info: Any) -> bytes:
    import tarfile

    header: bytes = tar_info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    return header


def _read_content(fd: int, size_bytes: int) -> Iterator[bytes]:
    remaining_bytes = size_bytes
    while remaining_bytes:
        # Zeros if it has shrunk: the header has promised this length.
        chunk = os.read(fd, min(remaining_bytes, CHUNK_BYTES)) or bytes(min(remaining_bytes, CHUNK_BYTES))
        remaining_bytes -= len(chunk)
        yield chunk
    yield bytes(-size_bytes % 512)
