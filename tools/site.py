"""Build the documentation as HTML, each version beside the others: `build/site/26.11/`, with a list to choose from.

Usage: python -m tools.site [--into FOLDER]     then open FOLDER/index.html by any web server
       mkdocs serve                             while writing

The generator is the dependency group `docs`: `uv sync --group docs`. Versions that the folder has already stay; a site
that is kept somewhere is fetched there first.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_VERSION_PATTERN = re.compile(r"\d+\.\d+")
_INDEX = """<!doctype html>
<meta charset="utf-8"><meta http-equiv="refresh" content="0; url={0}/index.html"><a href="{0}/index.html">{0}</a>
"""


def branch_version(root: Path) -> str:
    """Return the year and month of the version in `pyproject.toml`, which its bugfix releases share."""
    version = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    return ".".join(version.split(".")[:2])


def write_index(site: Path) -> list[str]:
    """Write the list of the versions in a folder, newest first, and the page that leads to the newest one."""
    names = [path.name for path in site.iterdir() if path.is_dir() and _VERSION_PATTERN.fullmatch(path.name)]
    names.sort(key=lambda name: tuple(map(int, name.split("."))), reverse=True)
    versions = [{"version": name, "title": name, "aliases": ["latest"] if name == names[0] else []} for name in names]
    (site / "versions.json").write_text(json.dumps(versions, indent=1) + "\n", encoding="utf-8")
    (site / "index.html").write_text(_INDEX.format(names[0]), encoding="utf-8")
    return names


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=_ROOT / "build" / "site", help="default: build/site")
    site: Path = parser.parse_args(argv).into.absolute()
    folder = site / branch_version(_ROOT)
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--clean", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    if subprocess.run(command, cwd=_ROOT, env=environment, check=False).returncode:
        print("site: the documentation was not built; `uv sync --group docs` installs the generator")
        return 1
    print(f"site: {', '.join(write_index(site))} in {site}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
