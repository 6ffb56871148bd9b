"""Log records and metrics."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ai.backend.common.errors import InvalidInput
from ai.backend.infra.settings.tables import LoggingSettings
from ai.backend.infra.telemetry import (
    Metrics,
    bind_log_context,
    change_levels,
    configure_logging,
    configure_logging_by_settings,
)
from ai.backend.infra.telemetry.recent import recent_lines


@pytest.fixture(autouse=True)
def _restore_root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers = root.handlers[:]
    levels = {name: logging.getLogger(name).level for name in ("", "ai.backend", "quiet")}
    yield
    for handler in root.handlers[:]:
        if handler not in handlers:
            handler.close()
    root.handlers[:] = handlers
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


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


def test_a_name_that_is_no_utf8_hides_no_record(tmp_path: Path) -> None:
    """A file of a user may be named so; the name comes with characters that encoders refuse."""
    configure_logging("storage", style="json", file=tmp_path / "log")
    name = os.fsdecode(b"\xff.txt")
    with bind_log_context(session_id="s1"):
        try:
            raise ValueError(name)
        except ValueError:
            logging.getLogger("ai.backend.test").exception("cannot read %s", name)
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert json.loads(line)["msg"] == "cannot read \\udcff.txt"
    assert "\\udcff.txt" in json.loads(line)["exc"]
    (kept,) = recent_lines(["s1"])
    assert json.loads(msgspec.json.encode(kept))["message"] == "cannot read \\udcff.txt"


def test_a_user_cannot_forge_a_line_of_the_console_log(tmp_path: Path) -> None:
    configure_logging("manager", file=tmp_path / "log")
    logging.getLogger("ai.backend.test").info("name %s", "x\n12:00:00 ERROR forged")
    assert len((tmp_path / "log").read_text().splitlines()) == 1


def test_the_text_of_an_error_forges_no_line_of_the_console_log_either(tmp_path: Path) -> None:
    configure_logging("manager", style="console", file=tmp_path / "log")
    try:
        raise ValueError("x\n12:00:00.000 1 ERROR   ai.backend.manager: forged\x1b]52;c;eA==\x07")
    except ValueError:
        logging.getLogger("ai.backend.test").exception("a request failed")
    first, *others = (tmp_path / "log").read_text().splitlines()
    assert first.endswith("a request failed")
    assert any("forged" in line for line in others)
    assert all(line.startswith("  ") and line.isprintable() for line in others)


def test_the_same_metric_is_made_once_and_keeps_its_kind() -> None:
    metrics = Metrics("storage-proxy")
    metrics.counter("requests_total", "Requests.", ["status"]).labels("2xx").inc()
    metrics.counter("requests_total", "Requests.", ["status"]).labels("2xx").inc()
    assert b'backendai_storage_proxy_requests_total{status="2xx"} 2.0' in metrics.exposition()
    with pytest.raises(ValueError, match="already"):
        metrics.gauge("requests_total", "Requests.")


def _settings(**tables: Any) -> LoggingSettings:
    return LoggingSettings.model_validate(tables)


def test_the_log_goes_where_the_settings_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = {"path": str(tmp_path / "logs"), "rotation-size": "1k", "backup-count": 2}
    for number in (0, 1):
        configure_logging_by_settings("manager", _settings(drivers=["file"], file=place), process_number=number)
        for n in range(100):
            logging.getLogger("ai.backend.test").info("line %d", n)
    assert capsys.readouterr().err == ""
    names = [f"manager{worker}.log{old}" for worker in ("", "-1") for old in ("", ".1", ".2")]
    assert sorted(p.name for p in (tmp_path / "logs").iterdir()) == sorted(names)
    last = (tmp_path / "logs/manager.log").read_text().splitlines()[-1]
    assert (json.loads(last)["msg"], json.loads(last)["process"]) == ("line 99", os.getpid())
    configure_logging_by_settings("manager", _settings(drivers=["console"], console={"format": "simple"}))
    logging.getLogger("ai.backend.test").warning("to people")
    assert capsys.readouterr().err == "WARNING to people\n"


def test_a_record_must_pass_the_level_of_its_logger_and_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    packages = {"": "INFO", "ai.backend": "DEBUG", "quiet": "ERROR"}
    wanted = _settings(level="INFO", **{"pkg-ns": packages}, console={"format": "simple"})

    def said(level: str | None = None) -> list[str]:
        configure_logging_by_settings("manager", wanted, level=level)
        for name in ("ai.backend.test", "other", "quiet"):
            for number in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
                logging.getLogger(name).log(number, name)
        return [" ".join(line.split()) for line in capsys.readouterr().err.splitlines()]

    ours, other = "ai.backend.test", "other"
    errors = [f"ERROR {name}" for name in (ours, other, "quiet")]
    usual = [f"{level} {name}" for name in (ours, other) for level in ("INFO", "WARNING")]
    assert sorted(said()) == sorted([*usual, *errors])
    assert "DEBUG ai.backend.test" in said("DEBUG")
    assert said("ERROR") == errors


def test_levels_change_while_a_daemon_runs(capsys: pytest.CaptureFixture[str]) -> None:
    noisy, own = logging.getLogger("noisy.part"), logging.getLogger("ai.backend.test")
    configure_logging_by_settings("test", _settings(pkg_ns={"noisy": "INFO"}))
    noisy.info("heard at first")
    own.debug("not heard yet")
    change_levels(_settings(level="DEBUG"))
    noisy.info("not heard any more")
    own.debug("heard now")
    change_levels(_settings(), level="ERROR")
    own.warning("an option of the command wins")
    said = capsys.readouterr().err
    assert [line.rpartition(": ")[2] for line in said.splitlines()] == ["heard at first", "heard now"]


def test_a_log_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match=r"file/manager\.log cannot be written"):
        configure_logging_by_settings("manager", _settings(drivers=["file"], file={"path": str(tmp_path / "file")}))
    with pytest.raises(ValueError, match="filename"):
        _settings(file={"filename": "../passwd"})


COUNT = """
import sys
from pathlib import Path
from ai.backend.common.wire.reports import MetricFamily, MetricSample
from ai.backend.infra.telemetry import Metrics, count_together
count_together(Path(sys.argv[1]), int(sys.argv[2]))
metrics = Metrics("manager")
metrics.counter("requests_total", "Requests.", ["route"]).labels("/x").inc(int(sys.argv[3]))
metrics.histogram("took_seconds", "Times.").observe(0.3)
metrics.gauge("sessions", "Sessions.").set(7)
metrics.add_computed_gauge("stale_seconds", "Age.", lambda: 1.5)
print(metrics.exposition().decode())
"""


def test_processes_count_together_and_go_on_where_one_has_ended(tmp_path: Path) -> None:
    def told(number: int, amount: int) -> str:
        command = [sys.executable, "-c", COUNT, str(tmp_path / "metrics"), str(number), str(amount)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    assert 'backendai_manager_requests_total{route="/x"} 3.0' in told(0, 3)
    assert 'backendai_manager_requests_total{route="/x"} 7.0' in told(1, 4)
    said = told(1, 10)  # another one in its place
    assert 'backendai_manager_requests_total{route="/x"} 17.0' in said
    assert "backendai_manager_took_seconds_count 3.0" in said
    assert "backendai_manager_sessions 7.0" in said
    assert said.count("backendai_manager_stale_seconds 1.5") == 1
    assert 'backendai_manager_requests_total{route="/x"} 1.0' in told(0, 1)  # the service begins anew
