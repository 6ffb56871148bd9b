"""The published peer's alloc maps and resource slots, in an environment of its own, measured as a black box."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "peer-requirements.txt"
BARE = ("backend.ai-agent==23.9.10", "backend.ai-common==23.9.10")
VENV = HERE.parent / ".cache" / "bench-peer-venv"

Measure = Callable[[Mapping[str, Any], int], float]


def ensure_peer() -> Path:
    """Return the Python of the peer's environment; make that if it is not there yet.

    Raises:
        subprocess.CalledProcessError: it cannot be installed, or there is no Python 3.11.
    """
    python, stamp = VENV / "bin" / "python", VENV / ".requirements"
    wanted = "\n".join([*BARE, REQUIREMENTS.read_text()])
    if stamp.exists() and stamp.read_text() == wanted:
        return python

    def run(*command: str | Path) -> None:
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    if uv := shutil.which("uv"):
        run(uv, "venv", "--quiet", "--clear", "--python", "3.11", VENV)
        install: list[str | Path] = [uv, "pip", "install", "--quiet", "--python", python]
    else:
        run(sys.executable if sys.version_info[:2] == (3, 11) else "python3.11", "-m", "venv", "--clear", VENV)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run(*install, "-r", REQUIREMENTS)
    run(*install, "--no-deps", *BARE)
    stamp.write_text(wanted)
    return python


@contextmanager
def peer() -> Iterator[Measure]:
    """Yield a function that runs a case of bench/peer_worker.py so many times in the peer's process and returns the CPU
    seconds of one."""
    command = [str(ensure_peer()), str(HERE / "peer_worker.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        stdin, stdout = process.stdin, process.stdout
        if stdin is None or stdout is None:
            raise RuntimeError("the peer's process has no pipes")

        def measure(case: Mapping[str, Any], number: int) -> float:
            stdin.write(json.dumps({**case, "number": number}) + "\n")
            stdin.flush()
            return float(stdout.readline())

        yield measure
        stdin.close()
