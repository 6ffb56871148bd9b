"""Log records and metrics."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from ai.backend.infra.telemetry import Metrics, bind_log_context, configure_logging


@pytest.fixture(autouse=True)
def _restore_root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in root.handlers[:]:
        if handler not in handlers:
            handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_json_record_carries_the_ids_of_its_context(tmp_path: Path) -> None:
    configure_logging("manager", style="json", file=tmp_path / "log")
    log = logging.getLogger("ai.backend.test")
    with bind_log_context(request_id="r1"), bind_log_context(session_id="s1", kernel_id=None):
        log.info("hello %s", "wörld")
    log.debug("not shown")
    (line,) = (tmp_path / "log").read_text().splitlines()
    record = json.loads(line)
    assert record["msg"] == "hello wörld"
    assert (record["daemon"], record["request_id"], record["session_id"]) == ("manager", "r1", "s1")
    assert "kernel_id" not in record


def test_a_user_cannot_forge_a_line_of_the_console_log(tmp_path: Path) -> None:
    configure_logging("manager", file=tmp_path / "log")
    logging.getLogger("ai.backend.test").info("name %s", "x\n12:00:00 ERROR forged")
    assert len((tmp_path / "log").read_text().splitlines()) == 1


def test_the_same_metric_is_made_once_and_keeps_its_kind() -> None:
    metrics = Metrics("storage-proxy")
    metrics.counter("requests_total", "Requests.", ["status"]).labels("2xx").inc()
    metrics.counter("requests_total", "Requests.", ["status"]).labels("2xx").inc()
    assert b'backendai_storage_proxy_requests_total{status="2xx"} 2.0' in metrics.exposition()
    with pytest.raises(ValueError, match="already"):
        metrics.gauge("requests_total", "Requests.")
