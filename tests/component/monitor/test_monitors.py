"""Sentry and Datadog by their own clients, against receivers of their protocols, with secrets planted everywhere."""

from __future__ import annotations

import asyncio
import gzip
import importlib
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from ai.backend.common.errors import InvalidInput
from ai.backend.infra.settings.tables import HostPort, MonitorSettings, RedisSettings
from ai.backend.infra.telemetry import Metrics, bind_log_context, start_monitors, telemetry_sending
from ai.backend.plugin.monitors import AbstractErrorMonitor, ErrorReport
from ai.backend.plugin.settings import Settings
from tests.support.cluster import wait_until
from tests.support.monitors import DatadogAgent, monitor_entry_points

PASSWORD = "planted-password-4711"
DSN_KEY = "0123456789abcdef0123456789abcdef"
log = logging.getLogger("ai.backend.test.monitors")


class AllSettings(Settings):
    """Settings of a daemon with a secret."""

    redis: RedisSettings = RedisSettings(addr=HostPort(host="h", port=1), password=SecretStr(PASSWORD))


@pytest.fixture(autouse=True)
def _plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes the entry points of the shipped monitors visible, also where the package was installed before them."""
    folder = monitor_entry_points(tmp_path, {"broken": f"{__name__}:Broken", "slow": f"{__name__}:Slow"})
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()
    level, handlers = logging.getLogger("ai.backend").level, logging.getLogger().handlers[:]
    yield
    logging.getLogger("ai.backend").setLevel(level)
    assert logging.getLogger().handlers == handlers


class Sentry:
    """Takes envelopes as Sentry does; keeps the bodies and the items."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                owner.bodies.append(gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body)
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.dsn = f"http://{DSN_KEY}@127.0.0.1:{self._server.server_port}/7"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def events(self) -> list[dict[str, Any]]:
        events = []
        for body in self.bodies:
            lines = body.split(b"\n")
            for number, line in enumerate(lines[:-1]):
                if line.startswith(b"{") and json.loads(line).get("type") == "event":
                    events.append(json.loads(lines[number + 1]))
        return events

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def sentry() -> Iterator[Sentry]:
    receiver = Sentry()
    yield receiver
    receiver.close()


@pytest.fixture
def agent() -> Iterator[DatadogAgent]:
    receiver = DatadogAgent()
    yield receiver
    receiver.close()


def _fail(text: str) -> None:
    local_secret = f"in a variable: {PASSWORD}"
    assert local_secret
    try:
        raise ValueError(f"cause with {text}")
    except ValueError as e:
        raise RuntimeError(f"failed with {text}") from e


def _log_failure(text: str) -> None:
    try:
        _fail(text)
    except RuntimeError:
        log.exception("cannot do %s", text)


def _errors(dsn: str, **more: Any) -> MonitorSettings:
    return MonitorSettings.model_validate({"errors": ["sentry"], "options": {"sentry": {"dsn": dsn, **more}}})


async def test_sentry_has_errors_with_their_causes_and_ids(sentry: Sentry) -> None:
    start_monitors("manager", _errors(sentry.dsn, environment="test"), AllSettings())
    async with telemetry_sending():
        log.warning("of no interest")
        with bind_log_context(request_id="r-1", session_id="s-1"):
            _log_failure("this")
        await asyncio.to_thread(wait_until, sentry.events, what="an event")
    (event,) = sentry.events()
    assert event["logentry"] == {"message": "cannot do %s", "formatted": "cannot do this"}
    assert event["environment"] == "test"
    assert event["release"].startswith("backendai@")
    assert {**event["tags"]} == {"daemon": "manager", "request_id": "r-1", "session_id": "s-1"}
    first, second = event["exception"]["values"]
    assert (first["type"], first["value"]) == ("ValueError", "cause with this")
    assert (second["type"], second["value"]) == ("RuntimeError", "failed with this")
    assert second["stacktrace"]["frames"][-1]["function"] == "_fail"


async def test_no_planted_secret_reaches_sentry(sentry: Sentry) -> None:
    start_monitors("manager", _errors(sentry.dsn), AllSettings())
    others = [
        "Authorization: Bearer planted-bearer",
        "postgresql://me:planted-in-url@db/x",
        "api_key='planted-api-key'",
    ]
    async with telemetry_sending():
        for text in (PASSWORD, json.dumps({"secret": PASSWORD}), *others):
            _log_failure(text)
        log.error(f"in the template: {PASSWORD}")  # noqa: G004  # as careless code does
        log.error("the dsn is %s", sentry.dsn)
        await asyncio.to_thread(wait_until, lambda: len(sentry.events()) == 7, what="events")
    sent = "".join(json.dumps(event) for event in sentry.events())
    assert "planted" not in sent
    assert DSN_KEY not in sent
    assert "in a variable" not in sent
    assert "**removed**" in sent


