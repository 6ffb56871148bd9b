"""One cluster per data directory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ai.backend.common.errors import Conflict
from ai.backend.standalone.instance import InstanceLock, has_ended, running_pid


def test_the_second_is_refused_and_told_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "up.lock"
    assert running_pid(path) is None
    with InstanceLock(path):
        assert running_pid(path) == os.getpid()
        with pytest.raises(Conflict, match=rf"process {os.getpid()}"):
            InstanceLock(path).__enter__()
    assert running_pid(path) is None


def test_a_zombie_has_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert not has_ended(child.pid)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert has_ended(child.pid)
    assert has_ended(child.pid)
