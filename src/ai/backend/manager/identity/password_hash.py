"""Passwords by argon2id, with the library's parameters. Slow by design: call them in a thread."""

from __future__ import annotations

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

_HASHER = PasswordHasher()


def hash_password(password: str) -> str:
    return _HASHER.hash(password)


def verify_password(kept: str, given: str) -> bool:
    """Whether ``given`` is the password of which ``kept`` is the hash."""
    try:
        return _HASHER.verify(kept, given)
    except (VerificationError, InvalidHashError):
        return False
