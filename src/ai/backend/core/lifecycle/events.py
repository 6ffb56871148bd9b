"""Defines the events that drive :func:`ai.backend.core.lifecycle.session.step`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ai.backend.common.ids import AgentId, KernelId
from ai.backend.common.states import KernelEventReason, KernelStatus


class SessionStimulus(msgspec.Struct, frozen=True, kw_only=True):
    """Serves as the base class of all session events.

    ``stimulus_id`` names the cause in the session's recent transitions: a request, a report, a loop.
    """

    reason: KernelEventReason = KernelEventReason.UNKNOWN
    stimulus_id: str = ""


class SessionScheduled(SessionStimulus, frozen=True, kw_only=True):
    """Reports that the scheduler has placed every kernel of the session."""

    agents: Mapping[KernelId, AgentId]


class SessionDispatched(SessionStimulus, frozen=True, kw_only=True):
    """Reports that every agent has accepted the creation of its kernels."""


class SessionCreationFailed(SessionStimulus, frozen=True, kw_only=True):
    """Reports that agents refused to create some kernels, or that the agents were lost.

    ``retryable``: the session returns to the scheduler, otherwise the failure is final.
    """

    kernel_ids: frozenset[KernelId]
    reason: KernelEventReason
    retryable: bool


class SessionRestartRequested(SessionStimulus, frozen=True, kw_only=True):
    reason: KernelEventReason = KernelEventReason.RESTARTING


class SessionDestroyRequested(SessionStimulus, frozen=True, kw_only=True):
    """Requests the end of the session, on behalf of the user, an idle rule or a timeout.

    A forced end leaves no grace, also when TERMINATING.
    """

    reason: KernelEventReason = KernelEventReason.USER_REQUESTED
    forced: bool = False


class SessionStartOverRequested(SessionStimulus, frozen=True, kw_only=True):
    """Reports that the session is preempted. The session waits again once its kernels have ended."""

    reason: KernelEventReason = KernelEventReason.RESCHEDULED


class SessionDegraded(SessionStimulus, frozen=True, kw_only=True):
    """Reports that an agent with one of the session's kernels does not answer."""

    reason: KernelEventReason = KernelEventReason.AGENT_LOST


class SessionRecovered(SessionStimulus, frozen=True, kw_only=True):
    """Reports that every agent with one of the session's kernels answers again."""


class KernelObserved(SessionStimulus, frozen=True, kw_only=True):
    """Reports the status of a kernel as its agent observed it. Observations of other attempts are ignored."""

    kernel_id: KernelId
    attempt: int
    status: KernelStatus
    exit_code: int | None = None


class KernelsAbandoned(SessionStimulus, frozen=True, kw_only=True):
    """Reports that the agent is lost or denies having these kernels.

    Their slots are free, and a workload that still runs is an orphan.
    """

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
