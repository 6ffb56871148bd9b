"""Seals and opens the secret keys of keypairs."""

from __future__ import annotations

from ai.backend.manager.secrets.sealer import Sealer


def sealed(sealer: Sealer, access_key: str, secret_key: str) -> str:
    """Seals a secret key for its row; it can be opened in that row only."""
    return sealer.seal(secret_key, f"keypairs.secret_key:{access_key}")


def opened(sealer: Sealer, access_key: str, stored: str) -> str:
    """Opens a secret key. Raises InternalError if the key that sealed it is missing."""
    return sealer.open(stored, f"keypairs.secret_key:{access_key}")
