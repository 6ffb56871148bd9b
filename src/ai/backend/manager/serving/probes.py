"""Probes the replicas of endpoints over HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import httptools

from ai.backend.common.errors import BackendError, Unavailable
from ai.backend.common.ids import SessionId
from ai.backend.common.serving import ReplicaStatus
from ai.backend.common.wire.execution import OpenPort
from ai.backend.infra.clock import Clock
from ai.backend.infra.loop import cancel_all
from ai.backend.manager.agents.store import AgentGateway
from ai.backend.manager.serving.gateway import ReplicaProbe
from ai.backend.manager.serving.model import HealthCheck, Replica, ServedModel, port_of
from ai.backend.manager.serving.rounds import ProbeOutcome
from ai.backend.manager.sessions.model import Session

log = logging.getLogger(__name__)
_WARMING_INTERVAL_S = 0.5
"""Seconds between the probes of a replica that is not ready yet; a smaller interval of its check takes precedence."""
_PASSES_UNTIL_READY = 2
_MAX_HEAD_BYTES = 65_536
_MAX_PROBES_AT_ONCE = 64


class _ResponseReader:
    """Reads the status and the body of an HTTP response, as parsed by llhttp."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.has_head = self.is_complete = False
        self.body = bytearray()

    def on_headers_complete(self) -> None:
        self.has_head = True

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.is_complete = True

    def feed(self, data: bytes) -> None:
        """Parses more bytes of the response, and raises Unavailable if the bytes are no HTTP."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise Unavailable("it answers by a switch to another protocol") from None
        except httptools.HttpParserError as e:
            raise Unavailable(f"it does not answer in HTTP: {e}") from None

    @property
    def status(self) -> int:
        return int(self._parser.get_status_code())


class AgentProbe:
    """Implements :class:`ai.backend.manager.serving.gateway.ReplicaProbe` with connections through agents."""

    def __init__(self, gateway: AgentGateway) -> None:
        self._gateway = gateway

    async def probe(self, session: Session, replica: Replica, *, port: int, path: str, timeout_s: float) -> int:
        return (await self._send_get(session, port, path, timeout_s, max_bytes=None)).status

    async def read(self, session: Session, *, port: int, path: str, timeout_s: float, max_bytes: int) -> bytes:
        response = await self._send_get(session, port, path, timeout_s, max_bytes=max_bytes)
        if response.status != 200:
            raise Unavailable(f"it answers {path} by {response.status}")
        return bytes(response.body)

    async def _send_get(
        self, session: Session, port: int, path: str, timeout_s: float, *, max_bytes: int | None
    ) -> _ResponseReader:
        """Sends a GET to a replica and returns the head of the response, and its body if ``max_bytes`` is given."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._exchange(session, port, path, max_bytes)
        except TimeoutError:
            raise Unavailable(f"it does not answer within {timeout_s:g} s") from None
        except (OSError, EOFError) as e:
            raise Unavailable(f"it does not answer: {e}") from None

    async def _exchange(self, session: Session, port: int, path: str, max_bytes: int | None) -> _ResponseReader:
        if session.main.agent is None:
            raise Unavailable("it is on no agent")
        agent = self._gateway.agent(session.main.agent)
        stream = await agent.open_port(OpenPort(kernel_id=str(session.main.id), port=port))
        try:
            request_lines = (
                f"GET {path} HTTP/1.1",
                f"Host: localhost:{port}",
                "Accept: */*",
                "Connection: close",
                "",
                "",
            )
            await stream.write("\r\n".join(request_lines).encode("ascii"))
            response, received_bytes = _ResponseReader(), 0
            while not (response.has_head if max_bytes is None else response.is_complete):
                data = await stream.read()
                if not data:
                    break
                received_bytes += len(data)
                if received_bytes > _MAX_HEAD_BYTES + (max_bytes or 0):
                    raise Unavailable("its answer is too long")
                response.feed(data)
            if not response.has_head:
                raise Unavailable("it ends the connection without an answer")
            return response
        finally:
            await stream.close()


