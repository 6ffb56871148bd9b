"""Pulls the images of kernels, and runs image jobs (pull, remove, commit), which the manager polls by their ids."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ai.backend.agent.kernels.kernel import Kernel
from ai.backend.common.errors import (
    BackendError,
    Conflict,
    CreationDeferred,
    CreationDenied,
    DeadlineExceeded,
    ImageNotFound,
    InternalError,
    LimitExceeded,
    NotSupported,
    PeerRefused,
    StorageFull,
    Unavailable,
)
from ai.backend.common.images import registry_of
from ai.backend.common.states import KernelStatus
from ai.backend.common.wire.agent import ImageJob, ImageJobState, RegistryAccess
from ai.backend.plugin.crash_points import crash_point
from ai.backend.plugin.runtime import AbstractRuntime, CommitRequest, ImageRequest

_MAX_JOBS = 256
_RETENTION_S = 600.0
_MAX_WAIT_S = 10.0
log = logging.getLogger(__name__)
_PULL_RETRY_S = 5.0


@dataclass(slots=True)
class _Job:
    task: asyncio.Task[dict[str, Any]]
    current: int = 0
    total: int = 0
    ended_at: float | None = None
    polled_at: float = field(default_factory=lambda: asyncio.get_running_loop().time())


class ImageJobs:
    """Runs image jobs in the background and reports progress; a job that a crash ended begins again.

    Args:
        kernel_of: returns a live kernel by its id; raises NotFound if there is none.
        retention_s: how long a finished job is stored, and how long a job runs without being polled.
    """

    def __init__(
        self, runtime: AbstractRuntime, kernel_of: Callable[[str], Kernel], *, retention_s: float = _RETENTION_S
    ) -> None:
        self._runtime = runtime
        self._kernel_of = kernel_of
        self._retention_s = retention_s
        self._jobs: dict[str, _Job] = {}

    async def ask(self, req: ImageJob) -> ImageJobState:
        """Starts an image job, or returns its progress. Raises NotFound, Conflict (no live kernel), LimitExceeded."""
        self._drop_expired()
        job = self._jobs.get(req.job_id)
        if job is None:
            job = self._begin(req)
        job.polled_at = asyncio.get_running_loop().time()
        await asyncio.wait({job.task}, timeout=min(max(0.0, req.wait_s), _MAX_WAIT_S))
        return _state_of(job)

    async def close(self) -> None:
        for job in self._jobs.values():
            job.task.cancel()
        await asyncio.gather(*(job.task for job in self._jobs.values()), return_exceptions=True)

    def _begin(self, req: ImageJob) -> _Job:
        if sum(not job.task.done() for job in self._jobs.values()) >= _MAX_JOBS:
            raise LimitExceeded("the agent does too much with images already")
        if req.action == "commit":
            kernel = self._kernel_of(req.kernel_id)
            if kernel.status is not KernelStatus.RUNNING:
                raise Conflict(f"the kernel {req.kernel_id} is {kernel.status}")
        job: _Job

        def on_progress(current: int, total: int) -> None:
            job.current, job.total = current, total

        job = _Job(asyncio.create_task(self._run(req, on_progress), name=f"image-job-{req.job_id}"))
        job.task.add_done_callback(lambda _: setattr(job, "ended_at", asyncio.get_running_loop().time()))
        self._jobs[req.job_id] = job
        return job

    async def _run(self, req: ImageJob, on_progress: Callable[[int, int], None]) -> dict[str, Any]:
        image_request = ImageRequest(
            name=req.image,
            digest=req.digest,
            config_digest=req.config_digest,
            when="digest" if req.digest or req.config_digest else "tag",
            **_credentials(req.access),
        )
        match req.action:
            case "pull":
                if await self._runtime.lacks_image(image_request):
                    await self._runtime.pull_image(image_request, on_progress)
                return {}
            case "load":
                await self._runtime.load_image(req.image, Path(req.folder))
                return {}
            case "remove":
                await self._runtime.remove_image(req.image)
                return {}
            case "commit":
                commit_request = CommitRequest(
                    folder=req.folder,
                    filename=req.filename,
                    labels=req.labels,
                    push=image_request if req.image else None,
                )
                commit = await self._runtime.commit(self._kernel_of(req.kernel_id).key, commit_request, on_progress)
                return {
                    "place": commit.place,
                    "size_bytes": commit.size_bytes,
                    "labels": dict(commit.labels),
                    "digest": commit.digest,
                    "config_digest": commit.config_digest,
                }

    def _drop_expired(self) -> None:
        expiry_time = asyncio.get_running_loop().time() - self._retention_s
        for job_id, job in list(self._jobs.items()):
            if job.ended_at is not None and job.ended_at < expiry_time:
                del self._jobs[job_id]
            elif job.ended_at is None and job.polled_at < expiry_time:
                job.task.cancel()


def _state_of(job: _Job) -> ImageJobState:
    if not job.task.done():
        return ImageJobState(state="running", current=job.current, total=job.total)
    error = InternalError("it was cancelled") if job.task.cancelled() else job.task.exception()
    if error is None:
        return ImageJobState(state="done", current=job.total, total=job.total, result=job.task.result())
    if not isinstance(error, BackendError):
        error = InternalError(f"{type(error).__name__}: {error}"[:300])
    return ImageJobState(state="failed", code=error.code, message=error.message)


def request_of(kernel: Kernel) -> ImageRequest:
    spec = kernel.record.spec
    registry = registry_of(spec.image)
    registry_access = next(
        (registry_access for registry_access in kernel.registries if registry_access.registry == registry), None
    )
    return ImageRequest(
        name=spec.image,
        digest=spec.image_digest,
        config_digest=spec.image_config_digest,
        when=spec.auto_pull,
        **_credentials(registry_access),
    )


def _credentials(registry_access: RegistryAccess | None) -> dict[str, str]:
    return (
        {} if registry_access is None else {"username": registry_access.username, "password": registry_access.password}
    )


class KernelImages:
    """Pulls the images of kernels."""

    def __init__(self, runtime: AbstractRuntime, *, timeout_s: float) -> None:
        self._runtime = runtime
        self._timeout_s = timeout_s

    async def ensure_image(self, kernel: Kernel, on_pull: Callable[[], None]) -> None:
        """Pulls the kernel's image if the node lacks the image, and calls ``on_pull`` before the pull. Raises as
        :meth:`_pull`.
        """
        if not kernel.record.spec.auto_pull or not await self._runtime.lacks_image(request_of(kernel)):
            return
        if kernel.record.status is not KernelStatus.PULLING:
            on_pull()
            kernel.save(status=KernelStatus.PULLING)
        await self._pull(kernel)

    def can_pull_again(self, kernel: Kernel) -> bool:
        """Returns True if a second creation of the kernel could succeed, because it would pull the missing image again.

        An image that nodes pull within a creation is not to be had, unless the agent had no credentials to give them:
        these are not stored over its restart.
        """
        if self._runtime.info().pulls_in_create:
            return bool(kernel.record.spec.auto_pull and kernel.record.resumes and not kernel.registries)
        return bool(kernel.record.spec.auto_pull)

    async def _pull(self, kernel: Kernel) -> None:
        """Pulls the kernel's image. A pull is idempotent and never undone.

        Raises:
            CreationDeferred: the pull may succeed later, or on another agent.
            CreationDenied: the pull can never succeed. DeadlineExceeded.
        """
        name = kernel.record.spec.image
        crash_point("create.image.before")
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._runtime.pull_image(request_of(kernel), lambda current, total: None)
        except TimeoutError:
            raise DeadlineExceeded(f"the image {name} was not fetched within {self._timeout_s:g} s") from None
        except (Unavailable, StorageFull) as e:
            message = f"the image {name} cannot be fetched now: {e.message}"
            raise CreationDeferred(message, retry_after=_PULL_RETRY_S) from e
        except PeerRefused as e:
            if kernel.record.resumes:  # credentials are not stored over a restart of the agent
                raise CreationDeferred(f"the agent has to ask for {name} anew", retry_after=0.0) from e
            raise CreationDenied(f"the image {name} cannot be fetched: {e.message}") from e
        except (ImageNotFound, NotSupported) as e:
            raise CreationDenied(f"the image {name} cannot be fetched: {e.message}") from e
        crash_point("create.image.after")
