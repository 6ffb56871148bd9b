"""Maps errors and exits to the final status and reason of a kernel."""

from __future__ import annotations

from ai.backend.agent.errors import StartFailed
from ai.backend.agent.kernels.model import Termination
from ai.backend.common.errors import CreationDeferred, CreationDenied, ImageNotFound
from ai.backend.common.states import KernelEventReason, KernelStatus
from ai.backend.plugin.runtime import WorkloadExit


def exit_code_of(ended: WorkloadExit | None) -> int | None:
    """Return the exit code as a shell does: the code, or 128 plus the signal."""
    if ended is None:
        return None
    return 128 + ended.signal if ended.signal is not None else ended.code


def ending_of(error: Exception, ended: WorkloadExit | None, *, restarting: bool = False) -> Termination:
    """Return the termination of a creation that has failed.

    A deferred creation goes back to the scheduler; a deferred restart in place ends with an error.
    """
    message = str(error) or type(error).__name__
    if isinstance(error, CreationDeferred):
        return Termination(
            status=KernelStatus.ERROR if restarting else KernelStatus.PENDING,
            reason=KernelEventReason.CREATION_DEFERRED,
            message=message,
            retry_after_s=None if restarting else error.retry_after,
        )
    if isinstance(error, (CreationDenied, ImageNotFound)):
        reason = KernelEventReason.CREATION_DENIED
    elif ended is not None and ended.oom:
        reason = KernelEventReason.OUT_OF_MEMORY
    else:
        reason = (
            KernelEventReason.FAILED_TO_START if isinstance(error, StartFailed) else KernelEventReason.FAILED_TO_CREATE
        )
    return Termination(status=KernelStatus.ERROR, reason=reason, message=message)
