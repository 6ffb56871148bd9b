"""The outcome of a scheduling decision, as data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.ids import AgentId, KernelId, SessionId


class SkipReason(StrEnum):
    """Why a session was not placed. Stable slugs: they go into ``status_info`` and metric labels."""

    NOT_YET = "not-yet"
    DEPENDENCY_UNFINISHED = "dependency-unfinished"
    DEPENDENCY_FAILED = "dependency-failed"
    QUOTA_EXCEEDED = "quota-exceeded"
    NO_AGENT = "no-agent"
    NO_MATCHING_AGENT = "no-matching-agent"
    UNSUPPORTED_RESOURCE = "unsupported-resource"
    NEVER_FITS = "never-fits"
    INSUFFICIENT_RESOURCE = "insufficient-resource"
    BEHIND_ANOTHER = "behind-another"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPlacement:
    """``devices`` leaves out slots whose devices the agent chooses. ``generation`` is that of the inventory used."""

    kernel_id: KernelId
    agent_id: AgentId
    generation: int
    devices: DeviceAllocation


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Every kernel of one session, in the order of the snapshot."""

    session_id: SessionId
    kernels: tuple[KernelPlacement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """``message`` is for the owner of the session. ``is_final``: it will not change by waiting."""

    session_id: SessionId
    reason: SkipReason
    message: str
    is_final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """A running session to end so that another one fits."""

    session_id: SessionId
    in_favour_of: SessionId


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All and only the pending sessions appear, each once, in ``placements`` or in ``skips``.

    ``broken_agents`` names agents whose reported devices contradict each other, with the reason; they got nothing.
    """

    placements: tuple[Placement, ...] = ()
    skips: tuple[Skip, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    broken_agents: tuple[tuple[AgentId, str], ...] = ()

    def skip_of(self, session_id: SessionId) -> Skip | None:
        return next((s for s in self.skips if s.session_id == session_id), None)
