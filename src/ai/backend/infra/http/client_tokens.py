"""Deduplicates repeated changes by the header ``X-BackendAI-Client-Token``.

Source: spec 03-07 ("X-BackendAI-Client-Token"); the semantics are those of the IETF draft "The Idempotency-Key HTTP
Header Field". See docs/decisions/0043.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol
from uuid import UUID, uuid4

import msgspec
from aiohttp import web

from ai.backend.common.errors import BackendError, ProofRequired
from ai.backend.infra.http.decode import refuse
from ai.backend.infra.http.errors import ClientTokenReused, OutcomeNotKept, OutcomeUnknown, problem_response, status_of
from ai.backend.infra.http.paths import modern_path, split_target
from ai.backend.infra.http.routes import SAFE_METHODS, Call
from ai.backend.plugin.crash_points import crash_point

log = logging.getLogger(__name__)
TOKEN_HEADER = "X-BackendAI-Client-Token"
REPLAYED_HEADER = "X-BackendAI-Replayed"
MAX_TOKEN_LENGTH = 128
MAX_BODY_BYTES = 262_144
"""The largest body in bytes that is stored; of a larger one only the status is."""
_BOUNDARY_PATTERN = re.compile(r'boundary="?([^";]{1,70})"?')


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the stored reply to a call. ``body`` None: it was too large."""

    status: int
    headers: Mapping[str, str]
    body: bytes | None


class KnownCall(msgspec.Struct, frozen=True, kw_only=True):
    """Describes an earlier call that has the same token.

    ``answer`` is None while it runs, and if it was interrupted. Repetitions share its ``call_id``.
    """

    fingerprint: str
    call_id: UUID
    answer: Answer | None


class AnswerStore(Protocol):
    """Stores calls by access key and token. Each method is one durable transaction."""

    async def begin(
        self, access_key: str, token: str, fingerprint: str, *, call_id: UUID, now: datetime, since: datetime
    ) -> KnownCall | None:
        """Records a new call. Returns the earlier call if one with this token has begun after ``since``."""

    async def finish(self, access_key: str, token: str, answer: Answer) -> None:
        """Stores the reply to a call. The store may remove the oldest replies of the same access key."""

    async def forget(self, access_key: str, token: str) -> None: ...


@dataclass(slots=True)
class _Running:
    fingerprint: str
    done: asyncio.Future[Answer | None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


@dataclass(eq=False)
class ClientTokens:
    """Replies to a repeated call with the reply to the first call.

    ``store`` keeps answers for ``window`` after restarts.
    """

    store: AnswerStore
    _: KW_ONLY
    window: timedelta
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    _running: dict[tuple[str, str], _Running] = field(default_factory=dict, init=False)

    async def answer(
        self, call: Call[Any, Any], run_call: Callable[[], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Returns the reply of ``run_call``, or the reply of an earlier call with the same token.

        Refusals are answers as well; after a fault of the server (5xx), and with a proof of who asks, the call may be
        tried again. An interrupted call
        is only repeated if its endpoint is ``repeatable``. ``call.call_id`` is the same in every repetition.

        Raises:
            InvalidInput: the token is empty or too long.
            ClientTokenReused: the token came with another method, path, query or body.
            OutcomeUnknown: the first call was interrupted, or is running in another manager.
            OutcomeNotKept: the first call has ended, but its answer was too large.
        """
        token = call.request.headers.get(TOKEN_HEADER)
        if token is None or call.access_key is None or not _is_change(call):
            return await run_call()
        if not 1 <= len(token) <= MAX_TOKEN_LENGTH:
            raise refuse({TOKEN_HEADER: f"1 to {MAX_TOKEN_LENGTH} characters"})
        token_key, fingerprint = (call.access_key, token), await _fingerprint(call)
        while (first_call := self._running.get(token_key)) is not None:
            _check_fingerprint(first_call.fingerprint, fingerprint)
            answer = await asyncio.shield(first_call.done)
            if answer is not None:
                return _replay(call, answer)
        running_call = self._running[token_key] = _Running(fingerprint)
        answer = None
        try:
            now = self.clock()
            call.call_id = uuid4()
            since = now - self.window
            known_call = await self.store.begin(*token_key, fingerprint, call_id=call.call_id, now=now, since=since)
            if known_call is not None:
                _check_fingerprint(known_call.fingerprint, fingerprint)
                call.call_id = known_call.call_id
                answer = known_call.answer
                if answer is not None:
                    return _replay(call, answer)
                if not call.endpoint.repeatable:
                    raise OutcomeUnknown
            try:
                response = await run_call()
            except BackendError as error:
                refusal = problem_response(error, request_id=call.request_id)
                is_final = status_of(error) < 500 and not isinstance(error, ProofRequired)
                answer = await self._store_answer(call, token_key, refusal if is_final else None)
                raise
            except Exception:
                await self._store_answer(call, token_key, None)
                raise
            crash_point("before-keep-answer")
            answer = await self._store_answer(call, token_key, response)
            crash_point("after-keep-answer")
            return response
        finally:
            del self._running[token_key]
            running_call.done.set_result(answer)

    async def _store_answer(
        self, call: Call[Any, Any], token_key: tuple[str, str], response: web.StreamResponse | None
    ) -> Answer | None:
        """Stores the reply to a call.

        Without one, a call of a repeatable endpoint keeps its id, and any other is dropped.
        """
        answer = _answer_of(response) if response is not None and response.status < 500 else None
        try:
            if answer is not None:
                await self.store.finish(*token_key, answer)
            elif not call.endpoint.repeatable:
                await self.store.forget(*token_key)
        except Exception:  # the change is made, so the caller must get the reply
            log.exception("could not store the answer to a call with a client token")
        return answer


def _is_change(call: Call[Any, Any]) -> bool:
    return call.method not in SAFE_METHODS and call.endpoint.kind not in ("stream", "socket")


async def _fingerprint(call: Call[Any, Any]) -> str:
    """Returns a hash of method, path, query and body.

    The multipart boundary is left out, because it differs in every attempt.
    """
    body = await call.read_body() if call.request.body_exists else b""
    boundary = _BOUNDARY_PATTERN.search(call.request.headers.get("Content-Type", ""))
    if boundary is not None:
        body = body.replace(b"--" + boundary[1].encode(), b"--")
    path, query = split_target(call.request.raw_path)
    request_text = "\0".join((call.method, modern_path(path), query, "")).encode()
    return hashlib.sha256(request_text + body).hexdigest()


def _check_fingerprint(earlier_fingerprint: str, fingerprint: str) -> None:
    if earlier_fingerprint != fingerprint:
        raise ClientTokenReused


def _answer_of(response: web.StreamResponse) -> Answer | None:
    if not isinstance(response, web.Response) or not isinstance(response.body, bytes | None):
        return None
    body = response.body or b""
    return Answer(
        status=response.status, headers=dict(response.headers), body=body if len(body) <= MAX_BODY_BYTES else None
    )


def _replay(call: Call[Any, Any], answer: Answer) -> web.Response:
    if answer.body is None:
        raise OutcomeNotKept(data={"status": answer.status})
    call.is_replayed = True
    headers = {name: value for name, value in answer.headers.items() if name.lower() != "content-length"}
    return web.Response(status=answer.status, headers={**headers, REPLAYED_HEADER: "true"}, body=answer.body or None)
