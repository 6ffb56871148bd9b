"""The key pair with which the kernels of a session log in to each other (spec 03-01, "Detection of clustered setups").

It follows from a secret of this agent and the session's id: every kernel of the session here has the same one, also
after a restart of either, and nothing has to be kept or removed. It opens nothing but this session's kernels.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence

SSH_PORT = 2200
DIRECTORY = "/home/config/ssh"
PRIVATE_KEY = f"{DIRECTORY}/id_cluster"
PUBLIC_KEY = f"{DIRECTORY}/id_cluster.pub"
CLIENT_CONFIG = "/etc/ssh/ssh_config"


def cluster_key_files(secret: bytes, session_id: str, hosts: Sequence[str]) -> dict[str, bytes]:
    """The files of every kernel by path; only the session's user may read ``PRIVATE_KEY``.

    Empty where the extra ``ssh`` (package cryptography) is not installed: there is no server to log in to either.
    """
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
    except ImportError:
        return {}
    seed = hmac.digest(secret, f"cluster-ssh {session_id}".encode(), "sha256")
    key = Ed25519PrivateKey.from_private_bytes(seed)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return {
        PRIVATE_KEY: key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()),
        PUBLIC_KEY: public + f" cluster@{session_id}\n".encode(),
        CLIENT_CONFIG: client_config(hosts).encode(),
    }


def client_config(hosts: Sequence[str]) -> str:
    """For ``ssh sub1`` without a question. The network is the session's alone, so hosts need not prove who they are."""
    lines = ["Include /etc/ssh/ssh_config.d/*.conf", f"Host {' '.join(hosts)}", f"    Port {SSH_PORT}", "    User work"]
    lines += [f"    IdentityFile {PRIVATE_KEY}", "    StrictHostKeyChecking no", "    UserKnownHostsFile /dev/null"]
    return "\n".join([*lines, "    LogLevel ERROR", ""])
