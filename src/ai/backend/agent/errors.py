"""Errors inside the agent that are never sent over the link."""

from __future__ import annotations

from ai.backend.common.errors import WorkloadError


class StartFailed(WorkloadError):
    """The workload exists, but its runner never became ready."""


class WorkloadEnded(WorkloadError):
    """The workload ended during an operation on it."""
