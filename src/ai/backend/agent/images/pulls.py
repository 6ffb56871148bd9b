"""Pulls the image of a kernel before any resource of the kernel is acquired."""

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
_RETRY_S = 5.0


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
    """Pulls the images of kernels."""

    def __init__(self, runtime: AbstractRuntime, *, timeout_s: float) -> None:
        self._runtime = runtime
        self._timeout_s = timeout_s

    async def provide(self, kernel: Kernel, on_pull: Callable[[], None]) -> None:
        """Pull the image if the node lacks it. Creations do not wait for the pulls of other kernels.

        Args:
            kernel: the kernel.
            on_pull: called before the pull starts.

        Raises:
            CreationDeferred, CreationDenied, DeadlineExceeded: as :meth:`_pull`.
        """
        if not kernel.record.spec.auto_pull or not await self._runtime.lacks_image(request_of(kernel)):
            return
        if kernel.record.status is not KernelStatus.PULLING:
            on_pull()
            kernel.save(status=KernelStatus.PULLING)
        await self._pull(kernel)

    async def _pull(self, kernel: Kernel) -> None:
        """Pull the image. A pull is idempotent and is never undone.

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
            raise CreationDeferred(message, retry_after=_RETRY_S) from e
        except PeerRefused as e:
            if kernel.record.resumes:  # credentials are not stored over a restart of the agent
                raise CreationDeferred(f"the agent has to ask for {name} anew", retry_after=0.0) from e
            raise CreationDenied(f"the image {name} cannot be fetched: {e.message}") from e
        except (ImageNotFound, NotSupported) as e:
            raise CreationDenied(f"the image {name} cannot be fetched: {e.message}") from e
        crash_point("create.image.after")
