"""What the machines ask the shell to do, imperative and idempotent.

The shell applies the new state, the slot effects and the emitted events in ONE transaction; what talks to an agent is
done afterwards, and done again by the level-triggered loops from the status alone if it was lost:

=============  ============================================
session is     the loop repeats
=============  ============================================
SCHEDULED      CreateKernels
RESTARTING     RestartKernels for kernels in RESTARTING
TERMINATING    DestroyKernels for kernels in TERMINATING
=============  ============================================
"""

from __future__ import annotations

from dataclasses import dataclass

from ai.backend.common.ids import AgentId, KernelId, SessionId
from ai.backend.common.states import KernelEventReason, SessionResult


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTarget:
    """One incarnation of a kernel on the agent that has, or is to get, it."""

    kernel_id: KernelId
    agent_id: AgentId
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeSlots:
    """Count the kernel's requested slots as occupied on its agent and in its owner's quotas."""

    target: KernelTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseSlots:
    """Give back what :class:`TakeSlots` took for this kernel (a restart in between grew its attempt). Once for each."""

    target: KernelTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateKernels:
    """Ask the agents of all targets to create them. Every target belongs to one session."""

    session_id: SessionId
    targets: tuple[KernelTarget, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartKernels:
    """Ask the agents to restart in place; the attempts are the new ones."""

    session_id: SessionId
    targets: tuple[KernelTarget, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DestroyKernels:
    """Ask the agents to end these incarnations and any older ones of the same kernels."""

    session_id: SessionId
    targets: tuple[KernelTarget, ...]
    reason: KernelEventReason
    forced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EmitEvent:
    """Tell the clients that watch (names of the client wire contract); ``kernel_id`` is None for the session's own."""

    name: str
    session_id: SessionId
    kernel_id: KernelId | None = None
    reason: KernelEventReason = KernelEventReason.UNKNOWN
    exit_code: int | None = None
    result: SessionResult | None = None


Effect = TakeSlots | ReleaseSlots | CreateKernels | RestartKernels | DestroyKernels | EmitEvent
