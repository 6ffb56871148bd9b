"""Creates a session and prints its progress until it runs."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ai.backend.cli.framework.values import (
    describe_metrics,
    describe_slots,
    format_cell,
    parse_if_json,
    readable_metric,
)
from ai.backend.client.exceptions import BackendError

if TYPE_CHECKING:
    from ai.backend.cli.framework.output import Screen
    from ai.backend.client.func.creation import CreateOptions
    from ai.backend.client.func.session import AsyncComputeSession
    from ai.backend.client.session import AsyncSession

LIVE_STATUSES = frozenset({"RUNNING", "RUNNING_DEGRADED"})
FINAL_STATUSES = frozenset({"TERMINATED", "ERROR", "CANCELLED"})
_FIRST_WAIT_S = 2
_POLL_S = 0.5
_WAIT_FIELDS = ("id", "status", "status_info", "status_data", "result")
_START_FIELDS = ("status", "status_history", "agent_ids", "occupying_slots", "containers { id attached_devices }")


class SessionNotStarted(Exception):
    """Raised when a session did not start: it ended, or it was not running in time (``is_timeout``)."""

    def __init__(self, message: str, *, is_timeout: bool = False) -> None:
        super().__init__(message)
        self.is_timeout = is_timeout


async def create_running(
    api: AsyncSession,
    screen: Screen,
    image: str,
    create_options: CreateOptions,
    *,
    max_wait: int = 0,
    label: str = "",
) -> AsyncComputeSession:
    """Creates a session, prints the reasons of a wait, and returns the session once it runs.

    Raises SessionNotStarted if it ended, or did not start within ``max_wait`` seconds (zero: no limit).
    """
    started_at = time.monotonic()
    first_wait_s = min(_FIRST_WAIT_S, max_wait) if max_wait else _FIRST_WAIT_S
    session = await api.ComputeSession.get_or_create(image, **create_options | {"max_wait": first_wait_s})
    if session.status in LIVE_STATUSES:
        return session
    deadline = started_at + max_wait if max_wait else None
    screen.inform(f"{label}session {session.name} ({session.id}) is queued")
    await _wait_until_running(session, screen, deadline, label, api.transport.pause)
    return session


async def _wait_until_running(
    session: AsyncComputeSession,
    screen: Screen,
    deadline: float | None,
    label: str,
    pause: Callable[[float], Awaitable[None]],
) -> None:
    printed_text, is_hint_printed = "", False
    while True:
        detail = await session.detail(_WAIT_FIELDS) or {}
        status = str(detail.get("status"))
        session.status = status
        if status in LIVE_STATUSES:
            return
        if status in FINAL_STATUSES:
            raise SessionNotStarted(
                f"the session {session.name} is {status}: {status_reason(detail) or 'no reason is known'}"
            )
        status_text = f"{status}{': ' + wait_reason if (wait_reason := status_reason(detail)) else ''}"
        if status_text != printed_text:
            (screen.inform if printed_text else screen.remind)(f"{label}  {session.name} is {status_text}")
            if status == "PENDING" and not is_hint_printed:
                is_hint_printed = True
                screen.inform(
                    f"{label}  `backend.ai explain {session.name}` names the sessions that hold what it needs, "
                    f"`backend.ai rm {session.name}` cancels it"
                )
            printed_text = status_text
        if deadline is not None and time.monotonic() >= deadline:
            raise SessionNotStarted(
                f"the session {session.name} is still {status_text}; "
                f"{'it stays in the queue, ' if status == 'PENDING' else ''}"
                f"`backend.ai rm {session.name}` cancels it",
                is_timeout=True,
            )
        await pause(_POLL_S)


def status_reason(detail: Mapping[str, Any]) -> str:
    """Returns why a session is in its status: the scheduler's explanation or the error where there is one."""
    status_data = parse_if_json(detail.get("status_data"))
    reason_texts: list[str] = []
    if isinstance(status_data, Mapping):
        for section_name in ("error", "scheduler"):
            section_data = status_data.get(section_name)
            if not isinstance(section_data, Mapping):
                continue
            message = section_data.get("msg") or section_data.get("message") or section_data.get("repr")
            if message:
                reason_texts.append(str(message))
                continue
            failed_checks = section_data.get("failed_predicates") or ()
            reason_texts += [
                str(failed_check.get("msg") or failed_check.get("name"))
                for failed_check in failed_checks
                if isinstance(failed_check, Mapping)
            ]
    status_info = detail.get("status_info")
    if status_info and status_info not in reason_texts:
        reason_texts.insert(0, str(status_info))
    return "; ".join(reason_texts)


