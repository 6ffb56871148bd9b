"""Events of sessions: the input of :func:`ai.backend.core.lifecycle.session.step`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ai.backend.common.ids import AgentId, KernelId
from ai.backend.common.states import KernelEventReason, KernelStatus


class SessionStimulus(msgspec.Struct, frozen=True, kw_only=True):
    """The base of all events. ``stimulus_id`` names the cause in the session's story: a request, a report, a loop."""

    reason: KernelEventReason = KernelEventReason.UNKNOWN
    stimulus_id: str = ""


class SessionScheduled(SessionStimulus, frozen=True, kw_only=True):
    """The scheduler placed every kernel."""

    agents: Mapping[KernelId, AgentId]


class SessionDispatched(SessionStimulus, frozen=True, kw_only=True):
    """Every agent accepted the creation."""


class SessionCreationFailed(SessionStimulus, frozen=True, kw_only=True):
    """Agents refused some kernels or were lost; ``retryable`` for now (back to the scheduler), else for good."""

    kernel_ids: frozenset[KernelId]
    reason: KernelEventReason
    retryable: bool


class SessionRestartRequested(SessionStimulus, frozen=True, kw_only=True):
    reason: KernelEventReason = KernelEventReason.RESTARTING


class SessionDestroyRequested(SessionStimulus, frozen=True, kw_only=True):
    """The user, an idle rule or a timeout ends the session. A forced end leaves no grace, also when TERMINATING."""

    reason: KernelEventReason = KernelEventReason.USER_REQUESTED
    forced: bool = False


class SessionStartOverRequested(SessionStimulus, frozen=True, kw_only=True):
    """The session is preempted and waits again once its kernels have ended."""

    reason: KernelEventReason = KernelEventReason.RESCHEDULED


class SessionDegraded(SessionStimulus, frozen=True, kw_only=True):
    """An agent that holds one of the kernels does not answer."""

    reason: KernelEventReason = KernelEventReason.AGENT_LOST


class SessionRecovered(SessionStimulus, frozen=True, kw_only=True):
    """Every agent that holds one of the kernels answers again."""


class KernelObserved(SessionStimulus, frozen=True, kw_only=True):
    """An agent reported the status of a kernel. Observations of other attempts are ignored."""

    kernel_id: KernelId
    attempt: int
    status: KernelStatus
    exit_code: int | None = None


class KernelsAbandoned(SessionStimulus, frozen=True, kw_only=True):
    """The agent is lost, or denies having these kernels: their slots are free, and whatever still runs is an orphan."""

    kernel_ids: frozenset[KernelId]
    reason: KernelEventReason = KernelEventReason.AGENT_LOST


SessionEvent = (
    SessionScheduled
    | SessionDispatched
    | SessionCreationFailed
    | SessionRestartRequested
    | SessionDestroyRequested
    | SessionStartOverRequested
    | SessionDegraded
    | SessionRecovered
    | KernelObserved
    | KernelsAbandoned
)
