"""Certificates for servers of tests."""

from __future__ import annotations

import subprocess
from pathlib import Path


def self_signed(place: Path) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that vouches for itself, and its key, in PEM; made by openssl."""
    cert, key = place / "cert.pem", place / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    subprocess.run([*command, "-out", str(cert), "-keyout", str(key)], check=True, capture_output=True)
    return cert, key
