"""Environments of their own for what benchmarks need and the project does not: peers, and what draws plots."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

CACHE = Path(__file__).parents[1] / ".cache"


def ensure(name: str, *installs: tuple[str, ...]) -> Path:
    """The Python of the environment `.cache/NAME`, made if it is not as wanted; each of `installs` are the arguments of
    one `pip install`.

    Raises:
        subprocess.CalledProcessError: it cannot be installed, or there is no Python 3.11.
    """
    venv = CACHE / name
    python, stamp = venv / "bin" / "python", venv / ".wanted"
    files = [Path(word).read_text() for words in installs for word in words if word.endswith(".txt")]
    recipe = "\n".join([*(" ".join(words) for words in installs), *files])
    if stamp.exists() and stamp.read_text() == recipe:
        return python

    def run(*command: str | Path) -> None:
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    if uv := shutil.which("uv"):
        run(uv, "venv", "--quiet", "--clear", "--python", "3.11", venv)
        install: list[str | Path] = [uv, "pip", "install", "--quiet", "--python", python]
    else:
        run(sys.executable if sys.version_info[:2] == (3, 11) else "python3.11", "-m", "venv", "--clear", venv)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for words in installs:
        run(*install, *words)
    stamp.write_text(recipe)
    return python


def add_shipped_loop() -> None:
    """Makes the event loop importable that the releases ship (the extra ``uvloop``) and that daemons use where it is
    installed. The tests run without it, as installations do that do not ask for it.

    Raises:
        subprocess.CalledProcessError: it cannot be installed.
    """
    if importlib.util.find_spec("uvloop") is None:
        venv = ensure("uvloop", ("uvloop>=0.19",)).parents[1]
        sys.path += map(str, venv.glob("lib/python3*/site-packages"))
