"""What works on a cluster of `backend.ai up` with nothing configured: shells, commands, services, OpenSSH."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster

RESOURCES = ("-r", "cpu=1", "-r", "mem=256m")


@pytest.fixture(scope="module")
def session(cluster: Cluster) -> Iterator[str]:
    done = cluster.run("start", "-t", "first", *RESOURCES, "python")
    assert done.returncode == 0, done.stderr
    yield "first"
    cluster.run("rm", "--force", "first")


def execute(cluster: Cluster, *arguments: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "ai.backend.cli.main", *arguments]
    return subprocess.run(command, input=data, capture_output=True, timeout=120, env=cluster.environment(), check=False)


def test_a_command_with_its_streams_and_exit_code(cluster: Cluster, session: str) -> None:
    done = execute(cluster, "exec", session, "sh", "-c", "cat; echo oops >&2; exit 7", data=b"typed")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"typed", b"oops\n")


def test_megabytes_through_a_command(cluster: Cluster, session: str) -> None:
    data = os.urandom(5_000_000)
    assert execute(cluster, "exec", session, "sh", "-c", "cat > big", data=data).returncode == 0
    assert execute(cluster, "exec", session, "cat", "big").stdout == data


def test_an_option_of_the_command_is_not_ours(cluster: Cluster, session: str) -> None:
    done = execute(cluster, "exec", "-w", "/tmp", "-e", "MARK=m", session, "--", "sh", "-c", "pwd; echo $MARK")
    assert (done.returncode, done.stdout) == (0, b"/tmp\nm\n"), done.stderr


def test_what_cannot_be_started(cluster: Cluster, session: str) -> None:
    assert execute(cluster, "exec", session, "no-such-program").returncode == 127
    done = execute(cluster, "exec", "no-such-session", "ls")
    assert (done.returncode, done.stderr.count(b"\n")) == (125, 1)


def test_an_interrupt_is_passed_to_the_command(cluster: Cluster, session: str) -> None:
    command = [sys.executable, "-m", "ai.backend.cli.main", "exec", session, "sh", "-c", "echo up; exec sleep 60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=cluster.environment()) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130


def test_a_shell_on_a_terminal(cluster: Cluster, session: str, tmp_path: Path) -> None:
    typed = f"backend.ai exec {session}"
    command = [sys.executable, "-c", _TERMINAL_PROGRAM, typed]
    environment = cluster.environment() | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(command, capture_output=True, timeout=120, env=environment, check=False)
    assert done.returncode == 9, done.stdout + done.stderr
    assert b"mark-2" in done.stdout
    assert b"/dev/pts/" in done.stdout


_TERMINAL_PROGRAM = """
import os, pty, sys
pid, fd = pty.fork()
if pid == 0:
    os.execvp("sh", ["sh", "-c", "exec " + sys.argv[1]])
seen = b""
def wait(text):
    global seen
    while text not in seen:
        seen += os.read(fd, 4096)
wait(b"$ ")
os.write(fd, b"echo mark-$((1+1)); tty\\r")
wait(b"/dev/pts/")
os.write(fd, b"exit 9\\r")
status = os.waitpid(pid, 0)[1]
sys.stdout.buffer.write(seen)
sys.exit(os.waitstatus_to_exitcode(status))
"""
