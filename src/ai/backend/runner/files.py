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

MAX_PATH = 4096
MAX_DEPTH = 64
MAX_WRITE = 1 << 40
MAX_UPLOADS = 32
MAX_LISTED = 10_000
MAX_READ_PATHS = 64
MAX_TAR_ENTRIES = 100_000
CHUNK = 512 * 1024
_DIR = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ERRORS = {
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
    """A request that failed: `kind` is one of not-found, denied, too-large, invalid, failed."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


#: What a request raises that is refused; :func:`as_file_error` makes the answer of it.
REFUSALS = (FileError, OSError, KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)


def as_file_error(error: Exception) -> FileError:
    """Converts an error of the system, or of an invalid request."""
    if isinstance(error, FileError):
        return error
    if not isinstance(error, OSError):
        return FileError("invalid", f"{type(error).__name__}: {error}"[:500])
    text = error.strerror or str(error)
    named = f"{error.filename}: {text}" if isinstance(error.filename, str) and error.strerror else text
    return FileError(_ERRORS.get(error.errno or 0, "failed"), named)


class Home:
    """Accesses the tree below one directory."""

    def __init__(self, home: str) -> None:
        self._home = os.path.realpath(home)
        self._uploads: Dict[str, _Upload] = {}

    def write(self, path: str, data: bytes, offset: int, is_last: bool, mode: Optional[int] = None) -> Dict[str, Any]:
        """Writes a piece of a file, which replaces the one of its name with the last piece. Raises FileError.

        Pieces must follow each other; `offset` 0 begins anew. Without `mode` the permissions stay as they were.
        """
        if mode is not None and (not isinstance(mode, int) or not 0 <= mode <= 0o777):
            raise FileError("invalid", "mode out of range")
        parents, name = self._split(path)
        if not isinstance(offset, int) or not 0 <= offset <= MAX_WRITE:
            raise FileError("invalid", "offset out of range")
        upload = self._uploads.get(path)
        if offset == 0:
            if upload is not None:
                self._drop(path)
            while len(self._uploads) >= MAX_UPLOADS:
                self._drop(next(iter(self._uploads)))
            upload = self._uploads[path] = _Upload(self._open_parents(parents, create=True), name)
        if upload is None or upload.size != offset:
            raise FileError("invalid", f"the next piece starts at {upload.size if upload else 0}")
        try:
            upload.append(data)
            if is_last:
                upload.publish(mode)
        except OSError:
            self._drop(path)
            raise
        if is_last:
            self._uploads.pop(path).close()
        return {"size": upload.size}

    def list(self, path: str) -> Dict[str, Any]:
        """Returns the entries of a directory (or the one file that `path` names), sorted by name. Raises FileError."""
        parents, name = self._split(path, allow_home=True)
        parent = self._open_parents(parents)
        try:
            facts = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if not stat.S_ISDIR(facts.st_mode):
                return {"path": self._absolute(parents, name), "entries": [_entry(name, facts)], "truncated": False}
            folder = os.open(name, _DIR, dir_fd=parent)
        finally:
            os.close(parent)
        entries: List[Dict[str, Any]] = []
        is_truncated = False
        try:
            with os.scandir(folder) as found:
                for item in found:
                    if len(entries) >= MAX_LISTED:
                        is_truncated = True
                        break
                    try:
                        entries.append(_entry(item.name, item.stat(follow_symlinks=False)))
                    except FileNotFoundError:
                        continue
        finally:
            os.close(folder)
        entries.sort(key=lambda e: str(e["name"]))
        return {"path": self._absolute(parents, name), "entries": entries, "truncated": is_truncated}

    def read(self, path: str, max_bytes: int) -> Iterator[bytes]:
        """Yields a tar archive of a file or a directory tree. Raises FileError, also in the middle if the tree grows.

        Only regular files, directories and symbolic links that stay inside the archive are packed.
        """
        import tarfile

        parents, name = self._split(path, allow_home=True)
        parent = self._open_parents(parents)
        try:
            facts = os.stat(name, dir_fd=parent, follow_symlinks=False)
            yield from _chunks(_pack(parent, name, name if name != "." else "home", facts, _Budget(max_bytes)))
            yield tarfile.NUL * (tarfile.BLOCKSIZE * 2)
        finally:
            os.close(parent)

    def close(self) -> None:
        """Drops unfinished uploads and removes their temporary files."""
        for path in list(self._uploads):
            self._drop(path)

    def _drop(self, path: str) -> None:
        upload = self._uploads.pop(path, None)
        if upload is not None:
            upload.discard()

    def _absolute(self, parents: List[str], name: str) -> str:
        return os.path.normpath(os.path.join(self._home, *parents, name))

    def _split(self, path: str, allow_home: bool = False) -> Tuple[List[str], str]:
        """Returns (components of the parent below the home, last component), with the links in the parent resolved."""
        if not isinstance(path, str) or "\0" in path or (not path and not allow_home):
            raise FileError("invalid", "a path is text without NUL")
        if len(os.fsencode(path)) > MAX_PATH:
            raise FileError("invalid", "the path is too long")
        target = os.path.normpath(os.path.join(self._home, path))
        if allow_home:
            target = os.path.realpath(target)
        else:
            if path.endswith("/"):
                raise FileError("invalid", "a file name must not end with a slash")
            # Not normpath alone: `link/../x` means the parent of where the link leads.
            folder, _, last = path.rpartition("/")
            if last in ("", ".", ".."):
                raise FileError("invalid", "the path names no file")
            target = os.path.join(
                os.path.realpath(os.path.join(self._home, folder or ("/" if path.startswith("/") else ""))), last
            )
        if target == self._home:
            if allow_home:
                return [], "."
            raise FileError("invalid", "the path names the home itself")
        inside = target.startswith(self._home.rstrip("/") + "/")
        if not inside:
            raise FileError("denied", "the path leads out of the home directory")
        parts = target[len(self._home.rstrip("/")) + 1 :].split("/")
        if len(parts) > MAX_DEPTH:
            raise FileError("invalid", "the path is too deep")
        return parts[:-1], parts[-1]

    def _open_parents(self, parts: List[str], create: bool = False) -> int:
        fd = os.open(self._home, _DIR)
        for part in parts:
            try:
                if create:
                    try:
                        os.mkdir(part, 0o755, dir_fd=fd)
                    except FileExistsError:
                        pass  # also when it is something else: opening it as a directory says so
                below = os.open(part, _DIR, dir_fd=fd)
            finally:
                os.close(fd)
            fd = below
        return fd


class _Upload:
    """A file that is written under a temporary name next to its final one."""

    def __init__(self, folder: int, name: str) -> None:
        self._folder = folder
        self._name = name
        self._temporary = f".upload-{os.urandom(8).hex()}"
        self.size = 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._fd = os.open(self._temporary, flags, 0o644, dir_fd=folder)
        except OSError:
            os.close(folder)
            raise

    def append(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            done = os.write(self._fd, view)
            self.size += done
            view = view[done:]

    def publish(self, mode: Optional[int] = None) -> None:
        if mode is not None:
            os.fchmod(self._fd, mode)
            os.rename(self._temporary, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            return
        try:
            present = os.stat(self._name, dir_fd=self._folder, follow_symlinks=False)
        except FileNotFoundError:
            present = None
        if present is not None and stat.S_ISREG(present.st_mode):
            try:
                os.fchmod(self._fd, stat.S_IMODE(present.st_mode) & 0o777)
            except PermissionError:
                pass  # a mount without modes
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


class _Budget:
    """The remaining bytes and entries of one archive."""

    def __init__(self, max_bytes: int) -> None:
        if not isinstance(max_bytes, int) or max_bytes <= 0:
            raise FileError("invalid", "max_bytes must be positive")
        self._bytes = max_bytes
        self._entries = MAX_TAR_ENTRIES

    def take(self, count: int) -> None:
        self._bytes -= count
        self._entries -= 1
        if self._bytes < 0 or self._entries < 0:
            raise FileError("too-large", "the files are larger than one download may be")


def _entry(name: str, facts: os.stat_result) -> Dict[str, Any]:
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}
    return {
        "name": name,
        "type": kinds.get(stat.S_IFMT(facts.st_mode), "other"),
        "size": facts.st_size,
        "mode": stat.filemode(facts.st_mode),
        "mtime": facts.st_mtime,
        "ctime": facts.st_ctime,
        "atime": facts.st_atime,
    }


def _chunks(parts: Iterator[bytes]) -> Iterator[bytes]:
    buffer = bytearray()
    for part in parts:
        buffer += part
        while len(buffer) >= CHUNK:
            yield bytes(buffer[:CHUNK])
            del buffer[:CHUNK]
    if buffer:
        yield bytes(buffer)


def _pack(
    parent: int, name: str, shown: str, facts: os.stat_result, budget: _Budget, depth: int = 0
) -> Iterator[bytes]:
    import tarfile

    info = tarfile.TarInfo(shown)
    info.mode, info.mtime = stat.S_IMODE(facts.st_mode) & 0o777, int(facts.st_mtime)
    if stat.S_ISREG(facts.st_mode):
        # Not blocking: between stat and open a pipe may have taken the place of the file.
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
        try:
            facts = os.fstat(fd)
            if not stat.S_ISREG(facts.st_mode):
                raise FileError("denied", "the file was replaced while it was read")
            info.size = facts.st_size
            budget.take(info.size)
            yield _header(info)
            yield from _content(fd, info.size)
        finally:
            os.close(fd)
    elif stat.S_ISLNK(facts.st_mode):
        target = os.readlink(name, dir_fd=parent)
        if not target.startswith("/") and ".." not in target.split("/"):
            info.type, info.linkname = tarfile.SYMTYPE, target
            budget.take(0)
            yield _header(info)
    elif stat.S_ISDIR(facts.st_mode) and depth < MAX_DEPTH:
        info.type = tarfile.DIRTYPE
        budget.take(0)
        yield _header(info)
        fd = os.open(name, _DIR, dir_fd=parent)
        try:
            for item in sorted(os.listdir(fd)):
                try:
                    below = os.stat(item, dir_fd=fd, follow_symlinks=False)
                except FileNotFoundError:
                    continue
                yield from _pack(fd, item, f"{shown}/{item}", below, budget, depth + 1)
        finally:
            os.close(fd)


def _header(info: Any) -> bytes:
    import tarfile

    header: bytes = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    return header


def _content(fd: int, size: int) -> Iterator[bytes]:
    left = size
    while left:
        data = os.read(fd, min(left, CHUNK))
        if not data:
            data = bytes(min(left, CHUNK))  # it has shrunk: the header has promised this length
        left -= len(data)
        yield data
    yield bytes(-size % 512)
