"""The number of processes of a sandbox is limited before its program starts, with a fork only where root may not."""

from __future__ import annotations

import json
import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from ai.backend.runtime.process.supervisor import spawn

PLAN: dict[str, Any] = {"nproc_late": 77, "uid": None, "gid": None}


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        with suppress(ProcessLookupError):
            process.kill()


def _limit(report: bytes) -> bytes:
    """Limits the process of a report of bubblewrap; returns what lets the sandbox go on."""
    info_read_fd, info_write_fd = os.pipe()
    block_read_fd, block_write_fd = os.pipe()
    os.write(info_write_fd, report)
    os.close(info_write_fd)
    try:
        spawn._limit_processes(PLAN, info_read_fd, block_write_fd)
        return os.read(block_read_fd, 1)
    finally:
        os.close(block_read_fd)


def test_without_a_fork(process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("it forks"))
    assert _limit(json.dumps({"child-pid": process.pid}).encode()) == b"1"
    assert resource.prlimit(process.pid, resource.RLIMIT_NPROC) == (77, 77)


def test_by_the_session_s_user_where_root_may_not(
    process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    own_pid, set_limit = os.getpid(), spawn._set_process_limit

    def refused_here(plan: dict[str, Any], info_json: bytes) -> None:
        if os.getpid() == own_pid:
            raise PermissionError
        set_limit(plan, info_json)

    monkeypatch.setattr(spawn, "_set_process_limit", refused_here)
    assert _limit(json.dumps({"child-pid": process.pid}).encode()) == b"1"
    assert resource.prlimit(process.pid, resource.RLIMIT_NPROC) == (77, 77)


@pytest.mark.parametrize("report", [b"", b"{}", b'{"child-pid": 4194304}'])
def test_a_sandbox_that_has_failed_already_is_let_go_on(report: bytes) -> None:
    assert _limit(report) == b"1"
