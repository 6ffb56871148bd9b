"""Runs the tools of the web console (`./check webui`): Node.js of this computer or of the cache, packages of the lock.

Usage: python -m tools.webui (node | packages | run SCRIPT [ARGUMENT ...] | builds)

  node      print the folder of Node.js, which is installed if need be
  packages  install the packages of the lock into webui/node_modules, unless they are there
  run       run a script of webui/package.json
  builds    build the console twice, in different folders, and compare every byte
"""

from __future__ import annotations

import filecmp
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ai.backend.infra.console.build import build_bundle
from ai.backend.infra.console.node import ensure_node
from ai.backend.infra.console.places import CONSOLE_NAME, cache_folder
from ai.backend.infra.console.programs import BuildFailed
from ai.backend.infra.console.progress import LOG_NAME

WEBUI = Path(__file__).resolve().parents[1] / "webui"
_STAMP_NAME = ".backendai-stamp"


def node_folder() -> Path:
    """Return the folder of `node` and `npm`. Raises BuildFailed."""
    cache = cache_folder()
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    return ensure_node(cache, log=cache / LOG_NAME)


def node_environment() -> dict[str, str]:
    """Return the environment in which `node` and `npm` are found. Raises BuildFailed."""
    return {**os.environ, "PATH": os.pathsep.join([str(node_folder()), os.environ.get("PATH", "")]), "NO_COLOR": "1"}


def ensure_packages() -> None:
    """Install the packages of the lock into `webui/node_modules`. Raises subprocess.CalledProcessError, BuildFailed."""
    stamp = WEBUI / "node_modules" / _STAMP_NAME
    lock = hashlib.sha256((WEBUI / "package-lock.json").read_bytes()).hexdigest()
    if stamp.is_file() and stamp.read_text() == lock:
        return
    environment = node_environment()
    npm = shutil.which("npm", path=environment["PATH"]) or "npm"
    subprocess.run([npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=WEBUI, env=environment, check=True)
    stamp.write_text(lock)


def run_script(name: str, *arguments: str) -> int:
    """Run a script of `package.json`, and return its status. Raises BuildFailed."""
    environment = node_environment()
    npm = shutil.which("npm", path=environment["PATH"]) or "npm"
    command = [npm, "run", "--silent", name, *(["--", *arguments] if arguments else [])]
    return subprocess.run(command, cwd=WEBUI, env=environment, check=False).returncode


def compare_builds() -> Iterator[str]:
    """Yield the names of files that differ between the shipped bundle and a build in place. Raises BuildFailed."""
    shipped = build_bundle(WEBUI, cache_folder()) / CONSOLE_NAME
    shutil.rmtree(WEBUI / "dist", ignore_errors=True)
    if (status := run_script("build")) != 0:
        raise BuildFailed(f"npm run build ended with {status}.")
    trees = [
        {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        for folder in (shipped, WEBUI / "dist")
    ]
    yield from sorted(trees[0] ^ trees[1])
    for name in sorted(trees[0] & trees[1]):
        if not filecmp.cmp(shipped / name, WEBUI / "dist" / name, shallow=False):
            yield name


def main(arguments: Sequence[str]) -> int:
    """Run one command; 1 with a line that says why if it fails."""
    try:
        match arguments:
            case ["node"]:
                print(node_folder())
            case ["packages"]:
                ensure_packages()
            case ["run", script, *rest]:
                return run_script(script, *rest)
            case ["builds"]:
                if different := list(compare_builds()):
                    print(f"two builds differ in {', '.join(different)}")
                    return 1
            case _:
                print(__doc__)
                return 2
    except (BuildFailed, subprocess.CalledProcessError) as e:
        print(e)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
