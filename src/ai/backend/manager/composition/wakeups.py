"""Wakes loops on messages of the bus."""

from __future__ import annotations

from typing import Any

from ai.backend.core.lifecycle.effects import DestroyKernels
from ai.backend.infra.bus import Bus
from ai.backend.manager.events.webhook_loop import WebhookLoop
from ai.backend.manager.scheduling.loop import ScheduleLoop
from ai.backend.manager.sessions.lifecycle.launch import LaunchLoop
from ai.backend.manager.sessions.lifecycle.terminate import TerminateLoop
from ai.backend.manager.sessions.writer import SessionWriter
from ai.backend.manager.topics import CALLBACK, LAUNCH, SCHEDULE, TERMINATE

_MAX_MESSAGES = 10_000


class LoopWakeups:
    """Wakes loops and pushes work to them. A lost message only costs time, as every loop also runs periodically."""

    def __init__(
        self,
        bus: Bus,
        writer: SessionWriter,
        *,
        schedule: ScheduleLoop,
        launch: LaunchLoop,
        terminate: TerminateLoop,
        callbacks: WebhookLoop,
    ) -> None:
        self._bus = bus
        self._writer = writer
        self._schedule = schedule
        self._launch = launch
        self._terminate = terminate
        self._callbacks = callbacks

    async def run(self) -> None:
        """Listen until cancelled."""
        with self._bus.subscribe(SCHEDULE, LAUNCH, TERMINATE, CALLBACK, limit=_MAX_MESSAGES) as hints:
            while True:
                topic, payload = await hints.get()
                self._dispatch(topic, payload)

    def _dispatch(self, topic: str, payload: Any) -> None:
        if topic == SCHEDULE:
            self._schedule.wake()
        elif topic == CALLBACK:
            self._callbacks.wake()
        elif topic == LAUNCH:
            session = self._writer.written(payload) if payload is not None else None
            if session is not None:
                self._launch.push(session)
            else:
                self._launch.wake()
        elif isinstance(payload, DestroyKernels):
            self._terminate.push(payload)
        else:
            self._terminate.wake()
