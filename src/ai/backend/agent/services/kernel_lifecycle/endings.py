"""As what a kernel ends."""

from __future__ import annotations

from ai.backend.agent.errors import StartFailed
from ai.backend.agent.model.kernel import Ending
from ai.backend.common.errors import CreationDeferred, CreationDenied, ImageNotFound
from ai.backend.common.states import KernelEventReason, KernelStatus
from ai.backend.plugin.runtime import WorkloadExit


def exit_code_of(ended: WorkloadExit | None) -> int | None:
    """As a shell tells it: the code, or 128 and the signal."""
    if ended is None:
        return None
    return 128 + ended.signal if ended.signal is not None else ended.code


def ending_of(error: Exception, ended: WorkloadExit | None) -> Ending:
    """As what a failed creation ends."""
    message = str(error) or type(error).__name__
    if isinstance(error, CreationDeferred):
        return Ending(status=KernelStatus.PENDING, reason=KernelEventReason.CREATION_DEFERRED, message=message)
    if isinstance(error, (CreationDenied, ImageNotFound)):
        reason = KernelEventReason.CREATION_DENIED
    elif ended is not None and ended.oom:
        reason = KernelEventReason.OUT_OF_MEMORY
    else:
        reason = (
            KernelEventReason.FAILED_TO_START if isinstance(error, StartFailed) else KernelEventReason.FAILED_TO_CREATE
        )
    return Ending(status=KernelStatus.ERROR, reason=reason, message=message)
