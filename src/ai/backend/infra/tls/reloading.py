"""Replaces the certificate of a server while the server runs."""

from __future__ import annotations

import logging
import ssl
import time
from pathlib import Path

from ai.backend.common.errors import InvalidInput

log = logging.getLogger(__name__)
_CHECK_S = 1.0


class ReloadedCertificate:
    """Provides the TLS context of a server, and loads the certificate again when the certificate files change.

    A new connection uses the certificate that is in the files at that time; they are checked once a second at most.
    Raises InvalidInput if the files cannot be used. Files that cannot be used later are logged, and the certificate of
    before goes on being used.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate = certificate
        self._key = key
        self._stamp = self._read_stamp()
        self._checked_at = time.monotonic()
        self.expires_at = 0.0
        """When the certificate in use expires, in seconds since 1970."""
        self._newest = self.context = self._load()
        self.context.sni_callback = self._choose_certificate

    def _choose_certificate(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """Uses the newest certificate for a new connection. OpenSSL calls this also for clients that name no host."""
        now = time.monotonic()
        if now >= self._checked_at + _CHECK_S:
            self._checked_at = now
            self._reload_changed()
        if self._newest is not self.context:
            connection.context = self._newest

    def _reload_changed(self) -> None:
        file_stamp = self._read_stamp()
        if file_stamp == self._stamp:
            return
        try:
            self._newest = self._load()
        except InvalidInput as e:  # the other file may be on its way: the next check tries again
            log.warning("%s The one of before is used.", e.message)
            return
        self._stamp = file_stamp
        log.info("the certificate %s was replaced", self._certificate)

    def _read_stamp(self) -> tuple[tuple[int, int, int], ...]:
        """Returns a value that changes with the certificate files. A missing file contributes nothing."""
        stamps = []
        for path in (self._certificate, self._key):
            try:
                status = path.stat()
            except OSError:
                continue
            stamps.append((status.st_mtime_ns, status.st_ino, status.st_size))
        return tuple(stamps)

    def _load(self) -> ssl.SSLContext:
        from ai.backend.infra.tls.authority import expiry_of  # `cryptography`: eight mebibytes that only TLS needs

        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self._certificate, self._key, password=lambda: "")
            self.expires_at = expiry_of(self._certificate).timestamp()
        except (OSError, ssl.SSLError) as e:
            reason = e.reason if isinstance(e, ssl.SSLError) and e.reason else e.strerror
            file_description = f"The certificate {self._certificate} or its key {self._key}"
            raise InvalidInput(f"{file_description} cannot be used: {reason}.") from None
        return context
