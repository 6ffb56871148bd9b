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


def test_a_daemon_waits_for_its_predecessor(tmp_path: Path) -> None:
    path = tmp_path / "manager.lock"
    hold = f"import fcntl, time; f = open({str(path)!r}, 'w'); fcntl.flock(f, 2); print(flush=True); time.sleep(1)"
    with subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE) as predecessor:
        assert predecessor.stdout is not None
        predecessor.stdout.readline()
        with pytest.raises(Conflict):
            InstanceLock(path).__enter__()
        with InstanceLock(path, wait_s=20.0):
            assert running_pid(path) == os.getpid()


def test_who_was_killed_is_waited_for_though_a_child_still_has_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "up.lock"
    hold = (
        "import fcntl, os, sys, time\n"
        f"f = open({str(path)!r}, 'w'); fcntl.flock(f, 2); f.write(str(os.getpid())); f.flush()\n"
        "if os.fork(): print(flush=True); time.sleep(60)\n"
        "time.sleep(1)"
    )
    with subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE) as killed:
        assert killed.stdout is not None
        killed.stdout.readline()
        killed.kill()
        killed.wait()
        with InstanceLock(path):
            assert running_pid(path) == os.getpid()


ORPHAN = """
import asyncio
from ai.backend.standalone import daemon
class Stuck:
    async def start(self): pass
    async def stop(self): await asyncio.sleep(60)
asyncio.run(daemon.run(Stuck()))
"""


def test_a_daemon_whose_supervisor_was_killed_ends_soon() -> None:
    """The next `up` has to wait for it: a request that takes long may not hold that up."""
    environ = {**os.environ, "BACKENDAI_SUPERVISOR": "1"}
    subprocess.run([sys.executable, "-c", ORPHAN], env=environ, check=False, timeout=20)
