"""Makes SSH keys, by the package of the extra ``ssh`` or by OpenSSH."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from ai.backend.common.errors import NotSupported

_PATIENCE_S = 30.0


async def make_ssh_key_pair(comment: str) -> tuple[str, str]:
    """Public and private half of a new Ed25519 key in OpenSSH's formats.

    Raises:
        NotSupported: neither is installed.
    """
    try:
        return await asyncio.to_thread(_by_cryptography, comment)
    except ImportError:
        return await _by_openssh(comment)


def _by_cryptography(comment: str) -> tuple[str, str]:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()
    return f"{public} {comment}", private


async def _by_openssh(comment: str) -> tuple[str, str]:
    with tempfile.TemporaryDirectory() as folder:  # its mode is 700
        path = Path(folder, "key")
        try:
            process = await asyncio.create_subprocess_exec(
                "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path),
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
        except FileNotFoundError:
            raise NotSupported(
                "This server cannot make SSH keys: install the extra `ssh`, or OpenSSH; or upload a key of your own."
            ) from None
        try:
            async with asyncio.timeout(_PATIENCE_S):
                code = await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
            code = -1
        if code != 0:
            raise NotSupported(f"ssh-keygen of this server failed with {code}; upload a key of your own.")
        return await asyncio.to_thread(lambda: (path.with_suffix(".pub").read_text().strip(), path.read_text()))
