"""The published `backend.ai-client`, installed in an environment of its own, and driven as a user drives it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.support.forked import ForkedPopen, ForkServer
from tests.support.skips import is_ci

SEVERAL = Path(__file__).with_name("several.py")
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
DEFAULT_VENV = Path(__file__).resolve().parents[2] / ".cache" / "conformance-venv"


def ensure_published() -> Path:
    """The environment's Python; made if it is not there yet. Without a network that is a skip, and a failure in CI."""
    venv = Path(os.environ.get("BACKENDAI_CONFORMANCE_VENV") or DEFAULT_VENV)
    python = venv / "bin" / "python"
    stamp = venv / ".requirements"
    venv.parent.mkdir(parents=True, exist_ok=True)
    with venv.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another worker may be making it
        if stamp.exists() and stamp.read_text() == REQUIREMENTS.read_text():
            return python
        try:
            _make(venv, python)
        except (OSError, subprocess.SubprocessError) as error:
            said = getattr(error, "stderr", None) or str(error)
            reason = f"binary: the published client cannot be installed: {str(said).strip()[-200:]}"
            if is_ci():
                pytest.fail(reason)
            pytest.skip(reason)
        stamp.write_text(REQUIREMENTS.read_text())
    return python


def _make(venv: Path, python: Path) -> None:
    def run(*command: str | Path) -> None:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)

    ours = Path(sys.executable).with_name("uv")
    uv = shutil.which("uv") or (ours if ours.exists() else None)
    if uv:
        run(uv, "venv", "--quiet", "--clear", "--python", "3.11", venv)
        run(uv, "pip", "install", "--quiet", "--python", python, "-r", REQUIREMENTS)
    else:
        base = sys.executable if sys.version_info[:2] == (3, 11) else "python3.11"
        run(base, "-m", "venv", "--clear", venv)
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", REQUIREMENTS)


@cache
def _server(python: Path) -> ForkServer:
    """Forks of an interpreter that has imported what the client imports, but nothing of the client itself."""
    return ForkServer(str(python), ["ai.backend.cli.__main__"], forget=["ai."])


@dataclass(frozen=True)
class Said:
    """What a command printed. Its exit code proves nothing: this client ends with 0 after many failures."""

    out: str
    err: str
    code: int | None

    @property
    def all(self) -> str:
        return self.out + self.err


@dataclass(frozen=True)
class Published:
    """Runs the published command against one endpoint, in one folder."""

    python: Path
    endpoint: str
    keys: Mapping[str, str]
    folder: Path
    timeout_s: float = 40.0

    def environment(self) -> dict[str, str]:
        base = {name: value for name, value in os.environ.items() if not name.startswith(("BACKEND", "PYTHON"))}
        return {
            **base,
            **self.keys,
            "BACKEND_ENDPOINT": self.endpoint,
            "HOME": str(self.folder),
            "XDG_STATE_HOME": str(self.folder),
            "COLUMNS": "400",
            "NO_COLOR": "1",
        }

    def popen(self, *arguments: str, has_input: bool = False) -> subprocess.Popen[str]:
        return ForkedPopen(
            [self.python, self.python.with_name("backend.ai"), *arguments],
            server=_server(self.python),
            stdin=subprocess.PIPE if has_input else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self.environment(),
        )

    def several(self, *commands: tuple[str, ...]) -> list[Said]:
        """Run commands one after the other in one process; yes is said to whatever is asked."""
        process = ForkedPopen(
            [self.python, SEVERAL],
            server=_server(self.python),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self.environment(),
        )
        try:
            out, err = process.communicate(json.dumps(commands), timeout=self.timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
        told = json.loads(out) if process.returncode == 0 else [["", out + err, None]] * len(commands)
        return [Said(*one) for one in told]

    def interrupting(self, *arguments: str) -> Said:
        """Runs `ssh` or `scp`, which end their tunnel by an interrupt and wait for it.

        The tunnel sometimes loses it and waits for connections for ever (seen in one run of thirty, the handler of
        the signal in place). It is interrupted once more then, as by a second Ctrl-C of a user.
        """
        process = self.popen(*arguments)
        try:
            out, err = process.communicate(timeout=self.timeout_s / 2)
        except subprocess.TimeoutExpired:
            for pid in self._tunnels():
                os.kill(pid, signal.SIGINT)
            try:
                out, err = process.communicate(timeout=self.timeout_s / 2)
            except subprocess.TimeoutExpired:
                living = self._living(process)
                process.kill()
                out, err = process.communicate()
                return Said(out, f"{err}\n{living}", None)
        return Said(out, err, process.returncode)

    def _tunnels(self) -> list[int]:
        """Returns the processes of `backend.ai app` with this client's home."""
        return [int(folder.name) for folder in self._processes() if b"\0app\0" in (folder / "cmdline").read_bytes()]

    def _processes(self) -> Iterator[Path]:
        mark = f"HOME={self.folder}".encode()
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    yield folder

    def __call__(self, *arguments: str, timeout_s: float | None = None, input_: str | None = None) -> Said:
        """Run a command to its end. One that hangs, as this client does after some broken replies, says nothing."""
        process = self.popen(*arguments, has_input=input_ is not None)
        try:
            out, err = process.communicate(input_, timeout=timeout_s or self.timeout_s)
        except subprocess.TimeoutExpired:
            living = self._living(process)
            process.kill()
            out, err = process.communicate()
            return Said(out, f"{err}\n{living}", None)
        return Said(out, err, process.returncode)

    def _living(self, client: subprocess.Popen[str]) -> str:
        """Describes the processes that the client has left, which keep its streams open, and where each waits."""
        lines = [f"the client {'runs' if client.poll() is None else f'has ended with {client.returncode}'}; alive:"]
        for folder in self._processes():
            with suppress(OSError):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                signals = [line for line in (folder / "status").read_text().splitlines() if line.startswith("Sig")]
                wait = (folder / "wchan").read_text()
                lines.append(f"{folder.name} {command[:200]} waits in {wait}; {' '.join(signals).expandtabs(1)}")
        return "\n".join(lines)
