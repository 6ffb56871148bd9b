"""Stores the passwords of the embedded cluster's users for its console, until the users choose other passwords."""

from __future__ import annotations

import secrets
from pathlib import Path

from argon2 import PasswordHasher

from ai.backend.infra.files import write_atomically
from ai.backend.standalone.layout import Layout

_PASSWORD_BYTES = 12
_QUICK_HASHER = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
"""Enough for 96 random bits, which nobody guesses; the default parameters would take 64 MiB at each start."""


def stored_password(layout: Layout, email: str) -> str | None:
    """Returns the password that ``up`` prints for a user. Returns None if the user has chosen another one."""
    try:
        return _password_file(layout, email).read_text().strip() or None
    except FileNotFoundError:
        return None


def make_password(layout: Layout, email: str) -> str:
    """Returns a user's random password. The password is created and stored at the first call."""
    password = stored_password(layout, email)
    if password is None:
        password = secrets.token_urlsafe(_PASSWORD_BYTES)
        write_atomically(_password_file(layout, email), password.encode())
    return password


def forget_password(layout: Layout, email: str) -> None:
    """Removes the stored password of a user."""
    _password_file(layout, email).unlink(missing_ok=True)


def hash_of_random(password: str) -> str:
    """Hashes a password of :func:`make_password` by argon2id with small parameters, in less than a millisecond."""
    return _QUICK_HASHER.hash(password)


def _password_file(layout: Layout, email: str) -> Path:
    return layout.keys / f"{email.partition('@')[0]}.password"
