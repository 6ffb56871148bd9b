"""Defines the effects of a session's transitions. The manager executes the effects.

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

import msgspec

from ai.backend.common.ids import AgentId, KernelId, SessionId
from ai.backend.common.states import KernelEventReason, SessionResult


class KernelTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Names an attempt of a kernel on its present or future agent."""

    kernel_id: KernelId
    agent_id: AgentId
    attempt: int


class TakeSlots(msgspec.Struct, frozen=True, kw_only=True):
    """Counts the kernel's requested slots as occupied on its agent and in its owner's quotas."""

    target: KernelTarget


class ReleaseSlots(msgspec.Struct, frozen=True, kw_only=True):
    """Releases the slots that :class:`TakeSlots` took for this kernel.

    Each taking is released once. A restart in between has increased the kernel's attempt.
    """

    target: KernelTarget


class EmitEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Sends an event of the client wire contract to watching clients.

    A ``kernel_id`` of None means the session itself.
    """

    name: str
    session_id: SessionId
    kernel_id: KernelId | None = None
    reason: KernelEventReason = KernelEventReason.UNKNOWN
    exit_code: int | None = None
    result: SessionResult | None = None


class CreateKernels(msgspec.Struct, frozen=True, kw_only=True):
    """Creates the kernels of a SCHEDULED session on their agents."""

    session_id: SessionId


class RestartKernels(msgspec.Struct, frozen=True, kw_only=True):
    """Restarts in place those kernels of a session that are RESTARTING."""

    session_id: SessionId


class DestroyKernels(msgspec.Struct, frozen=True, kw_only=True):
    """Destroys the given attempts of kernels, and older attempts of the same kernels, on their agents."""

    session_id: SessionId
    targets: tuple[KernelTarget, ...]
    reason: KernelEventReason
    forced: bool = False


Fact = TakeSlots | ReleaseSlots | EmitEvent
Command = CreateKernels | RestartKernels | DestroyKernels
Effect = Fact | Command
