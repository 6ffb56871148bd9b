"""What works on a cluster of `backend.ai up` with nothing configured: shells, commands, services, OpenSSH."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, free_port

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


def test_a_killed_command_says_what_usually_kills(cluster: Cluster, session: str) -> None:
    done = execute(cluster, "exec", session, "sh", "-c", "kill -9 $$")
    assert done.returncode == 137
    assert b"needs more memory than the session has" in done.stderr


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


@pytest.mark.timeout(120)
@pytest.mark.needs("ssh")
def test_openssh_and_rsync_by_the_written_configuration(cluster: Cluster, session: str, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    program = programs / "backend.ai"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m ai.backend.cli.main "$@"\n')
    program.chmod(0o755)
    (tmp_path / ".ssh").mkdir(mode=0o700)
    (tmp_path / ".ssh/config").write_text("Host elsewhere\n    User somebody\n")
    environment = cluster.environment() | {"HOME": str(tmp_path), "PATH": f"{programs}:{os.environ['PATH']}"}
    for _ in range(2):  # a second time changes nothing
        done = subprocess.run(["backend.ai", "ssh-config", "--write"], env=environment, check=True, timeout=60)
    written = (tmp_path / ".ssh/config").read_text()
    assert written.startswith("Include backend.ai/config\n")
    assert written.count("Include") == 1
    assert "Host elsewhere" in written
    for name in ("config", "env.sh"):
        assert (tmp_path / ".ssh/backend.ai" / name).stat().st_mode & 0o077 == 0
    # OpenSSH takes the home of the user database, not HOME: the files are named for this test.
    settings = tmp_path / ".ssh/backend.ai/config"
    settings.write_text(settings.read_text().replace("~/.ssh", f"{tmp_path}/.ssh"))
    bare = {name: value for name, value in environment.items() if not name.startswith("BACKEND")}
    ssh = ["ssh", "-F", str(settings)]

    def run(*command: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(command, input=data, capture_output=True, timeout=120, env=bare, check=False)

    done = run(*ssh, f"{session}.backend.ai", "cat; exit 3", data=b"typed")
    assert (done.returncode, done.stdout) == (3, b"typed"), done.stderr
    done = run("sftp", "-F", str(settings), "-b", "-", f"{session}.backend.ai", data=b"ls id_container.pub\n")
    assert (done.returncode, b"id_container.pub" in done.stdout) == (0, True), done.stderr
    if shutil.which("rsync"):
        (tmp_path / "tree").mkdir()
        (tmp_path / "tree/big").write_bytes(os.urandom(1_000_000))
        for source, target in (
            (f"{tmp_path}/tree/", f"{session}.backend.ai:tree/"),
            (f"{session}.backend.ai:tree/", f"{tmp_path}/back/"),
        ):
            done = run("rsync", "-a", "-e", " ".join(ssh), source, target)
            assert done.returncode == 0, done.stderr
        assert (tmp_path / "back/big").read_bytes() == (tmp_path / "tree/big").read_bytes()
    check_forwarded_port(ssh, f"{session}.backend.ai", bare)
    check_editor_server(ssh, f"{session}.backend.ai", bare)
    done = run(*ssh, "no-such-session.backend.ai", "true")
    assert (done.returncode, b"no such session" in done.stderr) == (255, True)


def check_forwarded_port(ssh: list[str], host: str, environment: dict[str, str]) -> None:
    """Bytes go both ways through `ssh -L`, to a program that listens in the session, for connections side by side."""
    inner, outer = free_port(), free_port()
    command = [*ssh, "-L", f"127.0.0.1:{outer}:127.0.0.1:{inner}", "-o", "ExitOnForwardFailure=yes", host]
    program = f"exec python3 -c {shlex.quote(_REVERSING_SERVER.format(port=inner))}"
    data = os.urandom(2_000_000)
    with subprocess.Popen([*command, program], stdout=subprocess.PIPE, env=environment) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"listens\n"
            with socket.create_connection(("127.0.0.1", outer), 30) as idle, ThreadPoolExecutor(3) as threads:
                assert set(threads.map(lambda _: reversed_by(outer, data) == data[::-1], range(3))) == {True}
                idle.sendall(b"ab")
                idle.shutdown(socket.SHUT_WR)
                assert idle.makefile("rb").read() == b"ba"
        finally:
            process.terminate()


def reversed_by(port: int, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        return _reversed_on(connection, data)


def _reversed_on(connection: socket.socket, data: bytes) -> bytes:
    connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)
    return connection.makefile("rb").read()


def check_editor_server(ssh: list[str], host: str, environment: dict[str, str]) -> None:
    """Does as the remote mode of Visual Studio Code: a shell without a terminal reads a script that installs and
    detaches a server, connections reach it through `ssh -D`, and the next connection reaches the same server."""
    data, ports = os.urandom(300_000), set()
    for _ in range(2):
        proxy = free_port()
        command = [*ssh, "-T", "-D", f"127.0.0.1:{proxy}", "-o", "ExitOnForwardFailure=yes", host, "bash"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
            try:
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(_EDITOR_SCRIPT.encode())
                process.stdin.flush()
                port = int(process.stdout.readline().removeprefix(b"listeningOn=="))
                ports.add(port)
                with socket.create_connection(("127.0.0.1", proxy), 30) as connection:
                    connection.sendall(b"\x05\x01\x00")  # RFC 1928: no authentication, then CONNECT to 127.0.0.1
                    assert connection.recv(2, socket.MSG_WAITALL) == b"\x05\x00"
                    connection.sendall(b"\x05\x01\x00\x01\x7f\x00\x00\x01" + port.to_bytes(2, "big"))
                    assert connection.recv(10, socket.MSG_WAITALL)[1] == 0
                    assert _reversed_on(connection, data) == data[::-1]
            finally:
                process.terminate()
    assert len(ports) == 1, "the server outlives its connection"


_REVERSING_SERVER = """
import socketserver
class Reverse(socketserver.StreamRequestHandler):
    def handle(self):
        self.wfile.write(self.rfile.read()[::-1])
with socketserver.ThreadingTCPServer(("127.0.0.1", {port}), Reverse) as server:
    print("listens", flush=True)
    server.serve_forever()
"""
_EDITOR_SCRIPT = f"""
mkdir -p .editor-server && cd .editor-server
if ! kill -0 "$(cat pid 2>/dev/null)" 2>/dev/null; then
  cat > server.py <<'END'
{_REVERSING_SERVER.format(port=0).replace('"listens"', "server.server_address[1]")}
END
  nohup python3 server.py > port 2> log < /dev/null &
  echo $! > pid
  until [ -s port ]; do sleep 0.05; done
fi
echo "listeningOn==$(cat port)"
"""


def test_the_service_of_app_runs_before_success_is_printed(cluster: Cluster, session: str) -> None:
    command = [sys.executable, "-m", "ai.backend.cli.main", "app", session, "ttyd", "-b", "127.0.0.1:0"]
    environment = cluster.environment() | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            (url,) = re.findall(r"http://[^ ]+", line)
            services = {service["name"]: service for service in cluster.json("apps", session)}
            assert services["ttyd"]["status"] == "running"
            with urllib.request.urlopen(url, timeout=30) as reply:
                assert reply.status == 200
        finally:
            process.terminate()


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
