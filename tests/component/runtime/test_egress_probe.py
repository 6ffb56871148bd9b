"""The reasons why a machine has no network with a way out for sessions."""

from __future__ import annotations

from pathlib import Path

import pytest

from ai.backend.runtime.process import egress
from ai.backend.runtime.process.settings import ProcessRuntimeSettings


@pytest.fixture
def failing_helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A helper that ends at once, the only one there is."""
    program = tmp_path / "slirp4netns"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    tmp_path.chmod(0o755)
    monkeypatch.setattr(egress, "_search_path", lambda: str(tmp_path))
    return program


def test_a_missing_device_is_named(failing_helper: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress, "_TUN_PATH", str(tmp_path / "tun"))
    assert egress.find_helpers(ProcessRuntimeSettings()) == ({}, f"this machine has no {tmp_path}/tun")


@pytest.mark.needs("root")
def test_a_closed_device_is_named(failing_helper: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = tmp_path / "tun"
    device.touch(0o600)
    monkeypatch.setattr(egress, "_TUN_PATH", str(device))
    assert "is not open to the user of sessions" in egress.find_helpers(ProcessRuntimeSettings())[1]
    device.chmod(0o666)
    reason = egress.find_helpers(ProcessRuntimeSettings())[1]
    assert reason.startswith(f"{failing_helper} does not work: ")
    assert "No such process" not in reason, "the end of the helper is not that of its killer"
