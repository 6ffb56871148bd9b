"""Defines the error classes of the platform, one class for each kind of failure.

Errors cross daemons as (code, message, data).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar


class Blame(StrEnum):
    CALLER = "caller"
    CLUSTER = "cluster"
    US = "us"


class BackendError(Exception):
    """Serves as the base of every error that crosses a package boundary. A subclass inherits what it does not set.

    Attributes:
        code: stable slug, the last part of the problem's ``type`` URI.
        title: one fixed sentence for people.
        blame: who can fix it.
        retryable: True if the same call may succeed later without a change.
        data: structured evidence, safe to show to the caller.
    """

    code: ClassVar[str] = "internal-error"
    title: ClassVar[str] = "Something went wrong inside the platform."
    blame: ClassVar[Blame] = Blame.US
    retryable: ClassVar[bool] = False

    def __init_subclass__(
        cls,
        *,
        code: str | None = None,
        title: str | None = None,
        blame: Blame | None = None,
        retryable: bool | None = None,
    ) -> None:
        given_values = {"code": code, "title": title, "blame": blame, "retryable": retryable}
        for name, value in given_values.items():
            if value is not None:
                setattr(cls, name, value)

    def __init__(self, message: str = "", *, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(message or self.title)
        self.message = message or self.title
        self.data: dict[str, Any] = dict(data or {})


class InternalError(BackendError, code="internal-error"): ...


class InvalidInput(
    BackendError, code="invalid-api-params", title="The request has missing or invalid parameters.", blame=Blame.CALLER
):
    """Raised for a request with missing or invalid parameters. ``data`` maps each invalid field to its problem."""


class InvalidQuantity(InvalidInput, code="invalid-quantity", title="A resource quantity is malformed."): ...


class InvalidName(InvalidInput, code="invalid-name", title="A name is malformed."): ...


class FolderAlreadyExists(
    InvalidName, code="vfolder-already-exists", title="There is a virtual folder of this name already."
): ...


class InvalidPath(InvalidInput, code="invalid-path", title="A path is malformed, or leaves its folder."): ...


class WrongKindOfFile(
    InvalidInput,
    code="wrong-kind-of-file",
    title="There is a directory where a file is needed, or the other way round.",
): ...


class ArtifactRejected(
    InvalidInput, code="artifact-rejected", title="The artifact has names, sizes or counts that are not taken."
): ...


class AuthenticationFailed(
    BackendError, code="auth-failed", title="The credentials are missing, wrong or expired.", blame=Blame.CALLER
): ...


class Forbidden(BackendError, code="forbidden", title="This operation is not allowed for you.", blame=Blame.CALLER): ...


class ProofRequired(Forbidden, code="proof-required", title="Prove again that it is you."):
    """Raised for an operation that needs a recent proof of the user's password or one-time password.

    The same call succeeds with such a proof.
    """


class AddressRefused(Forbidden, code="address-refused", title="A URL leads where the platform does not go."): ...


class NotFound(BackendError, code="not-found", title="There is no such object.", blame=Blame.CALLER): ...


class SessionNotFound(NotFound, code="session-not-found", title="There is no such session."): ...


class ImageNotFound(NotFound, code="image-not-found", title="There is no such image."): ...


class FolderNotFound(NotFound, code="vfolder-not-found", title="There is no such virtual folder."): ...


class VolumeNotFound(NotFound, code="volume-not-found", title="There is no such volume."): ...


class QuotaScopeNotFound(
    NotFound, code="quota-scope-not-found", title="There is no such quota scope on this volume."
): ...


class NoSuchFile(NotFound, code="file-not-found", title="There is no such file or directory."): ...


class UploadNotFound(
    NotFound, code="upload-not-found", title="There is no such upload: it was ended, or it has expired."
): ...


class ArtifactNotFound(
    NotFound, code="artifact-not-found", title="There is no such artifact, revision or file of one."
): ...


class Conflict(
    BackendError, code="conflict", title="The object's present state does not admit this operation.", blame=Blame.CALLER
): ...


class SessionAlreadyExists(
    Conflict, code="session-already-exists", title="A live session with this name already exists."
):
    """Raised when a live session has the requested name. ``data.existingSessionId`` is the id of this session."""


class TooManySessionsMatched(
    Conflict, code="too-many-sessions-matched", title="More than one session matches; use the full name or the id."
):
    """Raised when a session reference matches several sessions. ``data.matches`` lists {id, name, status} of each."""


class StaleVersion(
    Conflict, code="stale-version", title="The object was changed meanwhile.", blame=Blame.CLUSTER, retryable=True
): ...


class FileAlreadyExists(
    Conflict, code="file-already-exists", title="A file or directory of this name exists already."
): ...


class UploadOffsetMismatch(Conflict, code="upload-offset-mismatch", title="The upload goes on at another offset."):
    """Raised for an upload at a wrong offset of the file. ``data.offset`` is the offset where the upload continues."""


class UploadIsBeingWritten(
    Conflict,
    code="upload-is-being-written",
    title="Somebody else writes to this upload at this moment.",
    retryable=True,
): ...


class ChecksumMismatch(
    Conflict,
    code="checksum-mismatch",
    title="The bytes do not have the checksum that was sent with them.",
    retryable=True,
): ...


class ArtifactChanged(
    Conflict, code="artifact-changed", title="The artifact is another one than when it was scanned."
): ...


class ArtifactDamaged(
    Conflict,
    code="artifact-damaged",
    title="The bytes are not those that the source announced.",
    blame=Blame.CLUSTER,
    retryable=True,
):
    """Raised when the bytes of an artifact's files are not those that the source announced.

    ``data.files`` names some of these files.
    """


class ArtifactIncomplete(Conflict, code="artifact-incomplete", title="Files of the artifact were not uploaded yet."):
    """Raised when files of an artifact were not uploaded yet. ``data.missing`` names some of these files."""


class StaleAttempt(Conflict, code="stale-attempt", title="A newer attempt at this is known."): ...


class LimitExceeded(BackendError, code="limit-exceeded", title="A limit is exceeded.", blame=Blame.CALLER): ...


class RateLimitExceeded(LimitExceeded, code="rate-limit-exceeded", title="Too many requests.", retryable=True): ...


class StorageFull(LimitExceeded, code="storage-full", title="The disk has no room for this.", blame=Blame.CLUSTER): ...


class QuotaExceeded(LimitExceeded, code="quota-exceeded", title="The storage quota has no room for this."):
    """Raised when a storage quota has no room for the data. ``data`` has the limit, the use and the wanted size.

    The fields are limit_bytes, used_bytes (with what uploads have reserved) and wanted_bytes.
    """


class ResourceError(BackendError, code="resource-error", title="The resources cannot be had.", blame=Blame.CLUSTER): ...


class UnsupportedResource(
    ResourceError, code="unsupported-resource", title="No such resource slot exists here.", blame=Blame.CALLER
): ...


class InsufficientResource(
    ResourceError, code="insufficient-resource", title="Not enough of a resource is free.", retryable=True
): ...


class NotMultipleOfQuantum(
    ResourceError,
    code="not-multiple-of-quantum",
    title="A fractional quantity is not a multiple of the slot's quantum.",
    blame=Blame.CALLER,
): ...


class InvalidAllocation(
    ResourceError, code="invalid-allocation", title="The planned devices cannot be bound.", retryable=True
): ...


class CreationDenied(BackendError, code="creation-denied", title="The creation was refused.", blame=Blame.CLUSTER): ...


class ImageMissing(CreationDenied, code="image-missing", title="The node does not have the image."): ...


class WorkloadError(
    BackendError, code="workload-error", title="The runtime failed on this workload.", blame=Blame.CLUSTER
): ...


class RunError(BackendError, code="run-error", title="The run cannot go on.", blame=Blame.CALLER): ...


class PluginError(BackendError, code="plugin-error", title="A plugin failed.", blame=Blame.CLUSTER): ...


class PeerRefused(
    BackendError, code="peer-refused", title="A service outside of the platform refused.", blame=Blame.CLUSTER
): ...


class RegistryRefused(
    PeerRefused, code="registry-refused", title="The registry does not take the credentials, or they have expired."
): ...


class ObjectStorageRefused(
    PeerRefused,
    code="object-storage-refused",
    title="The object storage does not let us do that: look at its credentials.",
): ...


class BucketNotFound(PeerRefused, code="bucket-not-found", title="The object storage has no such bucket."): ...


class NotSupported(
    BackendError, code="not-supported", title="This server does not offer that operation.", blame=Blame.CALLER
):
    """Raised when the server or its configuration does not offer the requested operation."""


class Unavailable(
    BackendError,
    code="unavailable",
    title="A part of the platform does not answer; try again.",
    blame=Blame.CLUSTER,
    retryable=True,
): ...


class ServerFrozen(
    Unavailable, code="server-frozen", title="The installation takes no new sessions now.", retryable=False
): ...


class DeadlineExceeded(
    Unavailable, code="deadline-exceeded", title="A part of the platform did not answer in time."
): ...


class RegistryUnavailable(
    Unavailable, code="registry-unavailable", title="The registry does not answer, or not sensibly; try again."
): ...


class ObjectStorageUnavailable(
    Unavailable, code="object-storage-unavailable", title="The object storage does not answer; try again."
): ...


def waiting_time(delay: object) -> float:
    """Returns the number of seconds that a plugin asked to wait. An invalid number counts as one second."""
    try:
        seconds = float(delay)  # type: ignore[arg-type]  # whatever it is
    except (TypeError, ValueError, OverflowError):
        return 1.0
    return seconds if 0 <= seconds < math.inf else 1.0


class CreationDeferred(
    BackendError, code="creation-deferred", title="The creation must wait.", blame=Blame.CLUSTER, retryable=True
):
    """Raised when a creation must wait and be tried again after ``data.retry_after`` seconds."""

    def __init__(self, message: str = "", *, retry_after: float = 1.0, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(message, data={"retry_after": waiting_time(retry_after), **(data or {})})

    @property
    def retry_after(self) -> float:
        return waiting_time(self.data.get("retry_after"))


def _classes_by_code(cls: type[BackendError]) -> dict[str, type[BackendError]]:
    """Returns the error class and its subclasses by their error codes, for classes that set a code of their own."""
    classes_by_code = {cls.code: cls} if "code" in vars(cls) else {}
    for subclass in cls.__subclasses__():
        classes_by_code |= _classes_by_code(subclass)
    return classes_by_code


def from_wire(code: str, message: str, data: Mapping[str, Any] | None = None) -> BackendError:
    """Rebuilds an error that another daemon raised; an unknown code becomes :class:`InternalError`."""
    cls = _classes_by_code(BackendError).get(code, InternalError)
    error = cls.__new__(cls)
    BackendError.__init__(error, message, data=data)
    return error
