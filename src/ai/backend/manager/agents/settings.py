"""Settings that control how the manager watches agents."""

from __future__ import annotations

from pydantic import Field

from ai.backend.infra.settings import Settings


class AgentSettings(Settings):
    """Settings of heartbeats and of lost agents."""

    heartbeat_interval_s: float = Field(3.0, gt=0, description="How often agents report, in seconds.")
    heartbeat_timeout_s: float = Field(
        15.0, gt=0, description="An agent that is silent for longer is LOST, in seconds."
    )
    speaker_interval_s: float = Field(
        10.0,
        gt=0,
        description="Where one process reports for the agents of many nodes: how often it reports each, in seconds."
        " It reports changes, and the loss of a node, at once.",
    )
    speaker_timeout_s: float = Field(
        120.0,
        gt=0,
        description="Where one process reports for the agents of many nodes: after its silence for so long, in seconds,"
        " they are LOST too; until then only those that it calls lost, or of which it says nothing while it speaks.",
    )
    abandon_s: float = Field(
        600.0, gt=0, description="After this silence, in seconds, the sessions on a LOST agent are given up."
    )
    abandon_terminating_s: float = Field(
        30.0, gt=0, description="As abandon-s, for sessions that somebody wants to end."
    )
    presence_grace_s: float = Field(
        10.0, gt=0, description="How long, in seconds, an agent may not list a kernel that it was asked for."
    )
