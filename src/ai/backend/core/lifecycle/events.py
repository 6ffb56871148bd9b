"""Events of sessions: the input of :func:`ai.backend.core.lifecycle.session.step`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ai.backend.common.ids import AgentId, KernelId
from ai.backend.common.states import KernelEventReason, KernelStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStimulus:
    """The base of all events. ``stimulus_id`` names the cause in the session's story: a request, a report, a loop."""

    reason: KernelEventReason = KernelEventReason.UNKNOWN
    stimulus_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionScheduled(SessionStimulus):
    """The scheduler placed every kernel."""

    agents: Mapping[KernelId, AgentId]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDispatched(SessionStimulus):
    """Every agent accepted the creation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCreationFailed(SessionStimulus):
    """Agents refused some kernels or were lost; ``retryable`` for now (back to the scheduler), else for good."""

    kernel_ids: frozenset[KernelId]
    reason: KernelEventReason
    retryable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRestartRequested(SessionStimulus):
    reason: KernelEventReason = KernelEventReason.RESTARTING


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDestroyRequested(SessionStimulus):
    """The user, an idle rule or a timeout ends the session. A forced end leaves no grace, also when TERMINATING."""

    reason: KernelEventReason = KernelEventReason.USER_REQUESTED
    forced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStartOverRequested(SessionStimulus):
    """The session is preempted and waits again once its kernels have ended."""

    reason: KernelEventReason = KernelEventReason.RESCHEDULED


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDegraded(SessionStimulus):
    """An agent that holds one of the kernels does not answer."""

    reason: KernelEventReason = KernelEventReason.AGENT_LOST


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRecovered(SessionStimulus):
    """Every agent that holds one of the kernels answers again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelObserved(SessionStimulus):
    """An agent reported the status of a kernel. Observations of other attempts are ignored."""

    kernel_id: KernelId
    attempt: int
    status: KernelStatus
    exit_code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelsAbandoned(SessionStimulus):
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
