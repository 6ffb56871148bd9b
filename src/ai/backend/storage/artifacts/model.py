"""Defines the records of imports, and the keys of a revision's files in a storage.

incoming/<revision>/files/...           uploads of users, until the import begins
pulling/<revision>/plan.json            the planned files
pulling/<revision>/files/...            stage download
pulling/<revision>/verified.json        the digests, once all files are verified
verifying/<revision>/files/...          stage verify, if it has a storage of its own
artifacts/<revision>/<attempt>/files/.. stage archive
artifacts/<revision>/manifest.json      written last: the attempt that is the revision, and its files
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from uuid import UUID

import msgspec

from ai.backend.common.errors import ArtifactRejected, InvalidPath
from ai.backend.common.volume_paths import FolderPath
from ai.backend.plugin.object_storage import check_key

MAX_RECORD_BYTES = 64 << 20
"""The largest size in bytes of a plan or manifest."""
AREAS = ("incoming", "pulling", "verifying", "artifacts")


def area(area_name: str, revision: UUID) -> str:
    """Returns the prefix of a revision's objects in one of :data:`AREAS`."""
    return f"{area_name}/{revision.hex}/"


def files_of(area_name: str, revision: UUID, attempt: int | None = None) -> str:
    """Returns the prefix of a revision's files. ``attempt`` is given for files in the archive only."""
    return f"{area(area_name, revision)}{'' if attempt is None else f'{attempt}/'}files/"


def plan_key(revision: UUID) -> str:
    return f"{area('pulling', revision)}plan.json"


def verified_key(revision: UUID) -> str:
    return f"{area('pulling', revision)}verified.json"


def manifest_key(revision: UUID) -> str:
    return f"{area('artifacts', revision)}manifest.json"


class PlannedFile(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a file of a revision as its source announces it: path, size and hashes.

    ``git_sha1`` is that of a git blob, None if not announced.
    """

    path: str
    size: int
    sha256: str | None = None
    git_sha1: str | None = None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Lists the files of a revision as announced by its source. ``digest`` and ``origin`` go into the manifest."""

    attempt: int
    digest: str
    origin: str
    files: tuple[PlannedFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def fingerprint(self) -> str:
        """Returns a hash that is equal for plans with the same contents."""
        return hashlib.sha256(msgspec.json.encode((self.digest, self.origin, self.files))).hexdigest()


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """Records the SHA-256 of every file of a plan, after all files were verified.

    ``attempt`` may move the files from now on.
    """

    attempt: int
    fingerprint: str
    sha256: dict[str, str]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the largest number of files, size of a file and total size that one revision may have."""

    max_files: int
    max_file_bytes: int
    max_bytes: int


def check_files(files: Sequence[PlannedFile], limits: Limits) -> tuple[PlannedFile, ...]:
    """Returns the announced files, sorted by path.

    Raises ArtifactRejected: there are none, or too many, they are too large, or a name is not valid.
    """
    if not files:
        raise ArtifactRejected("The artifact has no files.")
    if len(files) > limits.max_files:
        raise ArtifactRejected(f"The artifact has {len(files)} files; at most {limits.max_files} are taken.")
    total_bytes = 0
    file_paths: set[str] = set()
    for file in files:
        _check_name(file.path)
        if file.path in file_paths:
            raise ArtifactRejected("Two files have the same name.", data={"path": file.path[:256]})
        file_paths.add(file.path)
        if not 0 <= file.size <= limits.max_file_bytes:
            raise ArtifactRejected(
                f"A file has {file.size} bytes; at most {limits.max_file_bytes} are taken.",
                data={"path": file.path[:256]},
            )
        total_bytes += file.size
    if total_bytes > limits.max_bytes:
        raise ArtifactRejected(f"The artifact has {total_bytes} bytes; at most {limits.max_bytes} are taken.")
    for file_path in file_paths:
        parts = FolderPath.parse(file_path).parts
        if any("/".join(parts[:part_count]) in file_paths for part_count in range(1, len(parts))):
            raise ArtifactRejected("A file lies below another file.", data={"path": file_path[:256]})
    return tuple(sorted(files, key=lambda file: file.path.encode()))


def _check_name(path: str) -> None:
    try:
        check_key(f"artifacts/{'0' * 32}/{2**63}/files/{path}")
        if FolderPath.parse(path).parts != tuple(path.split("/")):
            raise InvalidPath
    except InvalidPath:
        raise ArtifactRejected("A file has a name that is not taken.", data={"path": path[:256]}) from None
