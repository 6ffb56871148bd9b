"""The key pair with which the kernels of a session log in to each other (spec 03-01, "Detection of clustered setups").

It follows from a secret of this agent, or for a session over several agents from one that the manager told them, and
the session's id: every kernel of the session has the same one, also after a restart of either, and nothing has to be
kept or removed. It opens nothing but this session's kernels.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from ai.backend.plugin.runtime import HOME

SSH_PORT = 2200
DIRECTORY = "/home/config/ssh"
PRIVATE_KEY = f"{DIRECTORY}/id_cluster"
PUBLIC_KEY = f"{DIRECTORY}/id_cluster.pub"
USER_KEY = f"{DIRECTORY}/id_user.pub"
CONTAINER_KEY = f"{HOME}/id_container"
CLIENT_CONFIG = "/etc/ssh/ssh_config"


def cluster_key_files(secret: bytes, session_id: str, hosts: Sequence[str]) -> dict[str, bytes]:
    """The files of every kernel by path; only the session's user may read ``PRIVATE_KEY``.

    Empty where the extra ``ssh`` (package cryptography) is not installed: there is no server to log in to either.
    """
    pair = _key_pair(secret, "cluster", session_id)
    if pair is None:
        return {}
    return {PRIVATE_KEY: pair[0], PUBLIC_KEY: pair[1], CLIENT_CONFIG: client_config(hosts).encode()}


def container_key_files(secret: bytes, session_id: str) -> dict[str, bytes]:
    """The key pair with which a user logs in, in the home, whence clients fetch it (spec 03-11, "Accessing sessions
    via native SSH/SFTP"). It follows from the secret likewise, so that it stays the same while the session lives."""
    pair = _key_pair(secret, "container", session_id)
    return {} if pair is None else {CONTAINER_KEY: pair[0], f"{CONTAINER_KEY}.pub": pair[1]}


def _key_pair(secret: bytes, purpose: str, session_id: str) -> tuple[bytes, bytes] | None:
    """(private, public) in OpenSSH's format; None without the package cryptography."""
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
    except ImportError:
        return None
    seed = hmac.digest(secret, f"{purpose}-ssh {session_id}".encode(), "sha256")
    key = Ed25519PrivateKey.from_private_bytes(seed)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    return private, public + f" {purpose}@{session_id}\n".encode()


def client_config(hosts: Sequence[str]) -> str:
    """For ``ssh sub1`` without a question. The network is the session's alone, so hosts need not prove who they are."""
    lines = ["Include /etc/ssh/ssh_config.d/*.conf", f"Host {' '.join(hosts)}", f"    Port {SSH_PORT}", "    User work"]
    lines += [f"    IdentityFile {PRIVATE_KEY}", "    StrictHostKeyChecking no", "    UserKnownHostsFile /dev/null"]
    return "\n".join([*lines, "    LogLevel ERROR", ""])
