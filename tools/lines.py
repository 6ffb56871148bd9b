"""Counts the lines of the source by feature, beside those of an earlier revision.

Usage: python -m tools.lines [REVISION]

Paths of :data:`LATER` are features that the revision 62a9539 does not have; the rest is compared with it. The mean
length of a line and the number of files under 30 lines (`__init__` not counted) are printed beside.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

SOURCE = "src/ai/backend/"
FIRST = "62a9539"
SMALL = 30
LATER: Mapping[str, tuple[str, ...]] = {
    "app proxy": (
        "appproxy/*",
        "core/proxy/*",
        "agent/gateway/*",
        "manager/service_ports/app_prox*",
        "common/*appproxy*",
    ),
    "model serving": (
        "manager/serving/*",
        "core/serving/*",
        "core/lifecycle/endpoint.py",
        "cli/service/*",
        "client/func/service.py",
    ),
    "web server": ("web/*", "infra/console/*", "core/scheduling/trial.py", "manager/scheduling/e*"),
    "kube-acc": (
        "kubeacc/*",
        "core/lifecycle/device_operation.py",
        "common/device_operations.py",
        "agent/devices/[co][op]*",
    ),
    "Kubernetes": (
        "runtime/kubernetes/*",
        "node/kube_api/*",
        "agent/shard/*",
        "agent/config/kubernetes.py",
        "node/relay/[pst]*",
    ),
    "operations": (
        "manager/backup/*",
        "manager/maintenance/*",
        "manager/monitoring/*",
        "manager/commands/[bdpr]*",
        "monitor/*",
        "plugin/monitors.py",
        "infra/telemetry/[eostm]*",
        "infra/redaction.py",
    ),
    "accounts": (
        "hook/*",
        "manager/identity/[as][ci]*",
        "manager/identity/totp*",
        "manager/hooks.py",
        "plugin/hooks.py",
    ),
    "arrays": ("manager/arrays/*", "cli/array/*", "client/func/array.py"),
    "devices": ("node/cdi/*", "core/allocation/requests/*", "pluginhost/external*", "core/scheduling/index/grad*"),
    "simulation": ("simulator/*",),
}
"""Feature -> patterns of its files."""


class Count(NamedTuple):
    files: int = 0
    lines: int = 0
    characters: int = 0
    small_files: int = 0

    def plus(self, name: str, text: str) -> Count:
        """Returns the count with one more file."""
        lines = text.count("\n")
        is_small = lines < SMALL and not name.endswith("__init__.py")
        return Count(
            self.files + 1, self.lines + lines, self.characters + len(text) - lines, self.small_files + is_small
        )


def feature_of(path: str) -> str:
    """Returns the later feature that a path below ``ai.backend`` belongs to, else ``core product``."""
    for feature, patterns in LATER.items():
        if any(fnmatchcase(path, pattern) for pattern in patterns):
            return feature
    return "core product"


def count(texts: Mapping[str, str]) -> dict[str, Count]:
    """Counts the lines of files (path below ``ai.backend`` -> text) by feature."""
    counts: dict[str, Count] = {}
    for name, text in texts.items():
        feature = feature_of(name)
        counts[feature] = counts.get(feature, Count()).plus(name, text)
    return counts


def texts_at(revision: str | None) -> dict[str, str]:
    """Reads the Python files of a revision; None: of the working tree."""
    if revision is None:
        listed = _git("ls-files", SOURCE).splitlines()
        return {path.removeprefix(SOURCE): Path(path).read_text() for path in listed if path.endswith(".py")}
    listed = _git("ls-tree", "-r", "--name-only", revision, SOURCE).splitlines()
    return {path.removeprefix(SOURCE): _git("show", f"{revision}:{path}") for path in listed if path.endswith(".py")}


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("revision", nargs="?", default=FIRST)
    revision = parser.parse_args().revision
    before, now = count(texts_at(revision)), count(texts_at(None))
    write = sys.stdout.write
    write(f"{'feature':16}{revision[:9]:>12}{'now':>10}\n")
    for feature in ["core product", *LATER]:
        write(f"{feature:16}{before.get(feature, Count()).lines:12}{now.get(feature, Count()).lines:10}\n")
    for title, counts in ((revision[:9], before), ("now", now)):
        total = Count(*map(sum, zip(*counts.values(), strict=True)))
        mean = total.characters / total.lines
        write(
            f"{title}: {total.lines} lines in {total.files} files, {mean:.1f} characters in the mean line, "
            f"{total.small_files} files under {SMALL} lines\n"
        )


if __name__ == "__main__":
    main()
