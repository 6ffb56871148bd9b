"""What the session's machine asks its shell to do.

Every effect is idempotent. The facts become part of the transaction that writes the new state (the manager's
``advance`` puts them into the change). The commands follow after it (``SessionWriter`` executes them); if they are
lost, the level-triggered loops repeat them from the status alone:

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
class EmitEvent:
    """Tell the clients that watch (names of the client wire contract); ``kernel_id`` is None for the session's own."""

    name: str
    session_id: SessionId
    kernel_id: KernelId | None = None
    reason: KernelEventReason = KernelEventReason.UNKNOWN
    exit_code: int | None = None
    result: SessionResult | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateKernels:
    """Ask the agents to create the kernels of a session that is SCHEDULED."""

    session_id: SessionId


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartKernels:
    """Ask the agents to restart the kernels of a session in place that are RESTARTING."""

    session_id: SessionId


@dataclass(frozen=True, slots=True, kw_only=True)
class DestroyKernels:
    """Ask the agents to end these incarnations and any older ones of the same kernels."""

    session_id: SessionId
    targets: tuple[KernelTarget, ...]
    reason: KernelEventReason
    forced: bool = False


Fact = TakeSlots | ReleaseSlots | EmitEvent
Command = CreateKernels | RestartKernels | DestroyKernels
Effect = Fact | Command
