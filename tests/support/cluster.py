"""A real embedded cluster in operating system processes of its own, driven as a user drives it."""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.support.forked import OURS, ForkedPopen

START_TIMEOUT_S = 60.0


_GIVEN: set[int] = set()


def free_port(*, then: int = 0) -> int:
    """Below the ports that connections get by themselves, and in a range of each worker: it is bound only later.

    Args:
        then: how many ports after it are to be free as well.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8
    while True:
        port = 12_000 + 2_500 * worker + random.randrange(2_500 - then)
        ports = range(port, port + then + 1)
        if all(_is_free(one) for one in ports):
            _GIVEN.update(ports)
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as s, suppress(OSError):
        s.bind(("127.0.0.1", port))
        return port not in _GIVEN
    return False


def wait_until(condition: Callable[[], Any], *, timeout_s: float = 30.0, what: str = "the condition") -> Any:
    """The first truthy answer of ``condition``; fails with ``what`` when there is none in time."""
    deadline = time.monotonic() + timeout_s
    while True:
        if answer := condition():
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {timeout_s:.0f} s")
        time.sleep(0.05)


def read_env(path: Path) -> dict[str, str]:
    lines = [line.removeprefix("export ") for line in path.read_text().splitlines() if line.startswith("export ")]
    return {name: shlex.split(value)[0] for name, _, value in (line.partition("=") for line in lines)}


class Cluster:
    """`backend.ai up` on one data directory.

    ``start`` waits until it serves; ``kill`` is SIGKILL to the one process (or to one daemon of a separate cluster).
    """

    def __init__(
        self, data_dir: Path, *options: str, env: Mapping[str, str] | None = None, python: str = sys.executable
    ) -> None:
        self.data_dir = data_dir
        self.python = python
        self.options = options
        self.port = free_port()
        self.env = dict(env or {})
        self.process: subprocess.Popen[bytes] | None = None

    def environment(self, *, admin: bool = False) -> dict[str, str]:
        """What `source env.sh` gives, on top of this process's own environment."""
        base = {k: v for k, v in os.environ.items() if not k.startswith("BACKEND")}
        file = self.data_dir / ("env-admin.sh" if admin else "env.sh")
        return {**base, **(read_env(file) if file.exists() else {}), "COLUMNS": "200", "NO_COLOR": "1"}

    def start(self, *, env: Mapping[str, str] | None = None) -> None:
        command = [self.python, "-m", "ai.backend.cli.main", "up", "--data-dir", str(self.data_dir)]
        self.data_dir.parent.mkdir(parents=True, exist_ok=True)
        output = (self.data_dir.parent / f"{self.data_dir.name}.up.log").open("ab")
        with output:
            self.process = self._popen(
                [*command, "--port", str(self.port), *self.options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**self.environment(), **self.env, **(env or {})},
                start_new_session=True,
            )
        wait_until(self._serves, timeout_s=START_TIMEOUT_S, what=f"serving ({output.name})")

    @property
    def _popen(self) -> type[subprocess.Popen[Any]]:
        """Forked, where it is this interpreter: most tests are not about how a command starts."""
        return ForkedPopen if self.python == OURS.python else subprocess.Popen

    def _serves(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"`up` ended with {self.process.returncode}:\n{self.log()}")
        return (self.data_dir / "env.sh").exists() and self.ready()

    def ready(self) -> bool:
        import http.client

        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def log(self) -> str:
        path = self.data_dir.parent / f"{self.data_dir.name}.up.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def stop(self, *, timeout_s: float = 30.0) -> int:
        """SIGTERM; the exit status."""
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(timeout_s)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            self.process = None

    def kill(self) -> None:
        """SIGKILL at whatever instruction it is."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process = None

    def run(
        self,
        *arguments: str,
        admin: bool = False,
        timeout_s: float = 90.0,
        check: bool = False,
        input_: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """One `backend.ai` command with the user's (or admin's) keys."""
        with self._popen(
            [self.python, "-m", "ai.backend.cli.main", *arguments],
            stdin=subprocess.DEVNULL if input_ is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**self.environment(admin=admin), **(env or {})},
            cwd=self.data_dir.parent,
        ) as process:
            try:
                out, err = process.communicate(input_, timeout_s)
            except BaseException:
                process.kill()
                raise
        done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
        if check and done.returncode != 0:
            raise AssertionError(
                f"{' '.join(arguments)} -> {done.returncode}\n{done.stdout}\n{done.stderr}\n{self.log()}"
            )
        return done

    def json(self, *arguments: str, admin: bool = False) -> Any:
        """What a command prints with `--output json`."""
        return json.loads(self.run("--output", "json", *arguments, admin=admin, check=True).stdout)


@contextmanager
def running_cluster(
    data_dir: Path, *options: str, env: Mapping[str, str] | None = None, python: str = sys.executable
) -> Iterator[Cluster]:
    """Started, and at the end stopped with every session gone."""
    cluster = Cluster(data_dir, *options, env=env, python=python)
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.stop()
