"""Determines if sessions can run in gVisor, by starting a sandbox of gVisor once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from ai.backend.node.linux.cgroups import CgroupDriver
from ai.backend.runtime.process.bundle import BundleView, bundle_of
from ai.backend.runtime.process.sandbox import SYSTEM_DIRECTORIES
from ai.backend.runtime.process.settings import ProcessRuntimeSettings

PROBE_TIMEOUT_S = 30.0
_PROBE_CODE = "from ai.backend.runtime.process.supervisor import gvisor; gvisor.main()"
_PROBE_SCRIPT = 'read line </proc/version && echo "$line"'


def find_gvisor(settings: ProcessRuntimeSettings, cgroups: CgroupDriver) -> tuple[str, str]:
    """Returns the path of `runsc`, or an empty path and the reason if no sandbox of gVisor starts.

    Blocks for half a second.
    """
    if settings.gvisor == "off":
        return "", "gVisor is off by settings"
    program = str(settings.runsc) if settings.runsc is not None else shutil.which("runsc")
    if program is None:
        return "", "there is no program runsc, so no sessions in gVisor"
    if os.geteuid() != 0:
        return "", "sessions in gVisor need an agent that is root"
    missing_controllers = {"cpu", "memory", "pids"} - cgroups.controllers
    if missing_controllers:
        return "", f"sessions in gVisor need control groups for {', '.join(sorted(missing_controllers))}"
    reason = _try_gvisor(os.path.realpath(program))
    return ("", f"gVisor does not work: {reason}") if reason else (os.path.realpath(program), "")


def _try_gvisor(program: str) -> str:
    """Starts a shell in gVisor that looks at its kernel; returns the reason of a failure, or empty."""
    path_code = f"import sys; sys.path.append({str(Path(__file__).resolve().parents[4])!r})"
    command = [
        os.path.realpath(sys.executable),
        "-I",
        "-S",
        "-c",
        f"{path_code}\n{_PROBE_CODE}",
        json.dumps(_probe_bundle(program)),
    ]
    try:
        completed = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_TIMEOUT_S, cwd="/", check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if completed.returncode:
        return (completed.stderr.decode(errors="replace").strip() or f"it ends with code {completed.returncode}")[-300:]
    return "" if b"gvisor" in completed.stdout else f"{program} runs programs in another kernel"


def _probe_bundle(program: str) -> dict[str, object]:
    view = BundleView(is_staged=False)
    view.show_system(has_devices=False)
    for folder in SYSTEM_DIRECTORIES:
        path = Path(folder)
        if path.is_symlink():
            view.link(str(path.readlink()), folder)
        elif path.is_dir():
            view.bind(folder, folder)
    process = {"user": {"uid": 65534, "gid": 65534}, "args": ["/bin/sh", "-c", _PROBE_SCRIPT], "cwd": "/"}
    return bundle_of(view, program, f"probe-{os.getpid()}", process, "probe")
