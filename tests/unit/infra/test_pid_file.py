"""The file that names a daemon's process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ai.backend.common.errors import Conflict, InvalidInput
from ai.backend.infra.pid_file import PidFile

HOLD = """
import os, sys
from pathlib import Path
from ai.backend.infra.pid_file import PidFile
with PidFile(Path(sys.argv[1])):
    if os.fork() == 0:  # a workload that outlives the daemon
        os.close(1)
        sys.stdin.read()
        os._exit(0)
    print("held", flush=True)
    os.kill(os.getpid(), 9) if sys.stdin.readline() == "die\\n" else None
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
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(Conflict, match=rf"\({other.pid}\)"), PidFile(path):
            raise AssertionError
        assert path.read_text() == f"{other.pid}\n"
        other.stdin.write("die\n")
        other.stdin.flush()
        assert other.wait(30) == -9
        with PidFile(path):  # its child lives, and holds nothing
            assert path.read_text() == f"{os.getpid()}\n"


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for path in (tmp_path / "none/d.pid", tmp_path, tmp_path / "link"):
        with pytest.raises(InvalidInput, match=str(path)), PidFile(path):
            raise AssertionError
    assert not (tmp_path / "elsewhere").exists()
