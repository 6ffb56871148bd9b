"""Checks which paths may be mounted in a workload of this machine."""

from __future__ import annotations

import os

from ai.backend.common.errors import CreationDenied
from ai.backend.node.linux.open_beneath import BENEATH
from ai.backend.plugin.accelerator import Mount
from ai.backend.plugin.runtime import HOME

RUNNER = "/opt/backend.ai/kernel"
"""The path of the runner's files in every workload."""
FORBIDDEN_TARGETS = ("/", "/proc", "/dev", "/sys", "/etc", "/usr", "/bin", "/lib", "/lib64", "/sbin", RUNNER, HOME)


def check_mount(mount: Mount, *, staged: bool = False) -> None:
    """Check a mount. Raises CreationDenied. Only staged sources can be opened beneath a folder (``BENEATH``)."""
    target = os.path.normpath(mount.target)
    if not mount.target.startswith("/") or target != mount.target.rstrip("/"):
        raise _denied(mount, "is not a plain absolute path")
    if target in FORBIDDEN_TARGETS or target.startswith(("/proc/", "/dev/", "/sys/", RUNNER + "/")):
        raise _denied(mount, "is a place where nothing can be mounted")
    if BENEATH in mount.source and not staged:
        raise _denied(mount, "shows a path in a folder, which this node cannot open safely: mount the whole folder")
    if not os.path.exists(mount.source):  # noqa: PTH110  # a source is a text, tested as it is mounted
        raise _denied(mount, "has a source that does not exist on this node")


def _denied(mount: Mount, problem: str) -> CreationDenied:
    return CreationDenied(f"the mount target {mount.target!r} {problem}", data={"field": "mounts", "key": mount.target})
