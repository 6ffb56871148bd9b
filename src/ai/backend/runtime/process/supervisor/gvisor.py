"""Writes a workload's OCI bundle into the stage, in memory and in its leader's mount namespace, and runs `runsc`."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, NoReturn

from ai.backend.node.linux import syscalls

BUNDLE_FOLDER = "/tmp/bundle"  # in the stage
STATE_FOLDER = "/tmp/state"
STAGE_BYTES = 16 * 1024 * 1024
_ENVIRON = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/"}


def write_bundle(bundle: dict[str, Any], environ: dict[str, str], *, has_network: bool = False) -> None:
    """Writes the OCI configuration and makes the root folder of a workload's bundle.

    `runsc` makes the mount points, in this root only.

    With ``has_network``, gVisor's own network stack takes over the devices of this process's network namespace; else it
    has a loopback device alone. Raises OSError.
    """
    root = f"{BUNDLE_FOLDER}/root"
    os.makedirs(root)
    os.mkdir(STATE_FOLDER, 0o700)
    for folder in bundle["folders"]:
        os.makedirs(root + folder, exist_ok=True)
    for link_path, target in bundle["links"].items():
        os.makedirs(os.path.dirname(root + link_path), exist_ok=True)  # no pathlib here: memory
        os.symlink(target, root + link_path)
    network = {"type": "network", **({"path": f"/proc/{os.getpid()}/ns/net"} if has_network else {})}
    config = bundle["config"]
    config["process"]["env"] = [f"{name}={value}" for name, value in environ.items()]
    config["linux"]["namespaces"].append(network)
    fd = os.open(f"{BUNDLE_FOLDER}/config.json", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="utf-8") as file:
        file.write(json.dumps(config))


def execute(program_fd: int, command: list[str], *, has_network: bool = False) -> NoReturn:
    """Replaces this process by `runsc`, which was opened before the stage covered its folder. Raises OSError."""
    os.execve(program_fd, [command[0], f"--network={'sandbox' if has_network else 'none'}", *command[1:]], _ENVIRON)


def main() -> None:
    """Runs the bundle in the first argument with a stage, as a leader does; exits with the reason if that fails."""
    bundle = json.loads(sys.argv[1])
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
    try:
        program_fd = os.open(bundle["command"][0], os.O_RDONLY | os.O_CLOEXEC)
        syscalls.unshare_mounts()
        syscalls.mount("tmpfs", "/tmp", "tmpfs", flags, f"mode=755,size={STAGE_BYTES}")
        write_bundle(bundle, {"PATH": _ENVIRON["PATH"]})
        syscalls.die_with_parent()
        execute(program_fd, bundle["command"])
    except OSError as error:
        sys.exit(str(error))
