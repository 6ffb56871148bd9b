"""Makes the key pair with which the kernels of a session log in to each other (spec 03-01, "Detection of clustered
setups").

It is derived from the session's id and a secret: this agent's, or the manager's for a session over several agents. So
every kernel has the same pair, also after a restart, and nothing is stored.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from ai.backend.infra.ssh_keys import SshKeyPair, derive_key_pair
from ai.backend.plugin.runtime import HOME

SSH_PORT = 2200
DIRECTORY = "/home/config/ssh"
PRIVATE_KEY = f"{DIRECTORY}/id_cluster"
PUBLIC_KEY = f"{DIRECTORY}/id_cluster.pub"
USER_KEY = f"{DIRECTORY}/id_user.pub"
CONTAINER_KEY = f"{HOME}/id_container"
CLIENT_CONFIG = "/etc/ssh/ssh_config"


def cluster_key_files(secret: bytes, session_id: str, hosts: Sequence[str]) -> dict[str, bytes]:
    """Returns the key files of every kernel by path; only the session's user may read ``PRIVATE_KEY``."""
    key_pair = _key_pair(secret, "cluster", session_id)
    return {
        PRIVATE_KEY: key_pair.private.encode(),
        PUBLIC_KEY: f"{key_pair.public}\n".encode(),
        CLIENT_CONFIG: client_config(hosts).encode(),
    }


def container_key_files(secret: bytes, session_id: str) -> dict[str, bytes]:
    """Returns the derived key pair with which a user logs in (spec 03-11, "native SSH/SFTP"), in the home."""
    key_pair = _key_pair(secret, "container", session_id)
    return {CONTAINER_KEY: key_pair.private.encode(), f"{CONTAINER_KEY}.pub": f"{key_pair.public}\n".encode()}


def _key_pair(secret: bytes, purpose: str, session_id: str) -> SshKeyPair:
    seed = hmac.digest(secret, f"{purpose}-ssh {session_id}".encode(), "sha256")
    return derive_key_pair(seed, f"{purpose}@{session_id}")


def client_config(hosts: Sequence[str]) -> str:
    """Returns a configuration for ``ssh sub1``. Host keys are not checked: only this session's kernels are reached."""
    lines = ["Include /etc/ssh/ssh_config.d/*.conf", f"Host {' '.join(hosts)}", f"    Port {SSH_PORT}", "    User work"]
    lines += [f"    IdentityFile {PRIVATE_KEY}", "    StrictHostKeyChecking no", "    UserKnownHostsFile /dev/null"]
    return "\n".join([*lines, "    LogLevel ERROR", ""])
