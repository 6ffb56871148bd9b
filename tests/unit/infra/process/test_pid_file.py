"""The file that names a daemon's process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ai.backend.common.errors import Conflict, InvalidInput
from ai.backend.infra.process.pid_file import PidFile

HOLD = """
import os, signal, sys
from pathlib import Path
from ai.backend.infra.process.pid_file import PidFile
with PidFile(Path(sys.argv[1])):
    child = os.fork()
    if child == 0:  # a workload that outlives the daemon
        signal.pause()
    print(child, flush=True)
    signal.pause()
"""


def test_it_is_there_while_the_block_runs(tmp_path: Path) -> None:
    path = tmp_path / "d.pid"
    with PidFile(path):
        assert path.read_text() == f"{os.getpid()}\n"
    assert not path.exists()
    with PidFile(None):
        pass


def test_one_process_has_it_and_what_a_killed_one_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "d.pid"
    path.write_text("99999999 of another age")
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        child = int(other.stdout.readline())
        try:
            with pytest.raises(Conflict, match=rf"\({other.pid}\)"), PidFile(path):
                raise AssertionError
            assert path.read_text() == f"{other.pid}\n"
            other.kill()
            assert other.wait(30) == -9
            with PidFile(path):
                assert path.read_text() == f"{os.getpid()}\n"
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for path in (tmp_path / "none/d.pid", tmp_path, tmp_path / "link"):
        with pytest.raises(InvalidInput, match=str(path)), PidFile(path):
            raise AssertionError
    assert not (tmp_path / "elsewhere").exists()