async def test_datadog_has_gauges_and_increases(agent: DatadogAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics("test-monitored")
    monkeypatch.setattr("ai.backend.infra.telemetry.sending.metrics_of_process", lambda: [metrics])
    requests = metrics.counter("requests_total", "Requests.", ["route"])
    seconds = metrics.histogram("seconds", "Seconds.")
    metrics.gauge("waiting", "Waiting.", ["queue"]).labels(f"a|b\nforged:1|c,{PASSWORD}").set(3)
    settings = {"statistics": ["datadog"], "options": {"datadog": {"port": agent.port, "tags": ["site:one", "x"]}}}
    start_monitors(
        "manager", MonitorSettings.model_validate(settings).model_copy(update={"interval_s": 0.05}), AllSettings()
    )
    prefix = "backendai_test_monitored_"
    async with telemetry_sending():
        requests.labels("GET /").inc(2)
        seconds.observe(0.5)
        first = await asyncio.to_thread(agent.lines, lambda lines: any("requests_total:2" in line for line in lines))
        requests.labels("GET /").inc(3)
        second = await asyncio.to_thread(agent.lines, lambda lines: any("requests_total:3" in line for line in lines))
    assert f"{prefix}requests_total:2.0|c|#route:GET_/,site:one,x" in first
    assert f"{prefix}requests_total:3.0|c|#route:GET_/,site:one,x" in second
    assert f"{prefix}seconds_count:1.0|c|#site:one,x" in first
    assert f"{prefix}seconds_sum:0.5|c|#site:one,x" in first
    assert not any("bucket" in line or "_created" in line for line in first)
    assert f"{prefix}waiting:3.0|g|#queue:a_b_forged:1_c___removed__,site:one,x" in first
    assert {line.partition(":")[0].removeprefix(prefix) for line in first} == {
        "requests_total", "seconds_count", "seconds_sum", "waiting",
    }  # fmt: skip


async def test_further_processes_of_a_daemon_report_no_figures_twice(agent: DatadogAgent) -> None:
    settings = MonitorSettings.model_validate({"statistics": ["datadog"], "options": {"datadog": {"port": agent.port}}})
    start_monitors("manager", settings, AllSettings(), process_number=1)
    assert "monitors" not in {thread.name for thread in threading.enumerate()}
    async with telemetry_sending():
        pass


class Broken(AbstractErrorMonitor):
    """A monitor that raises errors."""

    def report(self, error: ErrorReport) -> None:
        raise RuntimeError("broken")

    def close(self, timeout_s: float) -> None:
        raise RuntimeError("broken")


class Slow(AbstractErrorMonitor):
    """A monitor that blocks."""

    def report(self, error: ErrorReport) -> None:
        time.sleep(3600)

    def close(self, timeout_s: float) -> None:
        time.sleep(3600)


@pytest.mark.parametrize("name", ["away", "broken", "slow"])
async def test_a_receiver_of_no_use_disturbs_nobody(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ai.backend.infra.telemetry.monitors._CLOSE_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    settings = (
        _errors(f"http://{DSN_KEY}@127.0.0.1:{port}/7")
        if name == "away"
        else MonitorSettings.model_validate({"errors": [name]})
    )
    start_monitors("manager", settings, AllSettings())
    began = time.monotonic()
    async with telemetry_sending():
        for number in range(1000):
            log.error("error %d", number)
        assert time.monotonic() - began < 20, "a report takes an hour"
        began = time.monotonic()
    assert time.monotonic() - began < 20, "a report takes an hour"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"errors": ["rollbar"]}, "rollbar"),
        ({"errors": ["sentry"]}, r"monitors\.options\.sentry\.dsn: it is missing"),
        ({"errors": ["sentry"], "options": {"sentry": {"dsn": "no address"}}}, r"monitors\.options\.sentry: "),
        ({"options": {"datadog": {}}}, "which no list of monitors names"),
        ({"statistics": ["datadog"], "options": {"datadog": {"host": "h", "ports": 1}}}, "datadog.ports: there is no"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        start_monitors("manager", MonitorSettings.model_validate(settings), AllSettings())
