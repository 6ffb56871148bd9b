"""Builds the shell script by which a sandbox runs a session's program directly, without a runner (decision 0265)."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from ai.backend.plugin.runtime import HOME, WorkloadSpec
from ai.backend.runtime.process.images import ProcessImage
from ai.backend.runtime.process.supervisor.launch import CHANNEL_FD
from ai.backend.runtime.process.supervisor.program import PROGRAM_WORD
from ai.backend.runtime.workload import SESSION_PREFIX

SCRIPT_VARIABLE = "BACKENDAI_PROGRAM"
"""Holds the script: other users of the host can read arguments of processes, but not their variables."""
SCRIPT_COMMAND = ("/bin/sh", "-c", f'eval "${SCRIPT_VARIABLE}"')
MAX_SCRIPT_BYTES = 96 * 1024
"""The kernel takes 128 KiB for each variable."""
IMAGE_BOOTSTRAP = "opt/container/bootstrap.sh"
_IDENTIFIER_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHELL_VARIABLE_PATTERN = re.compile(
    r"BASH.*|DIRSTACK|EUID|FUNCNAME|GROUPS|IFS|LINENO|OPTARG|OPTIND|PIPESTATUS|PPID|PS4|SHELLOPTS|UID|_"
)
_USER_PROGRAMS_FOLDER = f"{HOME}/.local/bin"


def can_run_in_place(spec: WorkloadSpec, image: ProcessImage, home: Path) -> bool:
    """Returns True if a session's program can run without a runner, since a runner would have nothing to prepare.

    A runner runs the start script of an image and sets the permissions of keys. Cluster sessions have an SSH server,
    which is the runner's.
    """
    if not spec.program or spec.network is not None:
        return False
    if image.rootfs is not None and (
        os.path.lexists(image.rootfs / IMAGE_BOOTSTRAP) or not os.path.lexists(image.rootfs / "bin/sh")
    ):
        return False
    keys = f"{HOME}/.ssh"
    targets = (*spec.files, *(mount.target for mount in spec.config.mounts))
    return not any(f"{target}/".startswith(f"{keys}/") for target in targets) and not os.path.lexists(home / ".ssh")


def script_of(
    spec: WorkloadSpec, environ: Mapping[str, str], runner: Sequence[str], runtime: str, uid_gid: Sequence[int]
) -> str:
    """Returns the shell script that runs the session's program, or starts the runner instead if the shim requests it.

    Returns an empty text if a shell cannot set the session's variables, or they are too large.

    The shell reports that it is ready, and waits. It becomes the runner at any other word than PROGRAM_WORD; else the
    program, and leaves behind a process that becomes the runner at a second word. ``environ`` is the sandbox's, in
    which the session's variables have a prefix, as they mean something to loaders.
    """
    prefixed_names = [name for name in environ if name.startswith(SESSION_PREFIX)]
    variables = {name.removeprefix(SESSION_PREFIX): environ[name] for name in prefixed_names}
    if not all(
        _IDENTIFIER_PATTERN.fullmatch(name) and not _SHELL_VARIABLE_PATTERN.fullmatch(name) for name in variables
    ):
        return ""
    path = variables.get("PATH") or environ["PATH"]
    if _USER_PROGRAMS_FOLDER not in path.split(os.pathsep):  # as the runner does (spec 03-01:603)
        variables["PATH"] = f"{_USER_PROGRAMS_FOLDER}{os.pathsep}{path}"
    variables |= {"HOME": environ["HOME"], "LOCAL_USER_ID": str(uid_gid[0]), "LOCAL_GROUP_ID": str(uid_gid[1])}
    start_runner = f"exec {shlex.join(runner)}"
    command = shlex.quote(spec.program)
    ready_frame = _frame({"t": "ready", "protocol": 1, "runtime": runtime, "version": "", "features": []})
    script = "\n".join(
        [
            f"unset {SCRIPT_VARIABLE}",
            f"printf '{ready_frame}' >&{CHANNEL_FD}",
            f"IFS= read -r word <&{CHANNEL_FD} || exit 1",
            f'[ "$word" = {PROGRAM_WORD} ] || {start_runner}',
            f"( IFS= read -r word <&{CHANNEL_FD} && {start_runner} & )",
            "{ echo 500 >/proc/self/oom_score_adj; } 2>/dev/null",
            f"unset word {' '.join(prefixed_names)}",
            *(f"export {name}={shlex.quote(value)}" for name, value in variables.items()),
            f"command -v bash >/dev/null && exec bash -c {command} {CHANNEL_FD}<&-",
            f"exec sh -c {command} {CHANNEL_FD}<&-",
        ]
    )
    return script if len(script.encode(errors="surrogateescape")) <= MAX_SCRIPT_BYTES else ""


def _frame(message: Mapping[str, object]) -> str:
    """Returns a frame of the runner protocol as the format of `printf`."""
    body = json.dumps(message, separators=(",", ":"))
    return "".join(f"\\{byte:03o}" for byte in len(body).to_bytes(4, "big")) + body
