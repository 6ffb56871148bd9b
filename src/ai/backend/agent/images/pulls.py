"""The images of kernels that are to be made: fetched before anything else is taken for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ai.backend.agent.kernels.kernel import Kernel
from ai.backend.common.errors import (
    CreationDeferred,
    CreationDenied,
    DeadlineExceeded,
    ImageNotFound,
    NotSupported,
    PeerRefused,
    StorageFull,
    Unavailable,
)
from ai.backend.common.images import registry_of
from ai.backend.common.states import KernelStatus
from ai.backend.plugin.crash_points import crash_point
from ai.backend.plugin.runtime import AbstractRuntime, ImageRequest

log = logging.getLogger(__name__)
_AGAIN_S = 5.0


def request_of(kernel: Kernel) -> ImageRequest:
    spec = kernel.record.spec
    registry = registry_of(spec.image)
    access = next((a for a in kernel.registries if a.registry == registry), None)
    return ImageRequest(
        name=spec.image,
        digest=spec.image_digest,
        config_digest=spec.image_config_digest,
        when=spec.auto_pull,
        username=access.username if access is not None else "",
        password=access.password if access is not None else "",
    )


class KernelImages:
    """Fetches the image of a kernel where it must be."""

    def __init__(self, runtime: AbstractRuntime, *, timeout_s: float) -> None:
        self._runtime = runtime
        self._timeout_s = timeout_s

    async def provide(self, kernel: Kernel, tell: Callable[[], None]) -> None:
        """See that the image is here. Creations do not wait for the pulls of others.

        Args:
            tell: called when it begins to be fetched.

        Raises:
            What :meth:`_pull` does.
        """
        if not kernel.record.spec.auto_pull or not await self._runtime.lacks_image(request_of(kernel)):
            return
        if kernel.record.status is not KernelStatus.PULLING:
            tell()
            kernel.save(status=KernelStatus.PULLING)
        await self._pull(kernel)

    async def _pull(self, kernel: Kernel) -> None:
        """Idempotent; nothing of it has to be taken back.

        Raises:
            CreationDeferred: the registry or the disk may serve later, or another agent now.
            CreationDenied: it never will. DeadlineExceeded.
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
            raise CreationDeferred(message, retry_after=_AGAIN_S) from e
        except PeerRefused as e:
            if kernel.record.resumes:  # of an earlier life, whose credentials are forgotten
                raise CreationDeferred(f"the agent has to ask for {name} anew", retry_after=0.0) from e
            raise CreationDenied(f"the image {name} cannot be fetched: {e.message}") from e
        except (ImageNotFound, NotSupported) as e:
            raise CreationDenied(f"the image {name} cannot be fetched: {e.message}") from e
        crash_point("create.image.after")
