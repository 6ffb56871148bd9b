"""Refuses the secrets of the example files if other machines can reach what the secrets protect."""

from __future__ import annotations

import ipaddress

from pydantic import SecretStr

_EXAMPLE_SECRET_PREFIX = "change-me"
"""How every secret of `deploy/config` begins, which the packages install."""


def refuse_example(host: str, **secrets: SecretStr | str | None) -> None:
    """Raises ValueError if a secret, named by its key, is that of an example file and ``host`` is no loopback address.

    Everybody knows such a secret.
    """
    if _is_loopback(host):
        return
    for key, secret in secrets.items():
        secret_text = secret.get_secret_value() if isinstance(secret, SecretStr) else secret or ""
        if secret_text.startswith(_EXAMPLE_SECRET_PREFIX):
            raise ValueError(
                f"{key.replace('_', '-')} is still that of the example, and {host or 'all addresses'} is"
                " open to others: write one of your own, as of `openssl rand -hex 32`"
            )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
