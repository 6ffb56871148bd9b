"""Makes and reads SSH keys in the file formats of OpenSSH."""

from __future__ import annotations

import base64
from typing import NamedTuple

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

KINDS = frozenset(
    {
        "ssh-ed25519",
        "ssh-rsa",
        "ecdsa-sha2-nistp256",
        "ecdsa-sha2-nistp384",
        "ecdsa-sha2-nistp521",
        "sk-ssh-ed25519@openssh.com",
        "sk-ecdsa-sha2-nistp256@openssh.com",
    }
)
"""The kinds of public keys that an SSH server of a session accepts."""


class SshKeyPair(NamedTuple):
    """Holds a public key as a line of ``authorized_keys``, and a private key in PEM without a passphrase."""

    public: str
    private: str


def generate_key_pair(comment: str) -> SshKeyPair:
    """Creates a random Ed25519 key pair."""
    return _key_pair(Ed25519PrivateKey.generate(), comment)


def derive_key_pair(seed: bytes, comment: str) -> SshKeyPair:
    """Returns the Ed25519 key pair of a seed of 32 bytes."""
    return _key_pair(Ed25519PrivateKey.from_private_bytes(seed), comment)


def _key_pair(key: Ed25519PrivateKey, comment: str) -> SshKeyPair:
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
    private_key_format = (serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
    return SshKeyPair(f"{public} {comment}", key.private_bytes(*private_key_format).decode())


def normalize_public_key(key_text: str) -> str:
    """Returns a public key as one line: kind, key and comment, without options. Raises ValueError."""
    kind, _, remainder = key_text.strip().partition(" ")
    encoded_key, _, comment = remainder.strip().partition(" ")
    if kind not in KINDS or not key_text.strip().isprintable():
        raise ValueError(f"A public key is one line that begins with its kind: {', '.join(sorted(KINDS))}.")
    try:
        base64.b64decode(encoded_key, validate=True)
        serialization.load_ssh_public_key(f"{kind} {encoded_key}".encode())
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError("The public key was damaged.") from None
    return " ".join(field for field in (kind, encoded_key, comment.strip()) if field)


def are_of_one_pair(public: str, private: str) -> bool:
    """Returns True if a normalized public key and a private key in PEM belong together. Raises ValueError for a damaged
    key.

    A private key with a passphrase, or in a hardware token, cannot be read, and counts as belonging.
    """
    try:
        key = _load_private_key(private.strip().encode())
    except (TypeError, UnsupportedAlgorithm):
        return True
    return key.public_key() == serialization.load_ssh_public_key(public.encode())


def _load_private_key(pem: bytes) -> PrivateKeyTypes:
    """Loads a private key without validation, which takes seconds for a large RSA key. Raises ValueError or
    TypeError."""
    is_openssh = pem.startswith(b"-----BEGIN OPENSSH PRIVATE KEY-----")
    load_key = serialization.load_ssh_private_key if is_openssh else serialization.load_pem_private_key
    return load_key(pem, None, unsafe_skip_rsa_key_validation=True)
