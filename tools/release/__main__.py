"""Builds everything of a release into a folder: wheel, source archive, Debian packages, image, bill of materials, sums.

Usage: python -m tools.release FOLDER [--without-console] [--without-image] [--base FILE]

The same commit gives the same bytes, whenever and wherever in the file system it is built: times are those of the
commit, and no file names the folder it was built in. What is packed besides the wheel are the versions of uv.lock and,
in the image, the packages that the Debian archive has on that day.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.release.build import Release


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--without-console", action="store_true", help="leave the web console out of the wheel")
    parser.add_argument("--without-image", action="store_true", help="build no container image, which needs mmdebstrap")
    parser.add_argument("--base", type=Path, help="the root file system below the image, made where it does not exist")
    options = parser.parse_args(arguments)
    release = Release(options.folder.absolute(), with_console=not options.without_console)
    try:
        release.build(with_image=not options.without_image, base=options.base)
    except subprocess.CalledProcessError as error:
        sys.stderr.write(f"release: {' '.join(map(str, error.cmd))} failed\n{error.stdout}\n{error.stderr}\n")
        return 1
    for line in release.sums():
        sys.stdout.write(f"{line}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
