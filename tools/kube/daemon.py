"""A daemon of a cluster: started in the cluster's namespaces, killed and started again by tests of faults."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals

from tools.kube.place import Place

SLOWNESS = float(os.environ.get("BACKENDAI_KUBE_SLOWNESS", "1"))
"""How many times slower than usual this machine is: what waits for a cluster waits as many times longer."""
_TERM_TIMEOUT_S = 20.0
_LOG_TAIL = 3000


class DaemonFailed(RuntimeError):
    """Says that a daemon ended or did not get ready, with the end of its log."""


class Daemon:
    """Runs one program; ``answers`` says whether it serves. Its log goes on through all its lives."""

    def __init__(
        self,
        name: str,
        place: Place,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
        answers: Callable[[], bool],
    ) -> None:
        self.name = name
        self.log = log
        self.command = list(command)
        self._place = place
        self._environment = environment
        self._answers = answers
        self._process: subprocess.Popen[bytes] | None = None
        self.pid = 0

    def launch(self) -> None:
        """Start it without waiting until it serves. Raises PlaceFailed."""
        self._process, self.pid = self._place.start(self.command, self.log, self._environment)

    def start(self, timeout_s: float = 60.0) -> None:
        """Start it, and wait until it serves. Raises PlaceFailed, DaemonFailed."""
        self.launch()
        self.wait_ready(timeout_s)

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Wait until it serves. Raises DaemonFailed: it ended, or it does not serve in this time."""
        deadline = time.monotonic() + timeout_s * SLOWNESS
        while not self._answers():
            if not self.is_alive():
                raise DaemonFailed(f"{self.name} ended:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise DaemonFailed(f"{self.name} does not answer after {timeout_s:g} s:\n{self.log_tail()}")
            time.sleep(0.05)

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """End it at once (SIGKILL), and return when it is gone. What it has started goes on."""
        self._end(SIGKILL)

    def stop(self) -> None:
        """Ask it to end (SIGTERM), kill it if it does not, and return when it is gone."""
        self._end(SIGTERM)

    def signal(self, number: Signals) -> None:
        """Send it a signal, such as SIGSTOP. Raises ProcessLookupError."""
        os.kill(self.pid, number)

    def restart(self) -> None:
        """Kill it, start it and wait until it serves. Raises PlaceFailed, DaemonFailed."""
        self.kill()
        self.start()

    def log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-_LOG_TAIL:] if self.log.exists() else ""

    def _end(self, number: Signals) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)
            try:
                self._process.wait(_TERM_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.kill(self.pid, SIGKILL)
                self._process.wait()
        self._process = None
