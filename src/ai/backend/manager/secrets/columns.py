"""Columns of secrets."""

from __future__ import annotations

from ai.backend.manager.secrets.sealer import Sealer


def sealed(sealer: Sealer, access_key: str, secret_key: str) -> str:
    """A secret as its row keeps it: it can be opened in that row only."""
    return sealer.seal(secret_key, f"keypairs.secret_key:{access_key}")


def opened(sealer: Sealer, access_key: str, stored: str) -> str:
    """Raises InternalError where the key is missing that it was sealed with."""
    return sealer.open(stored, f"keypairs.secret_key:{access_key}")
