"""Posts the changes of sessions to their callback URLs (docs/decisions/0044)."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from datetime import timedelta
from functools import partial
from urllib.parse import urlsplit

from ai.backend.common.ids import AccessKey, SessionId
from ai.backend.infra.clock import Clock
from ai.backend.infra.loop import PeriodicLoop
from ai.backend.infra.retry import Backoff
from ai.backend.infra.telemetry.tracing import child_span
from ai.backend.manager.events.settings import WebhookSettings
from ai.backend.manager.events.webhook_gateway import WebhookFailed, WebhookSender
from ai.backend.manager.sessions.changes import Webhook
from ai.backend.manager.sessions.store import SessionStore

log = logging.getLogger(__name__)
_MAX_PER_OWNER = 4
_MAX_CONCURRENT = 64
_BACKOFF = Backoff(1.0, 3600.0)


class WebhookLoop(PeriodicLoop):
    """Sends the callbacks of each session in order and at least once; callbacks of different sessions run concurrently.
    Unsent callbacks stay in the store, so a restarted manager continues with them.
    """

    period_s = 5.0

    def __init__(self, store: SessionStore, sender: WebhookSender, clock: Clock, settings: WebhookSettings) -> None:
        super().__init__()
        self._store = store
        self._sender = sender
        self._clock = clock
        self._settings = settings
        self._busy: dict[SessionId, tuple[AccessKey, asyncio.Task[None]]] = {}
        self._done: set[int] = set()

    async def once(self) -> None:
        self._done.clear()
        due_webhooks = await self._store.due_callbacks(self._clock.now(), limit=1000)
        busy_counts_by_owner = Counter(access_key for access_key, _ in self._busy.values())
        for webhook in due_webhooks:
            if webhook.id in self._done:  # sent since it was read
                continue
            if len(self._busy) >= _MAX_CONCURRENT:
                return
            if busy_counts_by_owner[webhook.access_key] < _MAX_PER_OWNER and webhook.session_id not in self._busy:
                busy_counts_by_owner[webhook.access_key] += 1
                task = asyncio.create_task(self._deliver(webhook), name=f"callback-{webhook.id}")
                self._busy[webhook.session_id] = webhook.access_key, task
                task.add_done_callback(partial(self._release, webhook))

    def _release(self, webhook: Webhook, task: asyncio.Task[None]) -> None:
        self._busy.pop(webhook.session_id, None)
        self._done.add(webhook.id)
        if not task.cancelled() and task.exception() is not None:  # it stays in the store
            log.error("could not record the outcome of a callback", exc_info=task.exception())
        self.wake()

    async def _deliver(self, webhook: Webhook) -> None:
        try:
            with child_span("session callback", kind="producer", parent=webhook.trace):
                await self._sender.send(webhook.url, webhook.id, webhook.body)
        except WebhookFailed as e:
            await self._postpone(webhook, e)
        else:
            await self._store.drop_callback(webhook.id)

    async def _postpone(self, webhook: Webhook, error: WebhookFailed) -> None:
        # The rest of the URL may be a secret.
        host, attempts = urlsplit(webhook.url).hostname, webhook.attempts + 1
        if attempts >= self._settings.attempts or not error.can_retry:
            log.warning(
                "gave up a callback to %s for session %s after %d tries: %s", host, webhook.session_id, attempts, error
            )
            await self._store.drop_callback(webhook.id)
            return
        due_at = self._clock.now() + timedelta(seconds=_BACKOFF.delay_s(webhook.attempts))
        await self._store.put_off_callback(webhook.id, attempts=attempts, due_at=due_at)

    async def drain(self) -> None:
        """Waits for the callbacks in progress; for tests and simulations, which call ``once`` themselves."""
        await asyncio.gather(*(task for _, task in self._busy.values()), return_exceptions=True)

    async def stop(self) -> None:
        """Cancels the callbacks in progress; the next manager sends them again."""
        for _, task in self._busy.values():
            task.cancel()
        await self.drain()
        await self._sender.close()
