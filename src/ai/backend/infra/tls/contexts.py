"""Makes contexts of TLS 1.3 for connections between our own daemons, which know each other by certificates."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable

from ai.backend.infra.tls.certificates import TlsIdentity


def server_context(identity: TlsIdentity, authorities: Iterable[str] | None = None) -> ssl.SSLContext:
    """Returns a context of a server with this certificate. Raises OSError.

    With ``authorities``, certificates in PEM, each client needs a valid certificate of one of these.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    _load_identity(context, identity)
    if authorities is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        for authority in authorities:
            context.load_verify_locations(cadata=authority)
    return context


def unverified_client_context() -> ssl.SSLContext:
    """Returns a client context that trusts every certificate. The caller must compare the fingerprint."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def pinned_client_context(server_certificate: str, identity: TlsIdentity) -> ssl.SSLContext:
    """Returns a context of a client that presents ``identity`` to servers with this certificate. Raises OSError.

    The host name is not compared, since the certificate alone decides.
    """
    context = unverified_client_context()
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=server_certificate)
    _load_identity(context, identity)
    return context


def _load_identity(context: ssl.SSLContext, identity: TlsIdentity) -> None:
    """Loads key and certificate from a file in memory, so that the key is never written to disk.

    The ssl module can read files only.
    """
    memory_file = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(memory_file, (identity.key + identity.certificate).encode())
        context.load_cert_chain(f"/proc/self/fd/{memory_file}")
    finally:
        os.close(memory_file)
