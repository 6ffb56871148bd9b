"""Tells the URLs that sessions named what becomes of them. See docs/decisions/0044."""

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
from ai.backend.manager.events.settings import WebhookSettings
from ai.backend.manager.events.webhook_gateway import WebhookFailed, WebhookSender
from ai.backend.manager.sessions.callbacks import Webhook
from ai.backend.manager.sessions.store import SessionStore

log = logging.getLogger(__name__)
_PER_OWNER = 4
_AT_ONCE = 64
_BACKOFF = Backoff(1.0, 3600.0)


class WebhookLoop(PeriodicLoop):
    """Each session's callbacks one after the other, at least once; those of different sessions at the same time.

    What is not told stays in the store, so a new manager goes on where the last one was killed.
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
        due = await self._store.due_callbacks(self._clock.now(), limit=1000)
        owners = Counter(access_key for access_key, _ in self._busy.values())
        for one in due:
            if one.id in self._done:  # since it was read
                continue
            if len(self._busy) >= _AT_ONCE:
                return
            if owners[one.access_key] < _PER_OWNER and one.session_id not in self._busy:
                owners[one.access_key] += 1
                task = asyncio.create_task(self._tell(one), name=f"callback-{one.id}")
                self._busy[one.session_id] = one.access_key, task
                task.add_done_callback(partial(self._let_go, one))

    def _let_go(self, one: Webhook, task: asyncio.Task[None]) -> None:
        self._busy.pop(one.session_id, None)
        self._done.add(one.id)
        if not task.cancelled() and task.exception() is not None:  # it stays in the store
            log.error("could not note what became of a callback", exc_info=task.exception())
        self.wake()

    async def _tell(self, one: Webhook) -> None:
        try:
            await self._sender.send(one.url, one.id, one.body)
        except WebhookFailed as e:
            await self._put_off(one, e)
        else:
            await self._store.drop_callback(one.id)

    async def _put_off(self, one: Webhook, why: WebhookFailed) -> None:
        # The rest of the URL may be a secret.
        where, tried = urlsplit(one.url).hostname, one.attempts + 1
        if tried >= self._settings.attempts or not why.may_pass:
            log.warning("gave up telling %s of session %s after %d tries: %s", where, one.session_id, tried, why)
            await self._store.drop_callback(one.id)
            return
        due = self._clock.now() + timedelta(seconds=_BACKOFF.delay_s(one.attempts))
        await self._store.put_off_callback(one.id, attempts=tried, due_at=due)

    async def settle(self) -> None:
        """Wait for what is under way; for tests and simulations, which run ``once`` by hand."""
        await asyncio.gather(*(task for _, task in self._busy.values()), return_exceptions=True)

    async def stop(self) -> None:
        """What is under way is told again by the next manager."""
        for _, task in self._busy.values():
            task.cancel()
        await self.settle()
        await self._sender.close()
