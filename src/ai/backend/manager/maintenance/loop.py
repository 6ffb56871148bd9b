"""Deletes old events, kernel logs, reported errors, sign-ins, answers to client tokens, and old history by setting."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol

from pydantic import Field

from ai.backend.infra.clock import Clock
from ai.backend.infra.loop import PeriodicLoop
from ai.backend.infra.settings import Settings
from ai.backend.manager.idempotency.store import AnswerStore
from ai.backend.manager.identity.store import AccountStore
from ai.backend.manager.logs.store import ErrorLogStore
from ai.backend.manager.maintenance.history import History
from ai.backend.manager.maintenance.store import HistoryKind
from ai.backend.manager.sessions.store import SessionStore


class RetentionSettings(Settings):
    """How long the manager keeps old rows."""

    events_days: float = Field(7.0, gt=0, description="How long events and kept logs stay, in days.")
    errors_days: float = Field(30.0, gt=0, description="How long reported errors stay, in days.")
    tokens_hours: float = Field(24.0, gt=0, description="How long a client token stays known, in hours.")
    sessions_days: float | None = Field(
        None,
        gt=0,
        description="How long ended sessions stay with their kernels and events, and the periods in which claims held "
        "devices, in days; for ever if not set. Lists and usage reports have what is in the database.",
    )
    audit_days: float | None = Field(
        None, gt=0, description="How long records of the audit trail stay, in days; for ever if not set."
    )
    archive_dir: Path | None = Field(
        None,
        description="Folder for Parquet files of ended sessions and audit records, which are written before these are "
        "deleted; needs the extra `archive`. Managers that may lead share the folder.",
    )


class PastRecords(Protocol):
    """Deletes old records of a feature, which the manager keeps as long as events."""

    async def purge(self, *, before: datetime) -> int:
        """Deletes the records of the feature that ended before a time, and returns the number of deleted events."""
        ...


class RetentionLoop(PeriodicLoop):
    """Deletes expired rows periodically. Sessions and the audit trail stay unless a setting says how long."""

    period_s = 600.0

    def __init__(
        self,
        store: SessionStore,
        answers: AnswerStore,
        clock: Clock,
        settings: RetentionSettings,
        errors: ErrorLogStore,
        accounts: AccountStore,
        sign_ins_days: float,
        other_records: Sequence[PastRecords] = (),
        history: History | None = None,
    ) -> None:
        super().__init__()
        self._history = history
        self._further = other_records
        self._errors = errors
        self._accounts = accounts
        self._sign_ins = timedelta(days=sign_ins_days)
        self._store = store
        self._answers = answers
        self._clock = clock
        self._settings = settings

    async def once(self) -> None:
        now = self._clock.now()
        await self._store.purge(before=now - timedelta(days=self._settings.events_days))
        for records in self._further:
            await records.purge(before=now - timedelta(days=self._settings.events_days))
        await self._answers.purge(before=now - timedelta(hours=self._settings.tokens_hours))
        await self._errors.purge_errors(before=now - timedelta(days=self._settings.errors_days))
        await self._accounts.purge_sign_ins(before=now - self._sign_ins)
        if self._history is not None:
            days_of_kind = {
                HistoryKind.SESSIONS: self._settings.sessions_days,
                HistoryKind.AUDIT: self._settings.audit_days,
                HistoryKind.CLAIM_SPANS: self._settings.sessions_days,
            }
            for kind, kept_days in days_of_kind.items():
                if kept_days is not None:
                    await self._history.remove(kind, before=now - timedelta(days=kept_days))
