"""What goes wrong inside the agent and crosses no wire."""

from __future__ import annotations

from ai.backend.common.errors import WorkloadError


class StartFailed(WorkloadError):
    """The workload exists, but its runner never became ready."""


class WorkloadEnded(WorkloadError):
    """The workload ended while somebody counted on it."""
