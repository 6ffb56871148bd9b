"""Collects all records about one session: its life, decisions, errors, events and logs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, TypedDict

import msgspec

from ai.backend.common.errors import BackendError
from ai.backend.common.states import SessionStatus
from ai.backend.common.wire.execution import ReadSessionLog
from ai.backend.common.wire.reports import LogLine
from ai.backend.infra.telemetry.recent import recent_lines
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import require
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.agents.store import AgentGateway
from ai.backend.manager.scheduling.explanations import ExplanationService
from ai.backend.manager.sessions.changes import Event
from ai.backend.manager.sessions.lookup import SessionFinder
from ai.backend.manager.sessions.model import Session
from ai.backend.manager.sessions.store import SessionStore

_MAX_EVENTS = 500
_AGENT_TIMEOUT_S = 5.0


class ReportedStep(TypedDict):
    """A status that the session has entered, or an event of the session, with its time and details."""

    at: str
    name: str
    details: dict[str, Any]


class ReportedKernel(TypedDict):
    """A kernel of the session."""

    id: str
    host: str
    agent: str | None
    status: str
    attempt: int
    exit_code: int | None
    info: str | None


class ReportedLine(TypedDict):
    """A log record of a daemon."""

    at: float
    daemon: str
    level: str
    logger: str
    message: str
    request_id: str | None
    trace_id: str | None


class SessionReport(TypedDict):
    """The report on one session: its owner, status, history, kernels, errors and logs.

    ``unreachable`` are its agents that did not return their logs.
    """

    id: str
    name: str
    status: str
    reason: str
    owner: str
    trace_id: str | None
    life: list[ReportedStep]
    kernels: list[ReportedKernel]
    decision: dict[str, Any]
    errors: list[str]
    logs: list[ReportedLine]
    unreachable: list[str]


class SessionReports(msgspec.Struct, frozen=True):
    """Makes reports on sessions for callers who may see all agents. Logs are those that the asked manager and the
    session's agents have in memory: the newest ones since their start.
    """

    sessions: SessionStore
    finder: SessionFinder
    explanations: ExplanationService
    gateway: AgentGateway

    async def report_of(self, caller: Caller, ref: str, *, owner_access_key: str | None = None) -> SessionReport:
        """Returns the report of a session. Raises Forbidden and as :meth:`SessionFinder.one`."""
        require(caller, Operation.SEE_AGENTS)
        session = await self.finder.one(caller, ref, owner_access_key=owner_access_key)
        decision = dict(session.status_data.get("scheduler", {}))
        if session.status is SessionStatus.PENDING:
            decision = msgspec.to_builtins(await self.explanations.explain_session(caller, str(session.id)))
        log_lines, unreachable = await self._collect_logs(session)
        return {
            "id": str(session.id),
            "name": session.name,
            "status": session.status.value,
            "reason": session.reason.value,
            "owner": session.user_email,
            "trace_id": session.trace[3:35] if session.trace is not None else None,
            "life": _life_steps(session, await self.sessions.events_of(session.id, limit=_MAX_EVENTS)),
            "kernels": [
                {
                    "id": str(kernel.id),
                    "host": kernel.cluster_hostname,
                    "agent": kernel.agent,
                    "status": kernel.status.value,
                    "attempt": kernel.attempt,
                    "exit_code": kernel.exit_code,
                    "info": kernel.status_info,
                }
                for kernel in session.kernels
            ],
            "decision": decision,
            "errors": list(dict.fromkeys(_error_texts(session))),
            "logs": [
                {
                    "at": log_line.at,
                    "daemon": log_line.daemon,
                    "level": log_line.level,
                    "logger": log_line.logger,
                    "message": log_line.message,
                    "request_id": log_line.request_id,
                    "trace_id": log_line.trace_id,
                }
                for log_line in log_lines
            ],
            "unreachable": unreachable,
        }

    async def _collect_logs(self, session: Session) -> tuple[list[LogLine], list[str]]:
        logged_ids = [str(session.id), *(str(kernel.id) for kernel in session.kernels)]
        agents = list(session.agent_ids)
        lines_of_agents = await asyncio.gather(*(self._read_agent_logs(agent, logged_ids) for agent in agents))
        line_by_key = {
            (log_line.at, log_line.message): log_line for log_line in recent_lines(logged_ids)
        }  # an agent may be in this process
        for agent_lines in lines_of_agents:
            line_by_key |= {(log_line.at, log_line.message): log_line for log_line in agent_lines or ()}
        unreachable = [
            str(agent) for agent, agent_lines in zip(agents, lines_of_agents, strict=True) if agent_lines is None
        ]
        return sorted(line_by_key.values(), key=lambda line: line.at), unreachable

    async def _read_agent_logs(self, agent_id: str, logged_ids: list[str]) -> list[LogLine] | None:
        try:
            async with asyncio.timeout(_AGENT_TIMEOUT_S):
                return await self.gateway.agent(agent_id).read_session_log(ReadSessionLog(ids=logged_ids))
        except (BackendError, TimeoutError):
            return None


def _life_steps(session: Session, events: Iterable[Event]) -> list[ReportedStep]:
    """Returns the statuses and events of a session, in the order of their times."""
    steps: list[tuple[datetime, ReportedStep]] = []
    for status, entered_at in session.status_history.items():
        steps.append((datetime.fromisoformat(entered_at), {"at": entered_at, "name": status, "details": {}}))
    steps += [
        (event.at, {"at": event.at.isoformat(), "name": event.name, "details": _shown_fields(event.payload)})
        for event in events
    ]
    return [step for _, step in sorted(steps, key=lambda pair: pair[0])]


def _shown_fields(payload: Mapping[str, Any]) -> dict[str, Any]:
    shown_names = ("reason", "result", "exitCode", "kernelId", "agentId", "clusterRole", "clusterIdx")
    return {name: payload[name] for name in shown_names if payload.get(name) not in (None, "")}


def _error_texts(session: Session) -> Iterable[str]:
    """Yields the errors of a session and its kernels, in the words of daemons and plugins."""
    data_by_place: list[tuple[str, Mapping[str, Any]]] = [("session", session.status_data)]
    data_by_place += [(f"kernel {kernel.cluster_hostname}", kernel.status_data) for kernel in session.kernels]
    for subject, data in data_by_place:
        error = data.get("error")
        if isinstance(error, Mapping) and error.get("message"):
            agent_note = f" (agent {error['agent']})" if error.get("agent") else ""
            yield f"{subject}{agent_note}: {error['message']}"
        for hook, hook_state in data.get("hooks", {}).items():
            yield f"{subject}: hook {hook} is {hook_state.get('state')}: {hook_state.get('message')}"
        if data.get("message") and subject != "session":
            yield f"{subject}: {data['message']}"