@dataclass(slots=True)
class _ProbeRecord:
    """The results of the probes of one replica."""

    passes: int = 0
    failures: int = 0
    due_at: float = 0.0
    last_error: str = ""
    task: asyncio.Task[None] | None = None


@dataclass(eq=False, repr=False)
class Prober:
    """Probes replicas periodically, and counts passed and failed probes in memory.

    After a restart a ready replica stays ready until its probes fail as often as its health check says.

    ``on_change`` is called when the outcome for a replica changes.
    """

    probe: ReplicaProbe
    clock: Clock
    on_change: Callable[[], None]
    _records: dict[SessionId, _ProbeRecord] = field(default_factory=dict, init=False)
    _running: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    def keep(self, ids: Iterable[SessionId]) -> None:
        """Drops the results and cancels the running probes of all replicas except those of ``ids``."""
        kept_ids = frozenset(ids)
        for replica_id in [record_id for record_id in self._records if record_id not in kept_ids]:
            task = self._records.pop(replica_id).task
            if task is not None:
                task.cancel()

    def error_of(self, replica_id: SessionId) -> str:
        """Returns why the last probe of a replica failed, or an empty text if it passed."""
        probe_record = self._records.get(replica_id)
        return probe_record.last_error if probe_record is not None else ""

    def outcome(self, replica: Replica, health_check: HealthCheck) -> ProbeOutcome | None:
        """Returns the outcome of the probes of a replica, or None if too few probes have passed or failed."""
        probe_record = self._records.get(replica.id)
        if probe_record is None:
            return None
        if probe_record.passes >= (_PASSES_UNTIL_READY if replica.status is ReplicaStatus.WARMING else 1):
            return ProbeOutcome.PASSED
        if probe_record.failures < health_check.max_retries:
            return None
        if replica.status is ReplicaStatus.WARMING:
            started_at = replica.started_at or replica.changed_at
            is_late = (self.clock.now() - started_at).total_seconds() > health_check.initial_delay
            return ProbeOutcome.NEVER_PASSED if is_late else None
        return ProbeOutcome.FAILED

    def begin_due(self, replicas: Iterable[tuple[Replica, Session, ServedModel]]) -> None:
        """Starts a probe of each given replica whose probe interval has passed and that has no running probe.

        The number of probes that run at once is limited.
        """
        now = self.clock.monotonic()
        for replica, session, server in replicas:
            probe_record = self._records.setdefault(replica.id, _ProbeRecord())
            if probe_record.task is None and probe_record.due_at <= now and len(self._running) < _MAX_PROBES_AT_ONCE:
                task = asyncio.create_task(
                    self._run(replica, session, server, probe_record), name=f"probe {replica.id}"
                )
                probe_record.task = task
                self._running.add(task)
                task.add_done_callback(self._running.discard)

    async def _run(self, replica: Replica, session: Session, server: ServedModel, probe_record: _ProbeRecord) -> None:
        health_check = server.health
        old_outcome = self.outcome(replica, health_check)
        try:
            status = await self.probe.probe(
                session,
                replica,
                port=port_of(server, replica.id),
                path=health_check.path,
                timeout_s=health_check.max_wait_time,
            )
            problem = "" if status == health_check.expected_status_code else f"{health_check.path} answers {status}"
        except BackendError as e:
            problem = e.message
        except Exception as e:  # the probe of one replica must not end those of others
            log.exception("the probe of replica %s failed", replica.id)
            problem = str(e)
        finally:
            probe_record.task = None
        probe_record.last_error = problem
        probe_record.passes, probe_record.failures = (
            (0, probe_record.failures + 1) if problem else (probe_record.passes + 1, 0)
        )
        is_ready = replica.status is ReplicaStatus.READY
        probe_record.due_at = self.clock.monotonic() + (
            health_check.interval if is_ready else min(health_check.interval, _WARMING_INTERVAL_S)
        )
        if self.outcome(replica, health_check) is not old_outcome:
            self.on_change()

    async def finish_round(self) -> None:
        """Waits until the running probes have ended."""
        await asyncio.gather(*self._running)

    async def stop(self) -> None:
        """Cancels running probes."""
        await cancel_all(*self._running)
        self._records.clear()