def describe_failures(status_data: Any) -> str:
    """Formats the failed devices of a session, as ``mock big-0: it fell off the bus; ...``."""
    parsed_data = parse_if_json(status_data)
    unhealthy_devices = parsed_data.get("unhealthy_devices") if isinstance(parsed_data, Mapping) else None
    return "; ".join(
        format_cell(
            f"{device.get('device_name')} {device.get('device_id')}: {device.get('reason') or 'no reason is known'}"
        )
        for device in unhealthy_devices or ()
        if isinstance(device, Mapping)
    )


def describe_hook_failures(containers: Iterable[Mapping[str, Any]]) -> str:
    """Formats the plugin calls that failed for the kernels, as ``cuda.post_terminate given-up: in use; ...``."""
    failure_texts = []
    for container in containers:
        status_data = parse_if_json(container.get("status_data"))
        hooks = status_data.get("hooks") if isinstance(status_data, Mapping) else None
        failure_texts += [
            format_cell(f"{hook_name} {hook_result.get('state')}: {hook_result.get('message')}")
            for hook_name, hook_result in sorted((hooks or {}).items())
        ]
    return "; ".join(failure_texts)


def describe_history(history: Mapping[str, str | None]) -> str:
    """Returns the times of the statuses: ``PENDING → SCHEDULED +3 ms → … RUNNING +85 ms``."""
    timed_statuses = [(datetime.fromisoformat(time), name.upper()) for name, time in history.items() if time]
    sorted_entries = sorted(timed_statuses, key=lambda entry: entry[0])  # statuses of one moment stay in their order
    if not sorted_entries:
        return ""
    first_time = sorted_entries[0][0]
    status_texts = [sorted_entries[0][1]]
    status_texts += [
        f"{name} +{(time - first_time).total_seconds() * 1000:.0f} ms" for time, name in sorted_entries[1:]
    ]
    return " → ".join(status_texts)


def describe_devices(containers: Iterable[Mapping[str, Any]]) -> str:
    """Formats the devices of a session by kind, without cpu and memory: ``mock: Mock Device (id)``.

    Several devices of a kind are separated by commas.
    """
    devices_by_kind: dict[str, list[str]] = {}
    for container in containers:
        for kind, devices in (parse_if_json(container.get("attached_devices")) or {}).items():
            if kind not in {"cpu", "mem"}:
                devices_by_kind.setdefault(kind, []).extend(
                    f"{format_cell(device.get('model_name') or 'device')} ({format_cell(device.get('device_id'))})"
                    for device in devices
                )
    return "; ".join(f"{kind}: {', '.join(devices)}" for kind, devices in sorted(devices_by_kind.items()))


def describe_usage(containers: Sequence[Mapping[str, Any]]) -> str:
    """Formats the newest metrics of each kernel, or the last ones of a kernel that has ended.

    An example is ``cpu_util 12%, mem 90m of 256m, mock_util 40%``.
    """
    texts_by_host = {
        format_cell(container.get("cluster_hostname") or "main"): describe_metrics(
            parse_if_json(container.get("live_stat")) or parse_if_json(container.get("last_stat")) or {}
        )
        for container in containers
    }
    nonempty_texts = {host: text for host, text in texts_by_host.items() if text}
    return (
        next(iter(nonempty_texts.values()), "")
        if len(containers) == 1
        else "; ".join(map(": ".join, nonempty_texts.items()))
    )


async def print_start(session: AsyncComputeSession, screen: Screen, *, label: str = "") -> None:
    """Prints to stderr how, where and with which devices a session was started, and updates the session's status."""
    if screen.is_quiet:
        return
    try:
        detail = await session.detail(_START_FIELDS) or {}
    except BackendError:
        return  # the session may have ended meanwhile; the next call reports it
    session.status = str(detail.get("status") or session.status)
    start_verb = "started" if session.created else "was running already"
    screen.inform(f"{label}session {session.name} ({session.id}) {start_verb}")
    if session.created and (history_text := describe_history(parse_if_json(detail.get("status_history")) or {})):
        screen.inform(f"{label}  life cycle  {history_text}")
    if agents := detail.get("agent_ids"):
        screen.inform(f"{label}  agent       {', '.join(agents)}")
    if slots := parse_if_json(detail.get("occupying_slots")):
        screen.inform(f"{label}  resources   {describe_slots(slots)}")
    if devices := describe_devices(detail.get("containers") or ()):
        screen.inform(f"{label}  devices     {devices}")


def describe_stats(stats: Mapping[str, Any]) -> str:
    """Returns the current value of every metric: ``cpu_used 120 ms, mem 10.0 MiB``."""
    metric_texts = []
    for name, metric in stats.items():
        if isinstance(metric, Mapping):
            metric_texts.append(f"{name} {readable_metric(metric)}")
        elif name not in {"status", "version"}:
            metric_texts.append(f"{name} {format_cell(metric)}")
    return ", ".join(metric_texts) or "not available"
