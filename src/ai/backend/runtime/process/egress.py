"""Finds a helper program (slirp4netns or pasta) that connects a session's own network namespace to the outside.

See decision 0210.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ai.backend.runtime.process.settings import ProcessRuntimeSettings
from ai.backend.runtime.process.supervisor.egress import DEVICE, TIMEOUT_S

_SOURCE_ROOT = Path(__file__).resolve().parents[4]
_ADDRESS, _GATEWAY, NAME_SERVER = "10.0.2.100", "10.0.2.2", "10.0.2.3"
"""The addresses that slirp4netns uses by default."""
HELPERS = ("slirp4netns", "pasta")
_TUN_PATH = "/dev/net/tun"


def helper_arguments(program: str, *, as_root: bool) -> list[str]:
    """Returns the command line of a network helper (slirp4netns or pasta).

    ``{pid}`` stands for a process in the network namespace. The host's loopback stays closed.
    """
    if os.path.basename(program) == "slirp4netns":  # noqa: PTH119  # a name, not a path
        arguments = [program, "--configure", "--mtu=65520", "--disable-host-loopback", "--enable-seccomp"]
        arguments += ["--enable-sandbox"] if as_root else ["--userns-path=/proc/{pid}/ns/user"]
        return [*arguments, "--netns-type=path", "/proc/{pid}/ns/net", DEVICE]
    arguments = [program, "--config-net", "--quiet", "--foreground", "--no-map-gw", "--ipv4-only"]
    for option in ("--tcp-ports", "--udp-ports", "--tcp-ns", "--udp-ns"):
        arguments += [option, "none"]
    arguments += ["--address", _ADDRESS, "--netmask", "24", "--gateway", _GATEWAY, "--dns-forward", NAME_SERVER]
    return [*arguments, "--ns-ifname", DEVICE, "{pid}"]


def find_helpers(settings: ProcessRuntimeSettings) -> tuple[dict[str, Any], str]:
    """Returns the command lines of the network helpers that work here, by ``as-user`` and ``as-root``, and a reason.

    The reason says why no helper works.

    Blocks for some tens of milliseconds.
    """
    is_root = os.geteuid() == 0
    identity = (settings.kernel_uid, settings.kernel_gid) if is_root else (None, None)
    programs = [path for name in HELPERS if (path := shutil.which(name, path=_search_path()))]
    if not programs:
        return {}, f"neither {' nor '.join(HELPERS)} (package passt) is installed"
    arguments_by_user: dict[str, Any] = {}
    reason = ""
    for program in programs:
        for key in ("as-user", "as-root"):
            as_root = key == "as-root"
            if key in arguments_by_user or (as_root and (not is_root or not program.endswith("slirp4netns"))):
                continue  # pasta gives up root's powers before it enters a namespace of root's
            arguments = helper_arguments(program, as_root=as_root)
            failure = _try_helper({key: arguments}, identity, as_root=as_root)
            if not failure:
                arguments_by_user[key] = arguments
            elif not as_root:
                reason = f"{program} does not work: {failure}"
    return (arguments_by_user, "") if "as-user" in arguments_by_user else ({}, _tun_problem(identity[0]) or reason)


def _tun_problem(uid: int | None) -> str:
    """Returns why the user of sessions cannot open the TUN device, which helpers need.

    Returns an empty text if the user can open it.
    """
    try:
        mode = Path(_TUN_PATH).stat().st_mode
    except OSError:
        return f"this machine has no {_TUN_PATH}"
    is_open = os.access(_TUN_PATH, os.R_OK | os.W_OK) if uid is None else mode & 0o006 == 0o006
    return "" if is_open else f"{_TUN_PATH} is not open to the user of sessions: chmod 0666 {_TUN_PATH}"


def _search_path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin:/sbin:/bin"


def _try_helper(arguments_by_user: dict[str, Any], identity: Sequence[int | None], *, as_root: bool) -> str:
    """Makes a network with a helper, and removes it. Returns the reason of a failure, or an empty text."""
    network_plan: dict[str, Any] = {
        "egress": arguments_by_user,
        "uid": identity[0],
        "gid": identity[1],
        "groups": [],
        "namespace_uid": None,
        "root-owned": as_root,
    }
    module = "ai.backend.runtime.process.supervisor.egress"
    code = f"import sys; sys.path.append({str(_SOURCE_ROOT)!r}); from {module} import main; main()"
    command = [os.path.realpath(sys.executable), "-I", "-S", "-c", code, json.dumps(network_plan)]
    try:
        completed = subprocess.run(
            command, capture_output=True, timeout=2 * TIMEOUT_S, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return "" if completed.returncode == 0 else completed.stderr.decode(errors="replace").strip()[-200:] or "it failed"


def resolver_file() -> bytes:
    """Returns the content of /etc/resolv.conf for a session whose network helper resolves host names."""
    try:
        host_lines = Path("/etc/resolv.conf").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        host_lines = []
    lines = [line for line in host_lines if line.split(" ")[0] in ("search", "domain", "options")]
    return "".join(f"{line}\n" for line in [f"nameserver {NAME_SERVER}", *lines]).encode()
