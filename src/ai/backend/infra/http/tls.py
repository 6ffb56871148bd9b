"""TLS contexts of the daemons' servers."""

from __future__ import annotations

import ssl
from pathlib import Path

from ai.backend.common.errors import InvalidInput


def tls_of(certificate: Path, key: Path) -> ssl.SSLContext:
    """Returns the TLS context of servers, from the settings.

    Args:
        certificate: with those that vouch for it, in PEM.
        key: without a passphrase, in PEM.

    Raises:
        InvalidInput: one of them is missing or wrong, or they do not belong together.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate.expanduser(), key.expanduser(), password=lambda: "")
    except (OSError, ssl.SSLError) as e:
        why = e.reason if isinstance(e, ssl.SSLError) and e.reason else e.strerror
        raise InvalidInput(f"The certificate {certificate} or its key {key} cannot be used: {why}.") from None
    return context
